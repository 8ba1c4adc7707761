"""The values between a request and a queued job."""

import errno
import tomllib

import pytest

from echelon.client.submit import pipeline
from echelon.client.submit.parameters import split_array
from echelon.client.submit.run_files import new_run_id
from echelon.client.submit.target import Target
from echelon.clusters.local import LocalCluster
from echelon.core.atomic_file import write_atomic
from echelon.core.shell import FakeShell, LocalShell
from echelon.errors import UsageError
from echelon.run.attempts import attempts
from echelon.run.directory import RunDir
from echelon.run.request import read_spec, render_spec
from echelon.spec.merging import Layer, merge
from prepared import prepare_run


def request(**values):
    return merge([Layer(source="x", values=values)])


def spec(**values):
    return request(**values).spec


@pytest.fixture(autouse=True)
def _project(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text("pass")
    monkeypatch.chdir(tmp_path / "project")


def ask(tmp_path, on="local", **values):
    merged = request(**{"script": "train.py", **values})
    return pipeline.Request(merged=merged, target=Target(on=on, runs=tmp_path / "runs"))


def test_check_reports_all_problems_at_once_and_creates_nothing(tmp_path):
    wanted = ask(tmp_path, script="nowhere.py", venv="none", style="srun", image_runtime="podman")
    with pytest.raises(UsageError) as caught:
        pipeline.check(wanted)
    for problem in ("nowhere.py does not exist", "no virtual environment", "requires Slurm"):
        assert problem in caught.value.message
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("command", "copies"), [("submit", True), ("run", False)])
def test_only_runs_in_the_foreground_execute_the_project_itself(tmp_path, command, copies):
    wanted = ask(tmp_path)
    checked = pipeline.check(
        pipeline.Request(merged=wanted.merged, target=wanted.target, command=command)
    )
    assert checked.spec.snapshot is copies
    prepared = pipeline.prepare(checked)
    assert prepared.run.code.exists() is copies
    assert read_spec(prepared.run).snapshot is copies
    assert prepared.script == prepared.run.script.read_bytes()


def test_a_job_array_becomes_a_sweep_only_if_the_request_allows_it(tmp_path):
    array = {"slurm.extra": {"array": "1,3%2"}}
    with pytest.raises(UsageError, match="only echelon submit accepts job arrays"):
        pipeline.check(ask(tmp_path, **array))
    single, table = split_array(spec(script="train.py", args=["{x}"], **array))
    cluster = LocalCluster(LocalShell(), {}, tmp_path / "runs")
    runs = tmp_path / "runs"
    checked = pipeline.Checked(spec=single, cluster=cluster, runs=runs, table=table)
    prepared = pipeline.prepare(checked)
    assert (table.tasks, table.max_running) == ({1: (), 3: ()}, 2)
    frozen = read_spec(prepared.run)
    assert (frozen.slurm_extra, frozen.args) == ({}, ("{{x}}",))


def test_a_request_that_the_cluster_refuses_leaves_no_run(tmp_path):
    class Refuses(LocalCluster):
        def submit(self, *_args, **_values):
            raise UsageError("refused", hint="")

    cluster = Refuses(LocalShell(), {}, tmp_path / "runs")
    checked = pipeline.Checked(
        spec=spec(script="train.py"), cluster=cluster, runs=tmp_path / "runs"
    )
    prepared = pipeline.prepare(checked)
    with pytest.raises(UsageError, match="refused"):
        pipeline.submit(prepared)
    assert not prepared.run.path.exists()


def test_an_earlier_run_is_checked_without_its_project(tmp_path):
    first = pipeline.prepare(pipeline.check(ask(tmp_path)))
    (tmp_path / "project" / "train.py").unlink()
    again = pipeline.check_again(first.run, read_spec(first.run), first.cluster, same_code=True)
    second = pipeline.prepare(again)
    assert (second.run.code / "train.py").read_text() == "pass"
    assert attempts(second.run) == []
    with pytest.raises(UsageError, match="does not exist"):
        pipeline.check_again(first.run, read_spec(first.run), first.cluster, same_code=False)


def test_a_prepared_run_holds_its_request_and_its_script(tmp_path):
    wanted = spec(
        script="train.py",
        args=["--lr", 'it\'s "0.1"'],
        nodes=2,
        gpus=4,
        mem="64G",
        env={"A": "b\nc"},
        **{"slurm.extra": {"exclusive": ""}},
    )
    run = prepare_run(wanted, tmp_path / "runs", tmp_path)
    frozen = read_spec(run)
    assert frozen.chdir == str(tmp_path)
    assert frozen.output == f"{run.logs}/job-%j.out"
    assert run.script.read_text().startswith("#!/bin/bash\n")
    # The frozen request reads back as what it was.
    values = tomllib.loads(run.spec.read_text())
    values |= {f"slurm.{key}": table for key, table in values.pop("slurm").items()}
    assert merge([Layer(source="spec.toml", values=values)]).spec == frozen


def test_special_characters_in_a_request_survive_its_file(tmp_path):
    odd = 'a "b" \\ \n\t\N{PARTY POPPER} \udcff $(x) é'
    values = {"script": "train.py", "notify": odd, "args": [odd], "env": {"A": odd}}
    run = RunDir.create(tmp_path, "r-1")
    write_atomic(run.spec, render_spec(spec(**values)))
    assert read_spec(run) == spec(**values)


def test_run_ids_are_plain_names_and_unique():
    hostile = spec(script="x.py", name="a/b; $(rm) ü\n..")
    made = {new_run_id(hostile) for _ in range(50)}
    assert len(made) > 40  # two of 810,000 names may be the same
    assert all(name.startswith("a-b-rm-") and "/" not in name for name in made)


def test_a_run_that_cannot_be_written_leaves_nothing(tmp_path):
    folder = tmp_path / "a\nb"  # which no #SBATCH line can hold
    folder.mkdir()
    with pytest.raises(UsageError, match="line break"):
        prepare_run(spec(script="train.py"), tmp_path / "runs", folder)
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_run_without_space_on_disk_is_named_in_the_error(tmp_path, monkeypatch):
    def fill_the_disk(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    cluster = LocalCluster(FakeShell(), {}, tmp_path / "runs")
    monkeypatch.setattr(pipeline, "write_files", fill_the_disk)
    with pytest.raises(OSError, match="No space left") as caught:
        pipeline.prepare(
            pipeline.Checked(
                spec=spec(script="train.py"),
                cluster=cluster,
                runs=tmp_path / "runs",
                run_id="train-1",
            )
        )
    assert caught.value.filename == str(tmp_path / "runs" / "train-1")
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_script_knows_the_conda_of_the_user(tmp_path):
    conda = "/opt/conda/bin/conda"
    run = prepare_run(spec(script="train.py", conda="x"), tmp_path / "r", tmp_path, CONDA_EXE=conda)
    assert f"\nconda_exe={conda}\n" in run.script.read_text()
