"""DTensors in a state: which part of them this rank saves, and which part it loads."""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from echelon.core.frozen import frozen
from echelon.errors import UsageError
from echelon.train.checkpoints.layout import Box, Layout, assign_copies, replicated, whole
from echelon.train.checkpoints.manifest import Laid, Manifest
from echelon.train.checkpoints.safetensors_file import TensorType
from echelon.train.tensor_block import type_of

_LISTED = 10
"""How many differences between a checkpoint and a model are listed."""


@frozen
class Plan:
    """What is saved, and what of it this rank writes. It serves for all states of the same form."""

    forms: Mapping[str, tuple[Any, ...]]
    tensors: Mapping[str, Laid]
    """All tensors of the state."""
    offsets: Mapping[str, tuple[int, ...]]
    """Where this rank's parts begin in the whole tensors, for those that it writes."""

    def fits(self, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Tell whether these have the names, types, shapes and placements of the plan."""
        return tensors.keys() == self.forms.keys() and all(
            _form(tensor) == self.forms[name] for name, tensor in tensors.items()
        )

    def pick(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return this rank's parts of the tensors that it writes."""
        return {name: local_part(tensors[name]) for name in self.offsets}


def plan_save(tensors: Mapping[str, torch.Tensor], *, rank: int, world_size: int) -> Plan:
    """Decide what this rank writes, without asking the others.

    Raises:
        UsageError: a tensor cannot be saved.
    """
    layouts = _Layouts(world_size)
    groups: dict[Layout, dict[str, TensorType]] = {}
    for name, tensor in tensors.items():
        groups.setdefault(layouts.find(name, tensor), {})[name] = type_of(name, tensor)
    laid: dict[str, Laid] = {}
    for layout, types in groups.items():
        copies = assign_copies({n: one.nbytes for n, one in types.items()}, layout.copies)
        laid |= {n: Laid(type=types[n], layout=layout, copy=copies[n]) for n in types}
    offsets = {}
    for name, one in laid.items():
        held = one.layout.find_piece(one.type.shape, rank)
        # A mesh without rank 0 repeats what rank 0's mesh holds, for example in another data
        # parallel group: it is written there.
        if held is None or held[0] != one.copy or 0 not in one.layout.ranks:
            continue
        shape = tuple(local_part(tensors[name]).shape)
        if shape != held[1].shape:
            raise UsageError(
                f"cannot save the tensor '{name}': a part of shape {shape} on rank {rank}, "
                f"instead of {held[1].shape} as its placements {one.layout.placements} say",
                hint="distribute it with distribute_tensor() or fully_shard()",
            )
        if held[1].size or not one.type.nbytes:
            offsets[name] = held[1].offset
    forms = {name: _form(tensor) for name, tensor in tensors.items()}
    return Plan(forms=forms, tensors={name: laid[name] for name in tensors}, offsets=offsets)


def _form(tensor: Any) -> tuple[Any, ...]:
    if is_sharded(tensor):
        return tensor.dtype, tensor.shape, tensor.placements, tensor.device_mesh
    return tensor.dtype, tensor.shape, tensor.layout


def check_own(tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """Return the tensors of a rank's own state, which are no DTensors.

    Raises:
        UsageError: one of them is.
    """
    for name, tensor in tensors.items():
        if is_sharded(tensor):
            raise UsageError(
                f"'{name}' is a DTensor, which several ranks hold",
                hint="save it in the state, or its to_local() here",
            )
    return tensors


class _Layouts:
    """Layouts of tensors, each made once: a mesh may have thousands of ranks."""

    def __init__(self, world_size: int) -> None:
        self._plain = replicated(world_size)
        self._known: dict[tuple[int, tuple[Any, ...]], Layout] = {}

    def find(self, name: str, tensor: torch.Tensor) -> Layout:
        if not is_sharded(tensor):
            return self._plain
        sharded: Any = tensor
        key = id(sharded.device_mesh), sharded.placements
        if key not in self._known:
            self._known[key] = _to_layout(name, sharded)
        return self._known[key]


def _to_layout(name: str, sharded: Any) -> Layout:
    mesh, placements = sharded.device_mesh, sharded.placements
    try:
        return Layout(
            tuple(mesh.mesh.shape),
            tuple(mesh.mesh.flatten().tolist()),
            tuple(map(str, placements)),
        )
    except ValueError as error:
        raise UsageError(
            f"cannot save the tensor '{name}': {error}",
            hint="redistribute() it with Shard or Replicate first",
        ) from error


def is_sharded(tensor: Any) -> bool:
    """Whether it is a DTensor."""
    # Its module takes a while to import, and there is none as long as nobody has.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_part(tensor: Any) -> torch.Tensor:
    """Return this rank's part of a tensor."""
    if not is_sharded(tensor):
        return tensor  # type: ignore[no-any-return]
    with torch.no_grad():  # else it takes many times as long
        return tensor.to_local()  # type: ignore[no-any-return]


# --- loading ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """How a tensor is loaded: as a part of a DTensor, or whole."""

    box: Box
    like: Any = None
    """A DTensor that is laid out in the same way."""

    def finish(self, local: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        """Return the loaded tensor."""
        if self.like is None:
            return local
        from torch.distributed.tensor import DTensor  # noqa: PLC0415  there is one already

        mesh, placements = self.like.device_mesh, self.like.placements
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(
            local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride
        )


def find_targets(path: Path, manifest: Manifest, like: Any, *, rank: int) -> dict[str, Target]:
    """Decide for each tensor of a checkpoint how this rank loads it.

    Raises:
        UsageError: names or shapes differ; the message lists them.
    """
    found = _Expected(manifest)
    found.walk(like, "state")
    if found.differences:
        more = len(found.differences) - _LISTED
        listed = "".join(f"\n  {one}" for one in found.differences[:_LISTED])
        listed += f"\n  and {more} more" if more > 0 else ""
        raise UsageError(
            f"{path} does not match the model or optimizer:{listed}",
            hint="use the model and optimizer it was saved with, or another directory for "
            "checkpoints",
        )
    layouts, targets = _Layouts(1), {}
    for name, laid in manifest.tensors.items():
        tensor = found.sharded.get(name)
        held = None
        if tensor is not None:
            held = layouts.find(name, tensor).find_piece(laid.type.shape, rank)
        targets[name] = Target(held[1], tensor) if held else Target(whole(laid.type.shape))
    return targets


class _Expected:
    """The tensors of a model and an optimizer, compared with those of a checkpoint."""

    def __init__(self, manifest: Manifest) -> None:
        self._saved = manifest.tensors
        self.sharded: dict[str, Any] = {}
        """A DTensor for each tensor of the checkpoint that is loaded in parts."""
        self.differences: list[str] = []

    def walk(self, like: Any, path: str) -> None:
        if isinstance(like, torch.Tensor):
            self._add(like, path)
        elif isinstance(like, torch.optim.Optimizer):
            self._add_optimizer(like, path)
        elif isinstance(like, torch.nn.Module):
            state = like.state_dict()
            self.walk(state, path)
            own = {f"{path}/{name}" for name in state}
            self.differences += [
                f"{_shown(name)}: only in the checkpoint"
                for name in self._saved
                if name.startswith(f"{path}/") and name not in own
            ]
        elif isinstance(like, Mapping):
            for key, value in like.items():
                self.walk(value, f"{path}/{key}")
        elif isinstance(like, list | tuple):
            for number, value in enumerate(like):
                self.walk(value, f"{path}/{number}")

    def _add(self, tensor: torch.Tensor, path: str) -> None:
        if (saved := self._saved.get(path)) is None:
            self.differences.append(f"{_shown(path)}: not in the checkpoint")
        elif saved.type.shape != tuple(tensor.shape):
            shapes = f"{list(saved.type.shape)} in the checkpoint, {list(tensor.shape)} here"
            self.differences.append(f"{_shown(path)}: {shapes}")
        elif is_sharded(tensor):
            self.sharded[path] = tensor

    def _add_optimizer(self, optimizer: torch.optim.Optimizer, path: str) -> None:
        """Before the first step it has no state: what belongs to a parameter is laid out as it."""
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        place = re.compile(rf"{re.escape(path)}/state/([0-9]+)/[^/]+")
        numbers = set()
        for name, saved in self._saved.items():
            if found := place.fullmatch(name):
                numbers.add(int(found[1]))
                of = parameters[int(found[1])] if int(found[1]) < len(parameters) else None
                if of is not None and saved.type.shape == tuple(of.shape) and is_sharded(of):
                    self.sharded[name] = of
        if numbers and max(numbers) >= len(parameters):
            self.differences.append(
                f"{_shown(path)}: {max(numbers) + 1} or more parameters in the checkpoint, "
                f"{len(parameters)} here"
            )


def _shown(path: str) -> str:
    return path.removeprefix("state/")
