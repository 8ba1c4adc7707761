"""A run's folder as Echelon's own writers leave it: two attempts, a restart, a failure."""

import os
from functools import partial

from echelon.core.atomic_file import write_atomic
from echelon.core.jobs import Job
from echelon.launch.backends.ray.status import NODES, NodePlace, Status
from echelon.run import events
from echelon.run.attempts import Outcome, own_attempt, submit_attempt
from echelon.run.directory import RunDir
from echelon.run.event_log import EventWriter
from echelon.run.journal import Journal
from echelon.run.rank_logs import LogClock
from echelon.run.request import render_spec
from echelon.run.series import Sample, SeriesWriter
from echelon.run.verdict import Failure, Verdict
from echelon.spec.job_spec import JobSpec
from eventlines import raw

BEGAN_S = 1_700_000_000.0
RANKS = 2


def record_run(runs, run_id="train-abcd", *, text="bang", job_id=None):
    """Write a run that failed, with `text` wherever a script or a node has its say."""
    run = RunDir.create(runs, run_id)
    spec = JobSpec(script="train.py", chdir=str(runs), output=f"{run.logs}/job-%j.out")
    write_atomic(run.spec, render_spec(spec))
    write_atomic(run.script, "#!/bin/bash\ntrue\n", mode=0o700)
    run.launcher.mkdir()
    job_id = job_id or f"local:{os.uname().nodename}:1:0"
    for number in (1, 2):
        output = str(run.job_log(number))
        look = partial(Job, state="RUNNING", output=output)
        submit_attempt(run, lambda _: job_id, lambda one, look=look: look(id=one))
        own_attempt(run, number, "host 1\n")
        run.job_log(number).write_text(f"echelon: {text}\n")
        _write_attempt(run, number, text)
    _measure(run, text)
    return run


def _write_attempt(run, number, text):
    log = run.rank_log(attempt=number, generation=0, rank=1).relative_to(run.path)
    failure = Failure(
        cause="exception",
        message=f"RuntimeError: {text}",
        rank=1,
        node="node0",
        step=7,
        error_type="RuntimeError",
        traceback=f"Traceback (most recent call last):\n  {text}\nRuntimeError: {text}\n",
        log=str(log),
    )
    victim = Failure(cause="lost peer", message=text, rank=0, node="node0")
    verdict = Verdict(failure=failure, victims=(victim,), not_retried=text, stacks={"0": text})
    journal = Journal(run, number, lambda _: None)
    note = journal.note
    note(events.AttemptStarted(attempt=number, pid=1, job="", saved=-1, slots=RANKS))
    note(events.AgentJoined(node=0, name="node0", pid=2, gpus=0))
    note(events.SlotsCounted(slots=RANKS))
    note(events.AgentNote(node=0, text=text))
    for generation in (0, 1):
        note(events.GenerationStarted(generation=generation, world_size=RANKS, nodes=1))
        for rank in range(RANKS):
            note(events.RankStarted(rank=rank, generation=generation, pid=3 + rank, warm=False))
        note(events.Heartbeat(generation=generation, step=5))
        note(events.RankExited(rank=1, generation=generation, code=1, signal=0, step=7))
        note(
            events.GenerationEnded(
                generation=generation,
                ranks=RANKS,
                known=RANKS,
                again=not generation,
                seconds={"productive": 3.0, "data": 1.0},
                first=0,
                last=7,
                steps_s=0.5,
            )
        )
        if not generation:
            note(events.RestartDecided(verdict=verdict, generation=1))
    journal.leave_verdict(verdict)
    journal.leave_outcome(Outcome(state="FAILED", exit_code=1, why=failure.message))
    journal.close()
    place = NodePlace(id="a", name="node0", address="127.0.0.1")
    write_atomic(run.attempt(number) / NODES, Status(pid=1, places={0: place}).render())


def _measure(run, text):
    clock = LogClock()
    for rank in range(RANKS):
        log = run.rank_log(attempt=2, generation=1, rank=rank)
        log.parent.mkdir(exist_ok=True)
        clock.add(log)
        log.write_text(f"{text}\n 10%|█   |\r100%|████|\n")
    clock.tick(BEGAN_S)
    with EventWriter(run.metrics, clock=lambda: BEGAN_S) as metrics:
        for step in range(3):
            values = {"loss": 1.0 / (step + 1), "rate": 5.0, text[:20]: float("nan")}
            metrics.write(raw("step", step=step, epochs=1, done=step, length=3, metrics=values))
    (run.path / "telemetry").mkdir()
    writer = SeriesWriter(partial(run.telemetry, 2, 0), lines=6)
    for second in range(20):
        means = {"cpu": 0.5, "rank0.data": 0.1, "rank0.busy": 0.9, "rank0.cpu": 1.0, text: 1.0}
        lasts = {"rank0.generation": 1, "rank0.step": second, "rank0.gpu": 0, "mem_size": 2.0**34}
        peaks = {"mem": 2.0**30, "rank0.mem_all": 2.0**20}
        means["gpu0.util"] = 0.7
        sample = Sample(time_s=BEGAN_S + second, means=means, lasts=lasts, peaks=peaks)
        writer.append(sample)
