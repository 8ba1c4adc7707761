import fcntl
import os
import tempfile
from pathlib import Path

import pytest

from echelon.core.shell import FakeShell, Result
from echelon.errors import (
    ConflictError,
    MissingProgramError,
    NotFoundError,
    NotPermittedError,
    UnavailableError,
    UsageError,
)
from echelon.sandbox import lifecycle
from echelon.sandbox.config import SandboxConfig

ME = os.geteuid()


@pytest.fixture
def tmp_path():
    """A folder with a short path: a sandbox has Unix sockets in it."""
    with tempfile.TemporaryDirectory(prefix="boxes-") as folder:
        yield Path(folder)


@pytest.fixture
def environ(tmp_path):
    return {"ECHELON_SANDBOX_DIR": str(tmp_path / "boxes"), "PATH": os.environ["PATH"]}


def start(environ, shell, uid=ME, **wanted):
    return lifecycle.start_sandbox(
        SandboxConfig(**wanted), shell=shell, environ=environ, uid=uid, progress=lambda _: None
    )


def test_sandboxes_live_where_their_owner_may_write():
    assert lifecycle.home({}, 0) == Path("/var/lib/echelon/sandbox")
    assert lifecycle.home({}, 1000) == Path("/var/tmp/echelon-1000/sandbox")  # noqa: S108
    assert lifecycle.home({"ECHELON_SANDBOX_DIR": "/x"}, 1000) == Path("/x")


@pytest.mark.parametrize(
    ("uid", "accounting", "line"),
    [
        (
            0,
            False,
            "apt-get install --no-install-recommends munge slurmctld slurmd slurm-client iproute2",
        ),
        (
            1000,
            False,
            "sudo apt-get install --no-install-recommends munge slurmctld slurmd slurm-client",
        ),
        (1000, True, "slurm-client slurmdbd mariadb-server-core mariadb-client-core"),
    ],
)
def test_a_missing_package_gives_the_line_that_installs_it(environ, uid, accounting, line):
    shell = FakeShell(programs=["unshare", "nsenter"])
    with pytest.raises(MissingProgramError) as caught:
        start(environ, shell, uid=uid, accounting=accounting)
    assert caught.value.program == "munged"
    assert line in caught.value.hint


def test_a_missing_sshd_is_told_before_anything_is_started(environ):
    shell = FakeShell(
        programs=[*lifecycle.PROGRAMS, *lifecycle.NAMESPACE_PROGRAMS], answers={"unshare": ""}
    )
    with pytest.raises(MissingProgramError) as caught:
        start(environ, shell, ssh=True)
    assert caught.value.program == "sshd"
    assert caught.value.hint.endswith("--no-install-recommends openssh-server openssh-client")
    assert shell.calls == []


def test_a_size_that_cannot_be_is_refused_before_anything_happens(environ):
    shell = FakeShell()
    with pytest.raises(UsageError, match=r"--nodes must be .*, not 0; --gpus must be .*, not 99"):
        start(environ, shell, nodes=0, gpus=99)
    assert shell.calls == []


def test_a_start_that_fails_leaves_nothing(environ, tmp_path):
    shell = FakeShell(
        answers={
            "unshare": Result(argv=(), code=1),
            "ip": "",
            "/usr/bin/slurmctld -V": "slurm-wlm 24.11.5\n",
            "munged": Result(argv=("munged",), code=1),
        }
    )
    with pytest.raises(UnavailableError, match="'munged' failed"):
        start(environ, shell)
    assert list((tmp_path / "boxes").iterdir()) == []


def test_nothing_of_that_name(environ):
    with pytest.raises(NotFoundError, match="no sandbox 'x'") as caught:
        lifecycle.open_sandbox("x", shell=FakeShell(), environ=environ, uid=ME)
    assert caught.value.hint == "start it: echelon sandbox up --name x"
    with pytest.raises(NotFoundError):
        lifecycle.stop_sandbox("x", shell=FakeShell(), environ=environ, uid=ME)


def test_an_unfinished_start_is_told_apart(environ, tmp_path):
    folder = tmp_path / "boxes" / "x"
    folder.mkdir(parents=True)
    (folder / ".sandbox.json.17.tmp").touch()  # killed while its first file was written
    with pytest.raises(NotFoundError, match="did not finish") as caught:
        lifecycle.open_sandbox("x", shell=FakeShell(), environ=environ, uid=ME)
    assert "down --name x" in caught.value.hint
    assert lifecycle.list_sandboxes(environ, ME) == ["x"]
    lifecycle.stop_sandbox("x", shell=FakeShell(answers={"ip": ""}), environ=environ, uid=ME)
    assert lifecycle.list_sandboxes(environ, ME) == []


def test_one_command_at_a_time(environ, tmp_path):
    folder = tmp_path / "boxes" / "sandbox"
    folder.mkdir(parents=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        shell = FakeShell(answers={"unshare": Result(argv=(), code=1)})
        with pytest.raises(ConflictError, match="another command"):
            start(environ, shell)
        with pytest.raises(ConflictError, match="another command"):
            lifecycle.stop_sandbox("sandbox", shell=shell, environ=environ, uid=ME)
    finally:
        os.close(handle)
    assert folder.is_dir()


def test_another_users_folder_is_left_alone(environ, tmp_path):
    (tmp_path / "boxes" / "sandbox").mkdir(parents=True)
    with pytest.raises(NotPermittedError, match="another user"):
        lifecycle.stop_sandbox("sandbox", shell=FakeShell(), environ=environ, uid=ME + 1)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/etc", "a/b", "-x", "x" * 32])
def test_a_name_is_never_a_path(environ, tmp_path, name):
    (tmp_path / "x").mkdir()
    with pytest.raises(UsageError, match="not a valid sandbox name"):
        lifecycle.stop_sandbox(name, shell=FakeShell(), environ=environ, uid=ME)
    assert (tmp_path / "x").is_dir()


def test_a_folder_that_is_no_sandbox_is_left_alone(environ, tmp_path):
    precious = tmp_path / "boxes" / "sandbox" / "thesis.tex"
    precious.parent.mkdir(parents=True)
    precious.write_text("years")
    shell = FakeShell(answers={"unshare": Result(argv=(), code=1), "ip": ""})
    with pytest.raises(ConflictError, match="is not a sandbox"):
        start(environ, shell)
    with pytest.raises(ConflictError, match="is not a sandbox"):
        lifecycle.stop_sandbox("sandbox", shell=shell, environ=environ, uid=ME)
    assert precious.read_text() == "years"


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_sandbox_that_anybody_could_have_put_there_is_not_used(environ, tmp_path, mode):
    (tmp_path / "boxes" / "sandbox").mkdir(parents=True)
    (tmp_path / "boxes").chmod(mode)
    with pytest.raises(NotPermittedError, match="other users can write to it"):
        lifecycle.open_sandbox("sandbox", shell=FakeShell(), environ=environ, uid=ME)


def test_one_folder_has_one_spelling(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    link = {"ECHELON_SANDBOX_DIR": str(tmp_path / "link" / ".." / "link")}
    assert lifecycle.home(link, ME) == (tmp_path / "real").resolve()


def test_down_from_inside_is_refused(environ, tmp_path):
    folder = tmp_path / "boxes" / "sandbox"
    folder.mkdir(parents=True)
    inside = {**environ, "ECHELON_SANDBOX": str(folder)}
    with pytest.raises(ConflictError, match="from inside it"):
        lifecycle.stop_sandbox("sandbox", shell=FakeShell(), environ=inside, uid=ME)
