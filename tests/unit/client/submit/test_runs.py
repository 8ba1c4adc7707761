import errno
import json
import marshal
import py_compile
import shutil
import tomllib
from pathlib import Path

import pytest

from echelon.client.manage import run_status as outcomes
from echelon.client.submit import runs
from echelon.clusters.local import LocalCluster
from echelon.core.atomic_file import write_atomic
from echelon.core.jobs import Job
from echelon.core.shell import FakeShell, LocalShell
from echelon.errors import NotFoundError, UsageError
from echelon.run.attempts import attempts
from echelon.run.directory import RunDir
from echelon.run.listing import find_run, list_runs
from echelon.run.request import read_spec, render_spec
from echelon.spec.merging import Layer, merge


class FakeCluster:
    def __init__(self):
        self.submitted = []

    def exclusions(self, request):
        return request.exclude

    def submit(self, script, *, content, run_id, attempt, environ, exclude):  # noqa: ARG002
        self.submitted.append((script, run_id, environ))
        return str(100 + len(self.submitted))

    def job(self, job_id, *, run_id):
        return Job(id=job_id, state="PENDING", output=f"/out/{run_id}")


def spec(**values):
    return merge([Layer(source="x", values=values)]).spec


@pytest.fixture
def three(tmp_path):
    made = []
    for name in ("mnist", "mnist", "resnet"):
        run, _ = runs.prepare_run(spec(script=f"{name}.py"), tmp_path / "runs", tmp_path)
        made.append(run)
        runs.submit_run(run, FakeCluster(), {}, run.script.read_bytes())
    return tmp_path / "runs", made


def test_a_prepared_run_holds_its_request_and_its_script(tmp_path):
    request = spec(
        script="train.py",
        args=["--lr", 'it\'s "0.1"'],
        nodes=2,
        gpus=4,
        mem="64G",
        env={"A": "b\nc"},
        **{"slurm.extra": {"exclusive": ""}},
    )
    run, frozen = runs.prepare_run(request, tmp_path / "runs", tmp_path)
    assert frozen.chdir == str(tmp_path)
    assert frozen.output == f"{run.logs}/job-%j.out"
    assert run.script.read_text().startswith("#!/bin/bash\n")
    # The frozen request reads back as what it was.
    values = tomllib.loads(run.spec.read_text())
    values |= {f"slurm.{key}": table for key, table in values.pop("slurm").items()}
    assert merge([Layer(source="spec.toml", values=values)]).spec == frozen


def test_a_request_is_frozen_whatever_is_in_it(tmp_path):
    odd = 'a "b" \\ \n\t\N{PARTY POPPER} \udcff $(x) é'
    values = {"script": "train.py", "notify": odd, "args": [odd], "env": {"A": odd}}
    run = RunDir.create(tmp_path, "r-1")
    write_atomic(run.spec, render_spec(spec(**values)))
    assert read_spec(run) == spec(**values)


def test_ids_are_plain_names_and_unique():
    hostile = spec(script="x.py", name="a/b; $(rm) ü\n..")
    made = {runs.new_run_id(hostile) for _ in range(50)}
    assert len(made) > 40  # two of 810,000 names may be the same
    assert all(name.startswith("a-b-rm-") and "/" not in name for name in made)


def test_a_run_is_found_by_whatever_a_user_has_of_it(three):
    folder, made = three
    assert find_run(folder, made[1].run_id) == made[1]
    assert find_run(folder, "res") == made[2]
    assert find_run(folder, "last") == made[2]
    assert attempts(made[0])[0].job_id == "101"


def test_what_else_lies_among_the_runs_does_no_harm(three):
    folder, made = three
    (folder / "notes.txt").write_text("mine")
    (folder / "foreign").mkdir()
    (folder / "foreign" / "spec.toml").touch()
    (folder / "foreign").chmod(0o777)
    (made[0].attempts / ".nfs0001").touch()
    (made[0].attempts / "2").mkdir()
    (made[1].attempts / "1" / "job.json").write_text('{"job_')
    assert list_runs(folder) == made
    assert [len(attempts(run)) for run in made] == [1, 0, 1]


def test_what_is_not_unique_is_told(three):
    folder, made = three
    with pytest.raises(UsageError, match="is ambiguous") as caught:
        find_run(folder, "mnist")
    assert made[0].run_id in caught.value.message
    with pytest.raises(NotFoundError, match="no run 'x'"):
        find_run(folder, "x")
    with pytest.raises(NotFoundError):
        find_run(folder / "nowhere", "last")


@pytest.mark.parametrize(
    ("source", "values", "said", "problem"),
    [
        ("import torch", {}, "torch False", "the Python 'python3' has no torch"),
        ("import torch", {"python": "/p"}, "torch False", "the Python '/p' has no torch"),
        ("import torch", {"venv": "v"}, "torch False", "/v/bin/python' has no torch"),
        ("import torch", {}, "torch True", ""),
        ("pass", {}, "torch False", ""),
        ("pass", {"python": "/p"}, "torch False", ""),
        ("import torch", {"conda": "x"}, "torch False", ""),
        ("import torch", {"modules": ["x"]}, "torch False", ""),
    ],
)
def test_a_python_without_torch_is_noticed_where_it_can_be(tmp_path, source, values, said, problem):
    (tmp_path / "train.py").write_text(source)
    (tmp_path / "v" / "bin").mkdir(parents=True)
    (tmp_path / "v" / "bin" / "activate").touch()
    shell = FakeShell(answers={"": f"{said}\n"})
    found = runs.check_python(spec(script="train.py", **values), tmp_path, shell)
    assert (problem in found[0]) if problem else found == []


@pytest.mark.parametrize("python", ["/nowhere/python", "nowhere/python", "python-that-is-not"])
def test_a_python_that_is_not_there_is_noticed_whatever_the_script_imports(tmp_path, python):
    (tmp_path / "train.py").write_text("pass")
    found = runs.check_python(spec(script="train.py", python=python), tmp_path, LocalShell())
    (problem,) = found
    assert problem.startswith(f"Python not found: '{python}'; choose another")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("#!/bin/sh\necho cannot run that >&2; exit 1", "is not a working Python: cannot run that"),
        ("#!/bin/sh\n", "is not a working Python: it printed nothing"),
        ("text", "cannot be executed: [Errno 8] Exec format error"),
        ("#!/nowhere/python\n", "cannot be executed: "),
    ],
)
def test_a_program_that_is_no_python_is_noticed(tmp_path, content, problem):
    program = tmp_path / "p"
    program.write_text(content)
    program.chmod(0o755)
    (tmp_path / "train.py").write_text("pass")
    (found,) = runs.check_python(
        spec(script="train.py", python=str(program)), tmp_path, LocalShell()
    )
    assert found.startswith(f"'{program}' {problem}")


@pytest.mark.parametrize(
    ("content", "values", "problem"),
    [
        (None, {}, "does not exist"),
        ("def", {}, "does not compile"),
        ("pass", {"venv": "v"}, "no virtual environment in "),
        ("pass", {"venv": "v" * 300}, "cannot read the virtual environment "),
        ("pass", {"output": "nowhere/%j.out"}, "the output directory"),
        ("pass", {"venv": "nowhere"}, "no virtual environment"),
        ("pass", {"output": "%j.out"}, ""),
    ],
)
def test_files_are_looked_at_before_anything_is_queued(tmp_path, content, values, problem):
    if content is not None:
        (tmp_path / "train.py").write_text(content)
    found = runs.check_files(spec(script="train.py", **values), tmp_path)
    assert (problem in found[0]) if problem else found == []


def test_a_run_that_cannot_be_written_leaves_nothing(tmp_path):
    folder = tmp_path / "a\nb"  # which no #SBATCH line can hold
    folder.mkdir()
    with pytest.raises(UsageError, match="line break"):
        runs.prepare_run(spec(script="train.py"), tmp_path / "runs", folder)
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_run_for_which_no_space_is_left_is_named(tmp_path):
    def fill_the_disk(_run):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        runs.prepare_run(
            spec(script="train.py"), tmp_path, tmp_path, run_id="train-1", take_code=fill_the_disk
        )
    assert caught.value.filename == str(tmp_path / "train-1")
    assert list(tmp_path.iterdir()) == []


def test_a_run_whose_directory_was_deleted_was_not_forgotten_to_be_queued(tmp_path):
    run, _ = runs.prepare_run(spec(script="train.py"), tmp_path, tmp_path)
    shutil.rmtree(run.path)
    with pytest.raises(NotFoundError, match="directory was deleted"):
        outcomes.current_job(run, LocalCluster(FakeShell(), {}, tmp_path))


# --- which job counts -------------------------------------------------------------------------


class Knows:
    """A cluster that knows a state for each job."""

    def __init__(self, **states):
        self.states = states

    def job(self, job_id, *, run_id):  # noqa: ARG002
        return Job(id=job_id, state=self.states[f"j{job_id}"])


def attempt(run, *, after="", owner="", outcome=None):
    """Make an attempt, whose job has the same number."""
    number = run.claim_attempt()
    record = {"job_id": str(number), "submitted": "", "output": "", "after": after}
    (run.attempt(number) / "job.json").write_text(json.dumps(record))
    if owner:
        (run.attempt(number) / "owner").write_text(owner)
    if outcome:
        run.outcome(number).write_text(json.dumps({"exit_code": 1, **outcome}))


@pytest.fixture
def run(tmp_path):
    made, _ = runs.prepare_run(spec(script="a.py"), tmp_path / "runs", tmp_path)
    return made


@pytest.mark.parametrize(
    ("first", "second", "current"),
    [
        ("RUNNING", "PENDING", "1"),
        ("PENDING", "PENDING", "1"),
        ("COMPLETED", "PENDING", "1"),  # Slurm will drop the standby in a moment
        ("COMPLETED", "CANCELLED", "1"),
        ("FAILED", "CANCELLED", "1"),  # it was withdrawn
        ("FAILED", "PENDING", "2"),
        ("NODE_FAIL", "PENDING", "2"),
        ("FAILED", "RUNNING", "2"),
        ("FAILED", "CONFIGURING", "2"),
    ],
)
def test_a_standby_counts_when_the_job_before_it_is_over(run, first, second, current):
    attempt(run, owner="1.0")
    attempt(run, after="1")
    assert outcomes.current_job(run, Knows(j1=first, j2=second)).id == current


def test_a_standby_that_has_begun_counts_for_good(run):
    attempt(run, owner="1.0")
    attempt(run, after="1", owner="2.0")
    assert outcomes.current_job(run, Knows(j1="FAILED", j2="FAILED")).id == "2"


def test_a_standby_that_found_nothing_to_do_never_counts(run):
    attempt(run, owner="1.0", outcome={"state": "FAILED"})
    attempt(run, after="1", owner="2.0", outcome={"state": "SKIPPED"})
    assert outcomes.current_job(run, Knows(j1="FAILED", j2="COMPLETED")).id == "1"


def test_a_resumed_run_is_its_new_job(run):
    attempt(run, owner="1.0")
    attempt(run, after="1")
    attempt(run)
    assert outcomes.current_job(run, Knows(j1="FAILED", j2="CANCELLED", j3="PENDING")).id == "3"


@pytest.mark.parametrize(("ended", "state"), [("CANCELLED", "CANCELLED"), ("TIMEOUT", "FAILED")])
def test_a_run_that_was_asked_to_stop_has_not_failed(run, ended, state):
    attempt(run, owner="1.0", outcome={"state": ended, "exit_code": 143})
    assert outcomes.current_job(run, Knows(j1="FAILED")).state == state


@pytest.mark.parametrize("state", ["COMPLETED", "TIMEOUT"])
def test_what_slurm_has_forgotten_is_as_its_controller_saw_it_end(run, state):
    attempt(run, owner="1.0", outcome={"state": state, "exit_code": 9})
    attempt(run, after="1")
    found = outcomes.current_job(run, Knows(j1="UNKNOWN", j2="UNKNOWN"))
    assert (found.id, found.state, found.exit_code) == ("1", state, 9)
    assert outcomes.current_job(run, Knows(j1="FAILED", j2="UNKNOWN")).state == "FAILED"


def test_a_run_s_script_knows_the_conda_of_the_shell_that_asked(tmp_path):
    request = spec(script="train.py", conda="mine")
    run, _ = runs.prepare_run(request, tmp_path, tmp_path, conda_exe="/opt/conda/bin/conda")
    assert "\nconda_exe=/opt/conda/bin/conda\n" in run.script.read_text()


def test_a_launcher_takes_bytecode_from_pythons_cache_only_while_it_is_up_to_date(tmp_path):
    module = tmp_path / "module.py"
    module.write_text("value = 1\n")
    cache = Path(py_compile.compile(module))
    assert runs._compile(module)[16:] == cache.read_bytes()[16:]
    module.write_text("value = 1000\n")
    assert 1000 in marshal.loads(runs._compile(module)[16:]).co_consts  # noqa: S302
