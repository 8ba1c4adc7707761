"""Run documentation pages, update the output they show, and list what is not run.

    .venv/bin/python tools/docs.py run PAGE…      run a page as the tests do
    .venv/bin/python tools/docs.py update PAGE…   run it twice and write its output into the page
    .venv/bin/python tools/docs.py list [PAGE…]   list requirements, and what is not run and why

`update` keeps lines with … that still match. Text that differs between the two runs becomes … .
"""

import argparse
import signal
import sys
import time
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
sys.path[0] = str(ROOT / "tests")

from docs.catalogue import page_names, read_page  # noqa: E402  needs the path set above
from docs.page import Console, NotRun, PageError, parse_page  # noqa: E402
from docs.running import render_renewed, run_page  # noqa: E402

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that request termination."""


def main() -> int:
    """Run the requested command; return the exit code."""
    for number in _ENDS:
        if signal.getsignal(number) != signal.SIG_IGN:  # keep signals ignored by nohup ignored
            signal.signal(number, _leave)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["run", "update", "list"])
    parser.add_argument("pages", nargs="*", metavar="PAGE", type=_name)
    parser.add_argument("--once", action="store_true", help="update after one run, not two")
    asked = parser.parse_intermixed_args()
    if not asked.pages and asked.what != "list":
        parser.error("which page?")
    failed = 0
    for name in asked.pages or page_names():
        try:
            if asked.what == "list":
                _list(name)
            elif asked.what == "run":
                _run(name)
            else:
                _update(name, once=asked.once)
        except PageError as error:
            print(error, file=sys.stderr)
            failed += 1
    return 1 if failed else 0


def _leave(number: int, _frame: FrameType | None) -> None:
    """Exit by an exception, so that the page's folder, sandboxes and processes are removed."""
    for one in _ENDS:  # a second signal would interrupt the cleanup
        signal.signal(one, signal.SIG_IGN)
    sys.exit(128 + number)


def _name(text: str) -> str:
    path = Path(text).resolve()
    if not path.is_file() or ROOT not in path.parents:
        raise argparse.ArgumentTypeError(f"there is no page '{text}' in this repository")
    return str(path.relative_to(ROOT))


def _run(name: str) -> None:
    began = time.monotonic()
    for line, seconds in run_page(read_page(name)).times_s:
        print(f"{name}:{line}: {seconds:.1f} s")
    print(f"{name}: as it says, in {time.monotonic() - began:.1f} s")


def _update(name: str, *, once: bool) -> None:
    page = read_page(name)
    first = run_page(page, compare=False)
    last = first if once else run_page(page, compare=False)
    text = render_renewed(page, first, last)
    if text == "\n".join(page.lines):
        print(f"{name}: nothing to change")
        return
    parse_page(name, text)  # the output may contain what looks like the end of a block
    (ROOT / name).write_text(text)
    print(f"{name}: renewed; look at what has changed (git diff)")


def _list(name: str) -> None:
    page = read_page(name)
    commands = sum(len(step.commands) for step in page.steps if isinstance(step, Console))
    needs = f"; needs {', '.join(sorted(page.needs))}" if page.needs else ""
    print(f"{name}: {commands} commands{needs}")
    for step in page.steps:
        if isinstance(step, NotRun):
            print(f"    line {step.line} is not run: {step.reason}")


if __name__ == "__main__":
    sys.exit(main())
