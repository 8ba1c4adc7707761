"""Options that several commands share: the run, where runs are, its host, how to wait for it."""

import inspect
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from echelon.cli.completion import complete_run, offer
from echelon.cli.help import CONFIGURATION
from echelon.cli.routing import Elsewhere, route
from echelon.client.submit.target import TARGETS
from echelon.errors import UsageError
from echelon.run.directory import RUNS
from echelon.spec.merging import Merged

R = TypeVar("R")
configuration = partial(typer.Option, show_default=False, rich_help_panel=CONFIGURATION)
"""An option in the last section of the help."""
RunsDir = Annotated[
    Path,
    typer.Option(
        "--runs-dir",
        metavar="DIR",
        envvar="ECHELON_RUNS_DIR",
        help="Directory of runs.",
        rich_help_panel=CONFIGURATION,
    ),
]
Run = Annotated[
    str,
    typer.Argument(
        help="Run id or a unique prefix, a job id, or last.", autocompletion=complete_run
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Output JSON.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the run and exit with its status.")]
Follow = Annotated[bool, typer.Option("--follow", help="Print the run's output while waiting.")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Execute the run's files even if you did not submit them.")
]
On = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="PLACE",
        help="Where to run: local, slurm or ray.",
        show_default=False,
        autocompletion=offer(TARGETS[1:]),
    ),
]
NewAddress = Annotated[
    str,
    typer.Option(
        "--address",
        metavar="URL",
        help="New Ray dashboard URL, for a run on Ray.",
        show_default=False,
    ),
]
Address = Annotated[
    str,
    configuration(
        metavar="URL", help="Ray dashboard URL, such as http://HEAD:8265 (with --on ray)."
    ),
]


def goes_to_host(request: Merged, on: str, runs_dir: Path) -> bool:
    """Tell whether a request is submitted on another machine.

    Raises:
        UsageError: a directory of this machine is named for its runs.
    """
    if not request.host or on != "slurm":
        return False
    if runs_dir not in (RUNS, Path(os.environ.get("ECHELON_RUNS_DIR", ""))):
        raise UsageError(
            f"--runs-dir names a directory of this machine, but the run goes to {request.host}",
            hint="remove it: the runs there are in the profile's workdir, in `runs`",
        )
    return True


# --- a run on another host --------------------------------------------------------------------

CLUSTER = configuration("--cluster", metavar="NAME", help="Cluster profile to use.")
HOST = configuration("--host", metavar="HOST", help="Login host to use, by ssh.")
ClusterName = Annotated[str, CLUSTER]
HostName = Annotated[str, HOST]

_LOCAL = ("cluster", "host", "runs_dir", "run", "sweep")
"""Parameters that are left out of the command line for a host."""


def on_host(
    elsewhere: Elsewhere | None = None,
) -> Callable[[Callable[..., int | None]], Callable[..., None]]:
    """Give a command `--cluster` and `--host`; if its run is on another host, execute it there.

    Args:
        elsewhere: executes it there; by default, with the same command line.
    """

    def wrap(command: Callable[..., int | None]) -> Callable[..., None]:
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
            for name, value in (("cluster", cluster), ("host", host)):
                if not value and _is_named(context, name):
                    raise empty_option(name)
            line = [context.info_name or "", *render_line(context)]
            here = _is_named(context, "runs_dir")
            raise typer.Exit(
                route(command, elsewhere, values, line, cluster=cluster, host=host, here=here)
            )

        return with_parameters(run, command, parameters)

    return wrap


def with_parameters(
    run: Callable[..., R], command: Callable[..., object], parameters: Sequence[inspect.Parameter]
) -> Callable[..., R]:
    """Give `run` the name and help of a command, and the parameters that typer reads."""
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def empty_option(name: str) -> UsageError:
    """Return the error for an empty value, which mostly comes from an unset variable."""
    return UsageError(f"--{name} is empty", hint=f"name one, or remove the option --{name}")


def _is_named(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def render_line(context: typer.Context) -> list[str]:
    """Return the options and arguments that were given, without the run and its host."""
    options: list[str] = []
    arguments: list[str] = []
    for one in context.command.params:
        source = context.get_parameter_source(one.name or "")
        if one.name in _LOCAL or source is None or source.name != "COMMANDLINE":
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
