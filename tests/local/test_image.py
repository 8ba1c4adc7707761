"""Runs inside a container image, with a real podman."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import echelon
from echelon.core.waiting import wait_until
from local.inside import INSIDE, Folder
from procfs import cmdline
from requirements import require

pytestmark = pytest.mark.timeout(600)  # the image is made first

HANGS = """\
import os, time, torch, torch.distributed as dist

def wait_for_the_others():
    if os.environ["RANK"] == "1":
        time.sleep(1000)
    dist.barrier()

dist.init_process_group("gloo")
wait_for_the_others()
"""


@pytest.fixture
def project(tmp_path):
    folder = Folder(tmp_path)
    yield folder
    for pid in folder.processes():
        os.kill(pid, signal.SIGKILL)


def test_ranks_are_inside_and_a_restart_is_a_fork(project, torch_image):
    (project.path / "inside.py").write_text(INSIDE)
    (project.path / "data").mkdir()
    (project.path / "echelon.toml").write_text(f"""\
[image]
name = "{torch_image.path}"
runtime = "podman"
mounts = ["{project.path}/data:/mnt/data"]
env = {{ GIVEN = "a, b" }}
""")
    done = project("run", "--procs=2", "--restarts=1", "inside.py")
    assert done.returncode == 0, done.stderr
    assert "library /opt/echelon-library/echelon/__init__.py" in done.stdout
    seen = [
        json.loads((project.path / f"seen-{turn}-{rank}").read_text())
        for turn in (0, 1)
        for rank in (0, 1)
    ]
    for one in seen:
        assert one["sum"] == 2
        assert one["python"] == "/usr/local/bin/python3"
        assert one["torch"].startswith("/usr/local/lib/")
        assert (one["image"], one["given"], one["venv"]) == ("yes", "a, b", None)
        assert (one["uid"], one["cwd"]) == (os.getuid(), str(project.path))
        assert one["home"]
        assert one["files"]
        assert one["host"] == os.uname().nodename
        assert one["init"] == Path("/proc/1/cmdline").read_text()  # the node's own processes
    assert len({one["parent"] for one in seen}) == 1  # one zygote in one container for all
    assert [event["warm"] for event in project.events("rank")] == [True] * 4
    assert torch_image.containers() == []


@pytest.mark.full
def test_a_stop_is_at_one_step_and_a_resumed_run_goes_on_there(project, torch_image):
    survivor = Path(__file__).parents[1] / "slurm" / "survivor.py"
    command = project.start(
        *("run", "--procs=2", f"--image={torch_image.path}", "--image-runtime=podman"),
        *(survivor, "100000", "0.02"),
    )
    files = [project.path / f"consumed-{rank}" for rank in range(2)]
    going = lambda: all(path.exists() for path in files)  # noqa: E731
    assert wait_until(going, timeout_s=90), (project.path / "output").read_text()
    assert project("stop", "last").returncode == 0
    command.wait(timeout=60)
    (stopped,) = project.events("stopped")
    steps = [json.loads(path.read_text().splitlines()[-1])[2] for path in files]
    assert steps == [stopped["step"]] * 2
    assert torch_image.containers() == []
    assert project.processes() == []

    command = project.start("resume", "last")
    on = lambda: all(len(path.read_text().splitlines()) > steps[0] + 5 for path in files)  # noqa: E731
    assert wait_until(on, timeout_s=90), (project.path / "output").read_text()
    assert project("stop", "last").returncode == 0
    command.wait(timeout=60)
    consumed = [json.loads(line)[2] for line in files[0].read_text().splitlines()]
    assert consumed == list(range(1, len(consumed) + 1))
    assert torch_image.containers() == []


def where():
    return sys.executable, int(os.environ["RANK"])


def test_a_function_is_called_inside(torch_image, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    image = {"image": str(torch_image.path), "image_runtime": "podman"}
    run = echelon.request(on="local", procs=2, **image).submit(where)
    assert run.results(timeout=200) == [("/usr/local/bin/python3", rank) for rank in (0, 1)]


def test_a_hang_is_found_and_stacks_show_where(project, torch_image):
    (project.path / "hangs.py").write_text(HANGS)
    done = project(
        *("run", "--procs=2", f"--image={torch_image.path}", "--image-runtime=podman"),
        *("--hang-timeout=3", "--on-hang=stop", "hangs.py"),
    )
    assert done.returncode != 0
    stacks = "".join(path.read_text() for path in project.run.glob("logs/*/*.stacks"))
    assert "in wait_for_the_others" in stacks
    assert torch_image.containers() == []


def test_nothing_outlives_a_killed_agent(project, torch_image):
    (project.path / "hangs.py").write_text(HANGS)
    command = project.start(
        *("run", "--procs=2", "--image", torch_image.path, "--image-runtime=podman", "hangs.py")
    )
    ranks = lambda: list(project.path.glob("runs/*/logs/1.0/rank-*1.log"))  # noqa: E731
    assert wait_until(ranks, timeout_s=90), (project.path / "output").read_text()
    agents = [pid for pid in project.processes() if b"\0agent\0" in cmdline(pid)]
    for pid in agents:
        os.kill(pid, signal.SIGKILL)
    os.kill(command.pid, signal.SIGKILL)
    command.wait()
    assert wait_until(lambda: project.processes() == [], timeout_s=30), project.processes()
    assert wait_until(lambda: torch_image.containers() == [], timeout_s=30)


@pytest.mark.full
def test_an_image_without_torch_is_an_error_that_says_so(project, bare_image):
    (project.path / "inside.py").write_text(INSIDE)
    done = project(
        "run", "--procs=2", f"--image={bare_image.path}", "--image-runtime=podman", "inside.py"
    )
    assert done.returncode == 69
    assert "the Python in the image has no torch: /usr/local/bin/python3 (3." in done.stderr
    assert "--image-python" in done.stderr
    assert bare_image.containers() == []


def test_another_python_in_the_image(project, bare_image):
    (project.path / "inside.py").write_text("print('never')\n")
    done = project(
        *("run", f"--image={bare_image.path}", "--image-runtime=podman"),
        *("--image-python=/opt/none/python", "inside.py"),
    )
    assert done.returncode == 69
    assert "the image has no such Python" in done.stderr


def test_without_a_runtime(project, bare_image):
    (project.path / "inside.py").write_text("print('never')\n")
    done = project("run", f"--image={bare_image.path}", "--image-runtime=singularity", "inside.py")
    assert done.returncode == 69
    assert "'singularity' is not installed or not on PATH" in done.stderr


# --- a registry -------------------------------------------------------------------------------


@pytest.fixture
def registry(tmp_path):
    """Debian's registry, on a port of its own; yields its address."""
    require("docker-registry", "skopeo")
    config = tmp_path / "registry.yml"
    log = tmp_path / "registry.log"
    storage = f"storage:\n  filesystem:\n    rootdirectory: {tmp_path}/registry\n"
    config.write_text(f"version: 0.1\n{storage}http:\n  addr: 127.0.0.1:0\n")
    with log.open("wb") as output:
        server = subprocess.Popen(
            ["docker-registry", "serve", str(config)], stdout=output, stderr=output
        )
    found = []

    def listens():
        said = log.read_text()
        found[:] = [word.rstrip('"') for word in said.split() if word.startswith("127.0.0.1:")]
        return bool(found)

    assert wait_until(listens, timeout_s=20), log.read_text()
    yield found[0]
    server.terminate()
    server.wait()


def push(image, name):
    """Copy an image's file to a registry."""
    copy = ["skopeo", "copy", "--quiet", "--dest-tls-verify=false"]
    subprocess.run([*copy, f"oci-archive:{image.path}", f"docker://{name}"], check=True)


@pytest.mark.full
def test_a_tag_is_resolved_once_and_its_image_imported_once(project, bare_image, registry):
    name = f"{registry}/team/x:1"
    push(bare_image, name)
    pulled = project("image", "pull", name, "--image-runtime=podman")
    assert pulled.returncode == 0, pulled.stderr
    digest = pulled.stdout.partition("@")[2].split()[0]
    (row,) = json.loads(project("image", "ls", "--json").stdout)
    assert (row["reference"], row["runtime"]) == (f"{name}@{digest}", "podman")
    (project.path / "plain.py").write_text("import os; print('from', os.environ['FROM_IMAGE'])\n")
    done = project("run", f"--image={name}", "--image-runtime=podman", "plain.py")
    assert (done.returncode, "from yes" in done.stdout) == (0, True), done.stderr
    assert f'image = "{name}@{digest}"' in (project.run / "spec.toml").read_text()
    missing = project("run", f"--image={registry}/team/y:1", "plain.py")
    assert missing.returncode == 66
    assert "team/y:1 was not found" in missing.stderr
    assert project("image", "rm", name).returncode == 0
    assert json.loads(project("image", "ls", "--json").stdout) == []
    assert project("image", "rm", name).returncode == 66
    image = subprocess.run(
        ["podman", "images", "--quiet", "--filter", f"reference={registry}/team/x"],
        capture_output=True,
        text=True,
        check=True,
    )
    subprocess.run(["podman", "rmi", "--force", *image.stdout.split()], check=False)


@pytest.mark.full
def test_a_staged_image_is_opened_from_the_node_s_own_disk(project, bare_image):
    (project.path / "where.py").write_text("import sys; print(sys.executable)\n")
    options = [f"--image={bare_image.path}", "--image-runtime=podman", "--set=preload="]
    options += ["--nodes=2", "--procs=1", "--stage", f"--stage-dir={project.path}/stages/%N"]

    def run(*more):
        done = project("run", *options, *more, "where.py")
        newest = max((project.path / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
        lines = (newest / "events" / "controller-1.jsonl").read_text().splitlines()
        return done, [one for one in map(json.loads, lines) if one["kind"] == "staged"]

    done, _ = run("--image-python=/nowhere/python")  # noticed only after the copy was made
    assert done.returncode != 0
    assert "/nowhere/python" in done.stderr
    shutil.rmtree(project.path / "stages")
    done, (event,) = run()
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("/usr/local/bin/python3") == 2
    size = bare_image.path.stat().st_size
    assert (event["nodes"], event["found"], event["copied"]) == (2, 0, 2 * size)
    done, (event,) = run()
    assert done.returncode == 0, done.stderr
    assert (event["nodes"], event["found"], event["copied"]) == (2, 2, 0)
