"""Convert a training state into tensors and JSON, to save it without pickle. Pure."""

from collections.abc import Mapping
from typing import Any

import torch

from echelon.errors import UsageError

_TENSOR = "$tensor"
_TUPLE = "$tuple"
_INT_KEYS = "$int keys"
"""Markers in the JSON part; a user's dictionary must not have such keys."""


def flatten(state: Any, prefix: str = "") -> tuple[Any, dict[str, torch.Tensor]]:
    """Return the state's structure as JSON, and its tensors by path.

    Raises:
        UsageError: a value is neither a tensor nor plain data; the message has its path.
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
            f"cannot save a value of type {type(value).__name__} at '{path}'",
            hint="use tensors, numbers, strings, lists and dictionaries, such as its state_dict()",
        )

    def _walk_mapping(value: Mapping[Any, Any], path: str) -> Any:
        if all(isinstance(key, int) for key in value) and value:
            return {_INT_KEYS: [[key, walk(e, f"{path}/{key}")] for key, e in value.items()]}
        if not all(isinstance(key, str) and not key.startswith("$") for key in value):
            raise UsageError(
                f"cannot save a dictionary with the keys {list(value)[:3]} at '{path}'",
                hint="use strings that do not start with '$', or only integers",
            )
        return {key: walk(entry, f"{path}/{key}") for key, entry in value.items()}

    return walk(state, prefix), tensors


def unflatten(skeleton: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Restore the state from its structure and tensors."""
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
