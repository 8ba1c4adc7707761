"""Sweeps are submitted and queried as a whole: the number of calls does not depend on tasks."""

import json
from dataclasses import asdict

import pytest

from echelon.client.manage import sweep_runner
from echelon.client.manage.sweeps import (
    check_home,
    find_waiting,
    place_of,
    read_tasks,
    stop_sweep,
)
from echelon.client.submit.arrays import render_tasks, submit_sweep
from echelon.client.submit.parameters import make_table
from echelon.clusters.local import LocalCluster
from echelon.clusters.slurm.cluster import SlurmCluster
from echelon.core.atomic_file import write_atomic
from echelon.core.jobs import Job, own_job
from echelon.core.shell import FakeShell, Result
from echelon.errors import ConflictError, UnavailableError, UsageError
from echelon.run.attempts import Outcome, attempts, record_own_job
from echelon.run.sweep import make_run
from echelon.spec.merging import Layer, merge
from fake_clock import FakeClock
from prepared import prepare_sweep

CONFIG = "ClusterName = c\nMaxArraySize            = 1001\n"


def spec(**values):
    values = {"script": "train.py", "snapshot": False, "args": ["{i}"], **values}
    return merge([Layer(source="test", values=values)]).spec


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def make_sweep(tmp_path, count=5, max_running=0, **values):
    rows = [{"i": str(number)} for number in range(count)]
    return prepare_sweep(spec(**values), make_table(rows, max_running), tmp_path / "runs")


def cluster(shell):
    return SlurmCluster(shell, {}, sleep=lambda _s: None)


class Queue:
    """Answers as Slurm does: numbers arrays, and lists the given jobs."""

    def __init__(self, sweep=None):
        self.sweep, self.lines, self.accounting, self.number = sweep, [], "", 6
        self.shell = FakeShell(
            answers={
                "scontrol show config": CONFIG,
                "sbatch": self.queue,
                "squeue": self.list,
                "sacct": lambda argv: Result(argv=argv, stdout=self.accounting),
                "scancel": "",
            }
        )

    def queue(self, argv):
        self.number += 1
        return Result(argv=argv, stdout=f"{self.number}\n")

    def list(self, argv):
        mark = f"echelon:{self.sweep.sweep_id}-*/1"
        lines = [f"{job.partition('_')[0]}|{job}|{state}|{mark}" for job, state in self.lines]
        if not lines:
            return Result(
                argv=argv, code=1, stderr="slurm_load_jobs error: Invalid job id specified"
            )
        return Result(argv=argv, stdout="\n".join(lines) + "\n")

    @property
    def calls(self):
        return [call[0] for call in self.shell.calls]

    def submitted(self):
        return [
            [word for word in call[1:] if word.startswith(("--array", "--dep"))] + [call[-1]]
            for call in self.shell.calls
            if call[0] == "sbatch"
        ]


def end(sweep, index, job_id, **facts):
    """Have a task's run end."""
    run, _ = make_run(sweep, index)
    number = run.claim_attempt()
    record_own_job(run, number, job_id)
    ended = Outcome(**{"state": "COMPLETED", "exit_code": 0, **facts})
    write_atomic(run.outcome(number), json.dumps(asdict(ended)))
    return run


@pytest.mark.parametrize(
    ("indices", "limit", "text"),
    [([0, 1, 2], 0, "0-2"), ([9, 3, 4], 2, "3-4,9%2"), ([7], 0, "7")],
)
def test_task_indices_are_rendered_for_sbatch(indices, limit, text):
    assert render_tasks(indices, limit) == text


def test_a_thousand_tasks_are_one_submission(tmp_path):
    sweep, queue = make_sweep(tmp_path, 1000, max_running=8), Queue()
    assert submit_sweep(sweep, cluster(queue.shell), {}) == ["7"]
    assert queue.submitted() == [["--array=0-999%8", "0"]]
    assert queue.calls == ["scontrol", "sbatch"]
    (comment,) = [word for word in queue.shell.calls[-1] if word.startswith("--comment")]
    assert comment == f"--comment=echelon:{sweep.sweep_id}-*/1"
    assert not sweep.run(0).path.exists()


def test_a_sweep_larger_than_an_array_is_several_arrays_with_one_limit(tmp_path):
    sweep, queue = make_sweep(tmp_path, 2100, max_running=8), Queue()
    assert submit_sweep(sweep, cluster(queue.shell), {}) == ["7", "8", "9"]
    assert queue.submitted() == [
        ["--array=0-1000%8", "0"],
        ["--array=0-1000%8", "--dependency=afterany:7", "1001"],
        ["--array=0-97%8", "--dependency=afterany:8", "2002"],
    ]
    assert [array.offset for array in sweep.arrays()] == [0, 1001, 2002]


def test_resumed_tasks_are_one_array_with_their_indices(tmp_path):
    sweep, queue = make_sweep(tmp_path, 10, max_running=3), Queue()
    submit_sweep(sweep, cluster(queue.shell), {})
    submit_sweep(sweep, cluster(queue.shell), {}, indices=[3, 7, 9])
    assert queue.submitted()[1] == ["--array=3,7,9%3", "0"]
    assert [array.tasks for array in sweep.arrays()] == [tuple(range(10)), (3, 7, 9)]


def test_a_sweep_that_slurm_refuses_leaves_nothing(tmp_path):
    sweep = make_sweep(tmp_path)
    shell = FakeShell(
        answers={
            "scontrol": CONFIG,
            "sbatch": Result(argv=("sbatch",), code=1, stderr="sbatch: error: bad partition"),
        }
    )
    with pytest.raises(UsageError, match="bad partition"):
        submit_sweep(sweep, cluster(shell), {})
    assert not sweep.path.exists()


def test_a_cluster_without_arrays_is_reported(tmp_path):
    sweep = make_sweep(tmp_path)
    shell = FakeShell(answers={"scontrol": "ClusterName = c\nMaxArraySize = 0\n"})
    with pytest.raises(UnavailableError, match="does not allow job arrays"):
        submit_sweep(sweep, cluster(shell), {})


def test_slurm_is_queried_once_for_all_tasks(tmp_path):
    sweep = make_sweep(tmp_path, 6)
    queue = Queue(sweep)
    submit_sweep(sweep, cluster(queue.shell), {})
    end(sweep, 0, "7_0")
    end(sweep, 1, "7_1", state="FAILED", exit_code=1)
    queue.lines = [
        ("7_1", "FAILED|NonZeroExitCode|node1"),
        ("7_2", "RUNNING|None|node1"),
        ("7_3", "TIMEOUT|TimeLimit|node2"),
        ("7_4", "PENDING|JobArrayTaskLimit|"),
        ("7_5", "PENDING|JobArrayTaskLimit|"),
    ]
    queue.shell.calls.clear()
    tasks = read_tasks(sweep, cluster(queue.shell))
    assert queue.calls == ["squeue"]
    assert [task.state for task in tasks] == [
        *("COMPLETED", "FAILED", "RUNNING", "TIMEOUT", "PENDING", "PENDING"),
    ]
    assert [task.verdict and task.verdict.failure.cause for task in tasks] == [
        *(None, "exit", None, "time limit", None, None),
    ]
    assert [task.parameters for task in tasks][:2] == [{"i": "0"}, {"i": "1"}]
    assert [task.index for task in tasks if task.is_left] == [1, 3]


def test_accounting_is_queried_once_for_all_forgotten_jobs(tmp_path):
    sweep = make_sweep(tmp_path, 4)
    queue = Queue(sweep)
    submit_sweep(sweep, cluster(queue.shell), {})
    end(sweep, 1, "7_1", state="FAILED", exit_code=1)
    queue.accounting = "7_0|CANCELLED by 0|None assigned|0:0\n7_2|NODE_FAIL|node1|0:9\n"
    queue.shell.calls.clear()
    states = [task.state for task in read_tasks(sweep, cluster(queue.shell))]
    assert states == ["CANCELLED", "FAILED", "NODE_FAIL", "UNKNOWN"]
    assert queue.calls == ["squeue", "sacct"]


def test_a_completed_sweep_needs_no_query(tmp_path):
    sweep = make_sweep(tmp_path, 2)
    queue = Queue(sweep)
    submit_sweep(sweep, cluster(queue.shell), {})
    for index in range(2):
        end(sweep, index, f"7_{index}")
    queue.shell.calls.clear()
    assert {task.state for task in read_tasks(sweep, cluster(queue.shell))} == {"COMPLETED"}
    assert queue.calls == []


def test_array_tasks_that_were_cancelled_while_waiting_are_one_line(tmp_path):
    sweep = make_sweep(tmp_path, 3)
    queue = Queue(sweep)
    submit_sweep(sweep, cluster(queue.shell), {})
    queue.lines = [("7", "CANCELLED|JobArrayTaskLimit|"), ("7_0", "RUNNING|None|node1")]
    tasks = read_tasks(sweep, cluster(queue.shell))
    assert [task.state for task in tasks] == ["RUNNING", "CANCELLED", "CANCELLED"]


def test_a_task_has_the_job_of_its_newest_array_or_of_its_run(tmp_path):
    sweep = make_sweep(tmp_path, 2)
    queue = Queue(sweep)
    submit_sweep(sweep, cluster(queue.shell), {})
    end(sweep, 0, "7_0", state="FAILED", exit_code=1)
    submit_sweep(sweep, cluster(queue.shell), {}, indices=[0])
    queue.lines = [("7_0", "FAILED|None|n"), ("8_0", "PENDING|None|"), ("7_1", "RUNNING|None|n")]
    assert [task.state for task in read_tasks(sweep, cluster(queue.shell))] == [
        *("PENDING", "RUNNING"),
    ]
    end(sweep, 0, "8_0")
    assert read_tasks(sweep, cluster(queue.shell))[0].state == "COMPLETED"


def test_a_requeued_task_is_waiting(tmp_path):
    sweep = make_sweep(tmp_path, 1)
    queue = Queue(sweep)
    submit_sweep(sweep, cluster(queue.shell), {})
    end(sweep, 0, "7_0", state="TIMEOUT", exit_code=75, next="requeue")
    queue.lines = [("7_0", "PENDING|BeginTime|")]
    (task,) = read_tasks(sweep, cluster(queue.shell))
    assert (task.state, task.verdict) == ("PENDING", None)


def test_jobs_of_other_owners_with_the_same_id_are_ignored(tmp_path):
    sweep = make_sweep(tmp_path, 1)
    queue = Queue(sweep)
    submit_sweep(sweep, cluster(queue.shell), {})
    shell = FakeShell(answers={"squeue": "7|7_0|RUNNING|None|n|echelon:other-*/1\n", "sacct": ""})
    assert read_tasks(sweep, cluster(shell))[0].state == "UNKNOWN"


def test_states_come_from_files_while_slurm_does_not_respond(tmp_path, monkeypatch):
    sweep = make_sweep(tmp_path, 2)
    queue = Queue(sweep)
    submit_sweep(sweep, cluster(queue.shell), {})
    end(sweep, 0, "7_0", state="FAILED", exit_code=1)
    away = Result(argv=("squeue",), code=1, stderr="Unable to contact slurm controller")
    ticks = iter(range(0, 10_000, 50))
    slurm = SlurmCluster(
        FakeShell(answers={"squeue": away}),
        {},
        sleep=lambda _s: None,
        clock=lambda: float(next(ticks)),
    )
    tasks = read_tasks(sweep, slurm)
    assert [task.state for task in tasks] == ["FAILED", "UNKNOWN"]
    assert "did not respond" in tasks[1].job.reason
    with pytest.raises(UnavailableError):
        read_tasks(sweep, slurm, strict=True)


def test_stopping_a_sweep_takes_a_constant_number_of_calls(tmp_path):
    """Those that have begun are asked to stop; those that Slurm has just started are ended."""
    sweep = make_sweep(tmp_path, 5)
    queue = Queue(sweep)
    submit_sweep(sweep, cluster(queue.shell), {})
    queue.lines = [(f"7_{n}", "RUNNING|None|n") for n in range(4)] + [("7_4", "PENDING|None|")]
    for index in (1, 3):
        run, _ = make_run(sweep, index)
        record_own_job(run, run.claim_attempt(), f"7_{index}")
    queue.shell.calls.clear()
    assert stop_sweep(sweep, cluster(queue.shell)) == 5
    assert queue.calls == ["squeue", "scancel", "squeue", "scancel", "scancel"]
    assert [call[1:] for call in queue.shell.calls if call[0] == "scancel"] == [
        ("--state=PENDING", "7"),
        ("--batch", "--signal=TERM", "7_1", "7_3"),
        ("7_0", "7_2", "7_4"),
    ]


def test_an_interrupted_sweep_submission_is_completed(tmp_path):
    """Of three arrays one was recorded, one is only in the queue, and one was not submitted."""
    sweep, queue = make_sweep(tmp_path, 2100), Queue()
    submit_sweep(sweep, cluster(queue.shell), {}, indices=range(1001))
    queue.shell.answers["squeue"] = f"8|echelon:{sweep.sweep_id}-*/2\n"
    queue.number = 8
    assert submit_sweep(sweep, cluster(queue.shell), {}, again=True) == ["7", "8", "9"]
    assert queue.submitted()[1:] == [["--array=0-97", "2002"]]
    assert [array.job_id for array in sweep.arrays()] == ["7", "8", "9"]


def test_an_array_that_may_have_run_is_not_submitted_again(tmp_path):
    sweep, queue = make_sweep(tmp_path, 3), Queue()
    queue.shell.answers["squeue"] = ""
    make_run(sweep, 0)
    with pytest.raises(UnavailableError, match="not known whether"):
        submit_sweep(sweep, cluster(queue.shell), {}, again=True)
    assert not queue.submitted()


def test_the_error_of_a_refused_array_names_the_queued_ones(tmp_path):
    sweep, queue = make_sweep(tmp_path, 2100), Queue()

    def refuse(argv):
        return Result(argv=argv, code=1, stderr="sbatch: error: too many jobs")

    queue.shell.answers["sbatch"] = lambda argv: (
        refuse(argv) if argv[-1] != "0" else queue.queue(argv)
    )
    part = r"in part, as job array 7: .*too many jobs"
    with pytest.raises(UnavailableError, match=part) as caught:
        submit_sweep(sweep, cluster(queue.shell), {})
    assert f"echelon sweep resume {sweep.sweep_id}" in caught.value.hint
    assert sweep.path.exists()


def test_a_task_that_was_cancelled_before_its_start_has_this_reason(tmp_path):
    sweep = make_sweep(tmp_path, 2)
    queue = Queue(sweep)
    submit_sweep(sweep, cluster(queue.shell), {})
    queue.lines = [("7_0", "RUNNING|None|n")]
    assert find_waiting(sweep.path.parent, f"{sweep.sweep_id}-1")[1] == 1
    assert find_waiting(sweep.path.parent, f"{sweep.sweep_id}-2") is None
    sweep.cancelled(1).touch()
    one = read_tasks(sweep, cluster(queue.shell))[1]
    assert (one.state, one.job.reason) == ("CANCELLED", "it was never started")
    make_run(sweep, 1)
    assert find_waiting(sweep.path.parent, f"{sweep.sweep_id}-1") is None


def test_only_one_process_at_a_time_submits_a_sweep(tmp_path):
    sweep = make_sweep(tmp_path)
    with sweep.locked(), pytest.raises(ConflictError, match="another process"), sweep.locked():
        pass
    with sweep.locked():
        pass


def test_a_moved_sweep_is_not_resumed(tmp_path):
    sweep = make_sweep(tmp_path)
    check_home(sweep)
    moved = sweep.path.rename(tmp_path / "runs" / "elsewhere")
    with pytest.raises(ConflictError, match="moved or copied"):
        check_home(type(sweep).open(moved))


def test_a_task_of_an_array_is_named_by_array_and_index():
    assert own_job({"SLURM_JOB_ID": "9"}) == "9"
    task = {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
    assert own_job(task) == "7_3"
    assert own_job({}) == ""


class Machine(LocalCluster):
    """Tasks end in the given states, after several checks."""

    def __init__(self, runs, states):
        super().__init__(FakeShell(), {}, runs)
        self.states, self.most, self.going = states, 0, set()
        self.stopped, self.cancelled = [], []

    def job(self, job_id, *, run_id):
        self.going.add(run_id)
        self.most = max(self.most, len(self.going))
        state = self.states[int(run_id.rpartition("-")[2])]
        if run_id in self.stopped + self.cancelled:
            state = "CANCELLED"
        if state != "RUNNING":
            self.going.discard(run_id)
        return Job(id=job_id, state=state)

    def stop(self, job_id, *, run_id, interrupt=False):  # noqa: ARG002
        self.stopped.append(run_id)

    def cancel(self, job_id, *, run_id):  # noqa: ARG002
        self.cancelled.append(run_id)


def test_a_limited_number_of_tasks_runs_at_a_time_on_this_machine(tmp_path):
    sweep = make_sweep(tmp_path, 5)
    machine = Machine(tmp_path / "runs", ["COMPLETED", "FAILED", *["COMPLETED"] * 3])
    assert sweep_runner.run(sweep, machine, {}, range(5), at_once=2, clock=FakeClock()) == [1]
    assert machine.most <= 2
    assert all(len(attempts(sweep.run(index))) == 1 for index in range(5))
    assert isinstance(place_of(sweep), LocalCluster)


def test_an_interrupt_stops_running_tasks_and_starts_no_more(tmp_path):
    sweep = make_sweep(tmp_path, 4)
    machine = Machine(tmp_path / "runs", ["RUNNING"] * 4)
    real, calls = machine.job, []

    def job(job_id, *, run_id):
        calls.append(run_id)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return real(job_id, run_id=run_id)

    machine.job = job
    failed = sweep_runner.run(sweep, machine, {}, range(4), at_once=2, clock=FakeClock())
    assert sorted(failed) == [0, 1, 2, 3]
    assert sorted(machine.stopped) == [sweep.run_id(0), sweep.run_id(1)]
    assert not sweep.run(2).path.exists()
