"""Suggestions for a run: what was measured, and what to change. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from echelon.core.frozen import frozen
from echelon.core.units import counted, format_memory, render_time
from echelon.monitor.accounting import LAUNCH
from echelon.run.rank_time import (
    DATA_WAIT,
    IDLE,
    PEER_WAIT,
    PRODUCTIVE,
    REDONE,
    RESTART,
    STALL,
    WARM_UP,
)

_NOTABLE = 0.05
"""Smallest share of the time that is worth mentioning."""
_BUSY = 0.6
"""GPU utilisation below which there is something to gain."""
_UNUSED = 0.01
"""GPU utilisation below which the training does not use the GPU."""
_COMMON = 0.25
"""Share of the time for exchanging gradients above which it is a lot."""
_SPARE = 0.5
"""Largest share of a request that is used before a smaller request is suggested."""
LEAST_TRAINED_S = 60.0
"""Training time below which nothing is suggested: start-up effects dominate."""
_LEAST_S = 300.0
"""Duration of a run below which its request, and the time to start, are not judged."""
_LEAST_WAITED_S = 5.0
"""Time that imports waited for storage from which on a copy on the node's own disk pays."""
_MIB = 2.0**20


@frozen
class RankFigures:
    """A rank's mean values over the run."""

    rank: int
    node: str
    speaks: bool = True
    """Whether it reports what it waits for, because it uses the library."""
    data: float = 0.0
    """Share of its time spent waiting for data."""
    comm: float = 0.0
    """Share of its time spent waiting for other ranks."""
    gpu_util: float | None = None


@frozen
class Facts:
    """What is known about a run."""

    seconds: Mapping[str, float]
    """Slot-seconds by purpose: see accounting.py."""
    trained_s: float
    """Training time of a rank, without start-up and restarts."""
    gpus: bool = False
    """Whether slots are GPUs."""
    cluster: bool = True
    """Whether the nodes belong to a cluster; on one's own machine none can be excluded."""
    wall_s: float = 0.0
    """Duration of all jobs that have ended, without the queue."""
    completed: bool = True
    """Whether the run completed; otherwise its total needs are unknown."""
    restarts: int = 0
    ranks: Sequence[RankFigures] = ()
    mem_peak: float = 0.0
    """Largest memory of a node's ranks together, in bytes."""
    mem_asked: float = 0.0
    """Requested per node, in bytes; 0 if not requested."""
    cpu_mean: float | None = None
    """Mean share of the requested CPUs that were busy."""
    cpus_asked: int = 0
    """Requested per node; 0 if not requested."""
    limit_s: float = 0.0
    """Time limit of the jobs; 0 for none."""
    imports: Sequence[tuple[float, float]] = ()
    """For each node: seconds to import the ranks' modules, and how many of them it waited."""
    staged: bool = False
    """Whether the environment was on the nodes' own disks."""
    throttled: Mapping[str, float] = field(default_factory=dict)
    """By node: share of the time in which one of its GPUs was throttled."""


@frozen
class Finding:
    """What was measured, and what to change."""

    code: str
    seen: str
    change: str


def advise(facts: Facts) -> list[Finding]:
    """Return suggestions, the most important first.

    For a run that is too short to judge, they are about its start alone.
    """
    if facts.trained_s < LEAST_TRAINED_S:
        return [*_start(facts)]
    return [*_lost_time(facts), *_uses(facts), *_start(facts), *_asks(facts)]


def _start(facts: Facts) -> Iterator[Finding]:
    """Judge how long nodes waited for storage before ranks could start."""
    took_s, waited_s = max(facts.imports, key=lambda one: one[1], default=(0.0, 0.0))
    if waited_s >= _LEAST_WAITED_S and not facts.staged:
        where = f"the slowest of {len(facts.imports)} nodes" if len(facts.imports) > 1 else "a node"
        yield Finding(
            code="stage",
            seen=f"importing modules took {took_s:.0f} s on {where}, which waited {waited_s:.0f} s "
            "of that for storage",
            change="copy the environment to the nodes' own disks; later jobs find it there: "
            "--stage",
        )


def _lost_time(facts: Facts) -> Iterator[Finding]:
    who = "GPUs" if facts.gpus else "ranks"
    shares = {name: share for name, share in _shares(facts).items() if share >= _NOTABLE}
    for name, share in sorted(shares.items(), key=lambda item: -item[1]):
        if name in (LAUNCH, WARM_UP) and facts.wall_s < _LEAST_S:
            continue  # a large share of a short run
        if seen := _SEEN.get(name):
            restarts = counted(facts.restarts, "restart")
            yield Finding(
                code=name.replace(" ", "-"),
                seen=seen.format(who=who, share=f"{share:.0%}", restarts=restarts),
                change=_change(name, facts, shares),
            )


def _shares(facts: Facts) -> dict[str, float]:
    """Return the share of each purpose in the allocated time."""
    spent = {name: value for name, value in facts.seconds.items() if name != "queue"}
    whole = sum(spent.values())
    return {name: value / whole for name, value in spent.items()} if whole > 0 else {}


_SEEN = {
    DATA_WAIT: "{who} waited for data {share} of the time",
    STALL: "{who} waited for checkpoints {share} of the time",
    REDONE: "{share} of the time went into repeating work after {restarts}",
    RESTART: "{restarts} took {share} of the time",
    LAUNCH: "starting the ranks took {share} of the time",
    WARM_UP: "set-up before the first step took {share} of the time",
    IDLE: "{who} were idle {share} of the time",
}
_CHANGES = {
    STALL: "save less often (Trainer(save_every=…)), or to faster storage (checkpoints=…)",
    REDONE: "save more often (Trainer(save_every=…))",
    RESTART: "fix what made ranks fail; echelon report lists the failures",
    LAUNCH: "use longer jobs (--time), or preload what your script imports: --preload torch,…",
    WARM_UP: "shorten what the script does between echelon.init() and fit(); each start repeats it",
    IDLE: "check for lost nodes and ranks that ended early; echelon report lists them",
}


def _change(name: str, facts: Facts, shares: Mapping[str, float]) -> str:
    if name == DATA_WAIT and facts.cpu_mean is not None and facts.cpu_mean < _SPARE:
        # More CPUs do not help where the present ones are idle.
        return "use more DataLoader workers, or pack the data set (echelon pack)"
    if name == DATA_WAIT:
        flag = "--cpus-per-gpu" if facts.gpus else "--cpus-per-task"
        return f"request more CPUs for the loaders ({flag}), or pack the data set (echelon pack)"
    if name == STALL and REDONE in shares:
        return "save to faster storage (checkpoints=…)"  # saving less often would repeat more work
    return _CHANGES[name]


def _uses(facts: Facts) -> Iterator[Finding]:
    throttled = {node: share for node, share in facts.throttled.items() if share > _NOTABLE}
    straggler = find_straggler(facts.ranks)
    accused = {*throttled, *([straggler.rank.node] if straggler else [])}
    all_nodes = {*facts.throttled, *(rank.node for rank in facts.ranks)}
    can_exclude = facts.cluster and accused < all_nodes  # some nodes must remain
    comm = max(_shares(facts).get(PEER_WAIT, 0.0), _median([rank.comm for rank in facts.ranks]))
    if straggler:
        yield Finding(
            code="straggler",
            seen=straggler.seen,
            change=straggler.check + _or_exclude(straggler.rank.node, can=can_exclude),
        )
    elif comm > _COMMON:
        yield Finding(
            code="communication-bound",
            seen=f"ranks waited for each other's gradients {comm:.0%} of the time",
            change="use larger batches or fewer nodes, so that each step computes more",
        )
    else:
        yield from _gpu_use(facts)
    for node, share in sorted(throttled.items()):
        staff = "tell the cluster's administrators" + _or_exclude(node, can=can_exclude)
        yield Finding(
            code="throttled",
            seen=f"GPUs of {node} were throttled {share:.0%} of the time",
            change=staff
            if facts.cluster
            else "check temperature and power: nvidia-smi -q -d PERFORMANCE",
        )


def _gpu_use(facts: Facts) -> Iterator[Finding]:
    """Judge GPU utilisation that waiting ranks do not explain."""
    used = _median([rank.gpu_util for rank in facts.ranks if rank.gpu_util is not None] or [1.0])
    seen = f"GPUs were busy {used:.0%} of the time"
    # Ranks without the library do not report when training starts, so that a longer run is needed.
    speaks = any(rank.speaks for rank in facts.ranks)
    if not speaks and max(facts.wall_s, facts.trained_s) < _LEAST_S:
        return
    if used < _UNUSED:
        yield Finding(
            code="unused",
            seen=seen,
            change="check that the script moves the model and data to the GPU, or request no GPUs",
        )
    elif not speaks and used < _BUSY:
        yield Finding(
            code="little-used",
            seen=seen,
            change="profile a rank to see what it waits for (py-spy top --pid PID)",
        )
    elif used < _BUSY * _shares(facts).get(PRODUCTIVE, 1.0) and (
        _median([rank.data for rank in facts.ranks]) < _NOTABLE
    ):
        yield Finding(
            code="launch-bound",
            seen=f"{seen}, although they hardly waited for data",
            change='capture whole steps (Trainer(capture="always")), or use a larger batch',
        )


def _or_exclude(node: str, *, can: bool) -> str:
    return f", or exclude it: --exclude {node}" if can else ""


@frozen
class Straggler:
    """A rank that all others wait for."""

    rank: RankFigures
    seen: str
    """What was measured."""
    check: str
    """What to look at."""


def find_straggler(ranks: Sequence[RankFigures]) -> Straggler | None:
    """Return the rank that the others wait for, if there is one."""
    if slow := _find_starved(ranks):
        usual = _median([rank.data for rank in ranks])
        return Straggler(
            rank=slow,
            seen=f"rank {slow.rank} on {slow.node} waited for data {slow.data:.0%} of its time, "
            f"the others {usual:.0%}; all ranks wait for it",
            check="check that node's disk and load",
        )
    if behind := _find_slow(ranks):
        waited = _median([rank.comm for rank in ranks]) - behind.comm
        return Straggler(
            rank=behind,
            seen=f"rank {behind.rank} on {behind.node} is slower than the others, which waited for "
            f"it {waited:.0%} of their time",
            check="check what else runs on that node",
        )
    return None


def _find_starved(ranks: Sequence[RankFigures]) -> RankFigures | None:
    """Return a rank that waits for data much longer than the others."""
    if len(ranks) < 2:
        return None
    worst = max(ranks, key=lambda rank: rank.data)
    usual = _median([rank.data for rank in ranks])
    return worst if worst.data > usual + 2 * _NOTABLE else None


def _find_slow(ranks: Sequence[RankFigures]) -> RankFigures | None:
    """Return a rank that the others wait for, because it waits much less itself."""
    if len(ranks) < 2:
        return None
    least = min(ranks, key=lambda rank: rank.comm)
    usual = _median([rank.comm for rank in ranks])
    return least if usual > least.comm + 2 * _NOTABLE else None


def _asks(facts: Facts) -> Iterator[Finding]:
    if facts.wall_s < _LEAST_S or not facts.completed:
        return
    if 0 < facts.mem_peak < _SPARE * facts.mem_asked:
        enough = format_memory(_round_up(1.25 * facts.mem_peak / _MIB))
        yield Finding(
            code="memory",
            seen=f"ranks used at most {_gib(facts.mem_peak)} of the {_gib(facts.mem_asked)} "
            "requested per node",
            change=f"request less memory, so that jobs start sooner: --mem {enough}",
        )
    waits = _shares(facts).get(DATA_WAIT, 0.0) >= _NOTABLE  # loaders may need the CPUs
    if (
        facts.cpus_asked
        and facts.cpu_mean is not None
        and facts.cpu_mean < _SPARE / 2
        and not waits
    ):
        enough_cpus = max(1, round(2 * facts.cpu_mean * facts.cpus_asked))
        yield Finding(
            code="processors",
            seen=f"{facts.cpu_mean:.0%} of the {facts.cpus_asked} CPUs per node were busy",
            change=f"request about {enough_cpus} CPUs per node, so that jobs start sooner "
            "(--cpus-per-task or --cpus-per-gpu)",
        )
    if 0 < facts.wall_s < _SPARE * facts.limit_s:
        yield Finding(
            code="time",
            seen=f"the run took {render_time(facts.wall_s)} of its limit of "
            f"{render_time(facts.limit_s)}",
            change="request less time, so that jobs start sooner: "
            f"--time {round(1.3 * facts.wall_s / 60)}m",
        )


def _round_up(mib: float) -> int:
    """Round up to whole gibibytes, above one."""
    return int(-(-mib // 1024) * 1024) if mib > 1024 else max(1, int(mib))


def _gib(amount: float) -> str:
    return f"{amount / 2**30:.1f} GiB"


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0
