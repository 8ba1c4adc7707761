"""A sequence of random faults, and the share of the time that was productive training."""

import itertools
import json
import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass

from soaking.ground import say
from soaking.ranks import last_step, living_ranks
from soaking.sides import SAMPLES, EchelonSide, PeerSide

from echelon.core.waiting import wait_until
from slurm.survival import check_samples

SHARES = {"rank": 60, "agent": 10, "zygote": 10, "node": 8, "cable": 6, "preemption": 6}
AWAY_S = 20.0
"""How long a node is off or disconnected."""
HIGH_S = 10
"""Duration of the preempting job."""
RETRY_S = 10.0
"""How long a fault waits for a process that it can hit."""


@dataclass(frozen=True)
class Fault:
    at_s: float
    """Time after the first step."""
    kind: str
    draw: float
    """Selects the target: 0 is the first, 1 is just past the last."""


def plan_storm(seed, minutes, every_s, *, ranks_alone):
    """Return the faults of a storm, the same for both sides."""
    chance, faults = random.Random(seed), []  # noqa: S311  not a secret
    for number in range(int(60 * minutes / every_s)):
        kind = chance.choices(list(SHARES), weights=list(SHARES.values()))[0]
        at_s = (number + chance.random()) * every_s  # not synchronized with checkpoints
        faults.append(Fault(at_s, "rank" if ranks_alone else kind, chance.random()))
    return faults


def soak_storm(here, asked, report):
    """Expose Echelon, and optionally its peer, to the same storm."""
    plan = plan_storm(asked.seed, asked.minutes, asked.every, ranks_alone=asked.faults == "ranks")
    sides = [EchelonSide, PeerSide]
    for side in [one for one in sides if asked.sides in (one.name, "both")]:
        figures = report.figures[side.name] = {}
        with report.trial(side.name):
            step_s = _calibrate(here, side, asked)
            standing = side(here, f"storm-{side.name}", asked)
            try:
                figures |= _stand(here, standing, plan, step_s, asked)
            finally:
                figures |= standing.stop()
            if side is EchelonSide:
                steps = standing.halted_at()
                # Later steps are lost, and would have been repeated.
                counted = [record for record in standing.chain.records() if record[1] <= steps]
                check_samples(counted, steps, samples=SAMPLES)
                figures["samples exact"] = True
        with report.trial(f"all at rest after {side.name}"):
            here.calm()
    limit = 97 if asked.faults == "ranks" else 92
    if ours := report.figures.get("echelon"):
        told = ours.get("by its own accounting")
        report.goals = {
            "effective training time, percent": (ours.get("effective_percent"), "≥", limit),
            "by the accounting of slots, percent": (told and round(100 * told, 2), "≥", limit),
        }


def _calibrate(here, side, asked):
    """Return the median seconds per step without faults."""
    say(f"{side.name}: {asked.calibrate_s:g} s undisturbed")
    calm = side(here, f"calm-{side.name}", asked)
    try:
        _await_steps(calm, 180)
        time.sleep(asked.calibrate_s)
        times = [at_s for at_s, _, step, _ in _records(calm.folder / "consumed-0") if step > 10]
    finally:
        calm.stop()
        here.calm()
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    return statistics.median(gaps)


def _await_steps(side, timeout_s):
    stepping = wait_until(lambda: last_step(side.folder)[1] > 0, timeout_s=timeout_s, interval_s=1)
    assert stepping, f"{side.name} took no step in {timeout_s} s"


def _stand(here, side, plan, step_s, asked):
    """Run one side through the storm, and return the share of productive time."""
    _await_steps(side, 180)
    ranks = len(living_ranks(side.folder))
    began_s = min(record[0] for record in _records(side.folder / "consumed-0"))
    said, hit, mending = [], Counter(), []
    waiting, over_s = list(plan), began_s + 60 * asked.minutes
    while (now_s := time.time()) < over_s:
        side.tend()
        if mending and mending[0][0] <= now_s:
            here.cause("restore", mending.pop(0)[1])
        elif waiting and now_s >= began_s + waiting[0].at_s:
            fault = waiting.pop(0)
            node = _strike(here, side, fault)
            hit[fault.kind if node else f"{fault.kind}, nobody there"] += 1
            if node and fault.kind in ("node", "cable"):
                mending.append((time.time() + AWAY_S, node))
            said.append(f"{now_s - began_s:.0f} s: {fault.kind} {node or '-'}")
            say(f"{side.name}: {said[-1]}, step {last_step(side.folder)[1]}")
        else:
            time.sleep(0.5)
    return {
        **_measure(side.folder, began_s, over_s, step_s, asked),
        "ranks at the start and at the end": [ranks, len(living_ranks(side.folder))],
        "faults": dict(hit),
        "when": said,
    }


def _strike(here, side, fault):
    """Inject a fault; return the node that it hit, or None if there was no target."""
    until_s = time.time() + RETRY_S
    while time.time() < until_s:
        if (node := _try_strike(here, side, fault)) is not None:
            return node
        time.sleep(0.5)
    return None


def _try_strike(here, side, fault):
    if fault.kind == "rank":
        return side.kill_rank(fault.draw)
    if fault.kind in ("agent", "zygote"):
        return side.kill_program(fault.kind, fault.draw)
    up = {name for name, node in here.cluster.nodes().items() if node.running and not node.cut}
    hosts = [host for host in side.hosts() if host in up]
    if not hosts:
        return None
    if fault.kind == "preemption":
        here.preempt("high", hosts, HIGH_S)
        return ",".join(hosts)
    node = hosts[int(fault.draw * len(hosts))]
    here.cause("kill" if fault.kind == "node" else "cut", node)
    return node


def _measure(folder, began_s, over_s, step_s, asked):
    """Return the share of productive time, from the steps that remained in the end."""
    size, reached = Counter(), {}
    for path in folder.glob("consumed-*"):
        for at_s, turn, step, _ in _records(path):
            size[turn, step] += 1
            if at_s + step_s <= over_s:
                reached[step] = max(reached.get(step, (0.0, "")), (at_s, turn))
    wall_s = over_s - began_s
    full = int(asked.nodes.rpartition(":")[2])
    work = sum(size[turn, step] for step, (_, turn) in reached.items())
    return {
        "effective_percent": round(100 * len(reached) * step_s / wall_s, 2),
        "effective_percent, a smaller world counting for less": round(
            100 * work * step_s / (full * wall_s), 2
        ),
        "steps": len(reached),
        "steps taken, with those taken again": len(size),
        "undisturbed step, s": round(step_s, 4),
        "wall, s": round(wall_s, 1),
    }


def _records(path):
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue  # the writer was killed in the middle of this line
