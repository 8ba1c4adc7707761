"""The device mesh of a run: which ranks share one copy of a sharded model."""

from typing import Any

import torch.distributed as dist

from echelon.errors import UsageError
from echelon.train.agreement import least_over_ranks
from echelon.world import World

KINDS = ("fsdp", "hsdp")
_MADE: dict[tuple[int, ...], Any] = {}
"""The meshes of the current process group: each one with two dimensions creates further groups."""


def make_mesh(world: World, device: str, kind: str, shard_size: int | None) -> Any:
    """Return the mesh; see `Group.mesh`."""
    if kind not in KINDS:
        raise UsageError(f"invalid kind of mesh: '{kind}'", hint=f"use one of: {', '.join(KINDS)}")
    if kind == "hsdp" and shard_size is None:
        shard_size = _ranks_per_node(world)
    dims = mesh_dims(kind, world.world_size, shard_size)
    if not dist.is_initialized():
        _join_alone(device)
    if dims not in _MADE:
        from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415  takes a while

        names = ("replicate", "shard")[-len(dims) :]
        _MADE[dims] = init_device_mesh(device, dims, mesh_dim_names=names)
    return _MADE[dims]


def forget_meshes() -> None:
    """Forget the meshes of a process group that is closed."""
    _MADE.clear()


def mesh_dims(kind: str, world_size: int, shard_size: int | None) -> tuple[int, ...]:
    """Return the shape of a mesh: all ranks, or replicas × ranks of one replica.

    Raises:
        UsageError: the ranks cannot be divided so.
    """
    if kind == "fsdp":
        if shard_size not in (None, world_size):
            raise UsageError(
                f"shard_size={shard_size} with fsdp, which shards over all {world_size} ranks",
                hint="use hsdp, or omit shard_size",
            )
        return (world_size,)
    assert shard_size is not None
    if shard_size < 1 or world_size % shard_size:
        possible = [size for size in range(1, world_size + 1) if world_size % size == 0]
        raise UsageError(
            f"shard_size={shard_size} does not divide {world_size} ranks",
            hint=f"use one of: {', '.join(map(str, possible))}",
        )
    return world_size // shard_size, shard_size


def _ranks_per_node(world: World) -> int:
    """Return the number of ranks on each node. A collective.

    Raises:
        UsageError: nodes differ, or neighboring ranks are on different nodes.
    """
    size = world.local_world_size
    smallest, largest = least_over_ranks(size), -least_over_ranks(-size)
    if smallest != largest:
        raise UsageError(
            f"nodes have different numbers of ranks, from {smallest} to {largest}",
            hint="pass shard_size=, the number of ranks that share one copy of the model",
        )
    if not least_over_ranks(int(world.rank % size == world.local_rank)):
        raise UsageError(
            "the ranks of a node are not consecutive",
            hint="start them with srun --distribution=block, or pass shard_size=",
        )
    return size


def _join_alone(device: str) -> None:
    """Create the process group of a single process: a mesh needs one."""
    backend = "nccl" if device == "cuda" else "gloo"
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
