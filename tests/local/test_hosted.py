"""Talking to a command on a host, with a local shell in the place of ssh."""

import json
import os
import re
import socket
import stat
import subprocess
import sys
import threading

import pytest

from echelon.cli import main
from echelon.client.python.hosted_run import HostedRun
from echelon.client.remote.workdir import hold_workdir
from echelon.clusters.ssh import connection
from echelon.clusters.ssh import host as ssh_host
from echelon.clusters.ssh.call import SUBMIT, Call
from echelon.clusters.ssh.connection import Connection
from echelon.clusters.ssh.host import Host, LostConnectionError, Talk
from echelon.clusters.ssh.installed import FOLDER
from echelon.clusters.ssh.site import Site, check_host, default_workdir
from echelon.core.shell import LocalShell
from echelon.core.waiting import wait_until
from echelon.errors import NotFoundError, NotPermittedError, UnavailableError, UsageError
from requirements import require_root

SSH = """\
#!/bin/sh
# Plays ssh: executes the command line here. -G and -O answer as with a connection.
for word; do
    case $word in
        -G) echo "controlpath none"; exit 0 ;;
        -O) exit 0 ;;
    esac
    last=$word
done
if [ -e "$HOME/refuse" ]; then echo "me: Permission denied (publickey)." >&2; exit 255; fi
exec /bin/sh -c "$last"
"""


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host whose home directory is here; nothing was brought there yet."""
    ssh, home = tmp_path / "ssh", tmp_path / "home"
    ssh.write_text(SSH)
    ssh.chmod(stat.S_IRWXU)
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("ECHELON_SSH", str(ssh))
    monkeypatch.setenv("SHELL", "/bin/sh")
    return Host(Site(host="h", workdir="~", python=sys.executable), LocalShell(), os.environ)


def test_echelon_is_brought_once_and_runs_there(host, tmp_path):
    for _ in range(2):
        talk = host.start(Call(argv=("ps",), folder="~"))
        parts = list(talk.output_parts())
        assert talk.finish()[0] == 0
        assert parts[-1] == ("end", 0)
        assert parts[0][0] == "err"
        assert "no runs in" in parts[0][1]
    assert len(list((tmp_path / "home" / FOLDER).iterdir())) == 1


def test_what_a_profile_prints_is_not_taken_for_the_answer(host, tmp_path):
    (tmp_path / "home" / ".profile").write_text("echo Welcome; echo Error >&2; printf unfinished\n")
    talk = host.start(Call(argv=("--version",), folder="~"))
    said = "".join(text for kind, text in talk.output_parts() if kind == "out")
    assert said.startswith("echelon ")
    talk.finish()


def test_the_environment_is_that_of_a_login(host, tmp_path):
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (tmp_path / "home" / ".profile").write_text(f"PATH={bin_}:$PATH; export PATH\n")
    (bin_ / "sinfo").write_text("#!/bin/sh\necho 'no cluster here' >&2; exit 1\n")
    (bin_ / "sinfo").chmod(0o755)
    talk = host.start(Call(argv=("nodes",), folder="~"))
    said = "".join(str(part[1]) for part in talk.output_parts())
    talk.finish()
    assert "the program 'sinfo' is not" not in said


def test_a_login_that_is_refused_is_explained(host, tmp_path):
    (tmp_path / "home" / "refuse").touch()
    with pytest.raises(NotPermittedError, match="refused the login"):
        host.start(Call(argv=("ps",), folder="~"))


def test_an_answer_that_breaks_off_is_a_lost_connection(host, tmp_path):
    talk = host.start(Call(argv=("ps",), folder="~"))
    talk.finish()
    folder = next((tmp_path / "home" / FOLDER).iterdir())
    (folder / "echelon").write_text(
        "printf '\\036echelon\\n{\"out\": \"half a li'; echo 'Connection closed' >&2; exit 255\n"
    )
    talk = host.start(Call(argv=("ps",), folder="~"))
    with pytest.raises(LostConnectionError, match="Connection closed"):
        list(talk.output_parts())


def test_a_copy_that_does_not_start_is_named(host, tmp_path):
    host.start(Call(argv=("--version",), folder="~")).finish()
    folder = next((tmp_path / "home" / FOLDER).iterdir())
    (folder / "start.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(UnavailableError, match="does not start on h") as caught:
        host.start(Call(argv=("ps",), folder="~"))
    assert str(folder.name) in caught.value.hint


def test_a_missing_folder_is_an_error_of_its_own(host):
    talk = host.start(Call(argv=("ps",), folder="~/nowhere"))
    parts = list(talk.output_parts())
    talk.finish()
    assert parts[-1] == ("end", 66)
    assert "does not exist" in parts[0][1]


def test_a_run_that_cannot_be_followed_is_an_error_and_not_an_empty_output(host):
    with pytest.raises(NotFoundError, match="h: no run 'nothing' in runs"):
        list(HostedRun(host.site, "nothing").lines(follow=True, rank=None))


def test_a_call_survives_any_word():
    call = Call(argv=("logs", "a b", "'\"$x`", "ü\n"), folder="~/x y", columns=80)
    assert Call.decode(call.encode()) == call


@pytest.mark.parametrize("host", ["login", "me@login.example.org", "me@[::1]", "a_b", "10.0.0.1"])
def test_hosts_are_taken_as_ssh_takes_them(host):
    assert check_host(host) == host


@pytest.mark.parametrize("host", ["", "-oProxyCommand=x", "a b", "me@-x", "a/b", "a;b", "$(x)"])
def test_what_ssh_could_take_for_an_option_is_refused(host):
    with pytest.raises(UsageError, match="is not a host"):
        check_host(host)


def test_the_default_folder_is_named_after_the_project():
    assert default_workdir("my project") == "~/echelon/my-project"
    assert default_workdir("…") == "~/echelon/project"


def test_output_arrives_whole(host):
    talk = host.start(Call(argv=("config", "--json"), folder="~"))
    out = "".join(text for kind, text in talk.output_parts() if kind == "out")
    talk.finish()
    assert json.loads(out)["world size"]


# --- submissions and their mistakes -----------------------------------------------------------


@pytest.fixture
def project(host, tmp_path, monkeypatch):
    """A project whose profile names the host."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("print('hello')\n")
    (folder / "echelon.toml").write_text(
        f'cluster = "c"\n[clusters.c]\nhost = "h"\npython = "{sys.executable}"\n'
    )
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    return folder


def give_path(home, monkeypatch, **programs):
    """Let a login there find only these programs, and a shell's own."""
    folder = home / "programs"
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    (home / ".profile").write_text(f"PATH={folder}; export PATH\n")
    monkeypatch.setenv("PATH", os.environ["PATH"])


def submit(capsys):
    code = main.run(["submit", "train.py"])
    return code, capsys.readouterr().err


def test_a_host_without_slurm_is_named(project, tmp_path, monkeypatch, capsys):
    give_path(tmp_path / "home", monkeypatch)
    code, said = submit(capsys)
    assert code == 69
    assert "error: h: the program 'scontrol' is not installed or not on PATH" in said
    assert main.run(["ps"]) == 0
    assert "no runs" in capsys.readouterr().err  # it is not remembered either


def test_a_host_with_an_old_python_is_named(project, tmp_path, monkeypatch, capsys):
    (project / "echelon.toml").write_text('cluster = "c"\n[clusters.c]\nhost = "h"\n')
    give_path(tmp_path / "home", monkeypatch, python3="echo /usr/bin/python3 3 9 18")
    code, said = submit(capsys)
    assert code == 69
    assert "no Python 3.11 or newer on h: /usr/bin/python3 is 3.9.18" in said
    assert 'python = "/path/to/python3.11"' in said


@pytest.fixture
def small(tmp_path):
    """Mounts a file system of a few KiB on a folder."""
    require_root("it mounts a file system")
    mounted = []

    def mount(folder, size):
        folder.mkdir(exist_ok=True)
        options = f"size={size},mode=700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
        mounted.append(folder)

    yield mount
    for folder in mounted:
        subprocess.run(["umount", folder], check=True)


def test_a_home_that_is_full_is_named(project, small, tmp_path, capsys):
    small(tmp_path / "home" / ".local", "200k")
    code, said = submit(capsys)
    assert code == 69
    assert "Echelon cannot be copied to h" in said
    assert "No space left on device" in said
    assert "make room" in said


def test_a_workdir_that_is_full_is_named_and_continued_later(project, small, tmp_path, capsys):
    (tmp_path / "home" / "echelon").mkdir()
    workdir = tmp_path / "home" / "echelon" / "project"
    small(workdir, "64k")
    (project / "large.py").write_bytes(os.urandom(200_000))
    code, said = submit(capsys)
    assert code == 69
    assert "No space left on device" in said
    assert str(workdir) in said
    assert not (workdir / "runs").exists()


def test_a_folder_of_another_user_is_refused(project, tmp_path, capsys):
    require_root("it needs another user")
    workdir = tmp_path / "home" / "echelon" / "project"
    (workdir / ".echelon").mkdir(parents=True)
    os.chown(workdir / ".echelon", 12345, 12345)
    code, said = submit(capsys)
    assert code == 77
    assert "belongs to another user" in said


# --- answers and connections that are damaged -----------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        *("{", "7", "{}", "[]", '["out"]', '{"out": 7}', '{"end": "x"}', '{"end": true}'),
        *('{"end": -1}', '{"end": 1e9}', '{"other": ""}', "[" * 20000),
    ],
)
def test_a_damaged_answer_is_one_clear_error(line):
    program = subprocess.Popen(
        ["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    talk = Talk("h", program)
    talk.input.write(f"{line}\n".encode())
    talk.input.flush()
    with pytest.raises(UnavailableError, match="unexpected data from h"), talk:
        list(talk.output_parts())
    assert program.poll() is not None


def test_the_host_is_asked_without_a_login_shell_if_it_can_be(host, tmp_path):
    profile = tmp_path / "home" / ".profile"
    profile.write_text(f"echo login >> {tmp_path}/logins\n")
    for _ in range(3):
        talk = host.start(Call(argv=("ps",), folder="~"))
        assert list(talk.output_parts())[-1] == ("end", 0)
        talk.finish()
    # One to find Python, one for the first command.
    assert (tmp_path / "logins").read_text().count("login") == 2
    profile.write_text(f"echo login again >> {tmp_path}/logins\n")
    host.start(Call(argv=("ps",), folder="~")).finish()
    assert "login again" in (tmp_path / "logins").read_text()
    host.start(Call(argv=("nodes",), folder="~")).finish()
    assert (tmp_path / "logins").read_text().count("login again") == 2


def test_the_page_ends_with_a_connection_that_is_silent(host, tmp_path, monkeypatch):
    """A network that is cut sends no end: the token of the page must not stay valid for hours."""
    (tmp_path / "home" / "runs").mkdir()
    call = Call(argv=("dash",), folder="~", attached=True, patience_s=2.0)
    monkeypatch.setattr(ssh_host, "BEAT_S", 0.1)
    alive = host.start(call)
    alive.keep_alive()
    parts = alive.output_parts()
    _, address = next(parts)
    with pytest.raises(LostConnectionError):  # its input stays open, and nothing comes
        list(host.start(call).output_parts())
    port = int(re.search(r":(\d+)/", address)[1])
    socket.create_connection(("127.0.0.1", port)).close()
    alive.close()


def test_who_vanishes_does_not_hold_the_project(host, tmp_path):
    """A connection that nobody closes: the next submission gets the lock nevertheless."""
    call = Call(argv=(SUBMIT,), folder="~/project", prints_output=False, patience_s=0.5)
    gone = host.start(call)
    with gone.stream() as stream:
        stream.send({"run": "train-abcd", "folder": ".", "request": ""})
    lock = tmp_path / "home" / "project" / ".echelon" / "lock"
    assert wait_until(lock.exists, timeout_s=60)
    # Its input stays open, and nothing comes.
    assert wait_until(lambda: gone.output.read1(1 << 16) == b"", timeout_s=60)
    with hold_workdir(tmp_path / "home" / "project", timeout_s=30):
        pass
    gone.finish()


def test_a_shared_connection_that_does_not_answer_is_named(tmp_path, monkeypatch):
    """Its ssh may be suspended: without a limit, commands would wait for it without a message."""
    monkeypatch.setattr(connection, "_ANSWER_S", 0.5)
    ssh = tmp_path / "ssh"
    ssh.write_text(
        "#!/bin/sh\npath=none\nfor word; do case $word in\n"
        "-o) ;; ControlPath=*) path=$word ;;\n-O) exec sleep 600 ;;\n"
        '-G) echo "controlpath ${path#ControlPath=}"; exit 0 ;;\nesac; done\n'
    )
    ssh.chmod(stat.S_IRWXU)
    environ = {
        "ECHELON_SSH": str(ssh),
        "XDG_STATE_HOME": "/nonexistent-and-longer-than-a-socket-can-be",
    }
    with pytest.raises(UnavailableError, match="connection to h did not answer within") as caught:
        Connection("h", LocalShell(), environ).connect()
    assert f"rm /tmp/echelon-ssh-{os.getuid()}/%C" in caught.value.hint


def test_a_slow_login_at_one_host_does_not_block_another(tmp_path):
    ssh = tmp_path / "ssh"
    ssh.write_text(
        "#!/bin/sh\nfor word; do case $word in\n"
        '-G) echo "controlpath none"; exit 0 ;;\n-O) exit 1 ;;\nslow) host=slow ;;\n'
        f"esac; done\n[ -z $host ] || {{ touch {tmp_path}/waiting; read x < {tmp_path}/go; }}\n"
    )
    ssh.chmod(stat.S_IRWXU)
    os.mkfifo(tmp_path / "go")
    environ = {"ECHELON_SSH": str(ssh), "XDG_STATE_HOME": str(tmp_path)}
    slow, other = (Connection(name, LocalShell(), environ) for name in ("slow", "other"))
    login = threading.Thread(target=slow.connect)
    login.start()
    assert wait_until((tmp_path / "waiting").exists, timeout_s=60)
    other.connect()
    assert login.is_alive()
    (tmp_path / "go").write_text("\n")
    login.join()
