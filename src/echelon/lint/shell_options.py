"""Which options of bash, such as errexit, are in effect at a place of a script.

Options are set by the `#!` line, by `set`, and by `set` in files that the script sources.
"""

import re

from echelon.lint.bash import Shell
from echelon.lint.files import Files, find_file
from echelon.lint.patterns import pattern

_SETS_OPTIONS = pattern(r"(?m)^[ \t]*set[ \t]+([-+])([^\n#;&|]*)")
_OF_ENVIRONMENT = pattern(r"activate|conda|mamba|bashrc|profile|module|lmod|setvars|env$|/init/|^/")
"""Files that set up an environment, and no options of the shell."""


class ShellOptions:
    """The options of one shell."""

    def __init__(self, shell: Shell, files: Files) -> None:
        self._texts = [(-1, shell.text.split("\n", 1)[0].replace("#!", "set -", 1))]
        self.unclear = False
        """The script sources a file that lint does not find, and that may set options."""
        for command in shell.commands:
            if command.name == "set" and not command.substituted:
                self._texts.append((command.start, command.text))
            elif command.name in ("source", ".") and command.arguments:
                name = command.arguments[0].text
                text = files.read(find_file(files, name, (shell.path, "")))
                self.unclear |= text is None and not _OF_ENVIRONMENT.search(name)
                self._texts.append((command.start, text or ""))

    def has(self, option: str, at: int) -> bool:
        """Tell whether errexit or pipefail is in effect at an offset of the script."""
        state = False
        for start, text in self._texts:
            for sign, rest in _SETS_OPTIONS.findall(text) if start < at else ():
                short = option == "errexit" and re.search(r"(?:^|\s[-+])[A-Za-z]*e", rest)
                if short or option in rest:
                    state = sign == "-"
        return state
