"""The doctor's round through the nodes of an allocation, from top to bottom.

First a few lines of sh on every node. Then, where those went well, one process per node that is
asked: facts, ports, torch, all-reduce. What fails on one node is known of that one, and the others
go on without it.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from echelon.core.rundir import write_atomic
from echelon.core.shell import Shell
from echelon.launch.crew import Crew
from echelon.launch.doctor.asking import Questioner, Said, run_program
from echelon.launch.doctor.look import SCRIPT, parse_look
from echelon.launch.doctor.record import Examined, Facts, Gpu, Group, Look, Node, Torch
from echelon.launch.doctor.reducing import Reducing
from echelon.launch.doctor.rounds import find_suspects, plan_confirmation, plan_rounds
from echelon.launch.hang import HangWatch
from echelon.launch.messages import Hello
from echelon.launch.starting import Starter, without_shape

LOOK_S = 30.0
"""How long a node may take for a few lines of sh."""
JOIN_S = 60.0
ASK_S = 60.0
TORCH_S = 180.0
"""On a cold, busy file system an import may take minutes."""
LATE_S = 5.0
"""How long a node waits for a file that we have written."""
FEW = 16
"""Up to so many nodes each tries each other; with more the next one and the first."""
_AT_ONCE = 64
"""Steps that are started side by side."""
_AGAIN = 3
"""How often a node that stands out is measured once more, before it is named."""
_ASKED = 5
"""How often clocks are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an examination takes place."""

    launcher: Path
    """A copy of our programs, in the shared folder."""
    folder: Path
    """The shared folder's part that is ours: nodes are asked whether they see it."""
    python: str
    """The Python of the ranks."""
    scratch: Path
    """A folder of this host's own."""


class Examination:
    """See the module."""

    def __init__(
        self,
        *,
        shell: Shell,
        starter: Starter,
        environ: Mapping[str, str],
        place: Place,
        short: bool,
        tell: Callable[[str], None],
    ) -> None:
        self._shell, self._starter, self._environ = shell, starter, environ
        self._place, self._short, self._tell = place, short, tell
        self._crew = Crew(starter, HangWatch(0), lambda *_, **__: None, tell)
        self._asking = Questioner(self._crew)
        self._nodes = {node: Node(name=starter.host(node)) for node in range(starter.nodes)}
        self._pairs: list[Group] = []
        self._overall: Group | None = None
        self._reached: dict[tuple[int, int], list[str]] = {}
        """(who tried, whom) → the addresses at which he was reached."""

    async def run(self) -> Examined:
        """Go through all of it.

        Raises:
            StopError: somebody wants us to stop.
            EchelonError: Slurm does not answer.
        """
        began_s = time.monotonic()
        self._crew.hear_signals()
        try:
            await self._look()
            if await self._call():
                await self._ask_facts()
                await self._try_ports()
                await self._ask_torch()
                await self._reduce()
                if not self._short:
                    await self._compute()
        finally:
            await self._crew.leave()
        for node, why in self._asking.lost.items():
            self._note(node, lost=why)
        return Examined(
            nodes=list(self._nodes.values()),
            pairs=self._pairs,
            overall=self._overall,
            seconds=round(time.monotonic() - began_s, 1),
        )

    def _note(self, node: int, **known: Any) -> None:
        self._nodes[node] = replace(self._nodes[node], **known)

    # --- the first look -------------------------------------------------------------------------

    async def _look(self) -> None:
        count = len(self._nodes)
        self._tell(f"a first look at {count} node{'s' if count > 1 else ''}")
        nonce = secrets.token_hex(8)
        write_atomic(self._place.folder / "nonce", nonce)
        room = asyncio.Semaphore(_AT_ONCE)
        loop = asyncio.get_running_loop()
        tasks = {node: loop.create_task(self._look_at(node, nonce, room)) for node in self._nodes}
        await self._asking.attend(list(tasks.values()))
        for node, task in tasks.items():
            self._note(node, look=task.result())

    async def _look_at(self, node: int, nonce: str, room: asyncio.Semaphore) -> Look:
        argv = ["sh", "-c", SCRIPT, "sh", str(self._place.folder), nonce, self._place.python]
        job = self._environ.get("SLURM_JOB_ID", "")
        async with room:
            asked_s = time.time()
            code, said = await run_program(
                self._shell,
                [*(look_step(job, self._starter.host(node)) if job else ()), *argv],
                env=without_shape(self._environ),
                log=self._place.scratch / f"look-{node}.log",
                limit_s=LOOK_S,
            )
            answered_s = time.time()
        error = "" if code == 0 else f"it ended with code {code}"
        if code is None:
            error = f"it hangs, for {LOOK_S:g} s,"
        srun = [line for line in said.splitlines() if line.startswith("srun: error:")]
        if srun and code:
            error = srun[0].removeprefix("srun: error:").strip()
        return parse_look(said, asked_s=asked_s, answered_s=answered_s, error=error)

    # --- the probes -----------------------------------------------------------------------------

    async def _call(self) -> bool:
        """Have probes started where that can go well; tell whether any came."""
        for node, known in self._nodes.items():
            if not is_well(known.look):
                self._crew.reject(
                    Hello(node=node, name=known.name, host="", addresses=[], fault="its first look")
                )
        well = [node for node in self._nodes if node not in self._crew.unfit]
        if not well:
            return False
        self._tell(f"asking {len(well)} of them" if len(self._nodes) > 1 else "asking it")
        argv = [self._place.python, str(self._place.launcher), "doctor-probe"]
        await self._crew.start(argv, self._place.scratch, self._environ)
        await self._asking.await_probes(well, limit_s=JOIN_S)
        return bool(self._crew.agents)

    def _here(self) -> list[int]:
        return sorted(self._crew.agents)

    def _address(self, node: int) -> str:
        """Return where the others should reach a node."""
        agent = self._crew.agents[node]
        seen = agent.link.peer_address
        others = [address for address in agent.hello.addresses if address]
        return others[0] if seen.startswith("127.") and others else seen

    def _peers(self, node: int) -> list[int]:
        """Return the nodes that one tries to reach."""
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
        for node, said in (await self._asking.ask(questions, limit_s=ASK_S)).items():
            if said.error:
                self._asking.lost.setdefault(node, said.error)
                continue
            found = dict(said.found)
            gpus = [Gpu(**gpu) for gpu in found.pop("gpus")]
            granted = self._crew.agents[node].hello.gpus if node in self._crew.agents else 0
            self._note(
                node,
                facts=Facts(
                    **found,
                    gpus=gpus,
                    granted=granted,
                    skew_s=round(skews.get(node, 0.0), 4),
                    folder_late_s=late.get(node, 0.0),
                ),
            )

    async def _ask_clocks(self) -> dict[int, float]:
        """Return by how much clocks are ahead of ours: half-way between question and answer."""
        best: dict[int, tuple[float, float]] = {}
        for _ in range(_ASKED):
            asked_s = time.time()
            said = await self._asking.ask(self._all("clock"), limit_s=ASK_S)
            for node, answer in said.items():
                if not answer.error:
                    way_s = answer.at_s - asked_s
                    ahead_s = answer.found["now_s"] - (asked_s + answer.at_s) / 2
                    best[node] = min(best.get(node, (way_s, ahead_s)), (way_s, ahead_s))
        return {node: ahead_s for node, (_, ahead_s) in best.items()}

    async def _ask_file(self) -> dict[int, float]:
        """Return how late a file that we write is seen.

        Each node looks for it once before it is there: what is not there may be remembered too.
        """
        path, text = self._place.folder / "coherent", secrets.token_hex(8)
        about = {"path": str(path), "text": text, "limit_s": 0.0}
        await self._asking.ask(self._all("file", about), limit_s=ASK_S)
        write_atomic(path, text)
        said = await self._asking.ask(
            self._all("file", {**about, "limit_s": LATE_S}), limit_s=ASK_S
        )
        return {node: one.found["late_s"] for node, one in said.items() if not one.error}

    def _all(
        self, what: str, about: Mapping[str, Any] | None = None
    ) -> dict[int, tuple[str, Mapping[str, Any]]]:
        return {node: (what, about or {}) for node in self._here()}

    async def _try_ports(self) -> None:
        if len(self._here()) < 2:
            return
        self._tell("ports between nodes")
        questions: dict[int, tuple[str, Mapping[str, Any]]] = {}
        for node in self._here():
            own = [self._address(node), *self._crew.agents[node].hello.addresses]
            questions[node] = ("open", {"addresses": list(dict.fromkeys(own))})
        opened = await self._asking.ask(questions, limit_s=ASK_S)
        doors = {node: said.found["ports"] for node, said in opened.items() if not said.error}
        tries = {node: [peer for peer in self._peers(node) if peer in doors] for node in doors}
        names = {str(node): node for node in doors}
        asked: dict[int, tuple[str, Mapping[str, Any]]] = {
            node: ("reach", {"doors": {str(peer): doors[peer] for peer in peers}})
            for node, peers in tries.items()
        }
        for node, said in (await self._asking.ask(asked, limit_s=ASK_S)).items():
            if said.error:  # it is late, or gone: that says nothing of ports
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
        said = await self._asking.ask(self._all("torch", {"limit_s": TORCH_S}), limit_s=2 * TORCH_S)
        for node, answer in said.items():
            found: dict[str, Any] = dict(answer.found)
            self._note(
                node, torch=Torch(**found) if not answer.error else Torch(error=answer.error)
            )

    async def _reduce(self) -> None:
        able = [node for node in self._here() if self._can_reduce(node)]
        torches = {node: self._nodes[node].torch for node in able}
        devices = {node: torch.devices if torch else 0 for node, torch in torches.items()}
        with_gpus = bool(able) and all(devices.values())
        reducing = Reducing(
            self._asking,
            names={node: self._nodes[node].name for node in able},
            counts={node: devices[node] if with_gpus else 1 for node in able},
            backend="nccl" if with_gpus else "gloo",
            addresses=self._common_addresses,
        )
        await self._reduce_pairs(reducing, {self._nodes[node].name: node for node in able})
        # What would hold up the others is known by now; the figure is that of the rest.
        bad = {suspect.node for suspect in find_suspects(self._pairs) if suspect.what != "lagging"}
        left = [
            node
            for node in able
            if node not in self._asking.lost and self._nodes[node].name not in bad
        ]
        if len(left) > 2 or (with_gpus and sum(devices[node] for node in left) > 1):
            self._tell(f"all-reduce over {len(left)} node{'s' if len(left) > 1 else ''}")
            (self._overall,) = await reducing.measure([tuple(left)])
        elif len(left) == 2:
            names = tuple(self._nodes[node].name for node in left)
            own = [pair for pair in self._pairs if set(pair.nodes) == set(names)]
            self._overall = max(own, key=lambda pair: pair.bandwidth, default=None)

    async def _reduce_pairs(self, reducing: Reducing, able: Mapping[str, int]) -> None:
        rounds = plan_rounds(list(able)) if len(able) > 1 else []
        for number, pairs in enumerate(rounds, start=1):
            self._tell(f"all-reduce by pairs, round {number} of {len(rounds)}")
            self._pairs += await reducing.measure([(able[one], able[two]) for one, two in pairs])
        for again in range(_AGAIN):
            doubtful = [
                (able[one], able[two])
                for one, two in plan_confirmation(self._pairs, again)
                if not self._asking.lost.keys() & {able[one], able[two]}
            ]
            if doubtful:
                self._tell(f"all-reduce once more with {len(doubtful)} that stood out")
                self._pairs += await reducing.measure(doubtful)

    def _can_reduce(self, node: int) -> bool:
        known = self._nodes[node]
        cut_off = len(known.tried) > 0 and len(known.unreached) == len(known.tried)
        return known.torch is not None and not known.torch.error and not cut_off

    def _common_addresses(self, group: Sequence[int]) -> list[str]:
        """Return where the first of a group can be reached by the others, as far as we know."""
        first, *others = group
        if first not in self._crew.agents:
            return []  # lost since the last round
        known = [self._reached[node, first] for node in others if (node, first) in self._reached]
        every = [self._address(first), *self._crew.agents[first].hello.addresses]
        common = [address for address in every if all(address in found for found in known)]
        return list(dict.fromkeys(common))[:1] or every[:1]

    async def _compute(self) -> None:
        asked: dict[int, tuple[str, Mapping[str, Any]]] = {}
        for node in self._here():
            torch = self._nodes[node].torch
            if torch and torch.devices:
                order = {"what": "compute", "count": torch.devices, "limit_s": ASK_S}
                asked[node] = ("measure", order)
        if not asked:
            return
        self._tell("matrix products and copies on each GPU")
        for node, said in (await self._asking.ask(asked, limit_s=2 * ASK_S)).items():
            facts = self._nodes[node].facts
            if facts is not None and not said.error:
                self._note(node, facts=replace(facts, gpus=add_figures(facts.gpus, said)))


def look_step(job: str, host: str) -> list[str]:
    """Return the beginning of a command that runs on one node of a job, whatever else runs there.

    It starts in /: the folder that we are in may be what is missing.
    """
    return [
        *("srun", f"--jobid={job}", f"--nodelist={host}", "--nodes=1", "--ntasks=1"),
        *("--overlap", "--cpu-bind=none", "--mem=0", "--gres=none", "--no-kill", "--export=ALL"),
        *("--immediate=20", "--unbuffered", "--input=none", "--chdir=/"),
    ]


def is_well(look: Look) -> bool:
    """Tell whether a probe can be started where this was seen."""
    return not (look.error or look.python_error) and look.folder == "seen"


def choose_peers(nodes: Sequence[int], node: int) -> list[int]:
    """Return whom a node tries: all others, or of many the next one and the first."""
    if len(nodes) <= FEW:
        return [other for other in nodes if other != node]
    following = nodes[(nodes.index(node) + 1) % len(nodes)]
    return [other for other in dict.fromkeys([following, nodes[0]]) if other != node]


def add_figures(gpus: Sequence[Gpu], said: Said) -> list[Gpu]:
    """Return GPUs with what was measured on them; torch counts those that it may use."""
    figures = said.found.get("ranks", [])
    known = gpus if len(gpus) == len(figures) else [Gpu(index=i) for i in range(len(figures))]
    return [
        replace(
            gpu,
            name=gpu.name or figure.get("name", ""),
            tflops=figure.get("tflops", 0.0),
            memory_gbs=figure.get("memory_gbs", 0.0),
        )
        for gpu, figure in zip(known, figures, strict=True)
    ]
