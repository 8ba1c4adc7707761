"""What a sweep of 1,000 tasks costs to submit and to show, beside submitit's map_array.

    .venv/bin/python benchmarks/sweep.py [--trials N]

Starts a sandbox, and installs submitit into an environment of its own. Tasks are queued with a
begin time in the future, so that none starts meanwhile. For the table, all tasks have ended, with
50 lines of metrics each. Prints a table and writes benchmarks/results/sweep.json.
"""

import argparse
import os
import subprocess
import sys
import time

from measuring import ECHELON, ratio, run_timed, sandbox, summary, workshop, write_results

from echelon.core.atomic_file import write_atomic
from echelon.run.attempts import record_own_job
from echelon.run.event_log import EventWriter
from echelon.run.listing import find_sweep
from echelon.run.metrics import StepLogged
from echelon.run.sweep import make_run

TASKS = 1000
SUBMIT_S, TABLE_S = 3, 1
LATER = "now+5hours"
SUBMITIT = f"""
import submitit
executor = submitit.SlurmExecutor(folder="submitit-logs")
executor.update_parameters(
    array_parallelism=8, time=5, additional_parameters={{"begin": "{LATER}"}}
)
assert len(executor.map_array(abs, range({TASKS}))) == {TASKS}
"""


def end_all(sweep):
    """Have all tasks end, as if they had run."""
    job_id = sweep.arrays()[0].job_id
    for index in range(TASKS):
        run, _ = make_run(sweep, index)
        number = run.claim_attempt()
        record_own_job(run, number, f"{job_id}_{index}")
        with EventWriter(run.metrics, clock=time.time) as events:
            for step in range(50):
                metrics = {"loss": 1 / (step + 1), "rate": 1.0}
                events.write(
                    StepLogged(
                        step=step,
                        epoch=0,
                        epochs=1,
                        done=step,
                        length=50,
                        unit="steps",
                        left_s=1.0,
                        metrics=metrics,
                    )
                )
        write_atomic(run.outcome(number), '{"state": "COMPLETED", "exit_code": 0}', sync=False)


def install_submitit(folder):
    """Return the Python of a new environment with submitit."""
    python = folder / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True, timeout=300)
    subprocess.run([python, "-m", "pip", "install", "-q", "submitit"], check=True, timeout=300)
    return str(python)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=5)
    trials = parser.parse_args().trials
    busy = round(os.getloadavg()[0], 1)  # with other load, wall-clock times mean little
    later = ["--slurm", f"begin={LATER}", "--max-running", "8", "--time", "5m"]
    submit = [*ECHELON, "sweep", *later, "--grid", f"i=1..{TASKS}", "train.py", "{i}"]
    table = [*ECHELON, "sweep", "table"]
    ours, theirs, pending, ended, best = [], [], [], [], []
    with workshop() as folder, sandbox("bench-sweep", 2) as box:
        python = install_submitit(folder)
        (folder / "train.py").write_text("print('trained')\n")
        for _ in range(trials):
            ours.append(run_timed(submit, folder))
            pending.append(run_timed(table, folder))
            theirs.append(run_timed([python, "-c", SUBMITIT], folder))
            box.run(["scancel", "--user=root"])
        end_all(find_sweep(folder / "runs", "last"))
        for _ in range(trials):
            ended.append(run_timed(table, folder))
            best.append(run_timed([*table, "--best", "min", "--sort", "loss"], folder))
    rows = {
        f"echelon sweep, {TASKS} tasks": summary(ours),
        f"submitit map_array, {TASKS} tasks": summary(theirs),
        "echelon sweep table, all waiting": summary(pending),
        "echelon sweep table, all ended": summary(ended),
        "echelon sweep table --best, all ended": summary(best),
    }
    first, second, *tables, _ = rows.values()  # a search of all metrics has no goal
    goals = {
        f"{TASKS} tasks submitted, median, seconds": (first["median_s"], SUBMIT_S),
        "table, slowest median, seconds": (max(one["median_s"] for one in tables), TABLE_S),
    }
    beside = {"submitit map_array": ratio(first, second)}
    write_results("sweep", rows, goals, ratio_to=beside, load_average_before=busy)


if __name__ == "__main__":
    main()
