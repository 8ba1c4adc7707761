"""Runs are found by what a user has of them."""

import pytest

from echelon.core.jobs import Job
from echelon.errors import NotFoundError, UsageError
from echelon.run.attempts import attempts, submit_attempt
from echelon.run.listing import find_run, list_runs
from echelon.spec.job_spec import JobSpec
from prepared import prepare_run


@pytest.fixture
def three(tmp_path):
    made = []
    for number, name in enumerate(("mnist", "mnist", "resnet"), start=101):
        run = prepare_run(JobSpec(script=f"{name}.py"), tmp_path / "runs", tmp_path)
        submit_attempt(
            run, lambda _, job=number: str(job), lambda one: Job(id=one, state="PENDING")
        )
        made.append(run)
    return tmp_path / "runs", made


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
