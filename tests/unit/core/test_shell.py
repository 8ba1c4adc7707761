import os
import signal
import sys
from pathlib import Path

import pytest

from echelon.core.shell import FakeShell, LocalShell, Result
from echelon.core.waiting import wait_until
from echelon.errors import CommandError, MissingProgramError, TimedOutError

SHELL = LocalShell()


def test_a_program_runs_to_its_end():
    result = SHELL.run(
        ["sh", "-c", "cat; echo $X; echo no >&2; exit 3"], stdin="hi\n", env={"X": "x"}
    )
    assert result == Result(
        argv=("sh", "-c", "cat; echo $X; echo no >&2; exit 3"),
        code=3,
        stdout="hi\nx\n",
        stderr="no\n",
    )


def test_arguments_arrive_byte_for_byte():
    hostile = ["a b", "$(echo x)", "'\"`", "new\nline", "ünïcode", "-n", ""]
    shown = SHELL.run([sys.executable, "-c", "import sys; print(sys.argv[1:])", *hostile]).stdout
    assert shown.strip() == repr(hostile)


def test_output_that_is_no_utf8_does_not_hurt():
    assert SHELL.run(["printf", r"a\377b"]).stdout == "a\N{REPLACEMENT CHARACTER}b"


def test_a_missing_program_is_named():
    with pytest.raises(MissingProgramError, match="'no-such-program'"):
        SHELL.run(["no-such-program"])


def test_a_failure_shows_its_last_word():
    with pytest.raises(CommandError, match="'sh' failed with exit code 4: second") as caught:
        SHELL.run(["sh", "-c", "echo first >&2; echo second >&2; exit 4"]).check(hint="do this")
    assert caught.value.hint == "do this"


def test_a_time_out_takes_the_children_too(tmp_path: Path):
    pid_file = tmp_path / "pid"
    with pytest.raises(TimedOutError, match=r"within 0\.3 s"):
        SHELL.run(["sh", "-c", f"sleep 60 & echo $! > {pid_file}; wait"], timeout_s=0.3)
    child = Path("/proc") / pid_file.read_text().strip() / "stat"
    gone = lambda: not child.exists() or ") Z " in child.read_text()  # noqa: E731
    assert wait_until(gone, timeout_s=30)


def test_an_interrupt_is_not_hidden_by_a_child_that_has_just_gone():
    program = (
        "import os, signal, threading, time\n"
        "from echelon.core.shell import LocalShell\n"
        "threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "try:\n    LocalShell().run(['sleep', '0.2'])\n"
        "except KeyboardInterrupt:\n    print('interrupted')\n"
    )
    assert SHELL.run([sys.executable, "-c", program]).stdout == "interrupted\n"


def test_a_started_program_reads_what_it_is_given_and_then_the_end(tmp_path: Path):
    log = tmp_path / "log"
    for given in (b"secret\n", b""):
        pid = LocalShell().start(["cat"], log=log, stdin=given)
        os.waitpid(pid, 0)
    assert log.read_bytes() == b"secret\n"


def test_a_started_program_lives_on_in_its_own_session(tmp_path: Path):
    log = tmp_path / "log"
    pid = SHELL.start(["sh", "-c", "echo begun; exec sleep 60"], log=log)
    try:
        assert wait_until(lambda: log.read_text() == "begun\n", timeout_s=30)
        assert os.getsid(pid) == pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_which_looks_where_debian_keeps_daemons():
    assert SHELL.which("sh") is not None
    assert SHELL.which("no-such-program") is None


def test_the_fake_answers_by_the_longest_beginning_and_remembers():
    fake = FakeShell(answers={"sinfo": "a", "sinfo -h": Result(argv=(), code=1)})
    assert fake.run(["sinfo"]).stdout == "a"
    assert fake.run(["sinfo", "-h", "-N"]).code == 1
    assert fake.calls == [("sinfo",), ("sinfo", "-h", "-N")]
    with pytest.raises(AssertionError, match="no answer for: sbatch x"):
        fake.run(["sbatch", "x"])


COLLECTING = """
import os, threading
from echelon.core.shell import LocalShell, collect_children

codes, done = [], threading.Event()

def run():
    codes.extend(LocalShell().run(["false"]).code for _ in range(50))
    done.set()

worker = threading.Thread(target=run)
worker.start()
while not done.is_set():
    collect_children()
worker.join()
orphan, found = os.posix_spawn("/bin/true", ["true"], {}), {}
while orphan not in found:
    found |= dict(collect_children() or [])
print(set(codes), found[orphan], collect_children())
"""


def test_exit_codes_are_not_lost_while_another_thread_collects_children():
    """An agent collects whatever has exited, and runs programs in other threads."""
    done = SHELL.run([sys.executable, "-c", COLLECTING])
    assert (done.stdout, done.stderr) == ("{1} 0 []\n", "")
