"""slurmctld pauses, or dies and is restarted, at the worst moments for a run."""

import itertools
import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from soaking.ground import Ground, events, say, undisturbed

from echelon.core.waiting import wait_until
from slurm.survival import SURVIVOR, Chain, check_samples

SHAPE = ("--nodes=2", "--procs=1")
PACE_S = 0.1
WAYS = {"paused": signal.SIGSTOP, "killed": signal.SIGKILL, "ended": signal.SIGTERM}
"""How it is interrupted. If killed, it loses unsaved state, including jobs of the last seconds."""
SCENES = (
    *(("submit", "paused"), ("submit", "killed")),
    *(("status", "paused"), ("status", "killed")),
    *(("standby", "paused"), ("standby", "ended")),
    *(("hand-over", "paused"), ("hand-over", "killed")),
)


@dataclass(frozen=True)
class Trial:
    """One interruption of slurmctld."""

    here: Ground
    name: str
    way: str
    """See `WAYS`."""
    seconds: float
    steps: int
    weights: str
    """The expected final weights."""


def soak_controller(here, asked, report):
    """Interrupt slurmctld during submit, status, the standby's submission and hand-over."""
    steps = asked.steps
    weights = undisturbed(here, *SHAPE, steps=steps)
    well = tried = 0
    for what, way in SCENES:
        if what not in asked.scenes:
            continue
        name = f"{what}, {way}"
        before, tried = len(report.failures), tried + 1
        say(f"{name}: slurmctld goes for {asked.seconds:g} s")
        with report.trial(name):
            trial = Trial(here, name.replace(", ", "-"), way, asked.seconds, steps, weights)
            report.figures[name] = _PLAY[what](trial)
        if len(report.failures) == before:
            well += 1
            say(f"{name}: {report.figures[name]}")
        _recover(here)
    report.figures["nothing lost, nothing doubled"] = f"{well} of {tried}"
    report.goals = {"scenes in which something was lost or doubled": (tried - well, "≤", 0)}


@contextmanager
def _away(trial):
    """Interrupt slurmctld during the block, at least for the trial's duration."""
    box, began_s = trial.here.box, time.monotonic()
    box.signal_slurmctld(WAYS[trial.way])
    try:
        yield
    finally:
        time.sleep(max(0.0, began_s + trial.seconds - time.monotonic()))
        if trial.way == "paused":
            box.signal_slurmctld(signal.SIGCONT)
        else:
            box.start_slurmctld()


def _recover(here):
    """Restore slurmctld, even if a scene failed."""
    here.box.signal_slurmctld(signal.SIGCONT)
    if here.box.run(["scontrol", "ping"]).stdout.find("UP") < 0:
        here.box.start_slurmctld()
    up = lambda: "UP" in here.box.run(["scontrol", "ping"]).stdout  # noqa: E731
    assert wait_until(up, timeout_s=60, interval_s=0.5)
    here.calm()


# --- scenes -------------------------------------------------------------------------------------


def _submit(trial):
    """Submit a run while slurmctld is interrupted."""
    folder, environ = trial.here.place(trial.name), trial.here.environ
    argv = [sys.executable, "-m", "echelon", "submit", "--json", *SHAPE, str(SURVIVOR)]
    with ThreadPoolExecutor(1) as pool, _away(trial):
        submitting = pool.submit(
            subprocess.run,
            [*argv, str(trial.steps), str(PACE_S)],
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    done = submitting.result()
    assert done.returncode == 0, done.stderr
    assert len(list((folder / "runs").iterdir())) == 1, "more than one run"
    chain = Chain(folder=folder, environ=environ, process=None)
    job = json.loads(done.stdout)["job_id"]
    assert chain.job(1) == job, f"{job} was printed, {chain.job(1)} is recorded"
    finished = lambda: _states(chain)[-1:] == ["COMPLETED"]  # noqa: E731
    assert wait_until(finished, timeout_s=300, interval_s=1), chain.said_so_far()
    return _check(trial, chain)


def _status(trial):
    """Query a run's status while slurmctld is interrupted."""
    chain = _start(trial)
    chain.await_step(20)
    began_s = time.monotonic()
    with ThreadPoolExecutor(1) as pool, _away(trial):
        asking = pool.submit(chain.command, "status", "last", "--json")
    answer = asking.result()
    took_s = time.monotonic() - began_s
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["state"] in ("RUNNING", "COMPLETED"), answer.stdout
    return {"answered_s": round(took_s, 1), **_finish(trial, chain)}


def _standby(trial):
    """Interrupt slurmctld when a job has just started and is about to queue the next one."""
    chain = _start(trial, "--time=3m")
    assert wait_until(lambda: _has_attempt(chain), timeout_s=60, interval_s=0.02)
    with _away(trial):
        pass
    return _finish(trial, chain)


def _hand_over(trial):
    """Interrupt slurmctld when a job reaches its time limit."""
    # The job stops half a minute after its start; interrupt slurmctld before that.
    chain = _start(trial, "--time=1m")
    chain.await_step(150)
    with _away(trial):
        pass
    found = _finish(trial, chain)
    assert found["attempts that worked"] >= 2, "nothing was handed over"
    return found


_PLAY = {"submit": _submit, "status": _status, "standby": _standby, "hand-over": _hand_over}


# --- checks -------------------------------------------------------------------------------------


def _start(trial, *options):
    return trial.here.chain(trial.name, *SHAPE, *options, steps=trial.steps, pace_s=PACE_S)


def _has_attempt(chain):
    try:
        return bool(events(chain, "attempt"))
    except (OSError, ValueError):
        return False  # no run yet


def _finish(trial, chain):
    code, said = chain.wait(timeout_s=400)
    assert code == 0, f"it ended with {code}\n{said}"
    return _check(trial, chain)


def _check(trial, chain):
    """Check that no step was lost or done twice."""
    here = trial.here
    assert (chain.folder / "weights").read_text() == trial.weights, "the weights differ"
    check_samples(chain.records(), trial.steps)
    here.await_empty_queue()
    _check_one_at_a_time(chain)
    states = _states(chain)
    jobs = _jobs_of(here, chain)
    recorded = {chain.job(number) for number in chain.attempts()}
    assert jobs <= recorded, f"jobs were queued twice: {sorted(jobs - recorded)}"
    return {
        "attempts that worked": len([state for state in states if state != "SKIPPED"]),
        "attempts that found nothing to do": states.count("SKIPPED"),
        "jobs": len(jobs),
    }


def _check_one_at_a_time(chain):
    """Check that the steps of two attempts do not overlap in time."""
    spans = {}
    for at_s, turn, _, _ in chain.timed_records():
        first_s, _ = spans.get(turn, (at_s, at_s))
        spans[turn] = (first_s, at_s)
    ordered = sorted(spans.items(), key=lambda item: item[1])
    for (one, (_, ended_s)), (other, (began_s, _)) in itertools.pairwise(ordered):
        assert ended_s <= began_s, f"{one} and {other} worked at the same time"


def _states(chain):
    return [outcome["state"] for outcome in chain.outcomes()]


def _jobs_of(here, chain):
    """Return all jobs of this run that Slurm knows."""
    shown = here.cluster.exec("scontrol", "--oneliner", "show", "job").splitlines()
    mark = f"Comment=echelon:{chain.run.name}/"
    return {line.split()[0].removeprefix("JobId=") for line in shown if mark in line}
