"""Errors of invalid calls: one line with the problem, and one with the hint."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from echelon.cli import main
from echelon.run.directory import RunDir

NO_CLUSTER = "scontrol: fatal: Could not establish a configuration source"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a script, a run that has ended and some invalid run directories."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "SLURM_CONF", "SLURM_JOB_ID", "ECHELON_RUNS_DIR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "train.py").write_text("print()\n")
    (tmp_path / "broken.py").write_text("x = (\n")
    (tmp_path / "empty.sh").touch()
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH --nodes=2\nsrun python train.py\n")
    for name in ("done-abcd", "done-abce", "spoilt", "headless", "open"):
        run = RunDir.create(tmp_path / "runs", name)
        run.spec.write_text('script = "train.py"\n')
        (run.attempts / "1").mkdir()
        job = {"job_id": f"local:{os.uname().nodename}:1:0", "submitted": "", "output": ""}
        (run.attempts / "1" / "job.json").write_text(json.dumps(job))
        run.outcome(1).write_text('{"state": "COMPLETED", "exit_code": 0}')
    (tmp_path / "runs/spoilt/spec.toml").write_text("x = [\n")
    (tmp_path / "runs/headless/spec.toml").unlink()
    (tmp_path / "runs/open").chmod(0o777)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "scontrol").write_text(f"#!/bin/sh\necho '{NO_CLUSTER}' >&2\nexit 1\n")
    (programs / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return tmp_path


def run_command(capsys, *arguments):
    code = main.run(list(arguments))
    err = capsys.readouterr().err
    assert "Traceback" not in err
    first, second = err.splitlines()
    assert first.startswith("error: ")
    assert second.startswith("hint: ")
    return code, first.removeprefix("error: "), second.removeprefix("hint: ")


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("run", (2, "no training script given", "SCRIPT.py")),
        ("submit job.sh", (2, "job.sh is a job script", "echelon submit --from job.sh")),
        ("submit --host h job.sh", (2, "job.sh is a job script", "echelon submit --from job.sh")),
        ("run job.sh --lr 1", (2, "job.sh is a job script", "echelon run --from job.sh")),
        ("script job.sh", (2, "job.sh is a job script", "echelon script --from job.sh")),
        ("run trian.py", (2, "trian.py does not exist: did you mean 'train.py'?", "nothing was")),
        ("run sub/x.py", (2, "there is no .py file in", "nothing was started")),
        ("run bin", (2, "is a directory: pass a file in it", "nothing was started")),
        ("run broken.py", (2, "does not compile", "nothing was started")),
        ("run --procs x train.py", (2, "procs: 'x' is not a whole number", "for example 4")),
        ("run --style foo train.py", (2, "'foo' is not one of echelon", "write one of them")),
        ("run --mem 1G --mem-per-cpu 1G train.py", (2, "keep one", "mem_per_cpu is from flags")),
        ("run --gpu-type a100 train.py", (2, "add --gpus", "gpu_type is from flags")),
        ("run --env 9=1 train.py", (2, "use letters", "env is from flags")),
        ("run --slurm nodes=3 train.py", (2, "use --nodes", "slurm.extra is from flags")),
        (
            "run --venv nowhere train.py",
            (2, "create it with python3 -m venv", "nothing was started"),
        ),
        (
            "run --python nowhere train.py",
            (2, "choose another with --python", "nothing was started"),
        ),
        ("run --style srun train.py", (2, "use --on slurm", "nothing was started")),
        (
            "run --on mars train.py",
            (2, "invalid value for --on: 'mars'", "choose local, slurm or ray"),
        ),
        ("run --from nowhere.sh train.py", (2, "No such file", "--from SCRIPT.sh")),
        ("run --runs-dir train.py train.py", (73, "not a directory", "--runs-dir")),
        ("run --prologue", (2, "requires an argument", "see echelon run --help")),
        ("submit train.py", (69, "has no cluster configuration", "export SLURM_CONF")),
        ("submit nowhere.py", (2, "nowhere.py does not exist", "nothing was started")),
        ("submit nowhere.py", (2, "has no cluster configuration", "nothing was started")),
        ("status nothing", (66, "no run 'nothing' in", "runs there: done-abcd")),
        ("status done", (2, "'done' is ambiguous: done-abcd, done-abce", "write more letters")),
        ("status headless", (66, "it has no spec.toml", "echelon submit")),
        ("status open", (77, "other users can write", "chmod 700")),
        ("status --runs-dir elsewhere x", (66, "no run 'x' in elsewhere", "--runs-dir")),
        ("report spoilt", (69, "the request of the run 'spoilt' is damaged", "repair that file")),
        ("logs done-abcd", (66, "has not printed anything yet", "echelon status done-abcd")),
        ("logs --rank x", (2, "'x' is not a rank", "3 or 0,4-7")),
        ("resume done-abcd", (73, "is complete", "echelon submit")),
        ("stop", (2, "missing argument", "for example: echelon stop last")),
        ("watch", (2, "not a terminal", "--once")),
        ("export done-abcd", (2, "no output format", "--csv")),
        ("export done-abcd --csv", (66, "has no measurements yet", "echelon status")),
        ("report --html /nowhere/x.html done-abcd", (69, "cannot write", "--html FILE")),
        ("dash nothing", (66, "no run 'nothing'", "latest runs")),
        ("lint", (2, "no file given", "echelon lint SCRIPT.sh")),
        ("lint empty.sh", (2, "is empty", "pass a job script")),
        ("lint --explain XX", (2, "unknown rule: XX", "--explain all")),
        ("nodes --cluster x", (66, "no record of a cluster 'x'", "no nodes are avoided")),
        ("pack nothing", (66, "there is no directory nothing", "check the path")),
        ("doctor --nodes x", (2, "'x' is not a number of nodes", "2:4")),
        ("sandbox status --name nothing", (66, "there is no sandbox", "sandbox up --name nothing")),
        (
            "sandbox up --nodes 0",
            (2, "--nodes must be between 1 and 200, not 0", "sandbox up --help"),
        ),
    ],
)
def test_an_invalid_call_has_a_message_and_a_hint(place, capsys, call, expected):
    found = run_command(capsys, *call.split())
    assert found[0] == expected[0]
    assert expected[1] in found[1]
    assert expected[2] in found[2]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            b"nodes = \n",
            "echelon.toml is not valid TOML: Invalid value (at line 1",
            "correct that line",
        ),
        (b"\xff\n", "not valid UTF-8: byte 1 is 0xff", "echelon init --force"),
        (
            b'mem = "1G"\nmem_per_cpu = "1G"\n',
            "keep one of them",
            "/echelon.toml, mem_per_cpu is from /",
        ),
        (b"gpus = [1]\n", "echelon.toml: gpus: [1] is not a whole number", "for example 4"),
        (b"gpsu = 1\n", "unknown key 'gpsu'", "did you mean 'gpus'?"),
        (b'hots = "x"\n', "unknown key 'hots'", "did you mean 'host'?"),
        (b'host = "x"\n', "unknown key 'host'", "'host' belongs in a profile: [clusters.NAME]"),
        (b'cluster = "x"\n[clusters]\nx = 3\n', "'x' is not a table", "[clusters.x]"),
        (b"env = 3\n", "env: 3 is not a table", "[env]"),
    ],
)
def test_an_invalid_project_file_has_a_message_and_a_hint(place, capsys, text, message, hint):
    (place / "echelon.toml").write_bytes(text)
    code, printed_message, printed_hint = run_command(capsys, "config")
    assert code == 2
    assert message in printed_message
    assert hint in printed_hint


@pytest.mark.parametrize(
    ("words", "text", "warned"),
    [
        ("train.py --wait", "", True),
        ("train.py --nodes=2", "print()", True),
        ("-- train.py --wait", "", False),
        ("train.py --wait", "parser.add_argument('--wait')", False),
        ("train.py --dry-run", "class Options:\n    dry_run: bool = False", False),
        ("train.py --lr 1", "", False),
    ],
)
def test_options_of_echelon_after_the_script_are_a_warning(place, capsys, words, text, warned):
    (place / "train.py").write_text(text)
    main.run(["submit", "--on", "local", "--dry-run", *words.split()])
    assert ("is passed to train.py, which does not mention it" in capsys.readouterr().err) == warned


def test_run_warns_of_options_that_only_jobs_use(place, capsys):
    assert main.run(["run", "--partition", "gpu", "--mem", "2G", "train.py"]) == 0
    message = capsys.readouterr().err
    assert "without effect, because no job is submitted: partition (gpu), mem (2G)" in message


def test_an_invalid_pyproject_table_is_named_in_full(place, capsys):
    (place / "pyproject.toml").write_text("[tool]\nechelon = 3\n")
    assert run_command(capsys, "config")[2] == "write it as [tool.echelon], with its keys below"


def test_a_folder_named_echelon_toml_is_an_error(place, capsys):
    (place / "echelon.toml").mkdir()
    assert run_command(capsys, "init", "--force")[0] == 73


def test_submit_without_slurm_is_an_error_with_a_hint(place, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(place / "nowhere"))
    python = f"--python={sys.executable}"
    code, message, hint = run_command(capsys, "submit", python, "train.py")
    assert (code, message) == (69, "the program 'scontrol' is not installed or not on PATH")
    assert "login node" in hint
    assert "echelon run" in hint


def test_a_deleted_current_directory_is_an_error(place, capsys):
    gone = place / "gone"
    gone.mkdir()
    os.chdir(gone)
    shutil.rmtree(gone)
    assert run_command(capsys, "config") == (
        2,
        "the current directory has been deleted",
        "change to another one: cd",
    )


@pytest.mark.parametrize(
    ("module", "packages"),
    [
        ("torch", "torch safetensors numpy"),
        ("PIL", "pillow"),
        ("tree_sitter.x", "tree-sitter tree-sitter-bash"),
    ],
)
def test_a_missing_package_names_its_extra(module, packages):
    found = main.explain(ModuleNotFoundError(name=module))
    assert (found.exit_code, found.hint) == (69, f"{sys.executable} -m pip install {packages}")


def test_a_missing_module_of_echelon_is_reported_as_a_bug():
    assert main.explain(ModuleNotFoundError("x", name="echelon.x")).exit_code == 70


def test_an_interrupted_command_ends_without_a_traceback(place):
    script = place / "long.py"
    script.write_text("import time\nprint('here', flush=True)\ntime.sleep(60)\n")
    child = subprocess.Popen(
        [sys.executable, "-m", "echelon", "run", "--preload=", "long.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "0: here\n"
    child.send_signal(2)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "stopping; press Ctrl-C again to stop immediately" in err
    assert "Traceback" not in err
