"""A sweep whose tasks have ended, without any job: only its files."""

import json
import time

from echelon.client.submit.parameters import make_table
from echelon.core.atomic_file import write_atomic
from echelon.run.attempts import record_own_job
from echelon.run.event_log import EventWriter
from echelon.run.metrics import StepLogged, ValidationLogged
from echelon.run.sweep import make_run
from echelon.spec.merging import Layer, merge
from prepared import prepare_sweep


def record_sweep(runs, environ, rates=("0.1", "0.01", "<img src=x onerror=window.harm=1>", "1")):
    """Create a sweep in which the last task has not begun, and the one before has failed."""
    values = {"script": "train.py", "args": ["{lr}"], "snapshot": False}
    spec = merge([Layer(source="test", values=values)]).spec
    sweep = prepare_sweep(spec, make_table([{"lr": rate} for rate in rates]), runs, **environ)
    for index in range(len(rates) - 1):
        run, _ = make_run(sweep, index)
        number = run.claim_attempt()
        record_own_job(run, number, f"7_{index}")
        with EventWriter(run.metrics, clock=time.time) as events:
            for step in range(1, 6):
                events.write(log_step(step, loss=(index + 1) / step, rate=9.0))
            events.write(ValidationLogged(step=5, epoch=1, metrics={"accuracy": 0.5}))
        state = "FAILED" if index == len(rates) - 2 else "COMPLETED"
        ended = {"state": state, "exit_code": int(state == "FAILED")}
        write_atomic(run.outcome(number), json.dumps(ended))
    return sweep


def log_step(step, **metrics):
    return StepLogged(
        step=step,
        epoch=0,
        epochs=1,
        done=step,
        length=5,
        unit="steps",
        left_s=1.0,
        metrics=metrics,
    )
