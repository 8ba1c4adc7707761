"""Runs plain calls of the commands that users repeat most, without the library for command lines.

Loading that library takes nearly as long as the command itself: `ps` needs 0.08 s without it, and
0.13 s with it. A command for another host would load it on both machines. All other calls, such as
--help or invalid ones, are left to the library.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from echelon.run.directory import RUNS


class Options(NamedTuple):
    """The options and the argument of a command, except `--cluster` and `--host`."""

    run: str | None = "last"
    """The default run; empty if the run is required, None if the command takes none."""
    flags: Mapping[str, str] = {"--json": "as_json"}
    """Word → parameter."""
    valued: Mapping[str, tuple[str, type]] = {}
    """Word → parameter and the type of its value; a list if the option can be repeated."""


COMMANDS = {
    "ps": Options(
        run=None, valued={"--state": ("state", list), "-n": ("last", int), "--last": ("last", int)}
    ),
    "status": Options(),
    "why": Options(),
    "logs": Options(
        flags={"-f": "follow", "--follow": "follow", "--raw": "raw", "--debug": "debug"},
        valued={
            "--rank": ("rank", list),
            "-n": ("tail", int),
            "--tail": ("tail", int),
            "--since": ("since", str),
        },
    ),
    "stop": Options(run="", flags={}),
    "cancel": Options(run="", flags={}),
}
_SITE_OPTIONS = {"--cluster": "cluster", "--host": "host"}
_MOST_DIGITS = 9
_UNSET: Mapping[type, Any] = {int: None, str: "", list: []}


class Call(NamedTuple):
    """A call of a command."""

    name: str
    values: dict[str, Any]
    """Its parameters; also `cluster` and `host`."""

    def line(self) -> list[str]:
        """Return the command and its options, without the run and its host."""
        options, values = COMMANDS[self.name], self.values
        words = [
            f"{word}={value}"
            for word, (name, kind) in options.valued.items()
            if word[1] == "-"
            for value in (values[name] if kind is list else [values[name]])
            if value not in (None, "")
        ]
        words += [word for word, name in options.flags.items() if values[name] and word[1] == "-"]
        return [self.name, *words]


def parse(arguments: Sequence[str]) -> Call | None:
    """Return a call; None if the library has to parse it. Pure."""
    options = COMMANDS.get(arguments[0]) if arguments else None
    if options is None:
        return None
    flags = dict.fromkeys(options.flags.values(), False)
    values: dict[str, Any] = {**flags, **{n: _UNSET[kind] for n, kind in options.valued.values()}}
    values |= dict.fromkeys(_SITE_OPTIONS.values(), "")
    runs: list[str] = []
    words = list(arguments[1:])
    while words:
        word = words.pop(0)
        if word == "--":
            runs += words
            break
        if not word.startswith("-"):
            runs.append(word)
        elif word in options.flags:
            values[options.flags[word]] = True
        elif named := _take_value(word, words, options, values):
            values |= named
        else:
            return None
    if options.run is None:
        return None if runs else Call(arguments[0], values)
    if len(runs) > 1 or not (run := runs[0] if runs else options.run):
        return None
    return Call(arguments[0], {**values, "run": run})


def _take_value(
    word: str, words: list[str], options: Options, before: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an option's parameter and value, which may be the next word; empty if invalid."""
    name, equals, value = word.partition("=")
    if not equals and words:
        value = words.pop(0)
    if name in _SITE_OPTIONS and value and not value.startswith("-"):
        return {_SITE_OPTIONS[name]: value}
    parameter, kind = options.valued.get(name, ("", None))
    if kind is int and value.isascii() and value.isdecimal() and len(value) <= _MOST_DIGITS:
        return {parameter: int(value)}
    if kind in (str, list) and value and not value.startswith("-"):
        return {parameter: [*before[parameter], value] if kind is list else value}
    return {}


def run_quickly(arguments: Sequence[str]) -> int | None:
    """Run a plain call, and return its exit code; None if the library has to parse the call."""
    call = parse(arguments)
    if call is None or "_ECHELON_COMPLETE" in os.environ:
        return None
    from echelon.cli import remote  # noqa: PLC0415

    runs_dir = Path(os.environ.get("ECHELON_RUNS_DIR") or RUNS)
    values = {**call.values, "runs_dir": runs_dir}
    cluster, host = values.pop("cluster"), values.pop("host")

    def command(**values: Any) -> int | None:
        from echelon.cli import run_commands  # noqa: PLC0415  only for runs of this machine

        code: int | None = getattr(run_commands, call.name)(**values)
        return code

    elsewhere = remote.logs_there if call.name == "logs" else None
    given = remote.Given(values, call.line(), cluster, host, here=False)
    return remote.route(command, elsewhere, given)
