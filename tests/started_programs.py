"""Programs started by `echelon run` on this machine, and the same ones started plainly."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

TIMEOUT_S = 120.0
_NOT_OURS = (
    *("SLURM", "PYTEST", "ECHELON", "TORCHELASTIC", "VIRTUAL_ENV"),
    *("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"),
)


def clean_environment(**more: str) -> dict[str, str]:
    """Return our own variables without those that would tell a program who started us."""
    kept = {name: v for name, v in os.environ.items() if not name.startswith(_NOT_OURS)}
    return {**kept, **more}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a program ended, and what it left."""

    status: int
    """Its exit code; a signal's number, negative."""
    output: str
    """What it printed, on stdout and stderr, without its folder's name and addresses in memory."""
    files: dict[str, bytes]
    """What lies in its folder; of bytecode only the names."""
    code: int = 0
    """The exit code of `echelon run` itself."""
    shown: str = ""
    """Its stdout."""
    told: str = ""
    """Its stderr."""
    events: list[dict] = field(default_factory=list)

    def warm(self) -> bool:
        """Tell whether every rank was forked from a zygote."""
        started = [event for event in self.events if event["kind"] == "rank"]
        return bool(started) and all(event["warm"] for event in started)


def run_plainly(folder: Path, *words: str, env: dict[str, str], **more) -> Ran:
    """Run `python WORDS` in a folder, output to a file as a rank's goes."""
    log = folder.with_suffix(".log")
    # As the contract promises it: torchrun's scripts are started so, too.
    env = {**env, "PYTHONUNBUFFERED": "1"}
    with log.open("ab") as output:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            timeout=TIMEOUT_S,
            check=False,
            **more,
        )
    return Ran(
        status=done.returncode, output=_comparable(log.read_text(), folder), files=_files(folder)
    )


def run_warm(folder: Path, *words: str, env: dict[str, str], **more) -> Ran:
    """Run `echelon run --procs 1 WORDS` in a folder."""
    with start_run(folder, "--procs=1", "--restarts=0", *words, env=env, **more) as command:
        shown, told = command.communicate(timeout=TIMEOUT_S)
    events, output, status = [], "", command.returncode
    for run in (folder / "runs").glob("*"):
        events = read_events(run)
        gone = [event for event in events if event["kind"] == "exited"]
        status = -gone[0]["signal"] or gone[0]["code"] if gone else status
        output = "".join(log.read_text() for log in sorted(run.glob("logs/*/rank-*.log")))
    return Ran(
        status=status,
        output=_comparable(output, folder),
        files=_files(folder),
        code=command.returncode,
        shown=shown,
        told=told,
        events=events,
    )


@contextlib.contextmanager
def start_run(folder: Path, *words: str, env: dict[str, str], **more):
    """Start `echelon run WORDS`; its controller, and so its ranks, die with it."""
    argv = [sys.executable, "-m", "echelon", "run", f"--python={sys.executable}", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **more}
    command = subprocess.Popen(argv, cwd=folder, env=env, start_new_session=True, **pipes)
    try:
        yield command
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)
        command.wait()
        for pipe in (command.stdout, command.stderr):
            if pipe:
                pipe.close()


def read_events(run: Path) -> list[dict]:
    """Return what the controller of a run's first attempt noted down."""
    try:
        lines = (run / "events" / "controller-1.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


def _comparable(text: str, folder: Path) -> str:
    return re.sub(r"\b0x[0-9a-f]+", "0x…", text.replace(str(folder), "FOLDER"))


def _files(folder: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not name.startswith("runs/"):
            found[name] = b"" if path.suffix == ".pyc" else path.read_bytes()
    return found
