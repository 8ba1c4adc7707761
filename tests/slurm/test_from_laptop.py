"""Runs on a cluster, from a laptop: real ssh to the sandbox's login host."""

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.parse
import urllib.request
import venv
from contextlib import suppress
from pathlib import Path

import pytest

from echelon.core.waiting import wait_until
from requirements import require, require_root
from slurm.cluster import Cluster
from slurm.laptop import Laptop, remove_brought

SCRIPT = """\
import os, sys, time
import helper
rank = os.environ["RANK"]
print("says", helper.WORD, "in", os.getcwd(), flush=True)
for number in range(int(sys.argv[1])):
    print("number", number, flush=True)
    time.sleep(float(sys.argv[2]))
"""


pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def remote(home):
    """A cluster whose login host has sshd."""
    require_root("a login host with its own address")
    require("ssh", "sshd", "ssh-keygen", "git")
    cluster = Cluster(home, "far")
    cluster("up", "--ssh", "--nodes=2")
    yield cluster
    cluster("down", check=False)
    remove_brought()


@pytest.fixture
def workdir(tmp_path):
    """The project's folder on the cluster."""
    return tmp_path / "cluster" / "project"


@pytest.fixture
def laptop(remote, tmp_path, workdir):
    laptop = Laptop(tmp_path / "laptop", remote.root / "ssh_config", "sandbox-far")
    laptop.write("train.py", SCRIPT)
    laptop.write("helper.py", "WORD = 'hello'\n")
    laptop.write(
        "echelon.toml",
        f'cluster = "far"\n[clusters.far]\nhost = "sandbox-far"\nworkdir = "{workdir}"\n'
        f'python = "{sys.executable}"\npartition = "low"\n',
    )
    yield laptop
    laptop.close()
    remote.box.run(["scancel", "--user=root"])


def submit(laptop, *words, numbers=3, pause_s=0.05):
    done = laptop("submit", "--json", *words, "train.py", str(numbers), str(pause_s))
    return json.loads(done.stdout)["run"]


def jobs_of(remote, run):
    """The jobs that Slurm has or had for a run, without waiting standbys."""
    shown = remote.exec("scontrol", "--oneliner", "show", "job")
    return [line for line in shown.splitlines() if f"/{run}/1 " in line or f":{run}/1 " in line]


@pytest.mark.quick
def test_from_a_project_to_its_metrics(laptop, workdir):
    """Submitted, followed, asked about, changed and fetched, without leaving the laptop."""
    commit = laptop.commit()
    laptop.write("helper.py", "WORD = 'changed'\n")
    run = submit(laptop, "--nodes=2", "--procs=1")
    followed = laptop("logs", "-f")
    assert f"0: says changed in {workdir}" in followed.stdout
    assert sorted(re.findall(r"^(\d): number (\d)", followed.stdout, re.MULTILINE)) == [
        (rank, number) for rank in "01" for number in "012"
    ]
    assert f"{run}: COMPLETED" in followed.stderr
    status = json.loads(laptop("status", "--json").stdout)
    assert status["state"] == "COMPLETED"
    assert status["code"]["commit"] == commit
    assert status["code"]["dirty"]
    assert json.loads(laptop("ps", "--json").stdout)[0]["host"] == "sandbox-far"
    assert laptop("why", run[:8]).stderr == f"{run} has not failed\n"
    assert "COMPLETED" in laptop("report").stdout
    laptop.write("helper.py", "WORD = 'again'\n")
    changed = laptop("diff")
    assert "-WORD = 'changed'" in changed.stdout
    assert "+WORD = 'again'" in changed.stdout
    again = json.loads(laptop("rerun", "--json", "last", "--nodes=1", "--", "1", "0").stdout)["run"]
    assert "0: says changed" in laptop("logs", "-f", again).stdout
    laptop("fetch", run)
    brought = laptop.project / run
    assert (brought / "logs/1.0/rank-00000.log").read_text().startswith("says changed")
    assert not (brought / "code").exists()
    laptop("submit", "--json", "train.py", "1", "0")  # what was fetched is not sent back as code
    assert not (workdir / run).exists()
    laptop("export", "--csv", run, "figures")
    assert (laptop.project / "figures" / "time.csv").exists()


def test_a_run_is_stopped_resumed_and_cancelled(laptop, remote):
    run = submit(laptop, numbers=1000)
    assert wait_until(lambda: "number 3" in laptop("logs", check=False).stdout, timeout_s=60)
    laptop("stop", run)
    state = lambda: json.loads(laptop("status", "--json").stdout)["state"]  # noqa: E731
    assert wait_until(lambda: state() not in ("RUNNING", "COMPLETING"), timeout_s=60)
    laptop("resume", run)
    assert wait_until(lambda: state() in ("PENDING", "RUNNING"), timeout_s=60)
    laptop("cancel", run)
    assert wait_until(lambda: state() == "CANCELLED", timeout_s=60)
    # A command that waits for nothing there leaves nothing there.
    assert wait_until(lambda: not find_hosted(remote), timeout_s=30)


def find_hosted(remote):
    """Processes on this login host of commands that were given on a laptop."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and b"start.py" in (entry / "cmdline").read_bytes():
                found += [entry.name] * (
                    os.fsencode(remote.root) in (entry / "environ").read_bytes()
                )
    return found


def test_who_leaves_does_not_end_the_run(laptop, remote):
    run = submit(laptop, numbers=1000)
    following = laptop.start("logs", "-f", run)
    assert following.stdout.readline()
    following.send_signal(signal.SIGINT)
    _, notes = following.communicate(timeout=30)
    assert following.returncode == 130
    assert f"{run} keeps running" in notes
    assert json.loads(laptop("status", "--json").stdout)["state"] == "RUNNING"
    assert wait_until(lambda: not find_hosted(remote), timeout_s=30)


USES = """\
import os, pathlib, subprocess, sys
import installed
print("relative:", pathlib.Path("config.txt").read_text().strip(), flush=True)
print("ignored:", pathlib.Path("data/big.txt").read_text().strip(), flush=True)
print("beside:", pathlib.Path(__file__).with_name("config.txt").read_text().strip(), flush=True)
print("prologue:", os.environ["FROM_PROLOGUE"], flush=True)
print("installed:", installed.WORD, installed.__file__, flush=True)
print(subprocess.check_output([sys.executable, "evaluate.py"], text=True), flush=True)
"""


def test_what_the_guide_promises_of_the_workdir(laptop, tmp_path, workdir):
    """Relative paths, started programs, `prologue`, `notify` and editable installs use it."""
    venv.create(tmp_path / "venv", symlinks=True)
    (site,) = tmp_path.glob("venv/lib/python*/site-packages")
    (site / "torch.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    (site / "editable.pth").write_text(f"{workdir}/src/\n")
    laptop.write(".gitignore", "data/\n")
    laptop.write("train.py", USES)
    laptop.write("evaluate.py", 'print("started:", open("config.txt").read().strip(), __file__)\n')
    laptop.write("setup.sh", "export FROM_PROLOGUE=$(cat config.txt)\n")
    notice = tmp_path / "notice"
    notice.touch()
    laptop.write("notice.sh", f"cat config.txt > {notice}\n")
    laptop.commit()
    words = [f"--python={tmp_path}/venv/bin/python", "--procs=1", "--hand-over=never"]
    words += ["--prologue=source setup.sh", f"--notify=sh {workdir}/notice.sh", "train.py"]
    (workdir / "data").mkdir(parents=True)
    (workdir / "data" / "big.txt").write_text("there already\n")
    for word in ("first", "second"):
        laptop.write("config.txt", f"{word}\n")
        laptop.write("src/installed.py", f"WORD = {word!r}\n")
        run = json.loads(laptop("submit", "--json", *words).stdout)["run"]
        said = laptop("logs", "-f", run).stdout
        for line in (
            *(f"relative: {word}", "ignored: there already", f"beside: {word}"),
            f"prologue: {word}",
            f"installed: {word} {workdir}/runs/{run}/code/src/installed.py",
            f"started: {word} {workdir}/evaluate.py",
        ):
            assert f"0: {line}\n" in said, said
        expected = f"{word}\n"
        assert wait_until(lambda: notice.read_text() == expected, timeout_s=30)  # noqa: B023


# --- a connection that is cut -------------------------------------------------------------------

MANY = range(300, 3_900, 180)
"""Bytes that arrive before the cut: 20 places from the first to the last byte of a submission."""
SOME = (MANY[10], MANY[-1])
"""When there is a connection, and when the answer may be lost."""


@pytest.mark.parametrize(
    "count",
    [SOME[1], *(pytest.param(count, marks=pytest.mark.full) for count in MANY if count != SOME[1])],
)
def test_a_submission_whose_connection_is_cut_is_made_once(laptop, remote, count):
    laptop("ps", "--host=sandbox-far", check=False)  # brings Echelon there
    laptop.hang_up()
    laptop.cut_after(count)
    done = laptop("submit", "--json", "train.py", "1", "0", check=False)
    assert not laptop.will_be_cut
    if done.returncode:  # cut before there was a connection at all
        assert done.returncode == 69, done.stderr
        assert "not known whether" not in done.stderr
        assert "no runs" in laptop("ps").stderr
        done = laptop("submit", "--json", "train.py", "1", "0")
    run = json.loads(done.stdout)["run"]
    assert laptop("logs", "-f", run).stdout.count("number 0") == 1
    assert len(jobs_of(remote, run)) == 1
    assert [one["run"] for one in json.loads(laptop("ps", "--json").stdout)] == [run]


@pytest.mark.parametrize(
    "first", [4_000, *(pytest.param(n, marks=pytest.mark.full) for n in range(4_100, 9_800, 300))]
)
def test_no_line_is_lost_or_doubled_when_the_connection_is_cut(laptop, first):
    run = submit(laptop, "--procs=2", numbers=150, pause_s=0.03)
    following = laptop.start("logs", "-f", run)
    for number in range(3):
        laptop.cut_after(first + 700 * number)
        wait_until(lambda: not laptop.will_be_cut or following.poll() is not None, timeout_s=60)
    output, notes = following.communicate(timeout=120)
    assert following.returncode == 0, notes
    assert "connecting again" in notes
    for rank in "01":
        found = re.findall(rf"^{rank}: number (\d+)$", output, re.MULTILINE)
        assert [int(one) for one in found] == list(range(150)), notes


@pytest.mark.parametrize(
    "count", [200_000, *(pytest.param(n * 150_000, marks=pytest.mark.full) for n in range(2, 20))]
)
def test_fetching_goes_on_after_a_cut(laptop, workdir, count):
    run = submit(laptop, numbers=1)
    laptop("logs", "-f", run)
    content = os.urandom(3_000_000)
    (workdir / "runs" / run / "checkpoints" / "big.bin").write_bytes(content)
    laptop.hang_up()
    laptop.cut_after(count)
    done = laptop("fetch", run, "checkpoints")
    assert not laptop.will_be_cut
    assert "connecting again" in done.stderr
    assert (laptop.project / run / "checkpoints" / "big.bin").read_bytes() == content
    assert not list(laptop.project.rglob("*.part"))


def take(stack, port):
    """Listen on a port of this machine, as any user can; False if it is in use."""
    try:
        stack.enter_context(socket.create_server(("127.0.0.1", port)))
    except OSError:
        return False
    return True


@pytest.mark.full
def test_the_page_has_another_address_and_token_after_a_cut(laptop, workdir):
    """Another user can take the port meanwhile: what the browser sends there must be worthless."""
    run = submit(laptop, numbers=1)
    laptop("logs", "-f", run)
    serving = laptop.start("dash", run)

    def read_address():
        found = re.fullmatch(
            r"(http://127.0.0.1:[0-9]+/)#token=([\w-]+)&run=.*\n", serving.stdout.readline()
        )
        assert found, serving.stderr.read()
        return found.groups()

    def ask(address, token):
        asked = urllib.request.Request(  # noqa: S310
            f"{address}api/runs", headers={"authorization": f"Bearer {token}"}
        )
        try:
            with urllib.request.urlopen(asked, timeout=30) as answer:  # noqa: S310
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    try:
        address, token = read_address()
        assert ask(address, token) == 200
        laptop.hang_up()
        with contextlib.ExitStack() as taken:
            assert wait_until(
                lambda: take(taken, urllib.parse.urlsplit(address).port), timeout_s=30
            )
            another, new = read_address()
        assert (another, new) != (address, token)
        assert another != address
        assert (ask(another, new), ask(another, token)) == (200, 401)
        assert not (workdir / ".echelon" / "dash-token").exists()
    finally:
        serving.send_signal(signal.SIGINT)
        serving.communicate(timeout=30)


def find_master(laptop):
    """The process that holds the shared connection."""
    folder = laptop.state / "echelon" / "ssh"
    (path,) = [path for path in folder.iterdir() if path.is_socket()]
    words = ["ssh", "-S", path, "-O", "check", "any"]
    said = subprocess.run(words, capture_output=True, text=True, check=False).stderr
    found = re.search(r"pid=(\d+)", said)
    return int(found[1]) if found else None


def test_a_socket_that_a_killed_ssh_left_behind_is_replaced(laptop):
    laptop("ps", "--host=sandbox-far", check=False)
    first = find_master(laptop)
    os.kill(first, signal.SIGKILL)
    assert wait_until(lambda: find_master(laptop) is None, timeout_s=30)
    laptop("ps", "--host=sandbox-far", check=False)
    assert find_master(laptop) not in (None, first)


@pytest.mark.full
def test_a_connection_that_stalls_is_given_up_and_made_again(laptop):
    """As when the laptop sleeps: nothing comes, and nobody says why."""
    run = submit(laptop, numbers=400, pause_s=0.1)
    following = laptop.start("logs", "-f", run)
    assert following.stdout.readline()
    stall = laptop.control / "stall"
    stall.touch()
    assert "connecting again" in following.stderr.readline()
    stall.unlink()
    output = following.stdout.read()  # not communicate(): it loses what readline() has read ahead
    _, notes = following.communicate(timeout=100)
    assert following.returncode == 0, notes
    found = [int(one) for one in re.findall(r"^0: number (\d+)$", output, re.MULTILINE)]
    assert found == list(range(400))


@pytest.mark.full
def test_a_view_in_the_terminal_comes_back_after_a_cut(laptop):
    run = submit(laptop, numbers=200, pause_s=0.1)
    ours, theirs = os.openpty()
    environ = {**laptop.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    watching = subprocess.Popen(
        laptop.argv("watch", run),
        cwd=laptop.project,
        env=environ,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    seen = bytearray()

    def shows(text):
        def is_there():
            while select.select([ours], [], [], 0)[0]:
                seen.extend(os.read(ours, 1 << 16))
            return text in seen

        return wait_until(is_there, timeout_s=60)

    try:
        assert shows(b"number"), seen
        laptop.hang_up()
        assert shows(b"connecting again"), seen
        seen.clear()
        assert shows(b"number"), seen
        laptop("cancel", run)
        with suppress(OSError):  # it has closed the terminal
            shows(b"never")
        assert watching.wait(60) == 0
    finally:
        watching.kill()
        watching.wait()
        os.close(ours)


# --- what can be wrong --------------------------------------------------------------------------


def test_each_mistake_has_one_clear_error(laptop, remote, tmp_path, workdir):
    config = remote.root / "ssh_config"

    def fails(*words, ssh=laptop.ssh, code):
        done = laptop(*words, check=False, ECHELON_SSH=ssh)
        assert done.returncode == code, done.stderr
        assert done.stderr.count("error: ") == 1
        assert "Traceback" not in done.stderr
        return done.stderr

    unknown = fails("ps", "--host=nowhere.invalid", ssh="ssh", code=69)
    assert "the host nowhere.invalid is unknown" in unknown
    key = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    own = tmp_path / "refused_config"
    own.write_text(re.sub(r"IdentityFile .*", f"IdentityFile {key}", config.read_text()))
    assert "refused the login" in fails("ps", "--cluster=far", ssh=f"ssh -F {own}", code=77)
    known = tmp_path / "known"
    words = key.with_suffix(".pub").read_text().split()
    address = re.search(r"HostName (\S+)", config.read_text())[1]
    known.write_text(f"{address} {words[0]} {words[1]}\n")
    changed = f"ssh -F {config} -o UserKnownHostsFile={known}"
    assert "host key of sandbox-far is not" in fails("ps", "--cluster=far", ssh=changed, code=77)
    assert "no Python 3.11 or newer" not in laptop("ps", "--cluster=far", check=False).stderr
    toml = (laptop.project / "echelon.toml").read_text()
    laptop.write("echelon.toml", toml.replace(sys.executable, "/nowhere/python"))
    workdir.mkdir(parents=True)
    laptop("ps", "--cluster=far")  # another Python on the PATH is good enough for Echelon itself
    missing = fails("submit", "train.py", "1", "0", code=2)
    assert "Python not found: '/nowhere/python'" in missing
    assert laptop("ps").stderr.startswith("no runs")
    laptop.write("echelon.toml", toml.replace('"low"', '"lwo"'))
    assert "unknown partition 'lwo'" in fails("submit", "train.py", "1", "0", code=2)
    laptop.write("echelon.toml", toml)
    assert "does not exist" in fails("submit", "trian.py", code=2)
    laptop.write("train.py", "import (\n")
    assert "does not compile" in fails("submit", "train.py", code=2)


def test_files_that_somebody_changed_there_are_not_lost(laptop, workdir):
    submit(laptop, numbers=1)
    (workdir / "helper.py").write_text("WORD = 'edited there'\n")
    laptop.write("helper.py", "WORD = 'edited here'\n")
    done = laptop("submit", "train.py", "1", "0", check=False)
    assert done.returncode == 73, done.stderr
    assert "helper.py" in done.stderr
    assert (workdir / "helper.py").read_text() == "WORD = 'edited there'\n"


FROM_PYTHON = """\
import echelon

class Thing:
    pass

def work(x):
    import helper, os
    print("says", helper.WORD, flush=True)
    return {"x": x + 1, "rank": int(os.environ["RANK"]), "word": helper.WORD}

def hostile():
    return Thing()

job = echelon.request(hand_over="never")
run = job.replace(procs=2).submit(work, 1)
print(list(run.logs(follow=True)))
print(run.results())
print(echelon.Run(run.id).result(), run.state, repr(run))
bad = job.submit(hostile)
try:
    bad.result()
except echelon.EchelonError as error:
    print(type(error).__name__, error.hint)
print(type(echelon.Run(bad.id, trust_host=True).result()).__name__)
failed = job.submit(lambda: 1 / 0)
try:
    failed.result()
except echelon.RunFailedError as error:
    print(error)
runs = job.replace(max_running=1).map(work, [1, 2])
runs.append(job.replace(max_running=1).grid("train.py", "1", "{pause}", pause=[0])[0])
print([run.result() for run in echelon.as_completed(runs)])
"""


@pytest.mark.full
def test_functions_from_a_laptop(laptop):
    laptop.write("main.py", FROM_PYTHON)
    done = subprocess.run(
        [sys.executable, "-S", "main.py"],
        cwd=laptop.project,
        env=laptop.environ,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    logs, results, again, refused, trusted, failed, mapped = done.stdout.splitlines()
    assert sorted(eval(logs)) == ["0: says hello", "1: says hello"]  # noqa: S307  our own
    assert eval(results) == [{"x": 2, "rank": n, "word": "hello"} for n in (0, 1)]  # noqa: S307
    assert again.startswith("{'x': 2, 'rank': 0, 'word': 'hello'} COMPLETED <Run work-")
    assert again.endswith(" on sandbox-far>")
    assert refused.startswith("NotPermittedError return plain data")
    assert trusted == "Thing"
    assert "ZeroDivisionError: division by zero on rank 0" in failed
    found = eval(mapped)  # noqa: S307
    assert sorted(one["x"] for one in found if one) == [2, 3]
    assert found.count(None) == 1  # the script's


@pytest.mark.slurm
def test_a_packed_sweep_from_a_laptop(laptop, remote):
    words = ["--pack=2", "--grid", "count=1,2,3", "train.py", "{count}", "0"]
    done = laptop("sweep", "--json", "--wait", *words)
    found = json.loads(done.stdout)
    assert found["job"].isdecimal()
    assert f"{found['sweep']}: 3 COMPLETED" in done.stderr
    assert "0: number 1" in laptop("logs", f"{found['sweep']}-2").stdout
    waiting = ["--pack=1", "--grid", "count=1000,1000", "train.py", "{count}", "0.05"]
    sweep = json.loads(laptop("sweep", "--json", *waiting).stdout)["sweep"]
    state = lambda: json.loads(laptop("sweep", "status", "--json").stdout)  # noqa: E731
    assert wait_until(lambda: state()["states"].get("RUNNING") == 2, timeout_s=60)
    laptop("stop", f"{sweep}-0")
    assert wait_until(lambda: state()["states"].get("CANCELLED") == 1, timeout_s=60)
    laptop("sweep", "stop", "last")
    assert wait_until(lambda: state()["going"] == 0, timeout_s=60)


@pytest.mark.full
def test_a_sweep_from_a_laptop(laptop, remote):
    words = ["--grid", "count=1,2", "--grid", "pause=0,0.1", "--max-running=1", "--wait", "--json"]
    done = laptop("sweep", *words, "train.py", "{count}", "{pause}")
    sweep = json.loads(done.stdout)["sweep"]
    assert f"{sweep}: 4 COMPLETED" in done.stderr
    rows = json.loads(laptop("sweep", "table", "--json").stdout)
    found = [(row["run"], row["count"], row["pause"], row["state"]) for row in rows]
    assert found[3] == (f"{sweep}-3", "2", "0.1", "COMPLETED")
    assert "0: number 1" in laptop("logs", f"{sweep}-3").stdout
    assert json.loads(laptop("ps", "--json").stdout)[-1]["run"] == sweep

    waiting = ["--grid", "count=1000,1,1", "--max-running=1"]
    laptop("sweep", *waiting, "train.py", "{count}", "0.05")
    state = lambda: json.loads(laptop("sweep", "status", "--json").stdout)  # noqa: E731
    assert wait_until(lambda: state()["states"].get("RUNNING"), timeout_s=60)
    sweep = state()["sweep"]
    assert "which had not started" in laptop("cancel", f"{sweep}-2").stderr
    assert state()["runs"][f"{sweep}-2"]["state"] == "CANCELLED"
    assert wait_until(lambda: "number 3" in laptop("logs", f"{sweep}-0").stdout, timeout_s=60)
    laptop("sweep", "stop", "last")
    assert wait_until(lambda: state()["going"] == 0, timeout_s=60)
    laptop.write("job.sbatch", "#!/bin/bash\n#SBATCH --array=1,3\n#SBATCH --time=5\n")
    done = laptop("submit", "--json", "--wait", "--from=job.sbatch", "train.py", "1", "0")
    rows = json.loads(laptop("sweep", "table", "--json").stdout)
    sweep = json.loads(done.stdout)["sweep"]
    assert [(row["run"], row["state"]) for row in rows] == [
        (f"{sweep}-{index}", "COMPLETED") for index in (1, 3)
    ]
    missing = laptop("sweep", "table", "no-such", check=False)
    assert "no sweep 'no-such'" in missing.stderr


@pytest.mark.full
@pytest.mark.parametrize("count", SOME)
def test_a_sweep_whose_connection_is_cut_is_made_once(laptop, remote, count):
    laptop("ps", "--host=sandbox-far", check=False)  # brings Echelon there
    laptop.hang_up()
    laptop.cut_after(count)
    words = ["sweep", "--json", "--grid", "count=1,2,3", "train.py", "{count}", "0"]
    done = laptop(*words, check=False)
    assert not laptop.will_be_cut
    if done.returncode:  # cut before there was a connection at all
        assert done.returncode == 69, done.stderr
        assert "not known whether" not in done.stderr
        done = laptop(*words)
    sweep = json.loads(done.stdout)["sweep"]
    shown = remote.exec("scontrol", "--oneliner", "show", "job").splitlines()
    arrays = [re.findall(r"ArrayJobId=(\d+)", line) for line in shown if f":{sweep}-*/" in line]
    assert len({one for (one,) in arrays}) == 1
