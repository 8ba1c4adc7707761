"""Runs of `survivor.py` on a cluster: how to follow one, and what must be true of it in the end."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from echelon.core.waiting import wait_until

SURVIVOR = Path(__file__).with_name("survivor.py")
SAMPLES, BATCH = 60, 12
"""As the script has them."""


@dataclass
class Chain:
    """A run that may take many jobs, submitted with `--follow`."""

    folder: Path
    environ: dict
    process: subprocess.Popen

    @property
    def run(self):
        (path,) = (self.folder / "runs").iterdir()
        return path

    def attempts(self):
        return sorted(int(path.name) for path in (self.run / "attempts").glob("[0-9]*"))

    def outcomes(self):
        """How the attempts ended that have."""
        found = []
        for number in self.attempts():
            path = self.run / "attempts" / str(number) / "outcome.json"
            if path.exists():
                found.append(json.loads(path.read_text()))
        return found

    def job(self, attempt):
        record = (self.run / "attempts" / str(attempt) / "job.json").read_text()
        return json.loads(record)["job_id"]

    def command(self, *words):
        """Run an `echelon` command about it."""
        return subprocess.run(
            [sys.executable, "-m", "echelon", *words],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def await_step(self, step, timeout_s=90):
        """Wait until some rank is at a step, in whichever job."""
        reached = lambda: any(one >= step for _, one, _ in self.records())  # noqa: E731
        assert wait_until(reached, timeout_s=timeout_s, interval_s=0.05), self.said_so_far()

    def await_turns(self, count, timeout_s=90):
        """Wait until so many sets of ranks have taken a step."""
        enough = lambda: len({turn for turn, _, _ in self.records()}) >= count  # noqa: E731
        assert wait_until(enough, timeout_s=timeout_s, interval_s=0.05), self.said_so_far()

    def records(self):
        """Return (turn, step, indices) of all ranks, in the order of time."""
        return [(turn, step, indices) for _, turn, step, indices in self.timed_records()]

    def timed_records(self):
        """Return the same with the time before each."""
        lines = []
        for path in self.folder.glob("consumed-*"):
            for line in path.read_text().splitlines():
                try:
                    lines.append(json.loads(line))
                except ValueError:
                    continue  # its writer was killed, or is at it
        return sorted(lines)

    def said_so_far(self):
        said = [path.read_text() for path in sorted((self.run / "logs").glob("job-*.out"))]
        return "\n".join([*said, json.dumps(self.outcomes())])

    def wait(self, timeout_s=120):
        """Return the exit code of the command that follows it, and what it has said."""
        said, _ = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, said


def start_chain(folder, environ, *options, steps, pace_s, arguments=(), script=SURVIVOR):
    """Submit a training and follow it to its end.

    Args:
        folder: where it runs, and leaves everything.
        environ: variables.
        options: of the command.
        steps: how many there are,
        pace_s: and how long each sleeps.
        arguments: the script's others.
        script: what to run.
    """
    argv = [sys.executable, "-m", "echelon", "submit", "--follow", *options, str(script)]
    process = subprocess.Popen(
        [*argv, str(steps), str(pace_s), *arguments],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return Chain(folder=folder, environ=environ, process=process)


def check_samples(records, steps, samples=SAMPLES):
    """Each sample of every epoch was consumed once, by the ranks whose work has counted."""
    last = {step: turn for turn, step, _ in records}
    missing = sorted(set(range(1, steps + 1)) ^ last.keys())
    assert not missing, f"steps that nobody took, or that should not be: {missing[:10]}"
    per_epoch = samples // BATCH
    seen = Counter(
        ((step - 1) // per_epoch, index)
        for turn, step, indices in records
        if turn == last[step]
        for index in indices
    )
    again = sorted(key for key, times in seen.items() if times > 1)
    assert not again, f"(epoch, sample) that were consumed more than once: {again[:10]}"
    assert len(seen) == steps * BATCH, f"{len(seen)} samples were consumed of {steps * BATCH}"


def train_undisturbed(folder, *options, steps, arguments=(), leaves="weights"):
    """Return what the weights are in the end when nothing happens."""
    folder.mkdir()
    argv = [sys.executable, "-m", "echelon", "run", "--on", "local", *options, str(SURVIVOR)]
    subprocess.run(
        [*argv, str(steps), "0", *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        timeout=120,
    )
    return (folder / leaves).read_text()
