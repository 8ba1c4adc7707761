"""Merges flags, project file and cluster profile into one request."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from echelon.client.code.code_listing import find_workdir
from echelon.client.submit.checks import mention_directives
from echelon.client.submit.config_file import PROJECT, read_own, read_project, take_table
from echelon.client.submit.job_script import mention_unused, read_job_script, take_program
from echelon.core.notes import note
from echelon.errors import UsageError
from echelon.spec.job_spec import KEYS
from echelon.spec.keys import Key
from echelon.spec.merging import OF_PROFILE, Layer, Merged, merge


def read_request(flags: Mapping[str, Any], folder: Path, environ: Mapping[str, str]) -> Merged:
    """Merge flags, project file, profile and user settings."""
    project = read_project(folder, environ, note, named=flags.get("config"))
    merged = _merge(flags, project, environ)
    if merged.host and not flags.get("host") and find_workdir(folder.resolve()):
        return replace(merged, host="")  # a workdir is on the host itself
    return merged


def read_text(text: str, environ: Mapping[str, str]) -> Merged:
    """Merge the text of a project file with the user's own settings."""
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
    take_table(ours, "lint", header="lint")  # settings of `echelon lint`
    chosen = (flags.get("cluster"), ours.pop("cluster", ""), mine.pop("cluster", ""))
    name = next((str(choice) for choice in chosen if choice), "")
    layers = [Layer(source=own.source, values=flatten(mine))]
    profile = _choose_profile(name, profiles) if name else None
    host, workdir = "", ""
    if profile:
        values = dict(profile.values)
        host, workdir = (_take_text(values, key, profile.source) for key in OF_PROFILE)
        layers.append(Layer(source=profile.source, values=values))
    layers.append(Layer(source=project.source, values=flatten(ours)))
    job = None
    if source := flags.get("source"):
        text, values = _from_script(source)
        job = read_job_script(source, text)
        # A script on the command line replaces the script and arguments of the launch.
        program = {} if flags.get("script") else take_program(job)
        layers.append(Layer(source=str(source.absolute()), values={**program, **values}))
    merged = merge([*layers, *_flag_layers(flags)])
    if source:
        mention_unused(job, source, merged.spec)
    return replace(merged, cluster=name, host=str(flags.get("host") or host), workdir=workdir)


def _take_text(values: dict[str, object], key: str, source: str) -> str:
    value = values.pop(key, "")
    if not isinstance(value, str):
        raise UsageError(f"{source}: {key}: '{value}' is not text", hint=f'write {key} = "…"')
    return value


def _from_script(path: Path) -> tuple[str, dict[str, object]]:
    """Return the text of a job script, and the keys for its #SBATCH lines."""
    from echelon.clusters.slurm.sbatch import parse_directives  # noqa: PLC0415

    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not valid UTF-8"
        raise UsageError(
            f"cannot read {path}: {why}", hint="pass an sbatch script: --from SCRIPT.sh"
        ) from error
    found = parse_directives(text)
    mention_directives(path)
    return text, found


def _choose_profile(name: str, profiles: Mapping[str, Layer]) -> Layer:
    if name not in profiles:
        known = ", ".join(profiles) or "none"
        raise UsageError(
            f"unknown cluster profile: '{name}' (known: {known})",
            hint=f"add [clusters.{name}] to echelon.toml",
        )
    chosen = profiles[name]
    values = take_table(dict(chosen.values), name, header=f"clusters.{name}")
    return Layer(source=chosen.source, values=flatten(values))


def flatten(values: Mapping[str, Any]) -> dict[str, object]:
    """Turn the table [slurm.extra] into the key `slurm.extra`, and [image] into its keys."""
    flat = {key: value for key, value in values.items() if key != "slurm"}
    if isinstance(image := values.get("image"), Mapping):
        del flat["image"]
        flat |= {f"image_{key}": value for key, value in image.items() if key != "name"}
        flat |= {"image": image["name"]} if "name" in image else {}
    slurm = values.get("slurm", {})
    if isinstance(slurm, Mapping):
        flat |= {f"slurm.{key}": value for key, value in slurm.items()}
    else:
        flat["slurm"] = slurm
    return flat


def _flag_layers(flags: Mapping[str, Any]) -> tuple[Layer, Layer]:
    """Return the layers of the command line: flags for keys, and --set."""
    settings = _from_settings(flags.get("setting") or [])
    return Layer(source="flags", values=_from_flags(flags)), Layer(source="--set", values=settings)


def _from_flags(flags: Mapping[str, Any]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key in KEYS.values():
        value = flags.get(key.parameter)
        if value is None or value == [] or (value == "" and key.is_argument):
            continue
        words = key.is_table and not isinstance(value, Mapping)
        found[key.name] = _pairs(key, value) if words else value
    return found


def _from_settings(settings: list[str]) -> dict[str, object]:
    """Parse `key=value`; `env.NAME=value` sets an entry of a table."""
    found: dict[str, Any] = {}
    tables = [key.name for key in KEYS.values() if key.is_table]
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise UsageError(f"--set {setting} has no '='", hint="write --set key=value")
        table = next((t for t in tables if name.startswith(f"{t}.")), "")
        if table:
            found.setdefault(table, {})[name.removeprefix(f"{table}.")] = value
        else:
            found[name] = value
    return found


def _pairs(key: Key, words: list[str]) -> dict[str, str]:
    pairs = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals and key.name != "slurm.extra":
            raise UsageError(
                f"{key.option} {word} has no '='", hint=f"write {key.option} {key.metavar}"
            )
        pairs[name] = value
    return pairs


def change_request(layer: Layer, changes: Mapping[str, Any]) -> Merged:
    """Merge flags and settings into a request."""
    return merge([layer, *_flag_layers(changes)])
