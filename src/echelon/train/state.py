"""A training state as tensors and plain JSON: what a checkpoint can hold without pickle. Pure."""

import json
from collections.abc import Mapping
from typing import Any

import torch

from echelon.errors import UsageError

_TENSOR = "$tensor"
_TUPLE = "$tuple"
_INT_KEYS = "$int keys"
"""Marks in the JSON part; a dictionary of the user's may not have such keys."""


def flatten(state: Any, prefix: str = "") -> tuple[Any, dict[str, torch.Tensor]]:
    """Return the state's skeleton, which is JSON, and its tensors by path.

    Raises:
        UsageError: something in it is neither a tensor nor plain data; its path is named.
    """
    tensors: dict[str, torch.Tensor] = {}

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor):
            tensors[path] = value
            return {_TENSOR: path}
        if isinstance(value, Mapping):
            return _walk_mapping(value, path)
        if isinstance(value, list):
            return [walk(entry, f"{path}/{number}") for number, entry in enumerate(value)]
        if isinstance(value, tuple):
            return {_TUPLE: walk(list(value), path)}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise UsageError(
            f"a checkpoint cannot hold {type(value).__name__} at '{path}'",
            hint="give tensors, numbers, texts, lists and dictionaries; its state_dict() perhaps",
        )

    def _walk_mapping(value: Mapping[Any, Any], path: str) -> Any:
        if all(isinstance(key, int) for key in value) and value:
            return {_INT_KEYS: [[key, walk(e, f"{path}/{key}")] for key, e in value.items()]}
        if not all(isinstance(key, str) and not key.startswith("$") for key in value):
            raise UsageError(
                f"a checkpoint cannot hold the keys {list(value)[:3]} at '{path}'",
                hint="use texts that do not begin with $, or whole numbers",
            )
        return {key: walk(entry, f"{path}/{key}") for key, entry in value.items()}

    return walk(state, prefix), tensors


def unflatten(skeleton: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the state again."""
    if isinstance(skeleton, list):
        return [unflatten(entry, tensors) for entry in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    if _TENSOR in skeleton:
        return tensors[skeleton[_TENSOR]]
    if _TUPLE in skeleton:
        return tuple(unflatten(skeleton[_TUPLE], tensors))
    if _INT_KEYS in skeleton:
        return {key: unflatten(entry, tensors) for key, entry in skeleton[_INT_KEYS]}
    return {key: unflatten(entry, tensors) for key, entry in skeleton.items()}


def assign_shards(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """Divide tensors over shards so that all are about as large: the same on every rank."""
    loads = [0] * count
    shards: list[list[str]] = [[] for _ in range(count)]
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        lightest = loads.index(min(loads))
        shards[lightest].append(name)
        loads[lightest] += sizes[name]
    return shards


def dumps(value: Any) -> str:
    """Return JSON in which even NaN and infinity, as losses may be, come back."""
    return json.dumps(value, allow_nan=True)
