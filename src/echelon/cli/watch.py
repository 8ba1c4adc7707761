"""`echelon watch`: a live view of a run in the terminal."""

import contextlib
import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from echelon.cli import console
from echelon.cli.help import LOOK
from echelon.cli.remote import in_terminal
from echelon.cli.run_options import Run, RunsDir, on_host
from echelon.core.terminal_escape import settled
from echelon.errors import UsageError
from echelon.run.attempts import find_clock_lead
from echelon.run.directory import RUNS, RunDir
from echelon.run.listing import find_run

if TYPE_CHECKING:
    from echelon.monitor.frame import View

app = typer.Typer(rich_markup_mode=None)

_LOGS = 20
"""Number of output lines that are kept."""
_RECENT = 4096
"""Bytes that are read of a log that already exists."""


@app.command(rich_help_panel=LOOK)
@on_host(in_terminal)
def watch(
    run: Run = "last",
    *,
    runs_dir: RunsDir = RUNS,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
    every: Annotated[float, typer.Option(metavar="SECONDS", help="Time between two frames.")] = 1.0,
) -> None:
    """Show a run live: ranks, nodes, GPUs, progress.

    The straggler comes first, if the others wait for one. q or Ctrl-C ends the view, not the run.

    Example: echelon watch last
    """
    if not once and not console.is_terminal():
        raise UsageError("stdout is not a terminal", hint="print one frame: --once")
    screen = _Screen(find_run(runs_dir, run))
    if once:
        _print_frame(screen.view())
    else:
        _draw_live(screen, every)


class _Screen:
    """Collects the state and the output of a run for a frame."""

    def __init__(self, run: RunDir) -> None:
        from echelon.monitor.reading import RunReader  # noqa: PLC0415
        from echelon.run.rank_logs import RunLogs  # noqa: PLC0415

        self._run, self._reader = run, RunReader(run)
        self._logs = RunLogs(run.logs, recent=_RECENT)
        self._lines = deque[str](maxlen=_LOGS)

    def view(self) -> "View":
        from echelon.monitor.accounting import account  # noqa: PLC0415
        from echelon.monitor.frame import View  # noqa: PLC0415

        state = self._reader.read()
        for line in self._logs.read(over=False, now_s=time.time()):
            self._lines.append(f"{line.rank}: {settled(line.text)}")
        lead_s = find_clock_lead(self._run, state.attempt.number) if state.attempt else 0.0
        return View(
            state=state,
            history=self._reader.history,
            effective=account(state).render(),
            logs=tuple(self._lines),
            now_s=time.time() - lead_s,
        )


def _print_frame(view: "View") -> None:
    from rich.console import Console  # noqa: PLC0415

    from echelon.monitor.frame import draw  # noqa: PLC0415

    size = Console().size
    for line in draw(view, width=size.width, height=size.height):
        console.print_result(line)


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits for a key for so many seconds, and returns the key."""
    if not (sys.stdin and sys.stdin.isatty()):

        def pause(wait_s: float) -> str:
            time.sleep(wait_s)
            return ""

        yield pause
        return
    import termios  # noqa: PLC0415  only for a terminal
    import tty  # noqa: PLC0415

    terminal = sys.stdin.fileno()

    def read(wait_s: float) -> str:
        if not select.select([terminal], [], [], wait_s)[0]:
            return ""
        return os.read(terminal, 1).decode(errors="replace") or "q"  # the terminal was closed

    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield read
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _draw_live(screen: _Screen, every_s: float) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from echelon.monitor.frame import draw  # noqa: PLC0415

    terminal = Console()
    view = screen.view()
    try:
        with (
            Live(console=terminal, screen=True, auto_refresh=False) as live,
            _keys() as read_key,
        ):
            while True:
                size = terminal.size
                lines = [*draw(view, width=size.width, height=size.height - 1), "press q to quit"]
                # As plain text: output of ranks is not markup.
                live.update(Text("\n".join(lines), no_wrap=True), refresh=True)
                if (attempt := view.state.attempt) and attempt.outcome:
                    break
                if read_key(every_s) in ("q", "Q"):
                    break
                view = screen.view()
    except KeyboardInterrupt:
        pass
    _print_frame(view)  # remains visible when the live screen closes
