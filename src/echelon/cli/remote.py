"""Commands about runs on another host: find the run, and execute the command there by ssh."""

import contextlib
import inspect
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from echelon.cli import console
from echelon.cli.help import CONFIGURATION
from echelon.core.units import format_bytes
from echelon.errors import EchelonError, NotFoundError, UsageError
from echelon.run.listing import find_run, list_runs

if TYPE_CHECKING:
    from echelon.clusters.ssh.host import Host, Talk
    from echelon.clusters.ssh.site import Site
    from echelon.spec.merging import Merged

ClusterName = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="NAME",
        help="Cluster profile whose host has the run.",
        show_default=False,
        rich_help_panel=CONFIGURATION,
    ),
]
HostName = Annotated[
    str,
    typer.Option(
        "--host",
        metavar="HOST",
        help="Login host that has the run, by ssh.",
        show_default=False,
        rich_help_panel=CONFIGURATION,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class There:
    """A command whose run is on another host."""

    site: "Site"
    run: str
    """The run's name there."""
    values: Mapping[str, Any]
    """The command's parameters."""
    line: list[str]
    """The command line, without the run and where it is."""
    command: Callable[..., None]
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


_HERE = ("cluster", "host", "runs_dir", "run")
"""Parameters that are not passed on as they are."""
_RETRY_S = (1, 2, 4, 8, 15)
"""Seconds before the next attempt to connect; the last one again and again."""
_TELL_S = 5.0
"""Seconds between two lines about the progress of a transfer."""
_STEADY_S = 60
"""A connection that lasted so long is not counted among failed ones."""


# --- which host -------------------------------------------------------------------------------


def find_site(cluster: str, host: str) -> "Site | None":
    """Return the site that options name, with the project's folder there; None without options."""
    from echelon.api.requests import read_request  # noqa: PLC0415

    if not cluster and not host:
        return None
    folder = Path.cwd()
    return make_site(
        read_request({"cluster": cluster, "host": host}, folder, os.environ), folder, None
    )


def make_site(request: "Merged", folder: Path, script: Path | None) -> "Site | None":
    """Return where a request goes; None if that is this machine."""
    from echelon.api.project_files import find_root  # noqa: PLC0415
    from echelon.clusters.ssh.site import Site, check_host, default_workdir  # noqa: PLC0415
    from echelon.core.shell import LocalShell  # noqa: PLC0415

    if not request.host:
        return None
    spec = request.spec
    python = spec.python or (f"{spec.venv}/bin/python" if spec.venv else "")
    workdir = request.workdir
    if not workdir:
        root, _ = find_root(folder, script, LocalShell())
        workdir = default_workdir(root.name)
    return Site(
        host=check_host(request.host),
        workdir=workdir,
        python=python if python.startswith(("/", "~/")) else "",
        cluster=request.cluster,
    )


def locate(name: str, runs_dir: Path, cluster: str, host: str) -> tuple["Site | None", str]:
    """Return where a run is, and its name there; no site if it is on this machine."""
    from echelon.api.register import find_entry, read_register  # noqa: PLC0415

    if site := find_site(cluster, host):
        return site, name
    entry = find_entry(read_register(os.environ), name, Path.cwd())
    if entry is None or (name != "last" and _is_here(runs_dir, name)):
        return None, name
    if name == "last" and (here := list_runs(runs_dir)):
        from datetime import datetime  # noqa: PLC0415

        if here[-1].spec.stat().st_mtime > datetime.fromisoformat(entry.submitted).timestamp():
            return None, name
    return entry.site, entry.run


def _is_here(runs_dir: Path, name: str) -> bool:
    with contextlib.suppress(NotFoundError):
        find_run(runs_dir, name)
        return True
    return False


def on_host(
    elsewhere: Callable[[There], int] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command `--cluster` and `--host`; if its run is on another host, execute it there.

    Args:
        elsewhere: does so, and returns the exit code; by default, the same command line is executed
            on the host.
    """

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command).parameters.values())
        keyword = inspect.Parameter.KEYWORD_ONLY
        added = [
            inspect.Parameter("context", keyword, annotation=typer.Context),
            *own,
            inspect.Parameter("cluster", keyword, default="", annotation=ClusterName),
            inspect.Parameter("host", keyword, default="", annotation=HostName),
        ]
        parameters = [one.replace(kind=keyword) for one in added]

        def run(*, context: typer.Context, cluster: str, host: str, **values: Any) -> None:
            name = str(values.get("run", ""))
            if not name or _is_named(context, "runs_dir"):
                site = find_site(cluster, host)
            else:
                site, name = locate(name, values["runs_dir"], cluster, host)
            if site is None:
                command(**values)
                return
            line = [context.info_name or "", *render_line(context)]
            there = There(site=site, run=name, values=values, line=line, command=command)
            raise typer.Exit((elsewhere or execute)(there))

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return wrap


def _is_named(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def render_line(context: typer.Context) -> list[str]:
    """Return the options and arguments that were given, without the run and where it is."""
    options: list[str] = []
    arguments: list[str] = []
    for one in context.command.params:
        source = context.get_parameter_source(one.name or "")
        if one.name in _HERE or source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[one.name or ""]
        values = list(value) if isinstance(value, list | tuple) else [value]
        if one.param_type_name == "argument":
            arguments += map(str, values)
        elif getattr(one, "is_flag", False):
            options.append(one.opts[-1] if value else one.secondary_opts[-1])
        else:
            options += [f"{one.opts[-1]}={each}" for each in values]
    return [*options, *(["--", *arguments] if arguments else [])]


# --- executing it there -----------------------------------------------------------------------


def open_host(site: "Site") -> "Host":
    """Return the login host of a site."""
    from echelon.clusters.ssh.host import Host  # noqa: PLC0415
    from echelon.core.shell import LocalShell  # noqa: PLC0415

    return Host(site, LocalShell(), os.environ)


def start(site: "Site", argv: Sequence[str], *, attached: bool = False) -> "Talk":
    """Start a command on a site's host; what it prints comes in frames."""
    from echelon.clusters.ssh.call import Call  # noqa: PLC0415

    size = shutil.get_terminal_size()
    return open_host(site).start(
        Call(
            argv=tuple(argv),
            folder=site.workdir,
            terminal=console.is_terminal(),
            columns=size.columns,
            lines=size.lines,
            attached=attached,
        )
    )


@contextlib.contextmanager
def talking(talk: "Talk") -> Iterator["Talk"]:
    """End a conversation when the block does."""
    try:
        yield talk
    except BaseException:
        talk.close()
        raise
    talk.finish()


def execute(there: There) -> int:
    """Execute a command there, and print what it prints."""
    return forward(there.site, there.words())


def forward(site: "Site", argv: Sequence[str], *, attached: bool = False) -> int:
    """Execute a command on a site's host; print what it prints, and return its exit code."""
    with talking(start(site, argv, attached=attached)) as talk:
        for kind, value in talk.frames():
            if kind == "end":
                return int(value)
            _print(kind, value)
    return 0


def ask(site: "Site", argv: Sequence[str]) -> Any:
    """Execute a command that prints JSON on a site's host, and return that.

    Raises:
        EchelonError: it failed there.
    """
    said: dict[str, list[str]] = {"out": [], "err": []}
    with talking(start(site, argv)) as talk:
        for kind, value in talk.frames():
            if kind == "end" and value:
                what = "".join(said["err"]).strip() or f"exit code {value}"
                raise EchelonError(what, hint=f"on the host: echelon {' '.join(argv)}")
            said.get(kind, []).append(str(value))
    return json.loads("".join(said["out"]))


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


def keep_trying(step: Callable[[], int]) -> int:
    """Repeat a step whose connection breaks, until it ends by itself; the first one must connect.

    Raises:
        EchelonError: there is no connection at the start, or the host refuses a later one.
    """
    from echelon.clusters.ssh.failures import UnreachableError  # noqa: PLC0415
    from echelon.clusters.ssh.host import LostConnectionError  # noqa: PLC0415

    connected, tries = False, 0
    while True:
        began_s = time.monotonic()
        try:
            return step()
        except LostConnectionError as error:
            connected, why = True, error.message
        except UnreachableError as error:
            if not connected:
                raise
            why = error.message
        if time.monotonic() - began_s > _STEADY_S:
            tries = 0
        if tries == 0:
            console.note(f"{why}; connecting again")
        time.sleep(_RETRY_S[min(tries, len(_RETRY_S) - 1)])
        tries += 1


class Progress:
    """Tells how far a transfer is, now and then."""

    def __init__(self) -> None:
        self._next_s = time.monotonic() + _TELL_S

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _TELL_S
            console.note(f"transferred {format_bytes(done)} of {format_bytes(total)}")


# --- following --------------------------------------------------------------------------------


def follow(
    site: "Site",
    name: str,
    *,
    show: bool = True,
    rank: int | None = None,
    raw: bool = False,
    tail: int | None = None,
    resubmit: bool = False,
) -> int:
    """Wait for a run's end, and return its exit code; see `follow_run`.

    No line is lost or doubled if the connection breaks: the host says how far the output was
    printed, and lines are printed once that is known.
    """
    from echelon.clusters.ssh.call import FOLLOW  # noqa: PLC0415

    wanted: dict[str, Any] = {"run": name, "show": show, "rank": rank, "raw": raw, "tail": tail}
    wanted |= {"resubmit": resubmit, "begin": None}

    def step() -> int:
        waiting: list[tuple[str, str]] = []
        with talking(start(site, [FOLLOW, json.dumps(wanted)], attached=True)) as talk:
            for kind, value in talk.frames():
                if kind in ("out", "err"):
                    waiting.append((kind, value))
                    continue
                for one in waiting:
                    _print(*one)
                waiting.clear()
                if kind == "at":
                    wanted["begin"] = value
                elif kind == "end":
                    return int(value)
        return 0

    try:
        return keep_trying(step)
    except KeyboardInterrupt:
        console.note(f"{name} keeps running; stop it with: echelon stop {site.option} {name}")
        raise


def logs_there(there: There) -> int:
    """Print a run's output."""
    if not there.values["follow"]:
        return execute(there)
    options = {key: there.values[key] for key in ("rank", "raw", "tail")}
    return follow(there.site, there.run, show=True, **options)


def resume_there(there: There) -> int:
    """Resume a run; following it is a step of its own, which may be repeated."""
    code = forward(there.site, there.words("--wait", "--follow"))
    if code == 0 and (there.values["wait"] or there.values["follow"]):
        return follow(there.site, there.run, show=there.values["follow"], resubmit=True)
    return code


def rerun_there(there: There) -> int:
    """Submit a run's code and request again."""
    from echelon.api.project_files import find_root  # noqa: PLC0415
    from echelon.api.register import record_run  # noqa: PLC0415
    from echelon.core.shell import LocalShell  # noqa: PLC0415

    if there.values["snapshot"]:
        raise UsageError(
            f"the project was not sent to {there.site.host} again",
            hint="to execute it as it is now: echelon submit",
        )
    found = ask(there.site, ["rerun", "--json", *there.words("--wait", "--follow", "--json")[1:]])
    root, _ = find_root(Path.cwd(), None, LocalShell())
    record_run(found["run"], root, there.site, os.environ)
    announce(there.site, found, as_json=there.values["as_json"])
    if there.values["wait"] or there.values["follow"]:
        return follow(there.site, found["run"], show=there.values["follow"], resubmit=True)
    return 0


def announce(site: "Site", found: Mapping[str, str], *, as_json: bool) -> None:
    """Print a run that was submitted there."""
    if as_json:
        console.print_json({**found, "host": site.host})
        return
    console.print_result(found["run"])
    console.note(
        f"queued as Slurm job {found['job_id']} on {site.host}; "
        f"follow the output: echelon logs -f {found['run']}"
    )


# --- all runs ---------------------------------------------------------------------------------


def list_elsewhere() -> Iterator[tuple["Site", list[dict[str, Any]]]]:
    """Yield the runs on hosts that this project was submitted to; note those that do not answer."""
    from echelon.api.register import is_inside, read_register  # noqa: PLC0415

    here = Path.cwd()
    known = [one for one in read_register(os.environ) if is_inside(here, one.project)]
    sites = {(one.site.host, one.site.workdir): one.site for one in known}
    for site in sites.values():
        try:
            yield site, ask(site, ["ps", "--json"])
        except EchelonError as error:
            console.note(f"{site.host}: the runs there are unknown: {error.message}")
