"""Calls of `echelon` that pages mention and nobody runs: at least their commands and options exist.

Pure, but for the command line's own tree of commands.
"""

import re
import shlex
from collections.abc import Iterator
from typing import Any

from docs.page import NotRun, Page

_INLINE = re.compile(r"(?<!`)`((?:\w+=\S+ )*(?:\.venv/bin/)?echelon [^`]+)`(?!`)")
_FENCED = re.compile(r"^ *(`{3,}).*?^ *\1`*$", re.MULTILINE | re.DOTALL)
_CALL = re.compile(r"(?:^|[\s(;&|])(?:\.venv/bin/)?echelon (?P<words>[^\n)]*)")
_OPEN = ("…", "|", "\\|", ";", "&&", "&", "#", "--", "/", ">", "<")
"""Where what we can judge ends."""
_EVERYWHERE = ("-h", "--help", "--install-completion", "--show-completion")


def mentioned(page: Page) -> Iterator[str]:
    """Return what is written after `echelon` in text, and in blocks that are not run."""
    text = _FENCED.sub("", "\n".join(page.lines))
    found = [match[1] for match in _INLINE.finditer(text)]
    found += [step.content.replace("\\\n", " ") for step in page.steps if isinstance(step, NotRun)]
    for place in found:
        yield from (match["words"] for match in _CALL.finditer(place))


def find_fault(words: str, command: Any) -> str:
    """Return what is wrong with a call, or nothing; `command` is what typer makes of the app."""
    waiting = _split(words)
    while waiting:
        word = waiting.pop(0).strip("[]")
        if word in _OPEN or word.endswith(";"):
            return ""
        if word.startswith("-"):
            if word in _EVERYWHERE:
                return ""  # it ends the call, or takes what the shell is called
            option = _option(command, word.partition("=")[0])
            if option is None:
                return f"'{command.name}' has no option {word}"
            if not option.is_flag and "=" not in word and waiting:
                waiting.pop(0)
        elif hasattr(command, "commands"):
            if word not in command.commands:
                fine = word.isupper() or _takes_script(command)  # a group may be a command too
                return "" if fine else f"'{command.name}' has no command '{word}'"
            command = command.commands[word]
        elif _takes_script(command):
            return ""  # the rest is for the script
    return ""


def _takes_script(command: Any) -> bool:
    return any(parameter.name in ("args", "command") for parameter in command.params)


def _split(words: str) -> list[str]:
    try:
        return shlex.split(words, comments=True)
    except ValueError:
        return words.split()


def _option(command: Any, name: str) -> Any:
    for parameter in command.params:
        if name in (*parameter.opts, *parameter.secondary_opts):
            return parameter
    return None
