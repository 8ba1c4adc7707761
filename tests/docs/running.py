"""A page from its first step to its last: run, compare, and if wanted renew what it shows."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from docs.matching import generalise, matches, renew, shown_lines
from docs.page import Command, Console, Page, PageError, Step, Unseen, WrittenFile
from docs.session import CommandError, Session, start_session


@dataclass(kw_only=True)
class Seen:
    """What a page's commands have printed, in their order."""

    commands: list[tuple[Command, list[str]]] = field(default_factory=list)
    times_s: list[tuple[int, float]] = field(default_factory=list)
    """Line and seconds of every command, unseen ones too."""


def run_page(page: Page, *, compare: bool = True) -> Seen:
    """Run a page.

    Raises:
        PageError: a command failed, hung, or printed something else.
    """
    with start_session(page) as session:
        run = _Run(page, session)
        for step in page.steps:
            run.take(step, compare=compare)
    return run.seen


def render_renewed(page: Page, first: Seen, last: Seen) -> str:
    """Return the page with what its commands printed, where two runs do not agree with it."""
    lines = list(page.lines)
    pairs = list(zip(first.commands, last.commands, strict=True))
    for (command, one), (_command, other) in reversed(pairs):
        if matches(command.expected, one) and matches(command.expected, other):
            continue
        shown = renew(command.expected, generalise(one, other))
        end = command.first + len(command.expected)
        lines[command.first : end] = [f"{command.indent}{line}".rstrip() for line in shown]
    return "\n".join(lines)


class _Run:
    def __init__(self, page: Page, session: Session) -> None:
        self.seen = Seen()
        self._page, self._session = page, session

    def take(self, step: Step, *, compare: bool) -> None:
        if isinstance(step, WrittenFile):
            path = self._session.project / step.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.content)
        elif isinstance(step, Unseen):
            self._run(step, step.limit_s, 0)
        elif isinstance(step, Console):
            self._take_console(step, compare=compare)

    def _take_console(self, step: Console, *, compare: bool) -> None:
        for command in step.commands:
            code = step.exit_code if command is step.commands[-1] else 0
            lines = self._run(command, step.limit_s, code)
            if not step.compared:
                continue
            self.seen.commands.append((command, lines))
            if compare and not matches(command.expected, lines):
                told = f"expected:\n{_indent(command.expected)}\nprinted:\n{_indent(lines)}"
                raise self._fault(command, f"printed something else.\n{told}")

    def _run(self, command: Command | Unseen, limit_s: float, code: int) -> list[str]:
        began = time.monotonic()
        try:
            ended = self._session.run(command.text, limit_s)
        except CommandError as error:
            raise self._fault(command, str(error)) from error
        self.seen.times_s.append((command.line, time.monotonic() - began))
        lines = shown_lines(ended.output)
        if ended.code != code:
            told = f"ended with {ended.code}, not {code}; it printed:\n{_indent(lines)}"
            raise self._fault(command, told)
        return lines

    def _fault(self, command: Command | Unseen, told: str) -> PageError:
        return PageError(f"{self._page.name}:{command.line}: $ {command.text}\n{told}")


def _indent(lines: Sequence[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)
