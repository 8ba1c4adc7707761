"""`keeper RUN ATTEMPT REQUEST`: holds a node for the broker, and starts the agents of steps on it.

There is one per node. It checks the node once, and has a fork server that has imported what agents
and ranks need. When the connection to the broker is lost, it ends everything on the node, and
exits.
"""

import asyncio
import hashlib
import hmac
import os
import shutil
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from echelon.core import addresses
from echelon.core.proc import die_with
from echelon.core.shell import LocalShell, Shell, collect_children
from echelon.launch.agent.background_tasks import BackgroundTasks
from echelon.launch.agent.controller_link import ControllerLink
from echelon.launch.agent.guard import Guard
from echelon.launch.agent.node_check import Fault, NodeCheck, check_places
from echelon.launch.agent.scratch import make_scratch
from echelon.launch.allocation.fork_client import ForkClient, allowed_cpus
from echelon.launch.allocation.slots import Slot, slot_environment
from echelon.launch.protocol.link import sleep_a_pulse
from echelon.launch.protocol.messages import (
    AgentExited,
    EndAgent,
    Exited,
    Fork,
    Hello,
    Leave,
    Message,
    Pulse,
    Signalled,
    StartAgent,
)
from echelon.launch.protocol.rank_environment import (
    CONTROLLER,
    NAME,
    NODE,
    PRIVATE,
    TIED,
    node_in_job,
    parse_candidates,
    receive_key,
)
from echelon.run.directory import RunDir
from echelon.run.journal import write_error
from echelon.run.request import read_spec
from echelon.spec.job_spec import JobSpec
from echelon.world import count_devices

NOT_STARTED = 71
"""The status of an agent that could not be started."""


def step_key(key: bytes, step: int) -> bytes:
    """Return the key of a step: its controller and its agents get it from the broker's."""
    return hmac.digest(key, f"step {step}".encode(), hashlib.sha256)


class Keeper:
    """See the module."""

    def __init__(
        self,
        run: RunDir,
        attempt: int,
        *,
        node: int,
        request: JobSpec,
        environ: Mapping[str, str],
        key: bytes,
        shell: Shell,
        scratch: Path,
        lock: int,
    ) -> None:
        self._run, self._attempt, self._node = run, attempt, node
        self._request, self._environ, self._key = request, environ, key
        self._name = environ.get(NAME) or environ.get("SLURMD_NODENAME") or f"node{node}"
        self._shell, self._scratch = shell, scratch
        self._gpus = count_devices(environ.get("CUDA_VISIBLE_DEVICES", ""))
        allowed, granted = allowed_cpus(), environ.get("SLURM_CPUS_ON_NODE", "")
        self._count = int(granted) if granted.isdecimal() else len(allowed)
        self._cpus = allowed[: self._count] if self._count <= len(allowed) else []
        """The CPUs of each position; empty if Slurm grants more than there are."""
        self._guard = Guard(scratch, lock)
        self._check = NodeCheck(
            shell=shell,
            guard=self._guard,
            env={**environ, NODE: str(node)},
            log=run.logs / f"check-{attempt}-{node}.log",
            scratch=scratch,
        )
        self._fault: Fault | None = None
        self._broker = ControllerLink(parse_candidates(environ[CONTROLLER]), key, write_error)
        self._servers: dict[str, ForkClient] = {}
        """Role → what forks its processes: agents are small, zygotes have imported torch."""
        self._agents: dict[int, StartAgent] = {}
        """Agents that have not exited, by the number of their fork."""
        self._forks = 0
        self._done = asyncio.Event()
        self._tasks = BackgroundTasks()

    async def run(self) -> int:
        """Follow orders until told to leave, or until the connection is lost."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            loop.add_signal_handler(number, self._broker.say, Signalled(signal=number))
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        self._fault = check_places(self._run.logs, self._scratch)
        try:
            if not self._fault:
                self._start_servers()
                command = self._request.node_check
                self._fault = await self._check.run(gpus=self._gpus, command=command)
            await self._broker.reach(self)
            self._tasks.spawn(self._pulse())
            await self._done.wait()
        except OSError as error:
            write_error(f"cannot reach the broker at {self._broker.candidates}: {error}")
            return 69
        finally:
            loop.remove_signal_handler(signal.SIGCHLD)
            for server in self._servers.values():
                server.close()
            shutil.rmtree(self._scratch, ignore_errors=True)
        return 0

    def _start_servers(self) -> None:
        request = self._request
        # What libraries read when they are imported, see `common_environment`.
        early = {"OMP_NUM_THREADS": str(request.omp_threads), "PYTHONUNBUFFERED": "1"}
        ours = {name: text for name, text in self._environ.items() if name not in PRIVATE}
        warm = {} if request.image or request.stage else {"zygote": request.preload}
        for role, preload in {"agent": (), **warm}.items():
            self._servers[role] = ForkClient(
                self._shell,
                roles=[role],
                preload=preload,
                env={**early, **ours},
                log=self._run.logs / f"keeper-{self._attempt}-{self._node}.log",
                exited=self._tell_exit,
                lost=self._lose_server,
            )

    def controller_accepted(self, own_address: str) -> None:  # noqa: ARG002  it is the broker's to know
        """Greet the broker."""
        self._broker.say(
            Hello(
                node=self._node,
                name=self._name,
                host=addresses.host_identity(),
                addresses=addresses.host_addresses(),
                pid=os.getpid(),
                gpus=self._gpus,
                cpus=self._count,
                fault=self._fault.reason if self._fault else "",
                fault_own=bool(self._fault and self._fault.own),
            )
        )

    # --- the broker's orders --------------------------------------------------------------------

    def controller_ordered(self, message: Message) -> None:
        """Follow an order."""
        match message:
            case StartAgent():
                self._start(message)
            case EndAgent():
                for number, agent in self._agents.items():
                    if (agent.step, agent.number) == (message.step, message.number):
                        self._servers["agent"].kill(number)
            case Leave():
                self._done.set()

    def _start(self, order: StartAgent) -> None:
        slot = Slot(node=self._node, gpus=tuple(order.gpus), cpus=tuple(order.cpus))
        env = slot_environment(self._environ, slot, order.hosts)
        self._forks += 1
        self._agents[self._forks] = order
        fork = Fork(
            number=self._forks,
            role="agent",
            arguments=order.arguments,
            environ={**env, **order.environ, NODE: str(order.node), NAME: self._name},
            cwd=order.cwd,
            log=order.log,
            cpus=[self._cpus[cpu] for cpu in order.cpus if self._cpus],
            key=step_key(self._key, order.step).hex(),
        )
        handle = -1
        if zygotes := self._servers.get("zygote"):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            zygotes.fork(replace(fork, role="zygote", number=0, key=""), theirs.detach())
            handle = ours.detach()
        self._servers["agent"].fork(fork, handle)

    def _tell_exit(self, exited: Exited) -> None:
        if agent := self._agents.pop(exited.number, None):
            self._broker.say(
                AgentExited(step=agent.step, number=agent.number, status=exited.status)
            )

    # --- the end --------------------------------------------------------------------------------

    def controller_lost(self) -> None:
        """Leave, with all agents."""
        self._done.set()

    def _lose_server(self) -> None:
        if not self._done.is_set():
            write_error("the process that starts agents has exited")
        self._done.set()

    async def _pulse(self) -> None:
        while True:
            self._broker.beat(Pulse(), await sleep_a_pulse())

    def _reap(self) -> None:
        for pid, status in collect_children() or ():
            self._check.collected(pid, status)
            if pid == self._guard.pid and not self._done.is_set():
                self._guard.start()


def main(arguments: list[str]) -> int:
    """Run the keeper of a node; its key is on standard input."""
    path, attempt, digest = arguments
    run, environ = RunDir.open(Path(path)), dict(os.environ)
    key = receive_key(sys.stdin.buffer)
    if parent := environ.get(TIED):
        die_with(int(parent), signal.SIGKILL)
    request = read_spec(run, digest)

    async def serve() -> int:
        scratch, lock = make_scratch()
        keeper = Keeper(
            run,
            int(attempt),
            node=node_in_job(environ),
            request=request,
            environ=environ,
            key=key,
            shell=LocalShell(),
            scratch=scratch,
            lock=lock,
        )
        return await keeper.run()

    return asyncio.run(serve())
