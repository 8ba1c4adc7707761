"""Runs plain calls of the commands that users repeat most, without the library for command lines.

Loading that library takes nearly as long as the command itself: `ps` needs 0.08 s without it, and
0.13 s with it. A command for another host would load it on both machines. All other calls, such as
--help or invalid ones, are left to the library, which gets the options from the same table
(`cli/runs.py`).
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from echelon.run.directory import RUNS


class Option(NamedTuple):
    """An option of a command."""

    words: tuple[str, ...]
    """Its spellings, the longest at last."""
    help: str
    kind: type = bool
    """The type of its value; `list` if it can be repeated."""
    metavar: str = ""
    name: str = ""
    """The parameter, if it is not named as the option."""

    @property
    def parameter(self) -> str:
        return self.name or self.words[-1][2:]

    def read(self, text: str) -> Any:
        """Return the value in a text; None if it is invalid. Pure."""
        if self.kind is int:
            plain = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
            return int(text) if plain else None
        return True if self.kind is bool else text if text and text[0] != "-" else None

    @property
    def unset(self) -> Any:
        """The value if the option is not given."""
        return {bool: False, str: "", list: []}.get(self.kind)


class Options(NamedTuple):
    """The options and the argument of a command, except `--runs-dir`, `--cluster` and `--host`."""

    options: tuple[Option, ...]
    run: str | None = "last"
    """The default run; empty if the run is required, None if the command takes none."""


JSON = Option(("--json",), "Output JSON.", name="as_json")
ADDRESS = Option(("--address",), "New Ray dashboard URL, for a run on Ray.", str, "URL")
COMMANDS = {
    "ps": Options(
        (
            Option(
                ("--state",), "List only runs in this state, such as running or PD.", list, "STATE"
            ),
            Option(("-n", "--last"), "List only the N newest runs.", int, "N"),
            JSON,
        ),
        run=None,
    ),
    "status": Options((JSON,)),
    "logs": Options(
        (
            Option(("-f", "--follow"), "Keep printing until the run ends."),
            Option(
                ("--rank",), "Print only lines of these ranks, such as 3 or 0,4-7.", list, "RANKS"
            ),
            Option(("-n", "--tail"), "Print only the last N lines.", int, "N"),
            Option(
                ("--since",),
                "Print only lines since then: 10m ago, or at 2026-01-31T17:00.",
                str,
                "TIME",
            ),
            Option(("--raw",), "Print lines unchanged, with control characters not escaped."),
            Option(("--debug",), "Print the debug logs of controller and agents instead."),
        )
    ),
    "stop": Options((ADDRESS,), run=""),
    "cancel": Options((ADDRESS,), run=""),
    "why": Options((JSON,)),
}
_PLACE = (Option(("--cluster",), "", str), Option(("--host",), "", str))
"""Options that name the host of a run."""
_MOST_DIGITS = 9


class Call(NamedTuple):
    """A call of a command."""

    name: str
    values: dict[str, Any]
    """Its parameters; also `cluster` and `host`."""
    line: list[str]
    """The command and its options, without the run and its host."""


def parse(arguments: Sequence[str]) -> Call | None:
    """Return a call; None if the library has to parse it. Pure."""
    command = COMMANDS.get(arguments[0]) if arguments else None
    if command is None:
        return None
    known = {word: one for one in (*command.options, *_PLACE) for word in one.words}
    values: dict[str, Any] = {one.parameter: one.unset for one in known.values()}
    line, runs, words = [arguments[0]], list[str](), list(arguments[1:])
    while words and words[0] != "--":
        word, equals, text = words.pop(0).partition("=")
        if not word.startswith("-"):
            runs.append(f"{word}{equals}{text}")
            continue
        option = known.get(word)
        if option is None or (option.kind is bool and equals):
            return None
        if option.kind is not bool and not equals:
            text = words.pop(0) if words else ""
        value = option.read(text)
        if value is None:
            return None
        before = values[option.parameter]
        values[option.parameter] = [*before, value] if option.kind is list else value
        if option not in _PLACE:
            line.append(option.words[-1] if value is True else f"{option.words[-1]}={value}")
    runs += words[1:]
    if command.run is not None:
        runs = runs or [command.run]
        values["run"] = runs.pop(0)
    return None if runs or values.get("run") == "" else Call(arguments[0], values, line)


def run_quickly(arguments: Sequence[str]) -> int | None:
    """Run a plain call, and return its exit code; None if the library has to parse the call."""
    call = parse(arguments)
    if call is None or "_ECHELON_COMPLETE" in os.environ:
        return None
    from echelon.cli.routing import route  # noqa: PLC0415

    def command(**values: Any) -> int | None:
        from echelon.cli import run_commands  # noqa: PLC0415  only for runs of this machine

        code: int | None = getattr(run_commands, call.name)(**values)
        return code

    runs_dir = Path(os.environ.get("ECHELON_RUNS_DIR") or RUNS)
    values = {**call.values, "runs_dir": runs_dir}
    cluster, host = values.pop("cluster"), values.pop("host")
    return route(command, None, values, call.line, cluster=cluster, host=host)
