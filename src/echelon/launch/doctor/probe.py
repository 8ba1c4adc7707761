"""The doctor's process on each node: it answers questions and exits when the doctor does."""

import asyncio
import os
import random
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from echelon.core import addresses
from echelon.core.proc import read_text
from echelon.core.shell import LocalShell, Shell
from echelon.errors import UsageError
from echelon.launch.agent.rendezvous_sockets import RendezvousSockets, try_sockets
from echelon.launch.doctor.gpus import ask_gpus
from echelon.launch.doctor.results import read_count
from echelon.launch.doctor.torch_client import TorchClient
from echelon.launch.protocol.link import Link, connect, sleep_a_pulse
from echelon.launch.protocol.messages import Answer, Ask, Hello, Leave, Message, Pulse
from echelon.launch.protocol.rank_environment import (
    CONTROLLER,
    PRIVATE,
    node_in_job,
    parse_candidates,
    receive_key,
)
from echelon.run.journal import write_error
from echelon.world import list_devices

RESOLVE_S = 5.0
"""Limit for resolving a name; an unreachable resolver is tried twice, for 5 s each."""
_INTERVAL_S = 0.05
_RDMA = Path("/sys/class/infiniband")
_CONNECT_S = 10.0
"""How long to retry to reach the doctor, which is busy at first if there are many probes."""
_SLACK_S = 5.0
"""How much longer than its collectives an order may take before it is killed."""


class Probe:
    """Connects to the doctor and answers its questions."""

    def __init__(
        self, *, node: int, environ: Mapping[str, str], key: bytes, shell: Shell, log: Path
    ) -> None:
        self._node, self._environ, self._shell = node, environ, shell
        self._key = key
        clean = {name: value for name, value in environ.items() if name not in PRIVATE}
        self._torch = TorchClient(shell, clean, log)
        self._sockets = RendezvousSockets()
        self._link: Link | None = None
        self._done = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
            "clock": self._read_clock,
            "facts": self._find_facts,
            "file": self._await_file,
            "open": self._open_sockets,
            "reach": self._try_sockets,
            "torch": self._ask_torch,
            "measure": self._measure,
        }

    async def run(self) -> int:
        """Answer questions until told to leave, or until the doctor is lost."""
        pulse = asyncio.get_running_loop().create_task(self._pulse())
        try:
            await self._reach_doctor()
            await self._done.wait()
        finally:
            pulse.cancel()
            for task in self._tasks:
                task.cancel()
            self._torch.close()
            self._sockets.close()
        return 0

    async def _reach_doctor(self) -> None:
        """Connect, with retries.

        Raises:
            OSError: the doctor cannot be reached.
        """
        deadline_s = time.monotonic() + _CONNECT_S
        while True:
            try:
                await connect(parse_candidates(self._environ[CONTROLLER]), self._make_link)
            except OSError:
                if time.monotonic() > deadline_s:
                    raise
            else:
                return
            await asyncio.sleep(random.uniform(0, 1))  # noqa: S311

    def _make_link(self) -> Link:
        return Link(self._key, "agent", opened=self._greet, received=self._obey, lost=self._lose)

    def _greet(self, link: Link) -> None:
        self._link = link
        link.say(
            Hello(
                node=self._node,
                name=self._environ.get("SLURMD_NODENAME") or f"node{self._node}",
                host=addresses.host_identity(),
                addresses=addresses.host_addresses(),
                pid=os.getpid(),
            )
        )

    def _lose(self, _link: Link, _reason: str) -> None:
        self._done.set()

    def _obey(self, _link: Link, message: Message) -> None:
        match message:
            case Ask():
                task = asyncio.get_running_loop().create_task(self._answer(message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case Leave():
                self._done.set()

    async def _pulse(self) -> None:
        """Send heartbeats, and detect when the doctor's stop."""
        while True:
            paused_s = await sleep_a_pulse()
            if self._link:
                self._link.beat(Pulse(), paused_s)

    async def _answer(self, ask: Ask) -> None:
        try:
            found = await self._answers[ask.what](**ask.about)
        except Exception as error:  # noqa: BLE001  one failing question must not affect others
            found = {"error": f"{type(error).__name__}: {error}"}
        if self._link is not None:
            self._link.say(Answer(number=ask.number, found=found))

    # --- the answers to each question -----------------------------------------------------------

    async def _read_clock(self) -> dict[str, Any]:
        return {"now_s": time.time()}

    async def _find_facts(self, peers: Mapping[str, str]) -> dict[str, Any]:
        assert self._link is not None
        interface = addresses.interface_towards(self._link.peer_address)
        granted = list_devices(self._environ.get("CUDA_VISIBLE_DEVICES", ""))
        driver, gpus, gpu_error = await ask_gpus(self._shell, self._environ)
        return {
            "interface": interface,
            "mtu": read_count(read_text(Path("/sys/class/net", interface, "mtu")).strip(), 0),
            "addresses": addresses.host_addresses(),
            "unresolved": await _gather_texts([_check_name(*peer) for peer in peers.items()]),
            "unnamed": await _gather_texts([_check_address(peer) for peer in peers.values()]),
            "rdma": has_rdma(),
            "driver": driver,
            "gpus": [asdict(gpu) for gpu in gpus],
            "gpu_error": gpu_error,
            "in_job": "SLURM_JOB_ID" in self._environ,
            "granted": len(granted),
            "parts": any(device.startswith("MIG-") for device in granted),
        }

    async def _await_file(self, path: str, text: str, limit_s: float) -> dict[str, Any]:
        """Return the seconds until a file contains a text; -1 if it never does."""
        began_s = time.monotonic()
        while await asyncio.to_thread(read_text, Path(path)) != text:
            if time.monotonic() - began_s > limit_s:
                return {"late_s": -1.0}
            await asyncio.sleep(_INTERVAL_S)
        return {"late_s": round(time.monotonic() - began_s, 3)}

    async def _open_sockets(self, candidates: Sequence[str]) -> dict[str, Any]:
        return {"ports": self._sockets.open(candidates)}

    async def _try_sockets(self, peers: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
        reached = await asyncio.gather(*(try_sockets(ports) for ports in peers.values()))
        return {"reached": dict(zip(peers, reached, strict=True))}

    async def _ask_torch(self, limit_s: float) -> dict[str, Any]:
        torch = await self._torch.start(limit_s)
        if "error" in torch:
            return torch
        answer = await self._torch.order({"what": "devices", "count": 1}, limit_s=limit_s)
        (devices,) = answer.get("ranks", [answer])
        if "error" in devices:
            devices = {"device_error": devices["error"]}
        return {**torch, **devices}

    async def _measure(self, order: dict[str, Any]) -> dict[str, Any]:
        limit_s = float(order["limit_s"]) + _SLACK_S
        listener = None
        if order["what"] == "reduce":
            order["env"] |= self._interface(order["address"])
            listener = self._sockets.take(order["address"]) if order["first_rank"] == 0 else None
        try:
            return await self._torch.order(order, limit_s=limit_s, listener=listener)
        finally:
            if listener is not None:
                listener.close()

    def _interface(self, address: str) -> dict[str, str]:
        """Return the variables that bind collectives to the interface that leads to an address."""
        name = addresses.interface_towards(address)
        names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        return {key: self._environ.get(key) or name for key in names if name}


def has_rdma() -> bool:
    return any(_RDMA.glob("*"))


async def _gather_texts(checks: Sequence[Awaitable[str]]) -> list[str]:
    return [text for text in await asyncio.gather(*checks) if text]


async def _check_name(name: str, address: str) -> str:
    """Return how a name fails to resolve to an address; empty if it does."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_S):
            found = await loop.getaddrinfo(name, None, family=socket.AF_INET)
    except OSError:  # includes time-outs
        return name
    known = {str(entry[4][0]) for entry in found}
    return "" if address in known else f"{name} ({', '.join(sorted(known))})"


async def _check_address(address: str) -> str:
    """Return an address that has no name; empty if it has one."""
    try:
        async with asyncio.timeout(RESOLVE_S):
            await asyncio.get_running_loop().getnameinfo((address, 0), socket.NI_NAMEREQD)
    except OSError:  # includes time-outs
        return address
    return ""


def main(_arguments: list[str]) -> int:
    """Run `doctor-probe`; its arguments are in the environment, the key on standard input."""
    environ = dict(os.environ)
    if CONTROLLER not in environ:
        raise UsageError(
            f"{CONTROLLER} is not set: only the doctor starts probes", hint="echelon doctor"
        )
    key = receive_key(sys.stdin.buffer)
    node = node_in_job(environ)

    async def serve(log: Path) -> int:
        probe = Probe(node=node, environ=environ, key=key, shell=LocalShell(), log=log)
        try:
            return await probe.run()
        except OSError as error:
            write_error(f"cannot reach the doctor at {environ[CONTROLLER]}: {error}")
            return 69

    with tempfile.NamedTemporaryFile(prefix="echelon-doctor-") as log:
        return asyncio.run(serve(Path(log.name)))
