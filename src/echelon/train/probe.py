"""Measure torch on a node: its import, an all-reduce, a GPU's speed.

It is started as a file and needs only torch, so it also works on a cluster where Echelon is not
installed. It imports torch once and forks for every order, because a measurement may hang or leave
a GPU in a bad state.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

MESSAGE_SIZE = 1 << 17
_REPEATS = 5
_LONG_S = 0.15
"""Duration of the repeated all-reduces at which the size is large enough."""
_SMALLEST, _LARGEST = 1 << 18, 1 << 26
"""Sizes to try, in bytes; each is four times the previous one."""
Order = Mapping[str, Any]


def main(arguments: list[str]) -> int:
    """Run `probe.py FD`: carry out orders from the socket until it is closed."""
    orders = socket.socket(fileno=int(arguments[0]))
    began_s = time.monotonic()
    try:
        import torch  # noqa: PLC0415  its duration is measured
        import torch.distributed  # noqa: PLC0415
    except Exception as error:  # noqa: BLE001  any error is reported
        _send(orders, {"error": f"{type(error).__name__}: {error}"})
        return 0
    import_s = time.monotonic() - began_s
    _send(
        orders,
        {
            "import_s": round(import_s, 3),
            "version": str(torch.__version__),
            "cuda": torch.version.cuda or "",
        },
    )
    while True:
        data, handles, _, _ = socket.recv_fds(orders, MESSAGE_SIZE, 1)
        if not data:
            return 0
        _send(orders, {"ranks": _run_order(json.loads(data), handles)})


def _send(orders: socket.socket, what: Mapping[str, Any]) -> None:
    orders.send(json.dumps(what).encode())


def _run_order(order: Order, handles: list[int]) -> list[dict[str, Any]]:
    """Fork once per rank of the order; return their answers."""
    work = {"devices": find_devices, "reduce": reduce_all, "compute": compute}[order["what"]]
    children = []
    for local_rank in range(order["count"]):
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read_end)
            _run_rank(work, order, local_rank, handles, write_end)
        os.close(write_end)
        children.append((pid, read_end))
    for handle in handles:
        os.close(handle)
    found = []
    for pid, read_end in children:
        with os.fdopen(read_end) as pipe:
            text = pipe.read()
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        found.append(json.loads(text) if text else {"error": f"the rank exited with code {code}"})
    return found


def _run_rank(
    work: Callable[..., dict[str, Any]],
    order: Order,
    local_rank: int,
    handles: list[int],
    write_end: int,
) -> None:
    os.environ.update(order.get("env", {}))
    handle = handles[0] if handles and local_rank == 0 else -1
    try:
        found = work(order, local_rank, handle)
    except BaseException as error:  # noqa: BLE001  a fork must never return to the parent's loop
        lines = str(error).strip().splitlines()
        found = {"error": f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]}
    os.write(write_end, json.dumps(found).encode())
    os._exit(0)


def find_devices(_order: Order, _local_rank: int, _handle: int) -> dict[str, Any]:
    """Return the devices that torch can use."""
    import torch  # noqa: PLC0415

    found: dict[str, Any] = {"devices": 0, "uuids": [], "nccl": "", "device_error": ""}
    if torch.version.cuda is None:
        return found
    try:
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001  torch was built without NCCL
        found["nccl"] = ""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        found["devices"] = torch.cuda.device_count()
        found["uuids"] = [_uuid(index) for index in range(found["devices"])]
    except Exception as error:  # noqa: BLE001  no driver, an old one, no GPU
        found["device_error"] = str(error).strip().splitlines()[0][:200]
    return found


def reduce_all(order: Order, local_rank: int, handle: int) -> dict[str, Any]:
    """All-reduce with the other ranks; return the latency of one number, and the bandwidth."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    world, timeout = order["world"], timedelta(seconds=order["limit_s"])
    device = torch.device("cpu")
    if order["backend"] == "nccl":
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        order["address"],
        order["port"],
        is_master=handle >= 0,
        wait_for_workers=False,
        timeout=timeout,
        master_listen_fd=handle if handle >= 0 else None,
    )
    rank = order["first_rank"] + local_rank
    dist.init_process_group(
        order["backend"], store=store, rank=rank, world_size=world, timeout=timeout
    )

    def timed(count: int, repeats: int) -> float:
        """Return the shortest time of several all-reduces, on the slowest rank."""
        values = torch.ones(count, device=device)
        best_s = float("inf")
        for _ in range(repeats):
            began_s = time.monotonic()
            dist.all_reduce(values)
            if device.type == "cuda":
                torch.cuda.synchronize()
            best_s = min(best_s, time.monotonic() - began_s)
        agreed = torch.tensor([best_s], device=device, dtype=torch.float64)
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX)  # all ranks have to choose the same size
        return float(agreed.item())

    timed(1, 5)
    latency_s = timed(1, 20)
    size = _SMALLEST
    while (seconds := timed(size // 4, 1)) < _LONG_S / _REPEATS and size < order["largest"]:
        size *= 4
    seconds = min(seconds, timed(size // 4, _REPEATS))
    bandwidth = 2 * (world - 1) / world * size / seconds
    return {"latency_s": latency_s, "bandwidth": bandwidth, "size": size}


def compute(_order: Order, local_rank: int, _handle: int) -> dict[str, Any]:
    """Return the speed of a GPU's matrix products and copies."""
    import torch  # noqa: PLC0415

    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    free, _ = torch.cuda.mem_get_info()
    side = 8192 if free > 2 << 30 else 2048
    left = torch.randn(side, side, device=device, dtype=torch.bfloat16)
    right = torch.randn(side, side, device=device, dtype=torch.bfloat16)
    out = torch.empty_like(left)
    source = torch.empty(min(1 << 30, free // 8), device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    product_s = _time_on_gpu(lambda: torch.mm(left, right, out=out))
    copy_s = _time_on_gpu(lambda: target.copy_(source))
    return {
        "tflops": round(2 * side**3 / product_s / 1e12, 1),
        "memory_gbs": round(2 * source.numel() / copy_s / 1e9, 1),
        "name": torch.cuda.get_device_name(device),
    }


def _uuid(device: int) -> str:
    """Return the driver's UUID of a GPU; empty if torch is older than 2.5."""
    import torch  # noqa: PLC0415

    known = getattr(torch.cuda.get_device_properties(device), "uuid", "")
    return f"GPU-{known}" if known else ""


def _time_on_gpu(work: Callable[[], object]) -> float:
    import torch  # noqa: PLC0415

    for _ in range(3):
        work()
    torch.cuda.synchronize()
    best_s = float("inf")
    for _ in range(_REPEATS):
        began_s = time.monotonic()
        for _ in range(10):
            work()
        torch.cuda.synchronize()
        best_s = min(best_s, (time.monotonic() - began_s) / 10)
    return best_s


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
