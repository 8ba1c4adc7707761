"""The doctor's examination of an allocation's nodes, step by step.

First, a few lines of sh run on every node. Where they succeed, one probe process per node answers
questions: facts, ports, torch, all-reduce. A failure is attributed to its node, and the other nodes
continue without it.
"""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from echelon.core.atomic_file import write_atomic
from echelon.core.shell import Shell
from echelon.core.units import counted
from echelon.launch.backends.base import Starter
from echelon.launch.doctor.all_reduce import (
    AllReduce,
    find_suspects,
    plan_confirmation,
    plan_rounds,
)
from echelon.launch.doctor.first_look import DoctorPaths, FirstLook, is_well
from echelon.launch.doctor.gpus import add_figures
from echelon.launch.doctor.ports import choose_peers
from echelon.launch.doctor.probe_client import ProbeClient, Question
from echelon.launch.doctor.results import (
    Examined,
    Group,
    Node,
    Torch,
    read_facts,
    read_figure,
    read_torch,
)
from echelon.launch.pool.agent_pool import AgentPool
from echelon.launch.protocol.messages import Hello
from echelon.world import SHARE_GPU

JOIN_S = 60.0
"""How long a probe may take to connect; one that does not is started once more."""
ASK_S = 60.0
TORCH_S = 180.0
"""On a cold, busy file system an import may take minutes."""
LATE_S = 5.0
"""How long a node waits for a file that we have written."""
_AGAIN = 3
"""How often a suspect is measured again before it is named."""
_ASKED = 5
"""How often clocks are read."""


class Examination:
    """See the module."""

    def __init__(
        self,
        *,
        shell: Shell,
        starter: Starter,
        environ: Mapping[str, str],
        paths: DoctorPaths,
        short: bool,
        tell: Callable[[str], None],
    ) -> None:
        self._environ = environ
        self._paths, self._short, self._tell = paths, short, tell
        self._pool = AgentPool(starter, lambda *_, **__: None, tell)
        self._probes = ProbeClient(self._pool)
        self._first_look = FirstLook(
            probes=self._probes,
            shell=shell,
            starter=starter,
            environ=environ,
            paths=paths,
            tell=tell,
        )
        self._nodes = {node: Node(name=starter.host(node)) for node in range(starter.nodes)}
        self._pairs: list[Group] = []
        self._overall: Group | None = None
        self._reached: dict[tuple[int, int], list[str]] = {}
        """(source node, target node) → the target's addresses that the source reached."""

    async def run(self) -> Examined:
        """Run all steps.

        Raises:
            StopError: a stop was requested.
            EchelonError: Slurm does not respond.
        """
        began_s = time.monotonic()
        self._pool.install_signal_handlers()
        try:
            for node, look in (await self._first_look.look()).items():
                self._note(node, look=look)
            if await self._call():
                await self._ask_facts()
                await self._try_ports()
                await self._ask_torch()
                await self._reduce()
                if not self._short:
                    await self._compute()
        finally:
            await self._pool.leave()
        for node, why in self._probes.lost.items():
            self._note(node, lost=why)
        return Examined(
            nodes=list(self._nodes.values()),
            pairs=self._pairs,
            overall=self._overall,
            seconds=round(time.monotonic() - began_s, 1),
        )

    def _note(self, node: int, **known: Any) -> None:
        self._nodes[node] = replace(self._nodes[node], **known)

    # --- the probes -----------------------------------------------------------------------------

    async def _call(self) -> bool:
        """Start probes on the nodes whose first look succeeded; tell whether any connected."""
        for node, known in self._nodes.items():
            if not is_well(known.look):
                self._pool.reject(
                    Hello(node=node, name=known.name, host="", addresses=[], fault="its first look")
                )
        well = [node for node in self._nodes if node not in self._pool.unfit]
        if not well:
            return False
        self._tell(f"starting probes on {counted(len(well), 'node')}")
        await self._pool.start(self._paths.probe, self._paths.scratch, self._environ)
        await self._probes.await_probes(well, limit_s=JOIN_S)
        missing = sorted(self._probes.lost)
        if self._pool.agents and missing:  # if no probe connected, no node is to blame
            self._tell(f"restarting {len(missing)} probes that did not connect")
            await self._probes.call_again(missing, limit_s=JOIN_S)
        return bool(self._pool.agents)

    def _here(self) -> list[int]:
        return sorted(self._pool.agents)

    def _address(self, node: int) -> str:
        """Return the address at which other nodes should reach a node."""
        agent = self._pool.agents[node]
        seen = agent.link.peer_address
        others = [address for address in agent.hello.addresses if address]
        return others[0] if seen.startswith("127.") and others else seen

    def _peers(self, node: int) -> list[int]:
        """Return the nodes that a node tries to reach."""
        return choose_peers(self._here(), node)

    async def _ask_facts(self) -> None:
        skews = await self._ask_clocks()
        late = await self._ask_file()
        questions = {
            node: (
                "facts",
                {
                    "peers": {
                        self._nodes[peer].name: self._address(peer) for peer in self._peers(node)
                    }
                },
            )
            for node in self._here()
        }
        for node, said in (await self._probes.ask(questions, limit_s=ASK_S)).items():
            if said.error:
                self._probes.lost.setdefault(node, said.error)
                continue
            facts = read_facts(
                said.found,
                granted=self._pool.agents[node].hello.gpus if node in self._pool.agents else 0,
                skew_s=round(skews.get(node, 0.0), 4),
                folder_late_s=late.get(node, 0.0),
            )
            self._note(node, facts=facts)

    async def _ask_clocks(self) -> dict[int, float]:
        """Return how far clocks are ahead of ours, at the midpoint between question and answer."""
        best: dict[int, tuple[float, float]] = {}
        for _ in range(_ASKED):
            asked_s = time.time()
            said = await self._probes.ask(self._all("clock"), limit_s=ASK_S)
            for node, answer in said.items():
                now_s = read_figure(answer.found, "now_s")
                if now_s is not None:
                    way_s = answer.at_s - asked_s
                    ahead_s = now_s - (asked_s + answer.at_s) / 2
                    best[node] = min(best.get(node, (way_s, ahead_s)), (way_s, ahead_s))
        return {node: ahead_s for node, (_, ahead_s) in best.items()}

    async def _ask_file(self) -> dict[int, float]:
        """Return how many seconds after its creation each node sees a file.

        Each node looks for the file once before it exists, because a file system may also cache
        that a file does not exist.
        """
        path, text = self._paths.folder / "coherent", secrets.token_hex(8)
        about = {"path": str(path), "text": text, "limit_s": 0.0}
        await self._probes.ask(self._all("file", about), limit_s=ASK_S)
        write_atomic(path, text)
        said = await self._probes.ask(
            self._all("file", {**about, "limit_s": LATE_S}), limit_s=ASK_S
        )
        late = {node: read_figure(one.found, "late_s") for node, one in said.items()}
        return {node: seconds for node, seconds in late.items() if seconds is not None}

    def _all(self, what: str, about: Mapping[str, Any] | None = None) -> dict[int, Question]:
        return {node: (what, about or {}) for node in self._here()}

    async def _try_ports(self) -> None:
        if len(self._here()) < 2:
            return
        self._tell("testing ports between nodes")
        questions: dict[int, Question] = {}
        for node in self._here():
            own = [self._address(node), *self._pool.agents[node].hello.addresses]
            questions[node] = ("open", {"addresses": list(dict.fromkeys(own))})
        opened = await self._probes.ask(questions, limit_s=ASK_S)
        ports = {node: said.found["ports"] for node, said in opened.items() if not said.error}
        tries = {node: [peer for peer in self._peers(node) if peer in ports] for node in ports}
        names = {str(node): node for node in ports}
        asked: dict[int, Question] = {
            node: ("reach", {"ports": {str(peer): ports[peer] for peer in peers}})
            for node, peers in tries.items()
        }
        for node, said in (await self._probes.ask(asked, limit_s=ASK_S)).items():
            if said.error:  # late or lost: this says nothing about ports
                continue
            reached = said.found.get("reached", {})
            for peer, found in reached.items():
                self._reached[node, names[peer]] = found
            missed = [peer for peer in tries[node] if not reached.get(str(peer))]
            self._note(
                node,
                tried=[self._nodes[peer].name for peer in tries[node]],
                unreached=[self._nodes[peer].name for peer in missed],
            )

    # --- torch ----------------------------------------------------------------------------------

    async def _ask_torch(self) -> None:
        self._tell("importing torch")
        said = await self._probes.ask(self._all("torch", {"limit_s": TORCH_S}), limit_s=2 * TORCH_S)
        for node, answer in said.items():
            error = answer.error
            self._note(node, torch=Torch(error=error) if error else read_torch(answer.found))

    async def _reduce(self) -> None:
        able = [node for node in self._here() if self._can_reduce(node)]
        torches = {node: self._nodes[node].torch for node in able}
        devices = {node: torch.devices if torch else 0 for node, torch in torches.items()}
        with_gpus = bool(able) and all(devices.values())
        if shared := with_gpus and self._environ.get(SHARE_GPU) == "1":
            devices = {node: 2 * count for node, count in devices.items()}
        all_reduce = AllReduce(
            probes=self._probes,
            names={node: self._nodes[node].name for node in able},
            counts={node: devices[node] if with_gpus else 1 for node in able},
            backend="nccl" if with_gpus else "gloo",
            env={"NCCL_MULTI_RANK_GPU_ENABLE": "1"} if shared else {},
            addresses=self._common_addresses,
        )
        await self._reduce_pairs(all_reduce, {self._nodes[node].name: node for node in able})
        # Leave out nodes that are known to slow down the others.
        bad = {suspect.node for suspect in find_suspects(self._pairs) if suspect.what != "lagging"}
        left = [
            node
            for node in able
            if node not in self._probes.lost and self._nodes[node].name not in bad
        ]
        if len(left) > 2 or (with_gpus and sum(devices[node] for node in left) > 1):
            self._tell(f"measuring all-reduce over {counted(len(left), 'node')}")
            (self._overall,) = await all_reduce.measure([tuple(left)])
        elif len(left) == 2:
            names = tuple(self._nodes[node].name for node in left)
            own = [pair for pair in self._pairs if set(pair.nodes) == set(names)]
            self._overall = max(own, key=lambda pair: pair.bandwidth, default=None)

    async def _reduce_pairs(self, all_reduce: AllReduce, able: Mapping[str, int]) -> None:
        rounds = plan_rounds(list(able)) if len(able) > 1 else []
        for number, pairs in enumerate(rounds, start=1):
            self._tell(f"measuring all-reduce in pairs, round {number} of {len(rounds)}")
            self._pairs += await all_reduce.measure([(able[one], able[two]) for one, two in pairs])
        for again in range(_AGAIN):
            doubtful = [
                (able[one], able[two])
                for one, two in plan_confirmation(self._pairs, again)
                if not self._probes.lost.keys() & {able[one], able[two]}
            ]
            if doubtful:
                nodes = counted(len(doubtful), "slow or failing node")
                self._tell(f"measuring all-reduce again for {nodes}")
                self._pairs += await all_reduce.measure(doubtful)

    def _can_reduce(self, node: int) -> bool:
        known = self._nodes[node]
        cut_off = len(known.tried) > 0 and len(known.unreached) == len(known.tried)
        return known.torch is not None and not known.torch.error and not cut_off

    def _common_addresses(self, group: Sequence[int]) -> list[str]:
        """Return an address of a group's first node that all others are known to reach."""
        first, *others = group
        if first not in self._pool.agents:
            return []  # lost since the last round
        known = [self._reached[node, first] for node in others if (node, first) in self._reached]
        every = [self._address(first), *self._pool.agents[first].hello.addresses]
        common = [address for address in every if all(address in found for found in known)]
        return list(dict.fromkeys(common))[:1] or every[:1]

    async def _compute(self) -> None:
        asked: dict[int, Question] = {}
        for node in self._here():
            torch = self._nodes[node].torch
            if torch and torch.devices:
                order = {"what": "compute", "count": torch.devices, "limit_s": ASK_S}
                asked[node] = ("measure", order)
        if not asked:
            return
        self._tell("measuring matrix products and copies on each GPU")
        for node, said in (await self._probes.ask(asked, limit_s=2 * ASK_S)).items():
            facts = self._nodes[node].facts
            if facts is not None and not said.error:
                self._note(node, facts=add_figures(facts, said.found))
