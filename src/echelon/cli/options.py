"""Flags, project file and cluster profile, made into one request.

Every key of the request is a flag, made from the same table that reads the project file: what can
be said in one place can be said in all.
"""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from echelon.cli import console
from echelon.cli.completion import complete_partition, complete_script, offer
from echelon.cli.help import CONFIGURATION
from echelon.cli.project_file import PROJECT, read_own, read_project, take_table
from echelon.errors import UsageError
from echelon.spec import readers
from echelon.spec.job_spec import KEYS, Key
from echelon.spec.merging import Layer, Merged, merge

POSITIONAL = ("script", "args")
GROUPS = {
    None: (
        *("nodes", "gpus", "procs", "cpus_per_task", "mem", "time", "partition", "account"),
        *("name", "venv"),
    ),
    "Resources": (
        *("gpu_type", "gpu_option", "cpus_per_gpu", "mem_per_gpu", "mem_per_cpu", "qos"),
        *("constraint", "nodelist", "exclude", "dependency", "wait_all_nodes", "slurm.extra"),
    ),
    "Restarts and hand-over": (
        *("restarts", "hang_timeout", "on_hang", "grace", "signal_lead", "hand_over"),
    ),
    "Checks and measurements": ("preflight", "node_check", "forgive_after", "telemetry"),
    "Notification": ("notify", "mail", "mail_user", "mail_type"),
    "Environment of the ranks": (
        *("module", "style", "python", "conda", "modules", "prologue", "env", "preload"),
        *("chdir", "output"),
    ),
}
"""Sections of the help text, with their keys in order; those of None come first, under Options."""
REPEATED = {
    "env": "NAME=VALUE",
    "slurm.extra": "OPTION=VALUE",
    "modules": "NAME",
    "prologue": "LINE",
}
"""Keys whose flag may be given several times, and the placeholder of each value."""
METAVARS = {
    readers.count: "N",
    readers.nodes: "N",
    readers.memory: "SIZE",
    readers.duration: "TIME",
    readers.seconds: "TIME",
    readers.hosts: "NODES",
    readers.words: "NAME,…",
    readers.mail_types: "EVENT,…",
    readers.address: "ADDRESS",
    readers.switch: "true|false",
    **dict.fromkeys(("partition", "account", "qos", "gpu_type", "name", "conda"), "NAME"),
    **dict.fromkeys(("venv", "chdir"), "DIR"),
    **dict.fromkeys(("output", "python"), "FILE"),
    **dict.fromkeys(("node_check", "notify"), "COMMAND"),
    "constraint": "FEATURES",
    "dependency": "LIST",
    "mail_user": "ADDRESS",
    "style": "STYLE",
    "gpu_option": "OPTION",
    "on_hang": "ACTION",
    "hand_over": "WHEN",
}
"""Placeholders of the other flags: by the key's name, or else by its reader."""
SWITCHES = {"wait_all_nodes": (), "preflight": (), "module": ("-m",)}
"""Keys whose flag takes no value, and its short forms."""
SPELLING = {"slurm.extra": "slurm", "modules": "load"}
"""Flags that are not called as their key; --module is the switch of python -m."""


def takes_request(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one flag per key; it receives the merged request as `request`.

    The command's own parameters stay; its `request` parameter is filled in here.
    """
    return _take(command, _parameters())


def takes_keys(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command flags for some keys, and no script; files still say what else they like."""
    wanted = {name.replace(".", "_") for name in names} | {"config", "cluster", "setting"}
    return lambda command: _take(command, [p for p in _parameters() if p.name in wanted])


def _take(command: Callable[..., None], flags: Sequence[inspect.Parameter]) -> Callable[..., None]:
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "request"]
    parameters = [*flags, *own]

    def run(**values: Any) -> None:
        mine = {p.name: values.pop(p.name) for p in own}
        command(request=read_request(values, Path.cwd(), os.environ), **mine)

    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _parameters() -> list[inspect.Parameter]:
    """Return the flags, as typer reads them from a signature."""
    kind = inspect.Parameter.KEYWORD_ONLY
    script = Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT",
            help=_sentence(KEYS["script"].help),
            show_default=False,
            autocompletion=complete_script,
        ),
    ]
    args = Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS", help=_sentence(KEYS["args"].help), show_default=False),
    ]
    found = [
        inspect.Parameter("script", kind, default="", annotation=script),
        inspect.Parameter("args", kind, default=None, annotation=args),
    ]
    for group, names in GROUPS.items():
        found += [_flag(KEYS[name], group) for name in names]
    config = Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            envvar="ECHELON_CONFIG",
            help="Project file to use, whoever owns it; replaces the search.",
            show_default=False,
            rich_help_panel=CONFIGURATION,
        ),
    ]
    cluster = Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Cluster profile to use.",
            show_default=False,
            rich_help_panel=CONFIGURATION,
        ),
    ]
    setting = Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set any key of the project file.",
            rich_help_panel=CONFIGURATION,
        ),
    ]
    source = Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Read the #SBATCH lines of a script.",
            rich_help_panel=CONFIGURATION,
        ),
    ]
    found.append(inspect.Parameter("config", kind, default=None, annotation=config))
    found.append(inspect.Parameter("cluster", kind, default="", annotation=cluster))
    found.append(inspect.Parameter("setting", kind, default=None, annotation=setting))
    found.append(inspect.Parameter("source", kind, default=None, annotation=source))
    return found


def _flag(key: Key, group: str | None) -> inspect.Parameter:
    flag = f"--{SPELLING.get(key.name, key.name).replace('_', '-')}"
    switch = key.name in SWITCHES
    option = typer.Option(
        *(flag, *SWITCHES.get(key.name, ())),
        help=_sentence(key.help),
        metavar=None if switch else _metavar(key),
        show_default=False,
        autocompletion=_completion(key),
        rich_help_panel=group,
    )
    value: Any = list[str] | None if key.name in REPEATED else bool | None if switch else str | None
    return inspect.Parameter(
        key.name.replace(".", "_"),
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[value, option],
    )


def _metavar(key: Key) -> str:
    return REPEATED.get(key.name) or METAVARS.get(key.name) or METAVARS.get(key.read, "TEXT")


def _completion(key: Key) -> Callable[[str], list[str]] | None:
    if isinstance(key.read, readers.OneOf):
        return offer(key.read.choices)
    return complete_partition if key.name == "partition" else None


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def read_request(flags: Mapping[str, Any], folder: Path, environ: Mapping[str, str]) -> Merged:
    """Merge all that was said, wherever it was said."""
    project = read_project(folder, environ, console.note, named=flags.get("config"))
    return _merge(flags, project, environ)


def read_text(text: str, environ: Mapping[str, str]) -> Merged:
    """Merge a project file that is not written yet with the user's own settings."""
    import tomllib  # noqa: PLC0415

    return _merge({}, Layer(source=PROJECT, values=tomllib.loads(text)), environ)


def _merge(flags: Mapping[str, Any], project: Layer, environ: Mapping[str, str]) -> Merged:
    own = read_own(environ)
    mine, ours = dict(own.values), dict(project.values)
    profiles = {
        name: Layer(source=f"cluster {name} in {layer.source}", values={name: profile})
        for layer, values in ((own, mine), (project, ours))
        for name, profile in take_table(values, "clusters").items()
    }
    chosen = (flags.get("cluster"), ours.pop("cluster", ""), mine.pop("cluster", ""))
    name = next((str(choice) for choice in chosen if choice), "")
    layers = [Layer(source=own.source, values=_flatten(mine))]
    if name:
        layers.append(_choose_profile(name, profiles))
    layers.append(Layer(source=project.source, values=_flatten(ours)))
    if source := flags.get("source"):
        layers.append(Layer(source=str(source.absolute()), values=_from_script(source)))
    layers.append(Layer(source="flags", values=_from_flags(flags)))
    layers.append(Layer(source="--set", values=_from_settings(flags.get("setting") or [])))
    return merge(layers)


def _from_script(path: Path) -> dict[str, object]:
    from echelon.clusters.slurm.sbatch import parse_directives  # noqa: PLC0415

    try:
        return parse_directives(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise UsageError(
            f"cannot read {path}: {why}", hint="name an sbatch script: --from job.sh"
        ) from error


def _choose_profile(name: str, profiles: Mapping[str, Layer]) -> Layer:
    if name not in profiles:
        known = ", ".join(profiles) or "none"
        raise UsageError(
            f"there is no profile for a cluster '{name}'; known: {known}",
            hint=f"add [clusters.{name}] to echelon.toml",
        )
    chosen = profiles[name]
    values = take_table(dict(chosen.values), name, header=f"clusters.{name}")
    return Layer(source=chosen.source, values=_flatten(values))


def _flatten(values: Mapping[str, Any]) -> dict[str, object]:
    """Turn the table [slurm.extra] into the key `slurm.extra`."""
    flat = {key: value for key, value in values.items() if key != "slurm"}
    slurm = values.get("slurm", {})
    if isinstance(slurm, Mapping):
        flat |= {f"slurm.{key}": value for key, value in slurm.items()}
    else:
        flat["slurm"] = slurm
    return flat


def _from_flags(flags: Mapping[str, Any]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key in KEYS:
        value = flags.get(key.replace(".", "_"))
        if value is None or value == [] or (value == "" and key in POSITIONAL):
            continue
        found[key] = _pairs(key, value) if key in ("env", "slurm.extra") else value
    return found


def _from_settings(settings: list[str]) -> dict[str, object]:
    """Read `key=value`; into a table with `env.NAME=value`."""
    found: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise UsageError(f"--set {setting} has no '='", hint="write --set key=value")
        table = next((t for t in ("env", "slurm.extra") if name.startswith(f"{t}.")), "")
        if table:
            found.setdefault(table, {})[name.removeprefix(f"{table}.")] = value
        else:
            found[name] = value
    return found


def _pairs(key: str, words: list[str]) -> dict[str, str]:
    flag = SPELLING.get(key, key)
    pairs = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals and key == "env":
            raise UsageError(f"--{flag} {word} has no '='", hint=f"write --{flag} NAME=VALUE")
        pairs[name] = value
    return pairs
