"""Files that do not exist, are in another folder, or do not work, and what looks like them."""

import pytest

from echelon.lint.files import DiskFiles
from echelon.lint.linting import lint
from unit.lint.fakes import JOB, SlurmOf, TextFiles


def found(body, texts, code="E215", head=JOB, path="jobs/job.sh", **options):
    """Return the severity, the line and the text of each finding with a code."""
    files = TextFiles({path: "", **texts}, repository=True, **options)
    findings = lint(head + body, path=path, files=files, programs=SlurmOf())
    return [(str(f.severity), f.line, f.what) for f in findings if f.code == code]


PLAIN = {"jobs/plain.sh": "true\n", "plain.sh": "true\n", "tools/plain.sh": "true\n"}


@pytest.mark.parametrize(
    "line",
    [
        "srun plain.sh 1",
        "srun -n 4 --cpu-bind=cores plain.sh",
        "srun ./plain.sh",
        "for n in 1 2; do srun tools/plain.sh $n; done",
    ],
)
def test_srun_does_not_start_a_file_that_is_not_executable(line):
    [(severity, number, what)] = found(f"{line}\n", PLAIN)
    assert (severity, number) == ("advice", 3)
    assert what.endswith("plain.sh is not executable, so srun cannot start it.")


@pytest.mark.parametrize(
    "line",
    [
        "srun bash plain.sh",
        "srun other.sh",
        "srun run.sh",
        "srun plain",
        "srun $SCRIPT",
        "chmod +x plain.sh; srun plain.sh",
        "cd tools; srun plain.sh",
        "srun --chdir=/data plain.sh",
        "srun --container-image=a.sqsh ./plain.sh",
        "srun --bcast=/tmp/plain.sh ./plain.sh",
    ],
)
def test_srun_starts_these_or_lint_does_not_know(line):
    assert found(f"{line}\n", {**PLAIN, "run.sh": "true\n"}) == []


@pytest.mark.parametrize(
    ("line", "end"),
    [
        ("ln -s logs/$SLURM_JOB_ID.out logs/latest.out", "logs/logs"),
        ("ln -f -s logs/a.out logs/latest.out", "logs/logs"),
        ("ln -sfn ./logs/a.out logs/b/latest.out", "logs/b/logs"),
        ("DIR=logs; ln -sf $DIR/a.out $DIR/latest.out", "logs/logs"),
    ],
)
def test_a_link_to_nothing(line, end):
    [(severity, number, what)] = found(f"{line}\n", {})
    assert (severity, number) == ("advice", 3)
    assert what.endswith(f"this link points to {end}/…, which does not exist.")


@pytest.mark.parametrize(
    "line",
    [
        "ln -s a.out logs/latest.out",
        "ln -s $PWD/logs/a.out logs/latest.out",
        "ln -s $DIR/a.out $DIR/latest.out",
        "ln -s /logs/a.out /logs/latest.out",
        "ln -s ../logs/a.out logs/latest.out",
        "ln -s logs/a.out latest.out",
        "ln -s data/a.out logs/latest.out",
        "ln -sr logs/a.out logs/latest.out",
        "ln --relative -s logs/a.out logs/latest.out",
        "ln logs/a.out logs/latest.out",
        "ln -s -t logs logs/a.out",
        "ln -s logs/a logs/b logs",
    ],
)
def test_links_that_work(line):
    assert found(f"{line}\n", {}) == []


def test_a_link_to_a_folder_of_the_same_name():
    line = "ln -s logs/a.out logs/latest.out\n"
    assert found(line, {}, folders={"logs/logs"}) == []


@pytest.mark.parametrize(
    "path",
    [
        "jobs/inner.sh",
        "inner.sh",
        "$SLURM_SUBMIT_DIR/jobs/inner.sh",
        "${SLURM_SUBMIT_DIR}/jobs/inner.sh",
        "/scratch/me/own/jobs/inner.sh",
        "$HOME/own/jobs/inner.sh",
        "~/own/jobs/inner.sh",
        "own/jobs/inner.sh",
    ],
)
@pytest.mark.parametrize("start", ["bash", "srun sh", "apptainer exec a.sif bash", "srun"])
def test_a_script_of_the_repository_is_read(start, path):
    inner = {"jobs/inner.sh": "#!/bin/bash\npython train.py | tee log\n"}
    assert [line for _, line, _ in found(f"{start} {path}\n", inner, "E505")] == [2]


@pytest.mark.parametrize(
    "path",
    [
        "/scratch/me/other/jobs/inner.sh",
        "$REPO/jobs/inner.sh",
        "/jobs/inner.sh",
        "../own2/jobs/inner.sh",
        "$(dirname $0)/jobs/inner.sh",
    ],
)
def test_a_script_that_may_be_another_is_not_read(path):
    inner = {"jobs/inner.sh": "#!/bin/bash\npython train.py | tee log\n"}
    assert found(f"bash {path}\n", inner, "E505") == []


def test_the_root_of_a_repository(tmp_path, monkeypatch):
    (tmp_path / "own" / ".git").mkdir(parents=True)
    (tmp_path / "own" / "jobs" / "a").mkdir(parents=True)
    files = DiskFiles()
    assert files.root(f"{tmp_path}/own/jobs/a/job.sh") == (f"{tmp_path}/own", "own")
    assert files.root(f"{tmp_path}/job.sh") is None
    monkeypatch.chdir(tmp_path / "own" / "jobs")
    assert DiskFiles().root("a/job.sh") == ("..", "own")
    assert DiskFiles().root("job.sh") == ("..", "own")
    monkeypatch.chdir(tmp_path / "own")
    assert DiskFiles().root("job.sh") == (".", "own")


def test_a_secret_of_a_script_that_the_job_runs():
    login = f"wandb login {'0a' * 20}\n"
    [(_, _, own)] = found(login, {}, "E406")
    [(_, _, called)] = found("bash login.sh\n", {"jobs/login.sh": login}, "E406")
    assert own.endswith("Slurm also stores a copy of the script.")
    assert own.startswith(called)
    assert "Slurm" not in called
