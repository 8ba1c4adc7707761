"""Reads damaged files with every command, as a process of its own: its memory is limited.

`python tests/damage_cases.py PLACE FIRST COUNT SECONDS` prints the number of each case when it
begins, and at the end how many there were and what went wrong, as JSON. The number of a case is its
seed. Nothing leaves the process: an audit hook refuses programs, connections and writing to runs.
"""

import asyncio
import faulthandler
import gc
import io
import json
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path

import torch
import typer.main

from damage import CONTENT, damaged, generator, list_files
from echelon.cli import app
from echelon.cli import main as cli
from echelon.monitor.server import Gate, make_app
from echelon.run.directory import RunDir
from echelon.run.history import read_history
from echelon.train.checkpoint import Checkpointer
from echelon.train.checkpoints.manifest import CheckpointError

DAMAGED, WHOLE = "train-abcd", "good-abcd"
OUR_FAULT = 70
CASE_S = 60
"""A case that takes longer waits for something: a vast file takes seconds, all else far less."""
MEMORY = 2 << 30
"""What the child may take besides what it begins with."""
COMMANDS = [
    *("ps", "ps --json", "status", f"status --json {DAMAGED}", "why", f"why --json {DAMAGED}"),
    *("report", f"report --json {DAMAGED}", "report --html page.html", "watch --once"),
    *("logs", f"logs --rank 0 {DAMAGED}", "export --csv --force last csv"),
    *("nodes", "nodes --json", f"resume {DAMAGED}"),
    *(f"checkpoint ls --json {DAMAGED}", f"checkpoint show {DAMAGED}"),
    *(f"checkpoint verify {DAMAGED}", f"checkpoint convert {DAMAGED} x --to dcp"),
    *("diff", "diff --json", f"diff {DAMAGED} {WHOLE}"),
    *("config", "config --all --json", "config --from job.sh", "script train.py", "lint job.sh"),
]
RAW = ("logs", "watch", "diff")
"""Commands that let a script's colours pass, or print files unchanged unless on a terminal."""
GATE = Gate(token="secret", port=1)  # noqa: S106
HEADERS = [(b"host", b"127.0.0.1:1"), (b"authorization", b"Bearer secret")]
RAY = ("127.0.0.1", 8265)
"""Where Ray's own commands ask when no address was given: so does a run that names none."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Stuck(BaseException):
    """A case takes too long."""


class Wrong(Exception):  # noqa: N818  a finding
    """What was read is not what it should be."""


class Observer:
    """Sees what the process opens, and keeps it from doing what a reader has no business doing."""

    def __init__(self, place):
        self._runs = f"{place}/runs/"
        self.active = False
        self.opened, self.refused = set(), []

    def __call__(self, event, arguments):
        if not self.active:
            return
        if event == "open" and not isinstance(arguments[0], int):
            path = os.path.abspath(os.fsdecode(arguments[0]))  # noqa: PTH100  links stay as they are
            self.opened.add(path)
            probe = os.path.basename(path).startswith(".probe-")  # noqa: PTH119  a Checkpointer's
            if path.startswith(self._runs) and arguments[2] & WRITING and not probe:
                self.refused.append(f"writes to {path}")
        elif event in ("subprocess.Popen", "os.posix_spawn", "os.exec"):
            words = [os.fsdecode(word) for word in arguments[1]]
            if not all(word.isprintable() for word in words):
                self.refused.append(f"starts {words}")
            raise FileNotFoundError(2, "not here", words[0])
        elif event == "socket.connect" and arguments[1] == RAY:
            raise ConnectionRefusedError(111, "not here")
        elif event in ("socket.connect", "os.kill", "os.killpg", "signal.pidfd_send_signal"):
            self.refused.append(f"{event} {arguments[1:]}")
            raise PermissionError(1, "not here")


# --- readers: each raises what is wrong ---------------------------------------------------------


def _read_command(call):
    code, shown, said = _call(call)
    if code == OUR_FAULT:
        raise Wrong(_call(f"--debug {call}")[2])
    if call == "ps" and code != 0:
        raise Wrong(f"ps fails for all runs: {said}")
    if "--json" in call and code == 0:
        json.loads(shown, parse_constant=_refuse)
    text = shown + said
    if not call.startswith(RAW) and any(c < " " and c not in "\n\t" for c in text):
        raise Wrong(f"control characters pass: {text!r}")


def _call(call):
    """Return a command's exit code, its output and its errors."""
    shown, said = io.StringIO(), io.StringIO()
    with redirect_stdout(shown), redirect_stderr(said):
        code = cli.run(call.split())
    return code, shown.getvalue(), said.getvalue()


def _read_page(place, loop):
    app = make_app(place / "runs", GATE)
    rows = json.loads(_ask(loop, app, "/api/runs"), parse_constant=_refuse)
    if WHOLE not in {row["run"] for row in rows}:
        raise Wrong("the overview has lost the other run")
    for query in ("", "/logs", "/logs?search=bang"):
        if answer := _ask(loop, app, f"/api/runs/{DAMAGED}{query}"):
            json.loads(answer, parse_constant=_refuse)


def _ask(loop, app, address):
    """Return the answer to a request; empty where a file of this one run cannot be read."""
    path, _, query = address.partition("?")
    status, body = [], []
    scope = {"type": "http", "method": "GET", "path": path, "headers": HEADERS}
    scope["query_string"] = query.encode()

    async def receive():
        await asyncio.Event().wait()

    async def send(message):
        status.append(message.get("status"))
        body.append(message.get("body", b""))

    try:
        loop.run_until_complete(app(scope, receive, send))
    except OSError:
        return b""
    return b"".join(body) if status[0] == 200 else b""


def _refuse(name):
    raise ValueError(f"{name} is no JSON")


def _read_checkpoints(run):
    checkpointer = Checkpointer(run.checkpoints, rank=0, world_size=1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loaded = checkpointer.load()
    if loaded is None:
        raise Wrong("no checkpoint was loaded, and one is whole")
    if loaded.step == 1 and len(told) != 1:
        raise Wrong(f"passed over with {len(told)} warnings")
    weight = loaded.state["model"]["weight"] if loaded.state else None
    if weight is None or not torch.equal(weight, torch.full((4,), float(loaded.step))):
        raise Wrong(f"something else was loaded: {loaded.state}")
    checkpointer.best_step()
    for step in (1, 2):
        try:
            checkpointer.load(step=step)
        except CheckpointError:
            continue


# --- cases ----------------------------------------------------------------------------------------


class Cases:
    """All readers of a place, and the files that each of them opens."""

    def __init__(self, place):
        self._run = RunDir(path=place / "runs" / DAMAGED)
        loop = asyncio.new_event_loop()
        self._readers = {f"echelon {call}": partial(_read_command, call) for call in COMMANDS}
        self._readers |= {
            "page": partial(_read_page, place, loop),
            "history": partial(read_history, self._run, 3),
            "checkpoints": partial(_read_checkpoints, self._run),
        }
        folders = (self._run.path, place / ".local", place / ".config")
        files = [path for folder in folders for path in list_files(folder)]
        files += [place / name for name in ("echelon.toml", "job.sh", "train.py")]
        self._named = (place / "job.sh",)
        self._observer = Observer(place)
        sys.addaudithook(self._observer)
        self.of = {path: [] for path in files}
        for name in self._readers:
            self._read(name)  # a library that is imported opens files, too
            self._observer.opened.clear()
            self._read(name)
            for path in files:
                if str(path) in self._observer.opened:
                    self.of[path].append(name)

    def check(self, seed):
        """Damage one or two files, and have all read them that may notice."""
        rng = generator(seed)
        files = [path for path, names in self.of.items() if names]
        paths = rng.sample(files, 2 if rng.random() < 0.1 else 1)
        if all("checkpoints" in path.parts for path in paths):
            paths = paths[:1]  # one checkpoint has to stay whole
        with damaged(paths, rng, named=self._named) as told:
            content = all(one.partition(" ")[0] in CONTENT for one in told)
            noticing = {name for path in paths for name in self.of[path]}
            names = noticing if content else set(self._readers)
            if any(one.startswith("change_sealed") for one in told):
                names.discard("checkpoints")  # what it loads is what that checksum confirms
            for name in self._readers:
                if name in names:
                    try:
                        self._read(name)
                    except Stuck:
                        raise Stuck(f"{told}: {name}") from None
                    except Exception as error:
                        raise Wrong(f"{told}: {name}") from error
            return told[0].partition(" ")[0]

    def _read(self, name):
        self._observer.active = True
        try:
            self._readers[name]()
        finally:
            self._observer.active = False
            refused, self._observer.refused = self._observer.refused, []
        if refused:
            raise Wrong("; ".join(refused))


def main(place, seed, count, within_s):
    """Run cases, and print what was found."""

    def stuck(*_):
        raise Stuck

    app.app = typer.main.get_command(app.app)  # made once: it is half of what a command takes
    os.chdir(place)
    os.environ.update(HOME=str(place), COLUMNS="100", LINES="40")
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "ECHELON_RUNS_DIR", "SLURM_JOB_ID"):
        os.environ.pop(name, None)
    cases = Cases(place)
    gc.freeze()  # torch's half a million objects are not looked at again and again
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, held + MEMORY))
    signal.signal(signal.SIGALRM, stuck)
    done, wrong, deadline_s = Counter(), [], time.monotonic() + within_s
    for one in range(seed, seed + count):
        if time.monotonic() > deadline_s or len(wrong) >= 10:
            break
        print(one, flush=True)  # noqa: T201
        # A thread, or a loop in C, hears no signal: it is shown and ended from outside.
        faulthandler.dump_traceback_later(CASE_S + 30, exit=True)
        signal.alarm(CASE_S)
        try:
            done[cases.check(one)] += 1
        except (Exception, Stuck):  # noqa: BLE001  each is a finding
            wrong.append(f"SEED={one}\n{traceback.format_exc()[-4000:]}")
        finally:
            signal.alarm(0)
            faulthandler.cancel_dump_traceback_later()
    print(json.dumps([done.total() + len(wrong), done, wrong]), flush=True)  # noqa: T201
    os._exit(0)  # a thread that is stuck would keep it


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
