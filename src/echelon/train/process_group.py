"""`echelon.init()`: this rank's place, its device and the process group, under every launcher.

Ranks first register in a store, each with its GPU. All of them then choose the same backend, and if
ranks are missing, the error names them instead of being a time-out inside a collective.
"""

import contextlib
import os
import sys
import time
import weakref
from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, Self

import torch
import torch.distributed as dist

from echelon.core.frozen import frozen
from echelon.errors import TimedOutError, UnavailableError, UsageError
from echelon.launch.protocol.rank_shm import find_rank_shm
from echelon.train.mesh import forget_meshes, make_mesh
from echelon.world import SHARE_GPU, World, detect

JOIN_S = 300.0
"""How long ranks wait for each other to register."""
COLLECTIVE_S = 600.0
"""How long a collective may take before it fails."""
_PREFIX = "echelon/here"
_NO_GPU = "-"


class Recorded(Protocol):
    """What holds work of the process group: a recorded step."""

    def release(self) -> None: ...


_RECORDED: weakref.WeakSet[Recorded] = weakref.WeakSet()


def release_before_close(step: Recorded) -> None:
    """Have a step released before the group is closed.

    NCCL waits at its end for CUDA graphs that contain its operations.
    """
    _RECORDED.add(step)


@frozen
class Group(World):
    """A rank's place, device and process group.

    Use it with `with echelon.init() as world:`, or call `close()`.
    """

    device: torch.device
    backend: str
    """`nccl` if each rank has its own GPU, else `gloo`; empty with a single rank."""

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which prints and writes for all ranks."""
        return self.rank == 0

    def mesh(self, kind: str = "fsdp", *, shard_size: int | None = None) -> Any:
        """Return the device mesh for `fully_shard`. Every rank calls it.

        Args:
            kind: `fsdp` shards over all ranks. `hsdp` has several copies of the model, each sharded
                over `shard_size` ranks; the dimensions are `replicate` and `shard`.
            shard_size: ranks that share one copy; None takes the ranks of a node.

        Raises:
            UsageError: the ranks cannot be divided so.
        """
        return make_mesh(self, self.device.type, kind, shard_size)

    def close(self) -> None:
        """Leave the process group."""
        forget_meshes()
        for step in _RECORDED:
            step.release()
        if dist.is_initialized():
            dist.destroy_process_group()
        _await_idle_workers()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
            return
        # Peers may be gone or waiting: report the original error, not one from closing. Recorded
        # steps may wait for such a peer without end; after a stop, all ranks are at the same step.
        if not _RECORDED or issubclass(kind, SystemExit):
            with contextlib.suppress(Exception):
                self.close()


def init(
    *,
    local_rank: int | None = None,
    backend: str = "",
    join_timeout_s: float = JOIN_S,
    timeout_s: float = COLLECTIVE_S,
    check: bool = True,
    environ: Mapping[str, str] | None = None,
) -> Group:
    """Join the run's process group, and return this rank's place in it.

    Args:
        local_rank: required in children of `mp.spawn`, which all have the same environment.
        backend: `nccl` or `gloo`; if empty, chosen for all ranks.
        join_timeout_s: how long to wait for the other ranks.
        timeout_s: how long a collective may take.
        check: whether to test the group with one all-reduce.
        environ: the process's environment; os.environ if None.

    Raises:
        TimedOutError: ranks are missing; the message names them.
        UsageError: the launcher's variables contradict each other, or a group already exists.
        UnavailableError: the test of the group failed, or the store cannot be reached.
    """
    variables = os.environ if environ is None else environ
    world = detect(variables, local_rank=local_rank)
    if dist.is_initialized():
        raise UsageError(
            "a process group already exists",
            hint="call echelon.init() once, and before any other init_process_group()",
        )
    gpu = _own_gpu(world)
    if world.world_size == 1 and world.source == "none":
        return _group(world, _device(gpu), backend="")
    if (beacon := find_rank_shm(variables)) is not None:
        beacon.met_us = 0
    store = _find_store(world, variables, join_timeout_s)
    has = _check_in(store, world, _describe_gpu(gpu), join_timeout_s)
    chosen, why_not_nccl = (backend, "") if backend else choose_backend(has, variables)
    if why_not_nccl and world.rank == 0:
        print(f"echelon.init: gloo instead of NCCL: {why_not_nccl}", file=sys.stderr)  # noqa: T201
    if chosen == "nccl" and variables.get(SHARE_GPU) == "1":
        os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"  # NCCL reads its own environment
    device = _device(gpu if chosen == "nccl" or _own_alone(has, world.rank) else None)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        chosen,
        store=dist.PrefixStore("echelon/group", store),  # type: ignore[attr-defined]
        rank=world.rank,
        world_size=world.world_size,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if chosen == "nccl" else None,
    )
    group = _group(world, device, backend=chosen)
    if check:
        _check_sum(group)
    if beacon is not None:
        beacon.met_us = beacon.elapsed_us()
        beacon.close()
    return group


def _group(world: World, device: torch.device, *, backend: str) -> Group:
    place = {f.name: getattr(world, f.name) for f in fields(World)}
    return Group(**place, device=device, backend=backend)


def _await_idle_workers() -> None:
    """Wait, for a second at most, until gloo's threads are idle.

    DDP keeps them alive after the group has closed. A thread that releases a Python tensor while
    the interpreter shuts down aborts the process, although the training succeeded.
    """
    for _ in range(1000):
        states = []
        for stat in Path("/proc/self/task").glob("*/stat"):
            with contextlib.suppress(OSError):
                name, _, rest = stat.read_text().partition("(")[2].rpartition(") ")
                states += [rest[0]] if name.startswith("pt_gloo") else []
        if "R" not in states:
            return
        time.sleep(0.001)


# --- devices ----------------------------------------------------------------------------------


def _own_gpu(world: World) -> int | None:
    """Return the index of this rank's GPU among the visible ones; None if there is none."""
    if not torch.cuda.is_available():
        return None
    index = world.gpu if world.gpu is not None else world.local_rank
    return index if index < torch.cuda.device_count() else 0


def _device(gpu: int | None) -> torch.device:
    return torch.device("cpu") if gpu is None else torch.device("cuda", gpu)


def _describe_gpu(gpu: int | None) -> str:
    """Return a text that identifies a GPU: two ranks have the same one if they share it."""
    if gpu is None:
        return _NO_GPU
    return f"{os.uname().nodename}/{torch.cuda.get_device_properties(gpu).uuid}"


def choose_backend(has: Mapping[int, str], environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the backend for ranks with these GPUs, and why it is not NCCL although there are some.

    NCCL needs a GPU per rank, unless `ECHELON_SHARE_GPU=1` says that ranks may share one.
    """
    owners: dict[str, list[int]] = {}
    for rank, gpu in sorted(has.items()):
        owners.setdefault(gpu, []).append(rank)
    without = owners.pop(_NO_GPU, [])
    if not owners:
        return "gloo", ""
    if without:
        return "gloo", f"{_name_ranks(without)} without a GPU"
    shared = next((ranks for ranks in owners.values() if len(ranks) > 1), None)
    if shared and environ.get(SHARE_GPU) != "1":
        return "gloo", f"{_name_ranks(shared)} on one GPU"
    return "nccl", ""


def _name_ranks(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} is"
    more = " …" if len(ranks) > 8 else ""
    return f"ranks {', '.join(map(str, ranks[:8]))}{more} are"


def _own_alone(has: Mapping[int, str], rank: int) -> bool:
    return has[rank] != _NO_GPU


# --- registration -----------------------------------------------------------------------------


def _find_store(world: World, environ: Mapping[str, str], timeout_s: float) -> Any:
    """Return the store in which ranks register: at an address, or in a file.

    torch's own rendezvous waits for all ranks when it creates the store, and cannot name the
    missing ones.
    """
    if world.init_method.startswith("file://"):
        return dist.FileStore(world.init_method.removeprefix("file://"), world.world_size)  # type: ignore[attr-defined]
    address, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    if not address or not port.isdecimal():
        raise UsageError(
            f"MASTER_ADDR='{address}' and MASTER_PORT='{port}' are not a valid address",
            hint="start the script with echelon run, torchrun, or the output of echelon script",
        )
    served = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        return dist.TCPStore(  # type: ignore[attr-defined]
            address,
            int(port),
            world.world_size,
            is_master=world.rank == 0 and not served,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
        )
    except RuntimeError as error:
        raise UnavailableError(
            f"rank {world.rank} cannot reach the store at {address}:{port}: {error}",
            hint="check that rank 0 is running, and that no firewall or proxy is in between",
        ) from error


def _check_in(store: Any, world: World, gpu: str, timeout_s: float) -> dict[int, str]:
    """Register this rank, wait for all others, and return each rank's GPU."""
    store.set(f"{_PREFIX}/{world.rank}", gpu)
    keys = [f"{_PREFIX}/{rank}" for rank in range(world.world_size)]
    deadline = time.monotonic() + timeout_s
    try:
        store.wait(keys, timedelta(seconds=timeout_s))
    except RuntimeError as error:
        missing = _missing(store, keys)
        if not missing and time.monotonic() < deadline:
            raise UnavailableError(
                f"the store closed while rank {world.rank} waited for others: {error}",
                hint="rank 0 or its node has failed; check its log",
            ) from error
        raise TimedOutError(
            f"{len(missing)} of {world.world_size} ranks did not join within {timeout_s:g} s: "
            f"{', '.join(map(str, missing[:16]))}{' …' if len(missing) > 16 else ''}",
            hint="check their logs; echelon why shows which failed first",
        ) from error
    return {rank: store.get(key).decode() for rank, key in enumerate(keys)}


def _missing(store: Any, keys: list[str]) -> list[int]:
    try:
        return [rank for rank, key in enumerate(keys) if not store.check([key])]
    except RuntimeError:
        return []


def _check_sum(group: Group) -> None:
    """Test the group with an all-reduce of one number per rank."""
    ones = torch.ones(1, device=group.device if group.backend == "nccl" else "cpu")
    dist.all_reduce(ones)
    if int(ones.item()) != group.world_size:
        raise UnavailableError(
            f"the all-reduce test failed: the sum over {group.world_size} ranks is {ones.item():g}",
            hint="set NCCL_DEBUG=INFO to see how ranks are connected",
        )
