"""How a request comes about: defaults ← cluster profile ← project file ← flags ← `--set`.

Every key has one reader, so a value means the same wherever it was written, and every problem is
collected before it gives up. Pure: files are read by the command line.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from echelon.errors import EchelonError, UsageError
from echelon.spec.conflicts import find_conflicts
from echelon.spec.job_spec import KEYS, JobSpec
from echelon.spec.readers import nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Values from one place, as they were written."""

    source: str
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    spec: JobSpec
    origins: Mapping[str, str]
    """Key → the source that decided it; `default` otherwise."""


def _in_force(layers: Sequence[Layer]) -> Iterator[tuple[Layer, str, object]]:
    """Yield what each layer says that no later one replaces: what is replaced may be wrong."""
    tables = {name for name, key in KEYS.items() if isinstance(getattr(JobSpec(), key.field), dict)}
    for number, layer in enumerate(layers):
        later = {name for after in layers[number + 1 :] for name in after.values} - tables
        for name, raw in layer.values.items():
            if name not in later or name not in KEYS:
                yield layer, name, raw


def merge(layers: Sequence[Layer]) -> Merged:
    """Return the request that these layers make, the later ones first.

    Raises:
        UsageError: with every problem of every layer.
    """
    values: dict[str, Any] = {}
    origins = dict.fromkeys(KEYS, "default")
    problems: list[str] = []
    hints: list[str] = []
    for layer, name, raw in _in_force(layers):
        if name not in KEYS:
            problems.append(f"{layer.source}: unknown key '{name}'")
            hints.append(nearest(name, tuple(KEYS)))
            continue
        key = KEYS[name]
        try:
            value = key.read(raw)
        except EchelonError as error:
            problems.append(f"{layer.source}: {name}: {error.message}")
            hints.append(error.hint)
            continue
        if isinstance(value, dict):  # tables add up, name by name
            value = {**values.get(key.field, {}), **value}
        values[key.field] = value
        origins[name] = layer.source
    spec = replace(JobSpec(), **values)
    conflicts = find_conflicts(spec)
    if conflicts:
        hints.append(_tell_origins(conflicts, origins))
    if problems or conflicts:
        hint = "; ".join(dict.fromkeys(filter(None, hints)))
        raise UsageError("; ".join([*problems, *conflicts]), hint=hint)
    return Merged(spec=spec, origins=origins)


def _tell_origins(problems: Sequence[str], origins: Mapping[str, str]) -> str:
    """Return where the keys that problems speak of were set: not all was typed just now."""
    words = set(re.findall(r"[a-z_]+", " ".join(problems)))
    told = [
        f"{key} is from {source}"
        for key, source in origins.items()
        if source != "default" and words & {key, key.partition(".")[0]}
    ]
    return ", ".join(told)
