"""`echelon watch`: a live view of a run in the terminal."""

import time
from collections import deque
from typing import TYPE_CHECKING, Annotated

import typer

from echelon.cli import console
from echelon.cli.help import LOOK
from echelon.cli.host_options import on_host
from echelon.cli.remote import in_terminal
from echelon.cli.runs import RUNS, Run, RunsDir
from echelon.core.visible import settled
from echelon.errors import UsageError
from echelon.run.directory import RunDir
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

    Ctrl-C ends the view, not the run.

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
    """Collects what is shown of a run."""

    def __init__(self, run: RunDir) -> None:
        from echelon.monitor.reading import RunReader  # noqa: PLC0415
        from echelon.run.rank_logs import RunLogs  # noqa: PLC0415

        self._reader = RunReader(run)
        self._logs = RunLogs(run.logs, recent=_RECENT)
        self._lines = deque[str](maxlen=_LOGS)

    def view(self) -> "View":
        from echelon.monitor.accounting import account  # noqa: PLC0415
        from echelon.monitor.frame import View  # noqa: PLC0415

        state = self._reader.read()
        for line in self._logs.read(over=False, now_s=time.time()):
            self._lines.append(f"{line.rank}: {settled(line.text)}")
        return View(
            state=state,
            history=self._reader.history,
            effective=account(state).render(),
            logs=tuple(self._lines),
            now_s=time.time(),
        )


def _print_frame(view: "View") -> None:
    from rich.console import Console  # noqa: PLC0415

    from echelon.monitor.frame import draw  # noqa: PLC0415

    size = Console().size
    for line in draw(view, width=size.width, height=size.height):
        console.print_result(line)


def _draw_live(screen: _Screen, every_s: float) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from echelon.monitor.frame import draw  # noqa: PLC0415

    terminal = Console()
    view = screen.view()
    try:
        with Live(console=terminal, screen=True, auto_refresh=False) as live:
            while True:
                size = terminal.size
                lines = draw(view, width=size.width, height=size.height - 1)
                # As plain text: output of ranks is not markup.
                live.update(Text("\n".join(lines), no_wrap=True), refresh=True)
                if (attempt := view.state.attempt) and attempt.outcome:
                    break
                time.sleep(every_s)
                view = screen.view()
    except KeyboardInterrupt:
        pass
    _print_frame(view)  # remains visible when the live screen closes
