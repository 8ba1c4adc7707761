"""Jobs execute the code that was submitted, although the project is edited meanwhile."""

import json
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from echelon.core.waiting import wait_until

# What is imported before and after the second edit, for each way of finding a module.
TRAIN = """\
import os, pathlib, sys, time
def show(*names):
    for name in names:
        module = __import__(name)
        print("found", rank, name, module.VERSION, module.__file__, flush=True)
rank = os.environ.get("RANK", "0")  # some styles leave it to the script
VERSION = "{version}"
print("found", rank, "script", VERSION, __file__, flush=True)
show("beside", "by_path", "editable", "finder")
pathlib.Path("ready-" + rank).touch()
while not pathlib.Path("go").exists():
    time.sleep(0.02)
show("beside_late", "by_path_late", "editable_late", "finder_late")
print("wrote to", os.getcwd(), flush=True)
if os.environ.get("ECHELON_GENERATION") == "0":
    sys.exit(1)
"""
MODULES = {
    "beside": "beside.py",
    "by_path": "lib/by_path.py",
    "editable": "src/editable.py",
    "finder": "other/finder.py",
}
FINDER = """\
import importlib.util, sys
MAPPING = {{'finder': '{root}/other/finder.py', 'finder_late': '{root}/other/finder_late.py'}}
class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in MAPPING:
            return importlib.util.spec_from_file_location(name, MAPPING[name])
sys.meta_path.append(Finder)
"""


def edit(root, version):
    """Give every file of the project another version."""
    texts = {"train.py": TRAIN.replace("{version}", version)}
    for name, path in MODULES.items():
        texts[path] = texts[path.replace(f"{name}.py", f"{name}_late.py")] = (
            f"VERSION = {version!r}\n"
        )
    for path, text in texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


@pytest.fixture
def project(tmp_path):
    """A repository, and a Python in which its packages are installed in both editable modes."""
    root = tmp_path / "project"
    edit(root, "first")
    subprocess.run(["git", "init", "-q", root], check=True)
    (root / ".gitignore").write_text("runs/\nready-*\ngo\n")
    venv.create(tmp_path / "venv", symlinks=True)
    site = next(Path(tmp_path, "venv", "lib").glob("python*/site-packages"))
    (site / "torch.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    (site / "editable.pth").write_text(f"{root}/src/\n")
    (site / "late.pth").write_text("import late_finder\n")
    (site / "late_finder.py").write_text(FINDER.format(root=root))
    return root


@pytest.fixture
def echelon(cluster, project):
    environ = {**cluster.environ, "SLURM_CONF": str(cluster.box.layout.slurm_conf)}
    environ |= {"HOME": str(project.parent), "PYTHONPATH": "lib"}

    def call(*words, code=0):
        argv = [sys.executable, "-m", "echelon", *words]
        done = subprocess.run(
            argv, cwd=project, env=environ, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == code, done.stderr
        return done.stdout

    return call


CASES = [("echelon", True), ("srun", False)]
MORE = [
    ("echelon", False),
    ("srun", True),
    ("file", False),
    ("file", True),
    *((s, False) for s in ("static", "torchrun", "spawn", "ray")),
]


@pytest.mark.parametrize(
    ("style", "module"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.full) for case in MORE)],
)
def test_a_project_is_edited_while_its_run_waits_and_while_it_runs(
    cluster, echelon, project, style, module
):
    program = ["-m", "train"] if module else ["train.py"]
    python = f"--python={project.parent}/venv/bin/python"
    options = [python, f"--style={style}", "--procs=1", "--set=slurm.extra.hold="]
    options += ["--restarts=1"] if style == "echelon" else []
    made = json.loads(echelon("submit", "--json", *options, *program))
    edit(project, "second")
    cluster.exec("scontrol", "release", made["job_id"])
    assert wait_until((project / "ready-0").exists, timeout_s=90), echelon("logs", "last")
    edit(project, "third")
    (project / "go").touch()
    job = cluster.await_job(made["job_id"], "COMPLETED", "FAILED", timeout_s=90)
    said = echelon("logs", made["run"])
    assert job["JobState"] == "COMPLETED", said
    check_found(made, said, 9 * (2 if style == "echelon" else 1))
    assert f"wrote to {project}\n" in said


def check_found(made, said, count):
    """Check that everything was found in the copy, as it was at first."""
    lines = re.findall(r"found \d+ \w+ (\w+) (/.+)", said)
    copy = f"{made['directory']}/code/"
    assert {version for version, _ in lines} == {"first"}, said
    assert all(path.startswith(copy) for _, path in lines), said
    assert len(lines) == count, said


def test_a_project_is_edited_between_two_jobs_of_a_run(cluster, echelon, project):
    python = f"--python={project.parent}/venv/bin/python"
    made = json.loads(echelon("submit", "--json", python, "--procs=1", "train.py"))
    assert wait_until((project / "ready-0").exists, timeout_s=90), echelon("logs", "last")
    echelon("stop", made["run"])
    cluster.await_job(made["job_id"], "CANCELLED", "FAILED", "COMPLETED", timeout_s=90)
    edit(project, "second")
    (project / "go").touch()
    echelon("resume", made["run"], "--wait", code=1)  # the script ends its first generation so
    check_found(made, echelon("logs", made["run"]), 5 + 9)
