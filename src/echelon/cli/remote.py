"""Commands about runs on another host, executed there by ssh."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echelon.cli import console
from echelon.cli.announcement import announce_run, announce_sweep
from echelon.client.remote.remote_calls import (
    ask,
    follow_there,
    keep_trying,
    open_host,
    start,
    submit_once,
)
from echelon.clusters.ssh.call import LOST, Call
from echelon.clusters.ssh.host import LostConnectionError
from echelon.clusters.ssh.site import Site
from echelon.core.frozen import frozen
from echelon.core.shell import LocalShell
from echelon.errors import UsageError

if TYPE_CHECKING:
    from echelon.client.submit.pipeline import Request


@frozen
class There:
    """A command whose run is on another host."""

    site: Site
    run: str
    """The run's name there."""
    values: Mapping[str, Any]
    """The command's parameters, without those that name a host."""
    line: Sequence[str]
    """The command, its options and its arguments, without the run and its host."""
    command: Callable[..., object]
    """Executes it on this machine."""

    def words(self, *without: str) -> list[str]:
        """Return the command line for the host, without some flags."""
        head, tail = list(self.line), list[str]()
        if "--" in head:
            at = head.index("--")
            head, tail = head[:at], head[at + 1 :]
        head = [word for word in head if word not in without]
        named = [self.run] if self.run else []
        return [*head, "--", *named, *tail]


# --- execute a command there ------------------------------------------------------------------


def execute(there: There) -> int:
    """Execute a command there, and print its output. Following a run survives lost connections."""
    if there.line[0] == "logs" and there.values["follow"] and not there.values["debug"]:
        options = {name: there.values[name] for name in ("rank", "raw", "tail", "since")}
        return follow(there.site, there.run, show=True, **options)
    return forward(there.site, there.words())


def forward(site: Site, argv: Sequence[str], *, attached: bool = False) -> int:
    """Execute a command on a site's host, print its output, and return its exit code."""
    with start(site, argv, attached=attached) as talk:
        for kind, value in talk.output_parts():
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
    site = there.site
    if there.values.get("once") or not console.is_terminal():
        return execute(there)
    call = Call(argv=tuple(there.words()), folder=site.workdir, prints_output=False, terminal=True)

    def show() -> int:
        code = open_host(site).show(call)
        if code == LOST:
            raise LostConnectionError(
                f"the connection to {site.host} was lost", hint=f"check it: ssh {site.host} true"
            )
        return code

    return keep_trying(show)


# --- follow -----------------------------------------------------------------------------------


def follow(site: Site, name: str, **options: Any) -> int:
    """Wait for the end of a run there, and return its exit code; see `follow_there`."""
    from echelon.client.manage.waiting import keeping_run  # noqa: PLC0415

    with keeping_run(name, site.option):
        for kind, value in follow_there(site, {"run": name, **options}):
            if kind == "end":
                return int(value)
            _print(kind, value)
    return 0


def resume_there(there: There) -> int:
    """Resume a run. Following it is a separate step, which is repeated after a lost connection."""
    code = forward(there.site, there.words("--wait", "--follow"))
    if code == 0 and (there.values["wait"] or there.values["follow"]):
        return follow(there.site, there.run, show=there.values["follow"], resubmit=True)
    return code


def rerun_there(there: There) -> int:
    """Submit a run's code and request again."""
    from echelon.client.code.code_listing import find_root  # noqa: PLC0415
    from echelon.client.submit.run_files import name_run  # noqa: PLC0415

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
    words = replace(there, run=old_id).words("--wait", "--follow", "--json")[1:]
    line = ["rerun", "--json", f"--new-id={new_id}", *words]
    answer = ("run", "job_id", "directory")
    found = submit_once(new_id, root, there.site, lambda: ask(there.site, line, answer))
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


def _wait_for_sweep(site: Site, sweep: str) -> int:
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
