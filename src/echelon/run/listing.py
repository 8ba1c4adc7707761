"""The runs of a folder, by name."""

import contextlib
from pathlib import Path

from echelon.errors import EchelonError, NotFoundError, UsageError
from echelon.run.attempts import attempts
from echelon.run.directory import RunDir
from echelon.run.sweep import SweepDir, is_sweep


def list_runs(runs: Path) -> list[RunDir]:
    """Return the runs of a folder that belong to this user, the oldest first."""
    found = []
    for path in runs.iterdir() if runs.is_dir() else ():
        try:
            if is_sweep(path):
                continue
            found.append((path.joinpath("spec.toml").stat().st_mtime_ns, RunDir.open(path)))
        except (OSError, EchelonError):
            continue  # not a run
    return [run for _, run in sorted(found, key=lambda entry: entry[0])]


def list_sweeps(runs: Path) -> list[SweepDir]:
    """Return the sweeps of a folder that belong to this user, the oldest first."""
    found = []
    for path in runs.iterdir() if runs.is_dir() else ():
        with contextlib.suppress(OSError, EchelonError):
            found.append((path.joinpath("spec.toml").stat().st_mtime_ns, SweepDir.open(path)))
    return [sweep for _, sweep in sorted(found, key=lambda entry: entry[0])]


def find_sweep(runs: Path, name: str) -> SweepDir:
    """Find a sweep by its id, a unique prefix of it, or `last`.

    Raises:
        NotFoundError: there is no such sweep.
        UsageError: the prefix is ambiguous.
    """
    known = list_sweeps(runs)
    if name == "last" and known:
        return known[-1]
    exact = [sweep for sweep in known if sweep.sweep_id == name]
    found = exact or [sweep for sweep in known if name and sweep.sweep_id.startswith(name)]
    if not found:
        latest = ", ".join(sweep.sweep_id for sweep in known[-5:])
        raise NotFoundError(
            f"no sweep '{name}' in {runs}",
            hint=f"the latest sweeps there: {latest}" if known else "start one: echelon sweep",
        )
    if len(found) > 1:
        raise UsageError(
            f"'{name}' is ambiguous: {', '.join(sweep.sweep_id for sweep in found[:5])}",
            hint="write more letters of the sweep id",
        )
    return found[0]


def _jobs(run: RunDir) -> list[str]:
    """Return the jobs of a run; none if its folder cannot be read."""
    with contextlib.suppress(OSError):
        return [attempt.job_id for attempt in attempts(run)]
    return []


def find_run(runs: Path, name: str) -> RunDir:
    """Find a run by its id, a unique prefix of it, a job's id, or `last`.

    Raises:
        NotFoundError: there is no such run, or no run at all.
        UsageError: the prefix is ambiguous.
    """
    known = list_runs(runs)
    if name == "last" and known:
        return known[-1]
    exact = [run for run in known if run.run_id == name]
    by_job = [run for run in known if name in _jobs(run)]
    beginning = [run for run in known if name and run.run_id.startswith(name)]
    found = exact or by_job or beginning
    if not exact and name and "/" not in name and is_sweep(runs / name):
        raise UsageError(
            f"'{name}' is a sweep, not a run",
            hint=f"echelon sweep status {name}; its runs are {name}-0, {name}-1, …",
        )
    if not found:
        _check_folder(runs, name)
        raise NotFoundError(
            f"no run '{name}' in {runs}",
            hint=f"the latest runs there: {', '.join(run.run_id for run in known[-5:])}"
            if known
            else "change to the directory where it was started, or pass --runs-dir",
        )
    if len(found) > 1:
        raise UsageError(
            f"'{name}' is ambiguous: {', '.join(run.run_id for run in found[:5])}",
            hint="write more letters of the run id",
        )
    return found[0]


def _check_folder(runs: Path, name: str) -> None:
    """Explain why a folder of that name cannot be used as a run, if it exists.

    Raises:
        NotPermittedError: it belongs to another user, or others may write to it.
        NotFoundError: its request is missing.
    """
    path = runs / name
    if not name or name in (".", "..") or "/" in name or not path.is_dir():
        return
    run = RunDir.open(path)
    if not run.spec.exists():
        raise NotFoundError(
            f"{path} is not a valid run directory: it has no {run.spec.name}",
            hint="its logs and checkpoints may still be readable; start a new run: echelon submit",
        )
