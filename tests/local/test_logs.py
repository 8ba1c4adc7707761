"""What ranks print reaches whoever watches: all of it, in order, at nobody's cost."""

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from echelon.core.waiting import wait_until
from started_programs import TIMEOUT_S, clean_environment, run_warm, start_run

NO_TORCH = "--set=preload="
MIB = 1 << 20


def test_what_was_printed_before_a_kill_is_shown(tmp_path):
    (tmp_path / "train.py").write_text(
        "import os\nprint('a line')\nprint('last words', end='')\nos.kill(os.getpid(), 9)\n"
    )
    ran = run_warm(tmp_path, NO_TORCH, "train.py", env=clean_environment())
    assert ran.shown == "0: a line\n0: last words\n"
    assert ran.code == 128 + signal.SIGKILL


def test_lines_of_ranks_are_never_mixed_and_keep_their_order(tmp_path):
    (tmp_path / "train.py").write_text(
        "import sys\n"
        "for number in range(10_000):\n"
        "    print(number, 'x' * (number % 100), file=(sys.stdout, sys.stderr)[number % 2])\n"
    )
    ran = run_warm(tmp_path, "--procs=2", NO_TORCH, "train.py", env=clean_environment())
    assert (ran.code, ran.warm()) == (0, True), ran.told
    lines = ran.shown.splitlines()
    expected = [f"{number} {'x' * (number % 100)}" for number in range(10_000)]
    for rank in ("0", "1"):
        assert [line[3:] for line in lines if line.startswith(f"{rank}: ")] == expected
    assert len(lines) == 20_000


def test_what_was_shown_before_ctrl_c_is_not_shown_again(tmp_path):
    (tmp_path / "train.py").write_text("import time\nprint('once')\ntime.sleep(600)\n")
    words = ["--procs=1", "--restarts=0", NO_TORCH, "train.py"]
    with start_run(tmp_path, *words, env=clean_environment()) as command:
        shown = [command.stdout.readline()]
        command.send_signal(signal.SIGINT)
        rest, told = command.communicate(timeout=TIMEOUT_S)
    assert shown == ["0: once\n"], told
    assert "once" not in rest
    assert "KeyboardInterrupt" in rest  # as in a terminal without Echelon
    assert "stopping; press Ctrl-C again to stop immediately" in told


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_run_does_not_need_anybody_to_talk_to(tmp_path, closed):
    (tmp_path / "train.py").write_text("print('said')\n")
    echelon = f"{sys.executable} -m echelon"
    ran = subprocess.run(
        f"{echelon} run {NO_TORCH} train.py {closed} && {echelon} status {closed}",
        shell=True,
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "a fault of Echelon's" not in ran.stderr
    assert "train.py as" not in ran.stdout  # what is not a result


def test_what_a_terminal_cannot_show_ends_no_run(tmp_path):
    (tmp_path / "train.py").write_text("print('caf\\u00e9')\n")
    env = clean_environment(PYTHONIOENCODING="ascii:strict")
    ran = run_warm(tmp_path, NO_TORCH, "--env=PYTHONIOENCODING=utf-8", "train.py", env=env)
    assert (ran.code, ran.shown) == (0, "0: caf?\n"), ran.told


def test_logs_of_one_rank_can_be_read_afterwards(tmp_path):
    (tmp_path / "train.py").write_text("import os\nprint('rank', os.environ['RANK'])\n")
    env = clean_environment()
    assert run_warm(tmp_path, "--procs=2", NO_TORCH, "train.py", env=env).code == 0
    for words, expected in (
        (["last"], {"0: rank 0", "1: rank 1"}),
        (["--rank=1", "last"], {"1: rank 1"}),
    ):
        command = [sys.executable, "-m", "echelon", "logs", *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True
        )
        assert set(done.stdout.splitlines()) == expected


# --- a rank that prints more than anybody wants to read -----------------------------------------

_FLOOD = """\
import os, sys, time

def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)

def pace(until):
    begun, steps = time.monotonic(), 0
    while not until(time.monotonic() - begun, steps):
        time.sleep(0.001)
        steps += 1
        print("step", steps)
    return steps / (time.monotonic() - begun)

if os.environ["RANK"] == "0":
    wait_for("calm")
    block = (b"x" * 999 + b"\\n") * 1000
    for _ in range(int(sys.argv[1])):
        os.write(1, block)
    open("flooded", "w").close()
else:
    alone = pace(lambda _, steps: steps == 300)
    open("calm", "w").close()
    beside = pace(lambda _, steps: steps >= 300 and os.path.exists("seen"))
    with open("paces", "w") as file:
        print(alone, beside, file=file)
wait_for("measured")
"""


@pytest.mark.parametrize("megabytes", [100, pytest.param(1000, marks=pytest.mark.full)])
def test_a_flood_slows_nobody_and_fills_no_memory(megabytes, tmp_path):
    (tmp_path / "train.py").write_text(_FLOOD)
    words = ["--procs=2", "--restarts=0", NO_TORCH, "train.py", str(megabytes)]
    outputs = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    try:
        with start_run(tmp_path, *words, env=clean_environment(), **outputs) as command:
            _wait(tmp_path / "flooded", command)
            enough = megabytes * 10**6
            assert wait_until(lambda: _bytes_read(command.pid) > enough, timeout_s=TIMEOUT_S)
            (tmp_path / "seen").touch()
            _wait(tmp_path / "paces", command)
            peaks = {role: _peak_mib(role, tmp_path) for role in ("controller", "agent")}
            own = _peak_mib_of(command.pid)
            (tmp_path / "measured").touch()
            _, told = command.communicate(timeout=TIMEOUT_S)
        logs = list(tmp_path.glob("runs/*/logs/1.0/rank-00000.log"))
        assert [log.stat().st_size for log in logs] == [megabytes * 10**6]
    finally:
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
    assert command.returncode == 0, told
    assert max(peaks.values()) < 60, peaks
    assert own < 100
    alone, beside = map(float, (tmp_path / "paces").read_text().split())
    assert beside > alone / 5


def _wait(path, command):
    wait_until(lambda: path.exists() or command.poll() is not None, timeout_s=TIMEOUT_S)
    assert path.exists(), f"it ended with {command.returncode}: {command.stderr.read()}"


def _bytes_read(pid):
    return int(re.search(r"rchar: (\d+)", Path(f"/proc/{pid}/io").read_text())[1])


def _peak_mib(role, folder):
    """Return the most memory that a process of a run has had."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue  # gone meanwhile
        runs = str(folder / "runs").encode()
        ours = any(word.startswith(runs) and word.endswith(b"/launcher") for word in words)
        if ours and role.encode() in words:
            return _peak_mib_of(path.parent.name)
    raise AssertionError(f"no {role} runs in {folder}")


def _peak_mib_of(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024 / MIB
