"""Shard a model over the ranks with FSDP2, layer by layer; recompute or compile these layers.

Each layer is gathered when it is used, so the layers decide how much memory a rank needs. They are
the repeated blocks of the model, found or named.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from echelon.errors import UsageError
from echelon.train.sharding import is_sharded

SHARD = ("none", "fsdp", "hsdp")
_LISTED = 10
"""How many layers an error lists."""
_CONTAINERS = (nn.ModuleList, nn.Sequential)


# --- which layers -------------------------------------------------------------------------------


def find_layers(model: nn.Module, named: Sequence[str | type] | None = None) -> list[nn.Module]:
    """Return the layers that are named, or else the model's repeated blocks; none inside another.

    Args:
        model: the model, before it is sharded.
        named: classes, names of classes, and names of modules. A container's name stands for its
            children. None takes the class whose instances, side by side in a container, have most
            parameters.

    Raises:
        UsageError: the model has no such layer; the message lists others.
    """
    if named is None:
        repeated = _repeated(model)
        found = {id(one) for one in next(iter(repeated.values()), [])}
    else:
        found = set()
        for name in [named] if isinstance(named, str | type) else named:
            found |= {id(one) for one in _find_named(model, name)}
    outer: list[nn.Module] = []
    _collect(model, found, outer)
    return outer


def _collect(module: nn.Module, wanted: set[int], found: list[nn.Module]) -> None:
    for child in module.children():
        if id(child) in wanted:
            if child not in found:
                found.append(child)
        else:
            _collect(child, wanted, found)


def _repeated(model: nn.Module) -> dict[type, list[nn.Module]]:
    """Return the modules that are side by side in a container, by class; the largest first.

    What is inside them is a part of them.
    """
    found: dict[type, list[nn.Module]] = {}
    seen: set[int] = set()

    def descend(module: nn.Module) -> None:
        kinds = Counter(map(type, module) if isinstance(module, _CONTAINERS) else ())
        for child in module.children():
            if id(child) in seen:
                continue
            seen.add(id(child))
            # A ModuleList has no forward pass, before which it could be gathered.
            if kinds[type(child)] > 1 and _size(child) and not isinstance(child, nn.ModuleList):
                found.setdefault(type(child), []).append(child)
            else:
                descend(child)

    descend(model)
    return dict(sorted(found.items(), key=lambda entry: -sum(map(_size, entry[1]))))


def _size(module: nn.Module) -> int:
    return sum(one.numel() for one in module.parameters())


def _find_named(model: nn.Module, wanted: str | type) -> list[nn.Module]:
    found: list[nn.Module] = []
    for name, module in model.named_modules():
        of_class = isinstance(module, wanted) if isinstance(wanted, type) else False
        if module is not model and (of_class or type(module).__name__ == wanted):
            found.append(module)
        elif name and name == wanted:
            found += module.children() if isinstance(module, _CONTAINERS) else [module]
    if not found:
        shown = wanted.__name__ if isinstance(wanted, type) else wanted
        raise UsageError(
            f"the model has no layers '{shown}'",
            hint=f"use names of classes or modules, such as: {', '.join(_list_layers(model))}",
        )
    return found


def _list_layers(model: nn.Module) -> list[str]:
    names = [kind.__name__ for kind in _repeated(model)]
    names += [n for n, one in model.named_modules() if n and isinstance(one, _CONTAINERS)]
    # Without any container, the largest children.
    children = sorted(model.named_children(), key=lambda entry: -_size(entry[1]))
    names += [name for name, child in children if name not in names and _size(child)]
    return names[:_LISTED]


# --- what is done with them ---------------------------------------------------------------------


def change_layers(layers: Sequence[nn.Module], *, recompute: bool, compiled: bool) -> None:
    """Compile the layers' forward passes, and have them computed again in the backward pass.

    Raises:
        UsageError: there are none, or one of them has BatchNorm.
    """
    if recompute and not layers:
        raise UsageError(
            "recompute=True, but the model has no repeated layers",
            hint="name the layers: shard_layers=['Block']",
        )
    for layer in layers:
        if recompute and any(isinstance(one, _BatchNorm) for one in layer.modules()):
            raise UsageError(
                f"recompute=True would count each batch twice in the BatchNorm of "
                f"{type(layer).__name__}",
                hint="omit recompute, or name layers without BatchNorm: shard_layers=",
            )
        forward: Any = layer.forward
        if compiled:
            forward = torch.compile(forward)
        if recompute:
            forward = partial(checkpoint, forward, use_reentrant=False)
        if compiled or recompute:
            layer.forward = forward


def shard_model(
    model: nn.Module,
    layers: Sequence[nn.Module],
    mesh: Any,
    *,
    device: torch.device,
    dtype: torch.dtype | None,
) -> None:
    """Shard a model in place, with rank 0's values. A collective.

    Args:
        model: the model, on any device. Only one layer at a time is moved to the rank's device as a
            whole, since the model may be larger than it.
        layers: the layers that are gathered one by one; all else is gathered together.
        mesh: the ranks.
        device: the rank's device.
        dtype: what it computes in; None for the weights' own type. The weights, the sums of
            gradients and the optimizer keep theirs.

    Raises:
        UsageError: the model has no values yet.
    """
    from torch.distributed.fsdp import (  # noqa: PLC0415  takes a while to import
        MixedPrecisionPolicy,
        fully_shard,
    )

    if any(one.is_meta for one in model.parameters()):
        raise UsageError(
            "the model is on the meta device, so its parameters have no values",
            hint="create it on the CPU",
        )
    policy = MixedPrecisionPolicy()
    if dtype is not None:
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for unit in (*layers, model):
        for tensor in (*unit.parameters(), *unit.buffers()):
            if not is_sharded(tensor):
                tensor.data = tensor.data.to(device).contiguous()
                dist.broadcast(tensor.data, src=0)
        fully_shard(unit, mesh=mesh, mp_policy=policy)


def is_sharded_model(model: nn.Module) -> bool:
    """Whether `shard_model` has sharded it: all ranks must take part in each of its passes."""
    return hasattr(model, "set_requires_all_reduce")


def hold_all_reduce(model: Any) -> AbstractContextManager[Any]:
    """Return a context in which gradients are not summed over the replicas of HSDP.

    They are still reduced to shards, so that no rank holds all of them.
    """
    return _hold_all_reduce(model) if is_sharded_model(model) else nullcontext()


@contextmanager
def _hold_all_reduce(model: Any) -> Iterator[None]:
    model.set_requires_all_reduce(False)
    try:
        yield
    finally:
        model.set_requires_all_reduce(True)


# --- whole tensors ------------------------------------------------------------------------------


def take_parts(
    weights: Mapping[str, Any],
    moments: Mapping[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the states of model and optimizer, of whole tensors only this rank's parts.

    A checkpoint that was loaded for a sharded model has these already.
    """
    own = model.state_dict()
    parameters = dict(enumerate(one for group in optimizer.param_groups for one in group["params"]))
    states = {
        number: {name: _part_of(one, parameters.get(number)) for name, one in entries.items()}
        for number, entries in moments["state"].items()
    }
    parts = {name: _part_of(one, own.get(name)) for name, one in weights.items()}
    return parts, {**moments, "state": states}


def _part_of(value: Any, like: Any) -> Any:
    whole = isinstance(value, torch.Tensor) and not is_sharded(value)
    if not whole or not is_sharded(like) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415  there is one already

    moved = value.to(like.device)
    return distribute_tensor(moved, like.device_mesh, like.placements, src_data_rank=None)
