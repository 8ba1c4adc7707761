"""A real run and another user of the same machine: nothing to read, to join, or to end."""

import errno
import json
import os
import signal
import socket
import traceback
from pathlib import Path

import pytest

from echelon.launch.protocol.wire import Channel
from procfs import sockets, unix_names
from requirements import require_root

OTHER = 12345
"""Nobody's number: permissions ask for no account."""


def as_other(attempt):
    """Return what a function returns when another user runs it, as JSON carries it.

    A fork and not a program of its own: the other user may not be able to read this Python.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(OTHER, OTHER, OTHER)
            os.setresuid(OTHER, OTHER, OTHER)
            said = json.dumps(attempt())
        except BaseException:  # noqa: BLE001  nothing of a test may go on in here
            said = json.dumps(traceback.format_exc())
        os.write(write_end, said.encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return json.loads(said)


def outcome(action, *arguments):
    """Return how something went: '' when it was possible, else the error's name."""
    try:
        action(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


@pytest.fixture(scope="module")
def _root():
    require_root("to be another user")


@pytest.fixture
def run(_root, shared_run):
    (shared_run.folder / "runs").chmod(0o755)  # else all would hold because of that alone
    return shared_run


@pytest.mark.usefixtures("_root")
def test_the_folder_of_runs_is_closed_whatever_the_umask(start_run):
    before = os.umask(0)
    try:
        run = start_run()
        run.await_listening()
    finally:
        os.umask(before)
    assert as_other(lambda: outcome(os.listdir, run.folder)) == ""
    for attempt in (os.listdir, lambda runs: (runs / "mine").mkdir()):
        assert as_other(lambda attempt=attempt: outcome(attempt, run.folder / "runs")) == "EACCES"


def everybody(run):
    """All of the run's processes, by what they are."""
    return {
        "controller": run.role("controller"),
        "agent": run.role("agent"),
        "zygote": run.role("zygote"),
        "ranks": run.ranks(),
    }


def test_the_other_user_is_another_user_and_could_read_what_is_open(run):
    """Else everything below would hold for the wrong reason."""
    assert as_other(lambda: [os.getuid(), os.getgid(), os.getgroups()]) == [OTHER, OTHER, []]
    assert as_other((run.folder / "wait.py").read_text).startswith("import")
    assert as_other(lambda: outcome(os.listdir, run.folder / "runs")) == ""


def test_nothing_of_a_run_is_readable(run):
    entries = sorted(run.path.rglob("*"))
    files = [path for path in entries if path.is_file()]
    assert {"spec.toml", "job.sbatch", "controller-1.jsonl"} <= {path.name for path in files}

    def attempt():
        tried = {str(path): outcome(path.read_bytes) for path in files}
        folders = [run.path, *(path for path in entries if path not in files)]
        tried |= {str(path): outcome(os.listdir, path) for path in folders}
        return tried | {"new": outcome((run.path / "new").touch)}

    assert set(as_other(attempt).values()) == {"EACCES"}


def test_nothing_that_is_written_is_open_to_others_by_itself(run):
    """The folder keeps others out; should somebody open it, its parts still do."""
    names = ("spec.toml", "job.sbatch", "events", "logs", "attempts", "checkpoints", "launcher")
    parts = [(os.listdir if p.is_dir() else os.open, p) for p in map(run.path.joinpath, names)]
    run.path.chmod(0o755)
    try:
        found = as_other(
            lambda: {
                path.name: outcome(action, path, *([os.O_RDONLY] if action is os.open else []))
                for action, path in parts
            }
        )
    finally:
        run.path.chmod(0o700)
    assert found == dict.fromkeys(names, "EACCES")


def test_nothing_of_a_process_is_readable(run):
    kinds = everybody(run)
    assert all(kinds.values()), kinds
    private = [f"/proc/{pid}/{name}" for pid in run.pids() for name in ("environ", "mem", "maps")]
    folders = [f"/proc/{pid}/fd" for pid in run.pids()]

    def attempt():
        tried = {path: outcome(lambda path=path: os.close(os.open(path, 0))) for path in private}
        return tried | {path: outcome(os.listdir, path) for path in folders}

    found = as_other(attempt)
    assert set(found.values()) <= {"EACCES", "EPERM"}, found


def test_nothing_of_a_process_can_be_ended(run):
    pids = run.pids()
    assert len(pids) >= 7
    numbers = (0, signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP, signal.SIGUSR1)
    found = as_other(lambda: [outcome(os.kill, pid, number) for pid in pids for number in numbers])
    assert set(found) == {"EPERM"}
    assert run.pids() == pids


def test_a_controller_that_is_reached_is_not_joined(run):
    address = run.await_listening()

    def attempt():
        agent = Channel(b"guessed" * 5, "agent")
        with socket.socket() as link:
            link.settimeout(10)
            link.connect(address)
            link.sendall(agent.take_outgoing())
            try:
                return link.recv(4096).decode()
            except ConnectionResetError:
                return ""

    assert as_other(attempt) == ""
    assert run.events("stranger")[0]["reason"] == "the peer does not know the run's key"


def test_a_zygotes_socket_has_no_name_to_connect_to(run):
    agent, zygote = run.role("agent")[0], run.role("zygote")[0]
    names = unix_names(zygote)
    shared = sockets(zygote) & names.keys()
    assert shared, "it talks with its agent"
    assert sockets(agent) & names.keys()
    assert {names[inode] for inode in sockets(agent) | sockets(zygote) if inode in names} == {""}
    paths = [path for pid in (agent, zygote) for path in Path(f"/proc/{pid}/fd").iterdir()]
    found = as_other(lambda: [outcome(os.open, path, os.O_RDWR) for path in map(str, paths)])
    assert set(found) == {"EACCES"}


def test_the_beacons_are_their_owners_alone(run):
    variables = json.loads((run.folder / "ready-0").read_text())
    beacon = Path(variables["ECHELON_BEACON"])
    assert beacon.parent.stat().st_mode & 0o777 == 0o700
    assert beacon.stat().st_mode & 0o777 == 0o600

    def attempt():
        return [
            outcome(os.listdir, beacon.parent),
            outcome(os.open, beacon, os.O_RDONLY),
            outcome(os.open, beacon, os.O_RDWR),
            outcome(os.open, beacon.parent / "new", os.O_RDWR | os.O_CREAT),
        ]

    assert set(as_other(attempt)) == {"EACCES"}
