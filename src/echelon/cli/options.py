"""The flags of a request, and commands that show it.

Each key of the request is also a flag, derived from the same table that reads the project file.
"""

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from echelon.cli import console
from echelon.cli.completion import complete_partition, complete_script, offer
from echelon.cli.help import PREPARE, SectionedCommand
from echelon.cli.run_options import (
    CLUSTER,
    HOST,
    AsJson,
    configuration,
    empty_option,
    with_parameters,
)
from echelon.client.submit.requests import read_request
from echelon.spec import readers
from echelon.spec.job_spec import KEYS
from echelon.spec.keys import SECTIONS, Key
from echelon.spec.merging import Merged

app = typer.Typer(rich_markup_mode=None)

UNTIL_SCRIPT = {"allow_interspersed_args": False}
"""Context settings: all arguments after the script belong to the script."""


class RequestCommand(SectionedCommand):
    """A command with a script. It warns of its own options after the script without a `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        separated = "--" in args
        rest = super().parse_args(ctx, args)
        ours = {name for one in self.params for name in (*one.opts, *one.secondary_opts)}
        words = [word.partition("=")[0] for word in ctx.params["args"] or ()]
        if misplaced := [word for word in words if word in ours and word.startswith("--")]:
            script = Path(ctx.params["chdir"] or "", ctx.params["script"])
            if script.is_file() and not separated:
                _warn_misplaced(misplaced, script)
        return rest


def _warn_misplaced(words: Sequence[str], script: Path) -> None:
    text = script.read_text(errors="replace")
    for word in dict.fromkeys(words):
        name = word[2:].replace("-", "[-_]")
        if not re.search(rf"--{name}\b|\b{name}\b['\"]?\s*[:=,)]", text):
            console.note(
                f"warning: {word} is passed to {script}, which does not mention it; options of "
                "echelon come before the script (to silence this, write -- before the script)"
            )


def takes_request(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one flag per key; it receives the merged request as `request`.

    The command's own parameters stay; its `request` parameter is filled in here.
    """
    return _take(command, _parameters())


def takes_keys(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command flags for some keys, and no script; files may set all keys."""
    wanted = {KEYS[name].parameter for name in names} | {"config", "cluster", "host", "setting"}
    return lambda command: _take(command, [p for p in _parameters() if p.name in wanted])


def takes_changes(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one flag per key; it receives the values as `changes`."""
    others = ("script", "args", "config", "cluster", "host", "source")
    flags = [p for p in _parameters() if p.name not in others]
    return _take(command, flags, name="changes", read=dict)


def _read(values: Mapping[str, Any]) -> Merged:
    for name in ("cluster", "host"):
        if values[name] == "":
            raise empty_option(name)
    return read_request(values, Path.cwd(), os.environ)


def _take(
    command: Callable[..., None],
    flags: Sequence[inspect.Parameter],
    *,
    name: str = "request",
    read: Callable[[Mapping[str, Any]], object] = _read,
) -> Callable[..., None]:
    """Add flags to a command's parameters; `read` turns their values into the parameter `name`."""
    own = [p for p in inspect.signature(command).parameters.values() if p.name != name]

    def run(**values: Any) -> None:
        mine = {p.name: values.pop(p.name) for p in own}
        command(**{name: read(values)}, **mine)

    return with_parameters(run, command, [*flags, *own])


def _parameters() -> list[inspect.Parameter]:
    """Return the flags as parameters of a signature, which typer reads."""
    script = typer.Argument(
        metavar=KEYS["script"].metavar,
        help=_sentence(KEYS["script"].help),
        show_default=False,
        autocompletion=complete_script,
    )
    args = typer.Argument(
        metavar=KEYS["args"].metavar, help=_sentence(KEYS["args"].help), show_default=False
    )
    config = configuration(
        "--config",
        metavar="FILE",
        envvar="ECHELON_CONFIG",
        help="Project file to use, whoever owns it; replaces the search.",
    )
    setting = configuration("--set", metavar="KEY=VALUE", help="Set any key of the project file.")
    source = configuration(
        "--from",
        metavar="FILE",
        help="Take #SBATCH lines, script and arguments from a job script.",
    )
    flags = [key for key in KEYS.values() if not key.is_argument]
    flags.sort(key=lambda key: (SECTIONS.index(key.section), key.rank))  # as in the help text
    return [
        _parameter("script", str, script, default=""),
        _parameter("args", list[str] | None, args),
        *map(_flag, flags),
        _parameter("config", Path | None, config),
        _parameter("cluster", str | None, CLUSTER),
        _parameter("host", str | None, HOST),
        _parameter("setting", list[str] | None, setting),
        _parameter("source", Path | None, source),
    ]


def _parameter(name: str, kind: Any, option: Any, default: Any = None) -> inspect.Parameter:
    annotation = Annotated[kind, option]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _flag(key: Key) -> inspect.Parameter:
    option = typer.Option(
        *key.spellings,
        help=_sentence(key.help),
        metavar=key.metavar or None,
        show_default=False,
        autocompletion=_completion(key),
        rich_help_panel=key.section,
    )
    kind: Any = list[str] if key.is_repeated else str if key.metavar else bool
    return _parameter(key.parameter, kind | None, option)


def _completion(key: Key) -> Callable[[str], list[str]] | None:
    if isinstance(key.read, readers.OneOf):
        return offer(key.read.choices)
    return complete_partition if key.name == "partition" else None


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


# --- commands ---------------------------------------------------------------------------------


@app.command(cls=RequestCommand, context_settings=UNTIL_SCRIPT, rich_help_panel=PREPARE)
@takes_request
def script(*, request: Merged) -> None:
    """Print the sbatch script of a request.

    Example: echelon script --style torchrun --nodes 2 train.py > job.sh
    """
    from echelon.client.submit.checks import examine_script  # noqa: PLC0415
    from echelon.clusters.slurm.styles import render_script  # noqa: PLC0415

    examine_script(request.spec, Path(request.spec.chdir), "script")
    text = render_script(request.spec, conda_exe=os.environ.get("CONDA_EXE", ""))
    console.print_file(text)


@app.command(cls=RequestCommand, context_settings=UNTIL_SCRIPT, rich_help_panel=PREPARE)
@takes_request
def config(
    *,
    request: Merged,
    everything: Annotated[
        bool, typer.Option("--all", help="Include keys with default values.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the merged request and the origin of each value.

    Example: echelon config --nodes 2 --gpus 4
    """
    rows = [
        [name, key.show(request.spec), request.origins[name]]
        for name, key in KEYS.items()
        if everything or request.origins[name] != "default"
    ]
    spec = request.spec
    rows += [
        ["world size", str(spec.max_world_size), "derived"],
        ["tasks per node", str(spec.tasks_per_node), "derived"],
        ["OMP_NUM_THREADS", str(spec.omp_threads), "derived"],
        ["loader workers per rank", str(spec.loader_workers), "derived"],
    ]
    profile = f"cluster {request.cluster}" if request.cluster else "flags"
    there = {"host": request.host, "workdir": request.workdir}
    rows += [[key, value, profile] for key, value in there.items() if value]
    if as_json:
        console.print_json({key: {"value": value, "from": origin} for key, value, origin in rows})
    else:
        console.print_table(["key", "value", "from"], rows)
