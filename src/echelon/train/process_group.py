"""`echelon.init()`: this rank's place, its device and the process group, under every launcher.

Ranks first check in at their store, each with what it has. So all of them choose the same backend,
and when somebody is missing the error names him instead of a time-out inside a collective.
"""

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist

from echelon.errors import TimedOutError, UnavailableError, UsageError
from echelon.launch.beacon import find_beacon
from echelon.world import World, detect

JOIN_S = 300.0
"""How long ranks wait for each other to come."""
COLLECTIVE_S = 600.0
"""How long a collective may take before it counts as lost."""
_PREFIX = "echelon/here"
_NO_GPU = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(World):
    """A rank's place, with its device and the process group; leaves the group at the end.

    Use it with `with echelon.init() as world:`, or call `close()`.
    """

    device: torch.device
    backend: str
    """`nccl` where each rank has a GPU of its own, else `gloo`; empty where there is one rank."""

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which speaks and writes for all."""
        return self.rank == 0

    def close(self) -> None:
        """Leave the process group."""
        if dist.is_initialized():
            dist.destroy_process_group()
        _await_idle_workers()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
            return
        # Peers may be gone or waiting: what is wrong is the error, not the leaving.
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
    """Join the process group of this run, and return this rank's place in it.

    Args:
        local_rank: for children of `mp.spawn`, which nothing in the environment tells apart.
        backend: `nccl` or `gloo`; chosen for all ranks when empty.
        join_timeout_s: how long to wait for the other ranks.
        timeout_s: how long a collective may take.
        check: whether to try the group with one all-reduce.
        environ: the process's variables; os.environ when None.

    Raises:
        TimedOutError: ranks are missing; they are named.
        UsageError: the launcher's variables contradict each other, or a group is there already.
        UnavailableError: the group formed but does not add up.
    """
    variables = os.environ if environ is None else environ
    world = detect(variables, local_rank=local_rank)
    if dist.is_initialized():
        raise UsageError(
            "there is a process group already", hint="call echelon.init() once, and before others"
        )
    gpu = _own_gpu(world)
    if world.world_size == 1 and world.source == "none":
        return _group(world, _device(gpu), backend="")
    if (beacon := find_beacon(variables)) is not None:
        beacon.met_us = 0
    store = _find_store(world, variables, join_timeout_s)
    has = _check_in(store, world, _describe_gpu(gpu), join_timeout_s)
    chosen = backend or choose_backend(has)
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
    """Wait, a second at most, until gloo's threads have let go of what they worked on.

    DDP keeps them alive beyond the group. One that drops a tensor of Python's while the interpreter
    goes down aborts the process, after everything has gone well.
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
    """Return which of the visible GPUs is this rank's; None when there is none."""
    if not torch.cuda.is_available():
        return None
    index = world.gpu if world.gpu is not None else world.local_rank
    return index if index < torch.cuda.device_count() else 0


def _device(gpu: int | None) -> torch.device:
    return torch.device("cpu") if gpu is None else torch.device("cuda", gpu)


def _describe_gpu(gpu: int | None) -> str:
    """Return a text that is the same for two ranks with the same GPU, and for no others."""
    if gpu is None:
        return _NO_GPU
    return f"{os.uname().nodename}/{torch.cuda.get_device_properties(gpu).uuid}"


def choose_backend(has: Mapping[int, str]) -> str:
    """Return the backend for ranks with these GPUs: NCCL wants one for each rank alone."""
    gpus = list(has.values())
    alone = _NO_GPU not in gpus and len(set(gpus)) == len(gpus)
    return "nccl" if alone else "gloo"


def _own_alone(has: Mapping[int, str], rank: int) -> bool:
    return has[rank] != _NO_GPU


# --- coming together --------------------------------------------------------------------------


def _find_store(world: World, environ: Mapping[str, str], timeout_s: float) -> Any:
    """Return the store where the ranks meet: at an address, or in a file.

    torch's own way waits for all ranks while it makes the store, and cannot say who is missing.
    """
    if world.init_method.startswith("file://"):
        return dist.FileStore(world.init_method.removeprefix("file://"), world.world_size)  # type: ignore[attr-defined]
    address, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    if not address or not port.isdecimal():
        raise UsageError(
            f"MASTER_ADDR='{address}' and MASTER_PORT='{port}' do not say where ranks meet",
            hint="start the script with echelon run, torchrun, or a script of echelon's",
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
            f"rank {world.rank} cannot reach the meeting place {address}:{port}: {error}",
            hint="is rank 0 running, and is nothing between the nodes (a firewall, a proxy)?",
        ) from error


def _check_in(store: Any, world: World, gpu: str, timeout_s: float) -> dict[int, str]:
    """Say that we are here, wait for all others, and return what each has."""
    store.set(f"{_PREFIX}/{world.rank}", gpu)
    keys = [f"{_PREFIX}/{rank}" for rank in range(world.world_size)]
    deadline = time.monotonic() + timeout_s
    try:
        store.wait(keys, timedelta(seconds=timeout_s))
    except RuntimeError as error:
        missing = _missing(store, keys)
        if not missing and time.monotonic() < deadline:
            raise UnavailableError(
                f"the meeting place was closed while rank {world.rank} waited: {error}",
                hint="rank 0 or its node is gone: see its log",
            ) from error
        raise TimedOutError(
            f"{len(missing)} of {world.world_size} ranks did not come within {timeout_s:g} s: "
            f"{', '.join(map(str, missing[:16]))}{' …' if len(missing) > 16 else ''}",
            hint="see their logs; echelon why says which failed first",
        ) from error
    return {rank: store.get(key).decode() for rank, key in enumerate(keys)}


def _missing(store: Any, keys: list[str]) -> list[int]:
    try:
        return [rank for rank, key in enumerate(keys) if not store.check([key])]
    except RuntimeError:
        return []


def _check_sum(group: Group) -> None:
    """Add up one number per rank, to know now that the group works."""
    ones = torch.ones(1, device=group.device if group.backend == "nccl" else "cpu")
    dist.all_reduce(ones)
    if int(ones.item()) != group.world_size:
        raise UnavailableError(
            f"an all-reduce over {group.world_size} ranks gave {ones.item():g}",
            hint="NCCL_DEBUG=INFO shows how ranks are connected",
        )
