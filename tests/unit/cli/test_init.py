"""`echelon init` with programs on PATH that answer as Slurm does."""

import json
import os
import pty
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from echelon.cli import main
from echelon.cli.init import gather_facts
from echelon.core.shell import FakeShell, Result
from echelon.core.waiting import wait_until

RECORDED = Path(__file__).parents[2] / "golden" / "slurm-22.05"
TRAIN = "import torch\nif __name__ == '__main__':\n    pass\n"
TWO_GPU_PARTITIONS = (
    "cpu*|up|infinite|n/a|9|64|(null)\n"
    "a100|up|1-00:00:00|n/a|4|64|gpu:a100:4(S:0-1)\n"
    "h100|up|12:00:00|n/a|2|96|gpu:h100:8(S:0-1)\n"
)


def answer(folder, program, text, code=0):
    """Put a program on PATH that prints this text."""
    output = folder / f"{program}.txt"
    output.write_text(text)
    path = folder / program
    path.write_text(f"#!/bin/sh\ncat '{output}'\nexit {code}\n")
    path.chmod(0o755)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a script, on a machine with Slurm, for a user without settings."""
    programs, folder = tmp_path / "bin", tmp_path / "project"
    programs.mkdir()
    folder.mkdir()
    answer(programs, "sinfo", (RECORDED / "sinfo.txt").read_text())
    answer(programs, "scontrol", "ClusterName             = big\n")
    answer(programs, "sacctmgr", (RECORDED / "sacctmgr-user.txt").read_text())
    (folder / "train.py").write_text(TRAIN)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("VIRTUAL_ENV", "CONDA_DEFAULT_ENV", "XDG_CONFIG_HOME", "SLURM_CONF"):
        monkeypatch.delenv(name, raising=False)
    return folder


def written(project):
    return tomllib.loads((project / "echelon.toml").read_text())


def test_init_writes_a_valid_file(project, capsys):
    assert main.run(["init"]) == 0
    out, err = capsys.readouterr()
    assert out == "wrote echelon.toml\n"
    assert "  echelon submit --dry-run " in err
    assert "  echelon submit --follow " in err
    assert written(project) == {"script": "train.py", "gpus": 4, "cpus_per_task": 4}
    assert main.run(["config", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["gpus"] == {"value": "4", "from": str(project / "echelon.toml")}
    assert main.run(["script"]) == 0
    assert "#SBATCH --gres=gpu:4\n" in capsys.readouterr().out


def test_init_keeps_an_existing_file(project, capsys):
    (project / "echelon.toml").write_text("gpus = 1\n")
    assert main.run(["init"]) == 73
    assert "echelon init --force" in capsys.readouterr().err
    assert written(project) == {"gpus": 1}
    assert main.run(["init", "--force"]) == 0
    assert written(project)["gpus"] == 4


def test_init_keeps_a_dangling_link(project):
    (project / "echelon.toml").symlink_to("nowhere")
    assert main.run(["init"]) == 73


def test_init_overrides_a_pyproject_table_only_with_force(project, capsys):
    (project / "pyproject.toml").write_text("[tool.echelon]\ngpus = 1\n")
    assert main.run(["init"]) == 73
    assert "[tool.echelon]" in capsys.readouterr().err
    assert not (project / "echelon.toml").exists()
    (project / "pyproject.toml").write_text("[tool.ruff]\nline-length = 100\n")
    assert main.run(["init"]) == 0


def test_init_dry_run_writes_no_file(project, capsys):
    (project / "echelon.toml").write_text("gpus = 1\n")
    assert main.run(["init", "--dry-run"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["gpus"] == 4
    assert written(project) == {"gpus": 1}


def test_init_works_if_slurm_does_not_respond(project, capsys):
    answer(project.parent / "bin", "sinfo", "", code=1)
    assert main.run(["init", "--yes"]) == 0
    err = capsys.readouterr().err
    assert "Slurm does not respond" in err
    assert "  echelon run " in err
    assert written(project)["script"] == "train.py"


def test_init_omits_the_users_own_settings(project):
    own = project.parent / ".config" / "echelon"
    own.mkdir(parents=True)
    (own / "config.toml").write_text('cpus_per_gpu = 2\ngpus = 2\ncluster = "c"\n[clusters.c]\n')
    assert main.run(["init"]) == 0
    assert written(project) == {"script": "train.py"}


def test_init_without_a_terminal_uses_the_defaults(project):
    answer(project.parent / "bin", "sinfo", TWO_GPU_PARTITIONS)
    done = subprocess.run(
        [sys.executable, "-m", "echelon", "init"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "Which" not in done.stderr
    assert written(project)["partition"] == "a100"


def in_terminal(project, keys):
    """Type into the command in a terminal; return its exit code and its output."""
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell ignores it for what it puts behind
        os.execv(sys.executable, [sys.executable, "-m", "echelon", "init"])  # noqa: S606
    seen = ""
    for waited_for, typed in keys:
        while waited_for not in seen:
            seen += os.read(terminal, 4096).decode()
        os.write(terminal, typed.encode())
        seen = ""
    codes = []

    def over():
        try:
            os.read(terminal, 4096)
        except OSError:  # the other end is closed
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            return True
        return False

    assert wait_until(over, timeout_s=30)
    os.close(terminal)
    return codes[0]


def test_init_in_a_terminal_asks_until_the_answer_is_valid(project):
    answer(project.parent / "bin", "sinfo", TWO_GPU_PARTITIONS)
    keys = [("Enter [a100]:", "h10\n"), ("did you mean 'h100'?", "h100\n")]
    assert in_terminal(project, keys) == 0
    expected = {"partition": "h100", "gpus": 8, "cpus_per_task": 12, "time": "12:00:00"}
    assert written(project) == {"script": "train.py", **expected}


def test_init_interrupted_at_a_question_writes_no_file(project):
    answer(project.parent / "bin", "sinfo", TWO_GPU_PARTITIONS)
    assert in_terminal(project, [("Enter [a100]:", "\x03")]) == 130
    assert not (project / "echelon.toml").exists()


# --- this machine and this folder ---------------------------------------------------------------


def look(folder, environ=None, **answers):
    programs = [name for name in ("nvidia-smi",) if name in answers]
    shell = FakeShell(answers=answers, programs=programs)
    return gather_facts(folder, shell, {"HOME": str(folder), **(environ or {})})


def test_init_counts_the_gpus_of_this_machine(tmp_path):
    listed = "GPU 0: NVIDIA H200 (UUID: GPU-1)\nGPU 1: NVIDIA H200 (UUID: GPU-2)\n"
    assert look(tmp_path, **{"nvidia-smi": listed}).machine.gpus == 2
    failed = Result(argv=("nvidia-smi",), code=9, stdout="NVIDIA-SMI has failed\n")
    assert look(tmp_path, **{"nvidia-smi": failed}).machine.gpus == 0
    assert look(tmp_path).survey is None


def test_init_finds_the_active_or_a_local_environment(tmp_path):
    for name in ("venv", "elsewhere/mine"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "activate").touch()
    found = look(tmp_path).environment
    assert (found.key, found.value) == ("venv", "venv")
    found = look(tmp_path, {"VIRTUAL_ENV": str(tmp_path / "venv")}).environment
    assert (found.value, found.why) == ("venv", "the active environment")
    outside = look(tmp_path / "venv", {"VIRTUAL_ENV": str(tmp_path / "elsewhere/mine")})
    assert outside.environment.value == str(tmp_path / "elsewhere/mine")
    found = look(tmp_path, {"CONDA_DEFAULT_ENV": "torch29"}).environment
    assert (found.key, found.value) == ("conda", "torch29")
    assert look(tmp_path, {"CONDA_DEFAULT_ENV": "base"}).environment.value == "venv"
    assert look(tmp_path / "venv", {"VIRTUAL_ENV": str(tmp_path / "gone")}).environment is None


def test_init_ignores_unreadable_files(tmp_path):
    (tmp_path / "train.py").mkdir()
    (tmp_path / "main.py").write_bytes(b"import torch\n\xff\n")
    assert look(tmp_path).scripts == ("main.py",)


def test_init_warns_if_others_can_replace_the_file(project, capsys):
    project.chmod(0o777)
    before = os.umask(0)
    try:
        assert main.run(["init", "--yes"]) == 0
    finally:
        os.umask(before)
    assert (project / "echelon.toml").stat().st_mode & 0o777 == 0o644
    err = capsys.readouterr().err
    assert f"warning: everybody can write to {project}, so commands use this file only" in err
