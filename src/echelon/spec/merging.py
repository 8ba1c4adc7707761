"""Merge the layers of a request: defaults ← cluster profile ← project file ← flags ← `--set`.

Every key has one reader, so a value means the same in every layer. All problems are collected
before an error is raised. Pure: the command line reads the files.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from echelon.core.frozen import frozen
from echelon.errors import EchelonError, UsageError
from echelon.spec.conflicts import TYPED, find_conflicts, find_unused, show_values
from echelon.spec.job_spec import KEYS, JobSpec
from echelon.spec.readers import nearest


@frozen
class Layer:
    """Values from one source, as written."""

    source: str
    values: Mapping[str, object]


@frozen
class Merged:
    """A request, and the source of each of its values."""

    spec: JobSpec
    origins: Mapping[str, str]
    """Key → the source that set it, or `default`."""
    cluster: str = ""
    """The cluster profile that was chosen."""
    host: str = ""
    """Its login host, if that is another machine."""
    workdir: str = ""
    """The project's folder on that host, if the profile names one."""


OF_PROFILE = ("host", "workdir")
"""Keys of a cluster profile that are not part of a request."""


def _effective_values(layers: Sequence[Layer]) -> Iterator[tuple[Layer, str, object]]:
    """Yield the values that no later layer overrides. Overridden values may be invalid."""
    tables = {name for name, key in KEYS.items() if key.is_table}
    for number, layer in enumerate(layers):
        later = {name for after in layers[number + 1 :] for name in after.values} - tables
        for name, raw in layer.values.items():
            if name not in later or name not in KEYS:
                yield layer, name, raw


def merge(layers: Sequence[Layer]) -> Merged:
    """Merge layers into one request; later layers override earlier ones.

    Raises:
        UsageError: lists every problem in every layer.
    """
    values: dict[str, Any] = {}
    origins = dict.fromkeys(KEYS, "default")
    problems: list[str] = []
    hints: list[str] = []
    for layer, name, raw in _effective_values(layers):
        if name not in KEYS:
            problems.append(f"{layer.source}: unknown key '{name}'")
            hints.append(
                f"'{name}' belongs in a profile: [clusters.NAME]"
                if name in OF_PROFILE
                else nearest(name, (*KEYS, *OF_PROFILE))
            )
            continue
        key = KEYS[name]
        try:
            value = key.read(raw)
        except EchelonError as error:
            problems.append(f"{layer.source}: {name}: {error.message}")
            hints.append(error.hint)
            continue
        if isinstance(value, dict):  # tables are merged by name
            value = {**values.get(key.field, {}), **value}
        values[key.field] = value
        origins[name] = layer.source
    spec = replace(JobSpec(), **values)
    conflicts = find_conflicts(spec)
    if spec.style != "echelon":
        typed = [key for key in find_unused(spec, "style") if origins[key] in TYPED]
        what = f"style '{spec.style}' does not support {show_values(spec, typed)}"
        conflicts += [f"{what}: omit it, or use --style echelon"] if typed else []
    if conflicts:
        hints.append(_describe_origins(conflicts, origins))
    if problems or conflicts:
        hint = "; ".join(dict.fromkeys(filter(None, hints)))
        raise UsageError("; ".join([*problems, *conflicts]), hint=hint)
    return Merged(spec=spec, origins=origins)


def _describe_origins(problems: Sequence[str], origins: Mapping[str, str]) -> str:
    """Return where the keys in these problems were set: the user may not have typed them."""
    words = set(re.findall(r"[a-z_]+", " ".join(problems)))
    return ", ".join(
        f"{key} is from {source}"
        for key, source in origins.items()
        if source != "default" and words & {key, key.partition(".")[0]}
    )
