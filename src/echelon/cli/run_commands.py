"""The commands that users repeat most: list and show runs, stop and cancel them.

Their options are in `cli/quick.py`, because the library for command lines takes longer to load than
these commands run.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echelon.cli import console
from echelon.client.manage.clusters import Places, cluster_of
from echelon.client.remote.register import is_inside, read_register
from echelon.clusters.ssh.site import Site
from echelon.core.jobs import RUNNING, parse_states, short_id
from echelon.core.units import render_age, render_time
from echelon.errors import EchelonError, NotFoundError, UnavailableError, UsageError
from echelon.run.attempts import Attempt, attempts, find_durations, is_of_use
from echelon.run.directory import RUNS, RunDir
from echelon.run.listing import find_run, list_runs, list_sweeps
from echelon.run.request import summarise

if TYPE_CHECKING:
    from echelon.clusters.base import Cluster

_ANSWER_S = 30.0
"""Seconds that `ps` waits for the answers of hosts."""
_LOGIN_S = 120.0
"""Seconds that `ps` waits if ssh can ask the user for a password."""
NEEDED = frozenset({"run", "state", "job", "nodes", "submitted"})
"""What `ps` has to print about a run."""
FORGOTTEN = ("UNKNOWN", "UNSUBMITTED")
"""States of jobs that are not known."""


def ps(
    *, runs_dir: Path, state: Sequence[str] = (), last: int | None = None, as_json: bool
) -> None:
    """List runs, their state and command, also those on other hosts.

    A sweep is one line; echelon sweep table lists its tasks. Several states can be given, separated
    by commas. Of each host, -n lists the N newest runs.

    Example: echelon ps --state running -n 10
    """
    wanted = parse_states(state)
    found = [*_list_runs(runs_dir, wanted, last), *_list_sweeps(runs_dir, wanted)]
    if last is not None:
        found = sorted(found, key=lambda one: one[0])[max(0, len(found) - last) :]
    rows = [row for _, row in found]
    options = [f"--state={one}" for one in state] + ([f"--last={last}"] if last is not None else [])
    elsewhere = _list_elsewhere(options) if runs_dir == RUNS else []
    if elsewhere:
        rows = [{**row, "host": ""} for row in rows]
        rows += [{**row, "host": site.host} for site, found in elsewhere for row in found]
    if as_json:
        console.print_json(rows)
    elif rows:
        now_s, headings = time.time(), [*_COLUMNS, *(["host"] if elsewhere else [])]
        console.print_table(headings, [_show(row, headings, now_s) for row in rows])
    else:
        which = f"{' or '.join(sorted(wanted))} " if wanted else ""
        console.note(
            f"no {which}runs in {runs_dir.absolute()}; start one: echelon submit SCRIPT.py"
        )


_COLUMNS = ("run", "state", "job", "nodes", "submitted", "duration", "command")


def _show(row: Mapping[str, Any], headings: Sequence[str], now_s: float) -> list[str]:
    """Return a row's cells as a terminal shows them."""
    took_s = row.get("duration_s")
    cells = {**row, "job": ",".join(map(short_id, str(row["job"]).split(",")))}
    with contextlib.suppress(ValueError):
        submitted_s = datetime.fromisoformat(str(row["submitted"])).timestamp()
        cells["submitted"] = render_age(now_s - submitted_s)
    cells["duration"] = render_time(took_s) if isinstance(took_s, int | float) else ""
    return [str(cells.get(name, "")) for name in headings]


def _list_runs(
    runs_dir: Path, wanted: frozenset[str], last: int | None
) -> list[tuple[float, dict[str, Any]]]:
    """Return the time of creation and the row of each run, the oldest first.

    Args:
        runs_dir: the directory of runs.
        wanted: only runs in these states; empty for all.
        last: only so many of the newest ones; None for all.
    """
    places, now_s = Places(), time.time()
    rows: list[tuple[float, dict[str, Any]]] = []
    unknown: dict[str, str] = {}
    for run in reversed(list_runs(runs_dir)):
        if len(rows) == last:
            break
        if run.task.exists():
            continue  # its sweep has one row for all tasks
        known: Sequence[Attempt] = ()
        with contextlib.suppress(OSError):
            known = attempts(run)
        # Without attempts, it reads them itself and returns the error as the reason.
        job = places.job(run, known or None)
        if job.state == "UNKNOWN":
            unknown.setdefault(job.reason, run.run_id)
        if wanted and job.state not in wanted:
            continue
        asked = summarise(run)
        took_s = find_durations(run, known, now_s if job.state in RUNNING else None)
        row: dict[str, Any] = {
            "run": run.run_id,
            "state": job.state,
            "job": job.id,
            "nodes": job.nodes,
        }
        row |= {"submitted": known[-1].submitted if known else "", "command": asked.command}
        row |= {"request": asked.request, "duration_s": _total(took_s)}
        rows.append((_created(run), row))
    for reason, run_id in unknown.items():
        console.note(f"{run_id}: the state is unknown: {reason}")
    return rows[::-1]


def _list_elsewhere(options: Sequence[str]) -> list[tuple[Site, list[dict[str, Any]]]]:
    """Return the runs on the hosts that this project was submitted to."""
    here = Path.cwd()
    known = [one for one in read_register(os.environ) if is_inside(here, one.project)]
    if not known:
        return []
    from echelon.client.remote.remote_calls import ask_any  # noqa: PLC0415  it loads ssh

    sites = {(one.site.host, one.site.workdir): one.site for one in known}
    return ask_hosts(
        list(sites.values()),
        lambda site: ask_any(site, ["ps", "--json", *options]),
        _LOGIN_S if console.can_ask() else _ANSWER_S,
    )


def ask_hosts(
    sites: Sequence[Site], ask: Callable[[Site], Any], patience_s: float
) -> list[tuple[Site, list[dict[str, Any]]]]:
    """Ask all hosts for their runs at the same time; a note names each that does not answer."""
    answers: dict[Site, Any] = {}

    def inquire(site: Site) -> None:
        try:
            answers[site] = ask(site)
        except EchelonError as error:
            answers[site] = error.message

    asking = [threading.Thread(target=inquire, args=[site], daemon=True) for site in sites]
    until_s = time.monotonic() + patience_s
    for one in asking:
        one.start()
    for one in asking:
        one.join(max(0.0, until_s - time.monotonic()))
    found = []
    for site in sites:
        answer = answers.get(site, f"no answer within {patience_s:.0f} s")
        if isinstance(answer, list) and all(
            isinstance(row, dict) and row.keys() >= NEEDED for row in answer
        ):
            found.append((site, answer))
        else:
            why = answer if isinstance(answer, str) else f"unexpected answer: {str(answer)[:80]!r}"
            console.note(f"{site.host}: the runs there are unknown: {why}")
    return found


def _total(took_s: Sequence[float]) -> float | None:
    """Return the duration of all attempts; None if there are none."""
    return round(sum(took_s), 3) if took_s else None


def _created(files: RunDir) -> float:
    try:
        return files.spec.stat().st_mtime
    except OSError:  # the run was removed meanwhile
        return 0.0


def _list_sweeps(runs_dir: Path, wanted: frozenset[str]) -> list[tuple[float, dict[str, Any]]]:
    """Return the time of creation and the row of each sweep; one query covers all its tasks."""
    found = list_sweeps(runs_dir)
    if not found:
        return []
    from echelon.cli.tasks import count_states, open_slurm  # noqa: PLC0415
    from echelon.client.manage.sweeps import read_tasks  # noqa: PLC0415

    slurm = open_slurm()
    rows: list[tuple[float, dict[str, Any]]] = []
    for sweep in found:
        asked = summarise(sweep.files)
        try:
            states = count_states(task.state for task in read_tasks(sweep, slurm))
        except UnavailableError as error:  # the other runs are still listed
            states = "UNKNOWN"
            console.note(f"{sweep.sweep_id}: the state is unknown: {error.message}")
        if wanted and wanted.isdisjoint(states.replace(",", "").split()):
            continue
        created_s = _created(sweep.files)
        submitted = datetime.fromtimestamp(created_s, UTC).isoformat(timespec="seconds")
        jobs = ",".join(array.job_id for array in sweep.arrays())
        row: dict[str, Any] = {"run": sweep.sweep_id, "state": states, "job": jobs, "nodes": ""}
        row |= {"submitted": submitted, "command": asked.command, "request": asked.request}
        rows.append((created_s, {**row, "duration_s": None}))
    return rows


def status(*, run: str, runs_dir: Path, as_json: bool) -> None:
    """Show a run's state, nodes, exit code and files.

    Example: echelon status last
    """
    from echelon.monitor.accounting import account  # noqa: PLC0415
    from echelon.monitor.reading import MOST_NODES, RunReader  # noqa: PLC0415
    from echelon.run.request import known_code  # noqa: PLC0415

    found = find_run(runs_dir, run)
    known = attempts(found)
    job, now_s = Places().job(found, known), time.time()
    running, code = job.state in RUNNING, known_code(found)
    took_s = find_durations(found, known, now_s if running else None)
    seen = RunReader(found, first=1, most_nodes=MOST_NODES, metrics=False).read()
    allowed = seen.attempt.restarts if seen.attempt else None
    limit_s = seen.asked.limit_s
    # Only Slurm ends a job at its limit.
    limited = running and took_s and limit_s is not None and ":" not in job.id
    left_s = max(0.0, limit_s - took_s[-1]) if limited and limit_s is not None else None
    facts = {
        "run": found.run_id,
        "state": job.state,
        "reason": job.reason,
        "command": seen.asked.command,
        "request": seen.asked.describe(),
        "job": job.id if as_json else short_id(job.id),
        "attempts": sum(is_of_use(found, attempt) for attempt in known),
        "restarts": _render_restarts(seen.restarts, allowed),
        "nodes": job.nodes,
        "elapsed": render_time(sum(took_s)) if took_s else "",
        "remaining": "" if left_s is None else render_time(left_s),
        "step": seen.step if seen.step >= 0 else None,
        "exit_code": None if not job.over or job.state in FORGOTTEN else job.exit_code,
        "code": code.describe() if code else "",
        "directory": str(found.path.absolute()),
    }
    accounts = account(seen)
    if as_json:
        effective = None if accounts.effective is None else round(accounts.effective, 4)
        from echelon.core.codec import encode  # noqa: PLC0415

        facts["code"] = encode(code) if code else None
        facts |= {"request": seen.asked.request, "restarts": seen.restarts}
        facts |= {"restarts_allowed": allowed, "elapsed_s": _total(took_s), "remaining_s": left_s}
        del facts["elapsed"], facts["remaining"]
        console.print_json({**facts, "effective": effective, "time": accounts.seconds})
    else:
        facts["effective"] = accounts.render()
        rows = [[name, str(fact)] for name, fact in facts.items() if fact not in ("", None)]
        console.print_table(["", ""], rows)


def _render_restarts(used: int, allowed: int | None) -> str:
    if allowed is None:
        return str(used or "")
    return f"{used} of {allowed}"


def logs(
    *,
    run: str,
    runs_dir: Path,
    follow: bool = False,
    rank: Sequence[str] = (),
    tail: int | None = None,
    since: str = "",
    raw: bool = False,
    debug: bool = False,
) -> int:
    """Print a run's output, with the rank of each line.

    Colors are kept, other control characters are escaped, and of a progress bar only the last state
    is shown. Of a traceback that several ranks print, all but the first are shortened to one line.

    Example: echelon logs -f --rank 3 --since 10m last
    """
    from echelon.cli.following import Choice, follow_run, print_logs  # noqa: PLC0415

    if debug and (follow or rank or raw):
        raise UsageError(
            "--debug cannot be combined with --follow, --rank or --raw",
            hint="select lines with --tail and --since",
        )
    found = find_run(runs_dir, run)
    if debug:
        _print_debug_logs(found, tail=tail, since=since)
        return 0
    choice = Choice.of(found, rank=rank, tail=tail, since=since)
    if follow:
        return follow_run(found, cluster_of(found), show=True, choice=choice, raw=raw)
    if not print_logs(found, choice, raw=raw) and tail != 0:
        who = f"rank {', '.join(map(str, sorted(choice.ranks)))} of " if choice.ranks else ""
        when = f" since {since}" if since else " yet"
        raise NotFoundError(
            f"{who}the run '{found.run_id}' has not printed anything{when}",
            hint=f"show its state: echelon status {found.run_id}",
        )
    return 0


def _print_debug_logs(run: RunDir, *, tail: int | None, since: str) -> None:
    """Print what a run's controllers and agents have logged."""
    from collections import deque  # noqa: PLC0415

    from echelon.cli.following import parse_since  # noqa: PLC0415
    from echelon.run.debug_log import read_debug_lines  # noqa: PLC0415

    since_s = parse_since(since, time.time()) if since else 0.0
    lines = (line for line in read_debug_lines(run) if line.time_s >= since_s)
    shown = deque(lines, maxlen=tail)
    if not shown and tail != 0:
        when = f" since {since}" if since else ""
        raise NotFoundError(
            f"the run '{run.run_id}' has no debug logs{when}",
            hint="they begin when its controller starts; plain scripts have none",
        )
    for line in shown:
        console.print_result(line.render())


def stop(*, run: str, runs_dir: Path, address: str = "") -> None:
    """Ask a run to stop; ranks that use the library save first.

    Example: echelon stop last
    """
    if found := _end(runs_dir, run, address, now=False):
        console.note(f"stop requested; continue later with: echelon resume {found.run_id}")


def cancel(*, run: str, runs_dir: Path, address: str = "") -> None:
    """End a run immediately.

    Example: echelon cancel last
    """
    if found := _end(runs_dir, run, address, now=True):
        console.note(f"cancelled {found.run_id}")


def _end(runs_dir: Path, name: str, address: str, *, now: bool) -> RunDir | None:
    """End a run, and return it; None, with a message, if it did not run."""
    from echelon.client.manage.run_status import current_job  # noqa: PLC0415
    from echelon.client.manage.waiting import cancel_all, stop_all  # noqa: PLC0415

    if _cancel_waiting(runs_dir, name):
        return None
    run, cluster = find_with_job(runs_dir, name, address)
    job = current_job(run, cluster)
    if job.over and job.state not in FORGOTTEN:
        console.note(f"{run.run_id} has already ended: {job.state}")
        return None
    (cancel_all if now else stop_all)(run, cluster)
    return run


def _cancel_waiting(runs_dir: Path, name: str) -> bool:
    """Cancel a task of a sweep that has not started yet; return whether the name is one."""
    from echelon.cli.tasks import open_slurm  # noqa: PLC0415
    from echelon.client.manage.sweeps import (  # noqa: PLC0415
        cancel_waiting,
        check_home,
        find_waiting,
        read_tasks,
    )

    found = find_waiting(runs_dir, name)
    if found is None:
        return False
    sweep, index = found
    check_home(sweep)
    tasks = read_tasks(sweep, open_slurm(), strict=True)
    job = next(task.job for task in tasks if task.index == index)
    if job.over and job.id:
        console.note(f"{name} has already ended: {job.state}")
    else:
        cancel_waiting(sweep, index, job)
        console.note(f"cancelled {name}, which had not started")
    return True


def find_with_job(runs_dir: Path, name: str, address: str) -> tuple[RunDir, "Cluster"]:
    """Return a run that has a job, and its cluster."""
    from echelon.client.manage.relocation import check_original  # noqa: PLC0415

    found = find_run(runs_dir, name)
    check_original(found)
    if not attempts(found):
        raise NotFoundError(
            f"the run '{found.run_id}' has no job", hint="check the queue: squeue --me"
        )
    return found, cluster_of(found, address=address)


def why(*, run: str, runs_dir: Path, as_json: bool) -> None:
    """Explain why a run failed: first failed rank, node and error.

    Example: echelon why last
    """
    from echelon.client.manage.run_status import find_verdict  # noqa: PLC0415
    from echelon.run.verdict import render  # noqa: PLC0415

    found = find_run(runs_dir, run)
    verdict = find_verdict(found, Places().job(found))
    if as_json:
        console.print_json(asdict(verdict) if verdict else None)
    elif verdict:
        console.print_result(f"{found.run_id}\n{render(verdict, whole=True, run=found.path)}")
    else:
        console.note(f"{found.run_id} has not failed")
