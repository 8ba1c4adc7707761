"""The doctor's examination of an allocation's nodes, step by step.

First, a few lines of sh run on every node. Where they succeed, one probe process per node answers
questions: facts, ports, torch, all-reduce. A failure is attributed to its node, and the other nodes
continue without it.
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from echelon.core.atomic_file import write_atomic
from echelon.core.codec import decode, to_figure
from echelon.core.units import counted
from echelon.launch.doctor.all_reduce import (
    AllReduce,
    find_suspects,
    plan_confirmation,
    plan_rounds,
)
from echelon.launch.doctor.findings import judge
from echelon.launch.doctor.first_look import Setup, can_run_probe, look_at_nodes
from echelon.launch.doctor.gpus import add_figures
from echelon.launch.doctor.probe_client import RECEIVED_S, Details, ProbeClient
from echelon.launch.doctor.results import Examined, Facts, Group, Node, read_torch
from echelon.launch.pool.agent_pool import AgentPool
from echelon.launch.protocol.messages import Hello
from echelon.world import SHARE_GPU

FEW = 16
"""Up to this many nodes, each tries the ports of all others."""
JOIN_S = 120.0
"""How long a probe may take to connect: on a cold, busy file system, Python starts slowly."""
ASK_S = 60.0
TORCH_S = 180.0
"""On a cold, busy file system an import may take minutes."""
LATE_S = 5.0
"""How long a node waits for a file that we have written."""
_AGAIN = 3
"""How often a suspect is measured again before it is named."""
_READINGS = 5
"""How often clocks are read."""


def choose_peers(nodes: Sequence[int], node: int) -> list[int]:
    """Return the nodes whose ports a node tries: all others or, with many, four of them.

    These are the next two, a distant one and the first. All nodes connect to the first; the distant
    one is likely behind another switch. Every node then tries at least three others and is tried by
    at least three, so a node with closed ports can be told from its neighbours.
    """
    if len(nodes) <= FEW:
        return [other for other in nodes if other != node]
    place, count = nodes.index(node), len(nodes)
    tried = [nodes[(place + step) % count] for step in (1, 2, count // 2)]
    return [other for other in dict.fromkeys([*tried, nodes[0]]) if other != node]


class Examination:
    """Runs all steps, and collects what is known about each node."""

    def __init__(self, setup: Setup) -> None:
        self._setup, self._tell, starter = setup, setup.tell, setup.starter
        self._pool = AgentPool(starter, lambda *_, **__: None, setup.tell)
        self._probes = ProbeClient(self._pool)
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
            for node, look in (await look_at_nodes(self._setup, self._probes)).items():
                self._note(node, look=look)
            if await self._start_probes():
                await self._ask_facts()
                await self._try_ports()
                await self._ask_torch()
                await self._reduce()
                if not self._setup.short:
                    await self._compute()
        finally:
            await self._pool.leave()
        for node, why in self._probes.lost.items():
            self._note(node, lost=why)
        examined = Examined(
            nodes=list(self._nodes.values()),
            pairs=self._pairs,
            overall=self._overall,
            seconds=round(time.monotonic() - began_s, 1),
        )
        folder = str(self._setup.folder.parent)
        return replace(examined, findings=judge(examined, folder=folder, python=self._setup.python))

    def _note(self, node: int, **known: Any) -> None:
        self._nodes[node] = replace(self._nodes[node], **known)

    def _name_all(self, nodes: Sequence[int]) -> list[str]:
        return [self._nodes[node].name for node in nodes]

    # --- the probes -----------------------------------------------------------------------------

    async def _start_probes(self) -> bool:
        """Start probes on the nodes whose first look succeeded; tell whether any connected."""
        for node, known in self._nodes.items():
            if not can_run_probe(known.look):
                self._pool.reject(
                    Hello(node=node, name=known.name, host="", addresses=[], fault="its first look")
                )
        able = [node for node in self._nodes if node not in self._pool.unfit]
        if able:
            self._tell(f"starting probes on {counted(len(able), 'node')}")
            await self._pool.start(self._setup.probe, self._setup.scratch, self._setup.environ)
            await self._probes.await_probes(able, limit_s=JOIN_S)
        return bool(self._pool.agents)

    def _here(self) -> list[int]:
        return sorted(self._pool.agents)

    async def _ask_all(
        self, what: str, details: Details, *, limit_s: float = ASK_S
    ) -> dict[int, Details]:
        questions = dict.fromkeys(self._here(), details)
        return await self._probes.ask(what, questions, limit_s=limit_s)

    def _addresses(self, node: int) -> list[str]:
        """Return a node's addresses; first that at which other nodes should reach it."""
        agent = self._pool.agents[node]
        seen, own = agent.link.peer_address, agent.hello.addresses
        best = own[0] if seen.startswith("127.") and own else seen
        return list(dict.fromkeys([best, *own]))

    async def _ask_facts(self) -> None:
        ahead_s, late_s = await self._read_clocks(), await self._await_file()
        here = self._here()
        addresses = {node: (self._nodes[node].name, self._addresses(node)[0]) for node in here}
        peers = {
            node: {"peers": dict(addresses[peer] for peer in choose_peers(here, node))}
            for node in here
        }
        for node, answer in (await self._probes.ask("facts", peers, limit_s=ASK_S)).items():
            if "error" in answer:
                self._probes.lost.setdefault(node, str(answer["error"]))
                continue
            facts = replace(
                decode(Facts, answer),
                skew_s=round(ahead_s.get(node, 0.0), 4),
                folder_late_s=late_s.get(node, 0.0),
            )
            self._note(node, facts=facts)

    async def _read_clocks(self) -> dict[int, float]:
        """Return how far clocks are ahead of ours, from the quickest of several exchanges."""
        best: dict[int, tuple[float, float]] = {}
        for _ in range(_READINGS):
            asked_s = time.time()
            for node, answer in (await self._ask_all("clock", {})).items():
                now_s = to_figure(answer.get("now_s"))
                if now_s is not None:
                    received_s = answer[RECEIVED_S]
                    reading = received_s - asked_s, now_s - (asked_s + received_s) / 2
                    best[node] = min(best.get(node, reading), reading)
        return {node: ahead_s for node, (_, ahead_s) in best.items()}

    async def _await_file(self) -> dict[int, float]:
        """Return how many seconds after its creation each node sees a file.

        Each node looks for the file once before it exists, because a file system may also cache
        that a file does not exist.
        """
        path, text = self._setup.folder / "coherent", secrets.token_hex(8)
        file = {"path": str(path), "text": text}
        await self._ask_all("file", {**file, "limit_s": 0.0})
        write_atomic(path, text)
        answers = await self._ask_all("file", {**file, "limit_s": LATE_S})
        late_s = {node: to_figure(answer.get("late_s")) for node, answer in answers.items()}
        return {node: seconds for node, seconds in late_s.items() if seconds is not None}

    async def _try_ports(self) -> None:
        here = self._here()
        if len(here) < 2:
            return
        self._tell("testing ports between nodes")
        candidates = {node: {"candidates": self._addresses(node)} for node in here}
        opened = await self._probes.ask("open", candidates, limit_s=ASK_S)
        ports = {node: answer["ports"] for node, answer in opened.items() if "ports" in answer}
        tries = {
            node: [peer for peer in choose_peers(here, node) if peer in ports] for node in ports
        }
        asked = {
            node: {"peers": {str(peer): ports[peer] for peer in peers}}
            for node, peers in tries.items()
        }
        for node, answer in (await self._probes.ask("reach", asked, limit_s=ASK_S)).items():
            if "error" in answer:  # late or lost: this says nothing about ports
                continue
            for peer in tries[node]:
                self._reached[node, peer] = answer.get("reached", {}).get(str(peer), [])
            missed = [peer for peer in tries[node] if not self._reached[node, peer]]
            self._note(node, tried=self._name_all(tries[node]), unreached=self._name_all(missed))

    # --- torch ----------------------------------------------------------------------------------

    async def _ask_torch(self) -> None:
        self._tell("importing torch")
        answers = await self._ask_all("torch", {"limit_s": TORCH_S}, limit_s=2 * TORCH_S)
        for node, answer in answers.items():
            self._note(node, torch=read_torch(answer))

    async def _reduce(self) -> None:
        able = [node for node in self._here() if self._can_reduce(node)]
        devices = {node: self._count_devices(node) for node in able}
        with_gpus = bool(able) and all(devices.values())
        shared = with_gpus and self._setup.environ.get(SHARE_GPU) == "1"
        counts = {
            node: count * (2 if shared else 1) if with_gpus else 1
            for node, count in devices.items()
        }
        all_reduce = AllReduce(
            probes=self._probes,
            names={node: self._nodes[node].name for node in able},
            counts=counts,
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
        if sum(counts[node] for node in left) > 1:
            self._tell(f"measuring all-reduce over {counted(len(left), 'node')}")
            (self._overall,) = await all_reduce.measure([tuple(left)])

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

    def _count_devices(self, node: int) -> int:
        torch = self._nodes[node].torch
        return torch.devices if torch else 0

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
        every = self._addresses(first)
        common = [address for address in every if all(address in found for found in known)]
        return common[:1] or every[:1]

    async def _compute(self) -> None:
        orders = {
            node: {"order": {"what": "compute", "count": count, "limit_s": ASK_S}}
            for node in self._here()
            if (count := self._count_devices(node))
        }
        if not orders:
            return
        self._tell("measuring matrix products and copies on each GPU")
        for node, answer in (await self._probes.ask("measure", orders, limit_s=2 * ASK_S)).items():
            if self._nodes[node].facts:
                self._note(node, facts=add_figures(self._nodes[node], answer))
