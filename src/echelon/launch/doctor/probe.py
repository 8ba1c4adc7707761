"""The doctor's process on each node: it answers questions and exits when the doctor does."""

import asyncio
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from echelon.core import addresses
from echelon.core.proc import read_text
from echelon.core.shell import LocalShell, Shell
from echelon.errors import UsageError
from echelon.launch.agent.rendezvous_sockets import RendezvousSockets, try_sockets
from echelon.launch.doctor.gpus import ask_gpus, ask_parts, find_ours, read_grant
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
from echelon.world import count_devices

RESOLVE_S = 5.0
"""Limit for resolving a name; an unreachable resolver is tried twice, for 5 s each."""
_GLANCE_S = 0.05
_RDMA = Path("/sys/class/infiniband")
_PATIENCE_S = (0.2, 0.5, 1.0, 2.0)
"""Pauses between attempts to reach the doctor."""
_SLACK_S = 5.0
"""How much longer than its collectives an order may take before it is killed."""


class Probe:
    """See the module."""

    def __init__(
        self, *, node: int, environ: Mapping[str, str], key: bytes, shell: Shell, scratch: Path
    ) -> None:
        self._node, self._environ, self._shell = node, environ, shell
        self._key = key
        clean = {name: value for name, value in environ.items() if name not in PRIVATE}
        self._worker = TorchClient(shell, clean, scratch / "torch.log")
        self._sockets = RendezvousSockets()
        self._link: Link | None = None
        self._done = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

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
            self._worker.close()
            self._sockets.close()
        return 0

    async def _reach_doctor(self) -> None:
        """Connect, with retries: with many probes, the doctor may be busy at first.

        Raises:
            OSError: the doctor cannot be reached.
        """
        for pause_s in _PATIENCE_S:
            try:
                await connect(parse_candidates(self._environ[CONTROLLER]), self._make_link)
            except OSError:
                await asyncio.sleep(pause_s)
            else:
                return
        await connect(parse_candidates(self._environ[CONTROLLER]), self._make_link)

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
                gpus=count_devices(self._environ.get("CUDA_VISIBLE_DEVICES", "")),
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
        error, found = "", {}
        try:
            found = await self._find(ask.what, ask.about)
        except Exception as wrong:  # noqa: BLE001  one failing question must not affect others
            error = f"{type(wrong).__name__}: {wrong}"
        if self._link is not None:
            self._link.say(Answer(number=ask.number, found=found, error=error))

    async def _find(self, what: str, about: Mapping[str, Any]) -> dict[str, Any]:
        answers: dict[str, Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]] = {
            "clock": self._read_clock,
            "facts": self._find_facts,
            "file": self._await_file,
            "open": self._open_sockets,
            "reach": self._try_sockets,
            "torch": self._ask_torch,
            "measure": self._measure,
        }
        return await answers[what](about)

    async def _read_clock(self, _about: Mapping[str, Any]) -> dict[str, Any]:
        return {"now_s": time.time()}

    async def _find_facts(self, about: Mapping[str, Any]) -> dict[str, Any]:
        assert self._link is not None
        network = await find_network(about["peers"], self._link.peer_address)
        driver, gpus, wrong = await ask_gpus(self._shell, self._environ)
        grant = read_grant(self._environ)
        parts = await ask_parts(self._shell, self._environ) if grant.has_parts and gpus else {}
        known = {
            "driver": driver,
            "gpus": [asdict(gpu) for gpu in gpus],
            "gpu_error": wrong,
            "in_job": grant.in_job,
            "parts": grant.has_parts,
            "ours": find_ours(gpus, grant, parts),
        }
        return {**network, **known}

    async def _await_file(self, about: Mapping[str, Any]) -> dict[str, Any]:
        return {"late_s": await await_text(Path(about["path"]), about["text"], about["limit_s"])}

    async def _open_sockets(self, about: Mapping[str, Any]) -> dict[str, Any]:
        return {"ports": self._sockets.open(about["addresses"])}

    async def _try_sockets(self, about: Mapping[str, Any]) -> dict[str, Any]:
        peers = about["ports"]
        found = await asyncio.gather(*(try_sockets(ports) for ports in peers.values()))
        return {"reached": dict(zip(peers, found, strict=True))}

    async def _ask_torch(self, about: Mapping[str, Any]) -> dict[str, Any]:
        limit_s = about["limit_s"]
        said = await self._worker.start(limit_s)
        if "error" in said:
            return said
        answer = await self._worker.order({"what": "devices", "count": 1}, limit_s=limit_s)
        seen = answer["ranks"][0] if "ranks" in answer else {"device_error": answer["error"]}
        if "error" in seen:
            seen = {"device_error": seen["error"]}
        return {**said, **seen}

    async def _measure(self, about: Mapping[str, Any]) -> dict[str, Any]:
        order = dict(about)
        limit_s = float(order["limit_s"]) + _SLACK_S
        listener = None
        if order["what"] == "reduce":
            order["env"] = {**order.get("env", {}), **self._interface(order["address"])}
            listener = self._sockets.take(order["address"]) if order["first_rank"] == 0 else None
        try:
            return await self._worker.order(order, limit_s=limit_s, listener=listener)
        finally:
            if listener is not None:
                listener.close()

    def _interface(self, address: str) -> dict[str, str]:
        """Return the variables that bind collectives to the interface that leads to an address."""
        name = addresses.interface_towards(address)
        names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        return {key: self._environ.get(key) or name for key in names if name}


# --- facts about the network and the shared directory --------------------------------------------


async def find_network(peers: Mapping[str, str], towards: str) -> dict[str, Any]:
    """Return the interface that leads to the coordinator, and names that do not resolve.

    Args:
        peers: name → address of the nodes to resolve.
        towards: the coordinator's address.
    """
    interface = addresses.interface_towards(towards)
    checked = await asyncio.gather(*(_check_name(*peer) for peer in peers.items()))
    return {
        "interface": interface,
        "mtu": read_mtu(interface),
        "addresses": addresses.host_addresses(),
        "unresolved": [wrong for wrong, _ in checked if wrong],
        "unnamed": [address for _, address in checked if address],
        "rdma": has_rdma(),
    }


def has_rdma() -> bool:
    try:
        return any(_RDMA.iterdir())
    except OSError:
        return False


def read_mtu(interface: str) -> int:
    try:
        return int(Path("/sys/class/net", interface, "mtu").read_text())
    except (OSError, ValueError):
        return 0


async def _check_name(name: str, address: str) -> tuple[str, str]:
    """Return the name if it resolves wrongly, and the address if it has no name; '' otherwise."""
    loop = asyncio.get_running_loop()

    async def look_up() -> set[str]:
        found = await loop.getaddrinfo(name, None, family=socket.AF_INET)
        return {str(entry[4][0]) for entry in found}

    try:
        async with asyncio.timeout(RESOLVE_S):
            known = await look_up()
        wrong = "" if address in known else f"{name} ({', '.join(sorted(known))})"
    except OSError:  # a time-out is one too
        wrong = name
    try:
        async with asyncio.timeout(RESOLVE_S):
            await loop.getnameinfo((address, 0), socket.NI_NAMEREQD)
    except OSError:
        return wrong, address
    return wrong, ""


async def await_text(path: Path, text: str, limit_s: float) -> float:
    """Return the seconds until a file contains a text; -1 if it never does."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while True:
        if await asyncio.to_thread(read_text, path) == text:
            return round(loop.time() - began_s, 3)
        if loop.time() - began_s > limit_s:
            return -1.0
        await asyncio.sleep(_GLANCE_S)


def main(_arguments: list[str]) -> int:
    """Run `doctor-probe`; its arguments are in the environment, the key on standard input."""
    environ = dict(os.environ)
    if CONTROLLER not in environ:
        raise UsageError(
            f"{CONTROLLER} is not set: only the doctor starts probes", hint="echelon doctor"
        )
    key = receive_key(sys.stdin.buffer)
    node = node_in_job(environ)
    scratch = Path(tempfile.mkdtemp(prefix="echelon-doctor-"))

    async def serve() -> int:
        probe = Probe(node=node, environ=environ, key=key, shell=LocalShell(), scratch=scratch)
        try:
            return await probe.run()
        except OSError as error:
            write_error(f"cannot reach the doctor at {environ[CONTROLLER]}: {error}")
            return 69

    try:
        return asyncio.run(serve())
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
