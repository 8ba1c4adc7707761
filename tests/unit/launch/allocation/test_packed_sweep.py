"""Which tasks of a packed sweep an attempt has to carry out."""

import json

import pytest

from echelon.launch.allocation.packed_sweep import find_left
from echelon.run.attempts import claim_step
from echelon.run.directory import RunDir
from echelon.run.sweep import SweepDir, Table, write_table


@pytest.fixture
def sweep(tmp_path):
    sweep = SweepDir(files=RunDir.create(tmp_path, "train-ab12"))
    write_table(sweep, Table(names=("lr",), tasks={index: (str(index),) for index in range(4)}))
    return sweep


def try_task(sweep, index, *, within="train-ab12", **outcome):
    """Record an attempt of a task, with its outcome if it has one."""
    run = sweep.run(index)
    if not run.path.exists():
        RunDir.create(run.path.parent, run.path.name)
    number = claim_step(run, job_id="7", within=within)
    if outcome:
        run.outcome(number).write_text(json.dumps({"exit_code": 0, **outcome}))


def ask(sweep, attempt, **tasks):
    sweep.files.claim_attempt()
    record = {"tasks": {name.removeprefix("t"): before for name, before in tasks.items()}}
    sweep.asked(attempt).write_text(json.dumps(record))


def test_what_has_ended_is_not_left(sweep):
    try_task(sweep, 0, state="COMPLETED")
    try_task(sweep, 1, state="FAILED")
    assert find_left(sweep, range(4), 1) == [2, 3]


def test_what_is_continued_or_lost_its_broker_is_left(sweep):
    try_task(sweep, 0, state="TIMEOUT", next="allocation")
    try_task(sweep, 1)
    assert find_left(sweep, range(4), 2) == [0, 1, 2, 3]


def test_a_task_that_was_resumed_on_its_own_is_not_ours(sweep):
    try_task(sweep, 0, within="")
    assert find_left(sweep, range(4), 1) == [1, 2, 3]


def test_a_resumed_sweep_carries_out_what_it_was_asked_to(sweep):
    try_task(sweep, 0, state="COMPLETED")
    try_task(sweep, 1, state="FAILED")
    ask(sweep, 1, t0=0, t1=0, t2=0, t3=0)
    ask(sweep, 2, t1=1, t2=0)
    assert find_left(sweep, range(4), 2) == [1, 2]
    try_task(sweep, 1, state="FAILED")  # once more
    assert find_left(sweep, range(4), 2) == [2]
    sweep.files.claim_attempt()  # the standby job, which continues what the second was asked to
    assert find_left(sweep, range(4), 3) == [2]


@pytest.mark.parametrize("text", ["{", "[]", '{"tasks": 1}', '{"tasks": {"x": 1, "1": "y"}}'])
def test_a_damaged_list_names_no_other_tasks(sweep, text):
    sweep.files.claim_attempt()
    sweep.asked(1).write_text(text)
    assert set(find_left(sweep, range(4), 1)) in (set(), {0, 1, 2, 3})
