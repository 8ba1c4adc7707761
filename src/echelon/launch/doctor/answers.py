"""What nodes say, made into records without trust. Pure.

A node that is broken may say anything. What cannot be read stays unknown, and the rest is judged.
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
    """Return the number that a text is, if it is one of a size that something may have."""
    return int(text) if _COUNT.fullmatch(text) else unknown


def read_figure(found: Mapping[str, Any], name: str) -> float | None:
    """Return a number out of an answer; None where there is none."""
    value: Any = found.get(name)
    return float(value) if _fits(value, 0.0) else None


def read_ranks(found: Mapping[str, Any], *names: str) -> list[dict[str, Any]]:
    """Return what each rank of a measurement says: the figures of these names, or an `error`."""
    told = found.get("ranks")
    return [_read_rank(rank, names) for rank in told] if isinstance(told, list) else []


def _read_rank(rank: object, names: Sequence[str]) -> dict[str, Any]:
    if not isinstance(rank, Mapping):
        return {"error": "it gave no figures"}
    if "error" in rank:
        return {"error": str(rank["error"])}
    if missing := [name for name in names if read_figure(rank, name) is None]:
        return {"error": f"it gave no {missing[0]}"}
    return dict(rank)


def read_facts(
    found: Mapping[str, Any], *, granted: int, skew_s: float, folder_late_s: float
) -> Facts:
    """Return what a probe says of its node, with what is known of it besides."""
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
    """Return what a node's torch says; an answer without a version is none."""
    known = _take(Torch, found)
    if not known.get("version") and not known.get("error"):
        known["error"] = "it gave no version"
    return Torch(**known)


def _take(kind: type[R], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return those values of an answer that a record has, and that are of its kind."""
    taken: dict[str, Any] = {}
    for one in fields(kind):
        if one.default is not MISSING and _fits(found.get(one.name), one.default):
            value = found[one.name]
            taken[one.name] = tuple(value) if isinstance(value, list) else value
    return taken


def _fits(value: object, example: object) -> bool:
    """Tell whether a value is of an example's kind, and of a size that can be shown."""
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
