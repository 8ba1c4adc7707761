"""Commands about runs on another host: find the run, and execute the command there by ssh."""

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from echelon.cli import console
from echelon.cli.announcement import announce_run, announce_sweep
from echelon.client.manage.locate import find_site, locate
from echelon.client.remote.remote_calls import (
    ask,
    ask_any,
    follow_there,
    keep_trying,
    open_host,
    start,
    talking,
    unexpected,
)
from echelon.core.frozen import frozen
from echelon.errors import EchelonError, UsageError

if TYPE_CHECKING:
    from echelon.client.submit.pipeline import Request
    from echelon.clusters.ssh.site import Site

_ANSWER_S = 30.0
"""Seconds that `ps` waits for the answers of hosts."""
_LOGIN_S = 120.0
"""Seconds that `ps` waits if ssh can ask the user for a password."""
COLUMNS = frozenset({"run", "state", "job", "nodes", "submitted"})
"""What `ps` has to print about a run."""

Elsewhere = Callable[["There"], int]
"""Executes a command whose run is on another host, and returns the exit code."""


class Given(NamedTuple):
    """A command as it was given."""

    values: Mapping[str, Any]
    """Its parameters, without those that name a host."""
    line: list[str]
    """The command, its options and its arguments, without the run and its host."""
    cluster: str
    host: str
    here: bool
    """Whether `--runs-dir` was given: it names a directory of this machine."""


@frozen
class There:
    """A command whose run is on another host."""

    site: "Site"
    run: str
    """The run's name there."""
    values: Mapping[str, Any]
    """The command's parameters."""
    line: list[str]
    """The command line, without the run and its host."""
    command: Callable[..., object]
    """Executes it on this machine."""

    def words(self, *without: str) -> list[str]:
        """Return the command line for the host, without some flags."""
        head, tail = self.line, list[str]()
        if "--" in head:
            at = head.index("--")
            head, tail = head[:at], head[at + 1 :]
        head = [word for word in head if word not in without]
        named = [self.run] if self.run else []
        return [*head, "--", *named, *tail]


def route(command: Callable[..., int | None], elsewhere: Elsewhere | None, given: Given) -> int:
    """Execute a command where its run is, and return its exit code.

    Args:
        command: executes it on this machine.
        elsewhere: executes it on another machine; by default, as it was given.
        given: the command.
    """
    if given.here and (given.cluster or given.host):
        raise UsageError(
            "--runs-dir names a directory of this machine, not of a host",
            hint="remove it: the runs there are in the profile's workdir, in `runs`",
        )
    sweep = "sweep" in given.values
    name = str(given.values.get("sweep" if sweep else "run", ""))
    if not name or given.here:
        site = find_site(given.cluster, given.host)
    else:
        site, name = locate(name, given.values["runs_dir"], given.cluster, given.host, sweep=sweep)
    if site is None:
        return command(**given.values) or 0
    group = ["sweep"] if sweep else []
    there = There(
        site=site, run=name, values=given.values, line=[*group, *given.line], command=command
    )
    return (elsewhere or execute)(there)


# --- execute a command there ------------------------------------------------------------------


def execute(there: There) -> int:
    """Execute a command there, and print its output."""
    return forward(there.site, there.words())


def forward(site: "Site", argv: Sequence[str], *, attached: bool = False) -> int:
    """Execute a command on a site's host, print its output, and return its exit code."""
    with talking(start(site, argv, attached=attached)) as talk:
        for kind, value in talk.frames():
            if kind == "end":
                return int(value)
            _print(kind, value)
    return 0


def _print(kind: str, text: str) -> None:
    stream = sys.stdout if kind == "out" else sys.stderr
    if stream:
        stream.write(text)
        stream.flush()


def in_terminal(there: There) -> int:
    """Execute a command there in our terminal, again if the connection breaks."""
    from echelon.clusters.ssh.call import LOST, Call  # noqa: PLC0415
    from echelon.clusters.ssh.host import LostConnectionError  # noqa: PLC0415

    site = there.site
    if there.values.get("once") or not console.is_terminal():
        return execute(there)
    call = Call(argv=tuple(there.words()), folder=site.workdir, framed=False, terminal=True)

    def show() -> int:
        code = open_host(site).show(call)
        if code == LOST:
            raise LostConnectionError(
                f"the connection to {site.host} was lost", hint=f"check it: ssh {site.host} true"
            )
        return code

    return keep_trying(show)


# --- follow -----------------------------------------------------------------------------------


def follow(
    site: "Site",
    name: str,
    *,
    show: bool = True,
    rank: Sequence[str] = (),
    raw: bool = False,
    tail: int | None = None,
    since: str = "",
    resubmit: bool = False,
) -> int:
    """Wait for the end of a run there, and return its exit code; see `follow_run`."""
    from echelon.client.manage.waiting import keeping_run  # noqa: PLC0415

    wanted = {"run": name, "show": show, "rank": list(rank), "raw": raw, "tail": tail}
    with keeping_run(name, site.option):
        for kind, value in follow_there(site, {**wanted, "since": since, "resubmit": resubmit}):
            if kind == "end":
                return int(value)
            _print(kind, value)
    return 0


def logs_there(there: There) -> int:
    """Print a run's output."""
    if there.values["debug"] or not there.values["follow"]:
        return execute(there)
    options = {key: there.values[key] for key in ("rank", "raw", "tail", "since")}
    return follow(there.site, there.run, show=True, **options)


def resume_there(there: There) -> int:
    """Resume a run. Following it is a separate step, which is repeated after a lost connection."""
    code = forward(there.site, there.words("--wait", "--follow"))
    if code == 0 and (there.values["wait"] or there.values["follow"]):
        return follow(there.site, there.run, show=there.values["follow"], resubmit=True)
    return code


def rerun_there(there: There) -> int:
    """Submit a run's code and request again."""
    from echelon.client.code.code_listing import find_root  # noqa: PLC0415
    from echelon.client.remote.register import forget_run, record_run  # noqa: PLC0415
    from echelon.client.submit.run_names import name_run  # noqa: PLC0415
    from echelon.clusters.ssh.host import LostConnectionError  # noqa: PLC0415
    from echelon.core.shell import LocalShell  # noqa: PLC0415

    if there.values["snapshot"]:
        raise UsageError(
            f"the project was not sent to {there.site.host} again",
            hint="to execute it as it is now: echelon submit",
        )
    old_id = there.run
    if old_id == "last":
        old_id = str(ask(there.site, ["status", "--json", "--", old_id], ["run"])["run"])
    new_id = name_run(old_id.rpartition("-")[0] or old_id)
    root, _ = find_root(Path.cwd(), None, LocalShell())
    record_run(new_id, root, there.site, os.environ)  # before the request: its answer may be lost
    words = replace(there, run=old_id).words("--wait", "--follow", "--json")[1:]
    line = ["rerun", "--json", f"--new-id={new_id}", *words]
    try:
        found = keep_trying(lambda: ask(there.site, line, ["run", "job_id", "directory"]))
    except (LostConnectionError, KeyboardInterrupt):
        console.note(f"{new_id} may be queued nevertheless; see: echelon status {new_id}")
        raise
    except EchelonError:
        forget_run(new_id, os.environ)
        raise
    as_json = there.values["as_json"]
    host = there.site.host
    announce_run(found["run"], found["job_id"], found["directory"], host=host, as_json=as_json)
    if there.values["wait"] or there.values["follow"]:
        return follow(there.site, found["run"], show=there.values["follow"], resubmit=True)
    return 0


def submit_there(
    request: "Request",
    *,
    wait: bool,
    show: bool = False,
    dry_run: bool = False,
    as_json: bool = False,
) -> int:
    """Submit a run or sweep to the host of its request, and return the exit code."""
    from echelon.client.submit.host_submission import (  # noqa: PLC0415
        check_for_host,
        prepare_for_host,
        send,
    )
    from echelon.clusters.slurm.styles import render_script  # noqa: PLC0415

    checked = check_for_host(request)
    if dry_run:
        console.print_file(render_script(request.merged.spec))
        console.note(f"not checked on {request.merged.host}, because nothing was sent there")
        return 0
    queued = send(prepare_for_host(checked))
    host = queued.site.host
    if checked.table is not None:
        announce_sweep(
            queued.run_id,
            len(checked.table.tasks),
            queued.arrays or [queued.job_id],
            queued.directory,
            packed=checked.table.pack > 0,
            host=host,
            as_json=as_json,
        )
        return _wait_for_sweep(queued.site, queued.run_id) if wait else 0
    announce_run(queued.run_id, queued.job_id, queued.directory, host=host, as_json=as_json)
    if wait or show:
        return follow(queued.site, queued.run_id, show=show, resubmit=True)
    return 0


def resume_sweep_there(there: There) -> int:
    """Resume a sweep. Waiting for it is a separate step, repeated after a lost connection."""
    code = forward(there.site, there.words("--wait"))
    return _wait_for_sweep(there.site, there.run) if code == 0 and there.values["wait"] else code


def _wait_for_sweep(site: "Site", sweep: str) -> int:
    """Wait for all tasks of a sweep; return 1 if one is not complete."""
    from echelon.cli.tasks import wait_for_tasks  # noqa: PLC0415
    from echelon.client.manage.run_jobs import host_sweep_jobs  # noqa: PLC0415

    return wait_for_tasks(host_sweep_jobs(site, sweep), sweep)


def on_fetched_files(there: There) -> int:
    """Execute a command that writes files on this machine, with the run's fetched files."""
    from echelon.client.remote.host_files import fetched  # noqa: PLC0415

    with fetched(there.site, there.run, []) as runs:
        there.command(**{**there.values, "run": "last", "runs_dir": runs})
    return 0


# --- all runs ---------------------------------------------------------------------------------


def list_elsewhere(options: Sequence[str] = ()) -> list[tuple["Site", list[dict[str, Any]]]]:
    """Return the runs on the hosts that this project was submitted to.

    All hosts are asked at the same time, with these options of `ps`. A note names each host that
    does not answer.
    """
    from echelon.client.remote.register import is_inside, read_register  # noqa: PLC0415

    here = Path.cwd()
    known = [one for one in read_register(os.environ) if is_inside(here, one.project)]
    sites = {(one.site.host, one.site.workdir): one.site for one in known}
    answers: dict[Site, list[dict[str, Any]] | str] = {}

    def inquire(site: "Site") -> None:
        try:
            answers[site] = _check_rows(site, ask_any(site, ["ps", "--json", *options]))
        except EchelonError as error:
            answers[site] = error.message

    asking = [threading.Thread(target=inquire, args=[site], daemon=True) for site in sites.values()]
    patience_s = _LOGIN_S if console.can_ask() else _ANSWER_S
    until_s = time.monotonic() + patience_s
    for one in asking:
        one.start()
    for one in asking:
        one.join(max(0.0, until_s - time.monotonic()))
    found = []
    for site in sites.values():
        answer = answers.get(site, f"no answer within {patience_s:.0f} s")
        if isinstance(answer, str):
            console.note(f"{site.host}: the runs there are unknown: {answer}")
        else:
            found.append((site, answer))
    return found


def _check_rows(site: "Site", answer: Any) -> list[dict[str, Any]]:
    if isinstance(answer, list) and all(
        isinstance(one, dict) and one.keys() >= COLUMNS for one in answer
    ):
        return answer
    raise unexpected(site, "ps", answer)
