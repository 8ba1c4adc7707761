"""Validate answers of nodes and convert them into records. Pure.

A broken node may send anything. Values that cannot be parsed stay unknown; the rest is used.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from echelon.launch.doctor.record import Facts, Gpu, Torch

_COUNT = re.compile(r"[0-9]{1,18}")
_MOST = 1 << 63
R = TypeVar("R", Facts, Gpu, Torch)


def read_count(text: str, unknown: int) -> int:
    """Parse a count; return `unknown` if it is not a number of plausible size."""
    return int(text) if _COUNT.fullmatch(text) else unknown


def read_figure(found: Mapping[str, Any], name: str) -> float | None:
    """Return a number from an answer; None if there is none."""
    value: Any = found.get(name)
    return float(value) if _fits(value, 0.0) else None


def read_ranks(found: Mapping[str, Any], *names: str) -> list[dict[str, Any]]:
    """Return the answer of each rank of a measurement: the named figures, or an `error`."""
    told = found.get("ranks")
    return [_read_rank(rank, names) for rank in told] if isinstance(told, list) else []


def _read_rank(rank: object, names: Sequence[str]) -> dict[str, Any]:
    if not isinstance(rank, Mapping):
        return {"error": "the answer has no figures"}
    if "error" in rank:
        return {"error": str(rank["error"])}
    if missing := [name for name in names if read_figure(rank, name) is None]:
        return {"error": f"the answer has no {missing[0]}"}
    return dict(rank)


def read_facts(
    found: Mapping[str, Any], *, granted: int, skew_s: float, folder_late_s: float
) -> Facts:
    """Return a probe's facts about its node, combined with those that the doctor measured."""
    told = found.get("gpus")
    gpus = [read_gpu(gpu) for gpu in told if _is_gpu(gpu)] if isinstance(told, list) else []
    ours = found.get("ours")
    known = isinstance(ours, list) and all(_fits(index, 0) for index in ours)
    more = {"gpus": gpus, "ours": ours if known else None}
    sure = {"granted": granted, "skew_s": skew_s, "folder_late_s": folder_late_s}
    return Facts(**{**_take(Facts, found), **more, **sure})


def read_gpu(found: Mapping[str, Any]) -> Gpu:
    return Gpu(**{**_take(Gpu, found), "index": found["index"]})


def _is_gpu(found: object) -> bool:
    return isinstance(found, Mapping) and _fits(found.get("index"), 0) and found["index"] >= 0


def read_torch(found: Mapping[str, Any]) -> Torch:
    """Return a node's answer about torch; one without a version is an error."""
    known = _take(Torch, found)
    if not known.get("version") and not known.get("error"):
        known["error"] = "the answer has no version"
    return Torch(**known)


def _take(kind: type[R], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return those values of an answer that match a field of the record in name and type."""
    taken: dict[str, Any] = {}
    for one in fields(kind):
        if one.default is not MISSING and _fits(found.get(one.name), one.default):
            value = found[one.name]
            taken[one.name] = tuple(value) if isinstance(value, list) else value
    return taken


def _fits(value: object, example: object) -> bool:
    """Tell whether a value has an example's type and a plausible size."""
    match example:
        case bool() | str():
            return type(value) is type(example)
        case int():
            return type(value) is int and abs(value) < _MOST
        case float():
            return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
        case tuple():
            return isinstance(value, list) and all(isinstance(item, str) for item in value)
    return False
