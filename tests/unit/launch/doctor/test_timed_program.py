"""A program with a limit: it ends by itself, is asked to, or is killed with all that is its own."""

import asyncio
import os
import time
from pathlib import Path

from echelon.core.shell import LocalShell
from echelon.core.waiting import wait_until
from echelon.launch.doctor.timed_program import GRACE_S, find_descendants, run_program


def run(tmp_path, line, **limits):
    argv = ["sh", "-c", line]
    work = run_program(
        LocalShell(), argv, env=dict(os.environ), log=tmp_path / "log", **{"limit_s": 60, **limits}
    )
    return asyncio.run(work)


def test_a_program_that_exits_returns_code_and_output(tmp_path):
    assert run(tmp_path, "echo done; exit 3") == (3, "done\n")


def test_a_program_that_reaches_its_limit_may_exit_by_itself(tmp_path):
    polite = "trap 'sleep 0.3; echo left; exit 0' TERM; while :; do sleep 0.05; done"
    code, said = run(tmp_path, polite, limit_s=0.3)
    assert (code, said.splitlines()[-1]) == (None, "left")
    assert GRACE_S >= 10  # an srun has to reach its nodes


def test_a_program_that_ignores_sigterm_is_killed_with_its_descendants(tmp_path):
    deaf = f"""\
trap '' TERM
setsid sh -c 'setsid sh -c "echo \\$\\$ > {tmp_path}/pid; exec sleep 600" & wait' &
while :; do sleep 0.05; done"""
    began_s = time.monotonic()
    assert run(tmp_path, deaf, limit_s=1.0, grace_s=0.1)[0] is None
    assert time.monotonic() - began_s < 30
    state = Path("/proc", (tmp_path / "pid").read_text().strip(), "stat")
    gone = lambda: not state.exists() or ") Z " in state.read_text()  # noqa: E731
    assert wait_until(gone, timeout_s=5)


def test_descendants_are_found_over_several_generations(tmp_path):
    for pid, parent in ((1, 0), (7, 1), (8, 7), (9, 8), (10, 1)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) b) S {parent} 1 1\n")
    (tmp_path / "11").mkdir()
    (tmp_path / "12").mkdir()
    (tmp_path / "12" / "stat").write_text("")
    assert find_descendants(7, tmp_path) == [8, 9]
    assert find_descendants(99, tmp_path) == []
