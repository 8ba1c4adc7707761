"""Reads a damaged run with every command, as a process of its own: its memory is limited.

`python tests/damage_cases.py PLACE FIRST COUNT SECONDS` prints how many cases there were and what
went wrong, as JSON. Each case has a number, which is its seed.
"""

import io
import json
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import torch
import typer.main

from damage import damaged, generators, list_files
from echelon.cli import main as cli
from echelon.monitor.logbook import Wanted
from echelon.monitor.overview import Overview
from echelon.monitor.watched import Watched
from echelon.run.directory import RunDir
from echelon.train.checkpoint import Checkpointer
from echelon.train.checkpoint_files import CheckpointError

OUR_FAULT = 70
CASE_S = 120
"""A case that takes longer waits for something: most take less than a second."""
MEMORY = 2 << 30
"""What the child may take besides what it begins with."""
COMMANDS = [
    *("ps", "status", "why", "report", "logs", "watch --once", "nodes"),
    *("status --json", "why --json", "report --json", "report --html page.html"),
    *("export --csv --force last csv", "logs --rank 0"),
]


class Stuck(BaseException):
    """A case takes too long."""


def check_case(place, seed):
    """Damage one file, and have everything read it; return what went wrong."""
    ((_, rng),) = generators(seed, 1)
    run = RunDir(path=place / "runs" / "train-abcd")
    files = [*list_files(run.path), *list_files(place / ".local")]
    path = rng.choice([one for one in files if one.name != "job.sbatch"])
    with damaged(path, rng) as what:
        wrong = _read_checkpoints(run) if "checkpoints" in path.parts else ""
        wrong = wrong or _read_page(place, run) or _read_commands(place)
    return f"SEED={seed} {what}\n{wrong}" if wrong else ""


def _read_commands(place):
    for call in COMMANDS:
        said = io.StringIO()
        with redirect_stdout(io.StringIO()), redirect_stderr(said):
            code = cli.run(["--debug", *call.split()])
        if code == OUR_FAULT:
            return f"echelon {call}\n{said.getvalue()}"
        if call == "ps" and code != 0:
            return f"ps fails for all runs: {said.getvalue()}"
    return ""


def _read_page(place, run):
    rows = Overview(place / "runs").rows()
    if {row["run"] for row in rows} < {"good-abcd"}:
        return "the overview has lost the other run"
    json.dumps(rows, allow_nan=False)
    watched = Watched(run)
    try:
        _, text = watched.news(0)
        json.loads(text, parse_constant=_refuse)
        watched.recall()
        watched.news(0)
        for wanted in (Wanted(), Wanted(text="bang")):
            json.dumps(watched.logs(None, wanted), allow_nan=False)
    except OSError:
        return ""  # a 500 for this one run
    return ""


def _refuse(name):
    raise ValueError(f"{name} is no JSON")


def _read_checkpoints(run):
    checkpointer = Checkpointer(run.checkpoints, rank=0, world_size=1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loaded = checkpointer.load()
    if loaded is None:
        return "no checkpoint was loaded, and one is whole"
    if loaded.step == 1 and len(told) != 1:
        return f"passed over with {len(told)} warnings"
    weight = loaded.state["model"]["weight"] if loaded.state else None
    if weight is None or not torch.equal(weight, torch.full((4,), float(loaded.step))):
        return f"something else was loaded: {loaded.state}"
    for step in (1, 2):
        try:
            checkpointer.load(step=step)
        except CheckpointError:
            continue
    return ""


def main(place, seed, count, within_s):
    """Run cases, and print what was found."""

    def stuck(*_):
        raise Stuck

    cli.app = typer.main.get_command(cli.app)  # made once: it is half of what a command takes
    os.chdir(place)
    os.environ.update(HOME=str(place), COLUMNS="100", LINES="40")
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "ECHELON_RUNS_DIR", "SLURM_JOB_ID"):
        os.environ.pop(name, None)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, held + MEMORY))
    signal.signal(signal.SIGALRM, stuck)
    done, wrong, deadline_s = 0, [], time.monotonic() + within_s
    for one, _ in generators(seed, count):
        if time.monotonic() > deadline_s or len(wrong) >= 10:
            break
        signal.alarm(CASE_S)
        try:
            if found := check_case(place, one):
                wrong.append(found)
        except (Exception, Stuck):  # noqa: BLE001  each is a finding
            wrong.append(f"SEED={one}\n{traceback.format_exc()[-2500:]}")
        finally:
            signal.alarm(0)
        done += 1
    print(json.dumps([done, wrong]))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
