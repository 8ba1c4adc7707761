"""What a run's figures say about how it was asked for, each with what to change. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from echelon.core.progressbar import render_time
from echelon.core.units import format_memory
from echelon.launch.protocol.time_accounting import (
    DATA_WAIT,
    IDLE,
    PRODUCTIVE,
    REDONE,
    RESTART,
    STALL,
    WARM_UP,
)
from echelon.monitor.accounting import LAUNCH

_NOTABLE = 0.05
"""A share of the time that is worth a sentence."""
_BUSY = 0.6
"""A GPU that is used less could be used more."""
_COMMON = 0.25
"""More than this for exchanging gradients is much."""
_SPARE = 0.5
"""Who asks for more than twice of what is used could ask for less."""
_LEAST_S = 300.0
"""Of a run that was shorter nothing is said about what it asked for."""
_MIB = 2.0**20


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFigures:
    """A rank's means over the run."""

    rank: int
    node: str
    speaks: bool = True
    """Whether it says what it waits for: it trains with the library."""
    data: float = 0.0
    """Share of its time that it waited for data."""
    comm: float = 0.0
    """Share that it waited for other ranks."""
    gpu_util: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a run."""

    seconds: Mapping[str, float]
    """Slot-seconds by purpose: see accounting.py."""
    gpus: bool = False
    """Whether slots are GPUs."""
    cluster: bool = True
    """Whether nodes were a cluster's: on one's own machine none can be left out."""
    wall_s: float = 0.0
    """From its start to its end, jobs alone."""
    completed: bool = True
    """Whether it did all that it was for: else nobody knows how much it would have needed."""
    restarts: int = 0
    ranks: Sequence[RankFigures] = ()
    mem_peak: float = 0.0
    """The most memory that a node's ranks had together, in bytes."""
    mem_asked: float = 0.0
    """Per node, in bytes; 0 when not asked for."""
    cpu_mean: float | None = None
    """Of the processors that were asked for, how many were busy on average, as a share."""
    cpus_asked: int = 0
    """Per node; 0 when not asked for."""
    limit_s: float = 0.0
    """The jobs' time limit; 0 for none."""
    throttled: Mapping[str, float] = field(default_factory=dict)
    """By node: share of the time in which one of its GPUs ran slower than it could."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One sentence of what was seen, and one of what to change."""

    code: str
    seen: str
    change: str


def advise(facts: Facts) -> list[Finding]:
    """Return what to change, what matters most first."""
    return [*_lost_time(facts), *_uses(facts), *_asks(facts)]


def _lost_time(facts: Facts) -> Iterator[Finding]:
    whole = sum(value for name, value in facts.seconds.items() if name != "queue")
    who = "GPUs" if facts.gpus else "ranks"
    if whole <= 0:
        return
    shares = {name: value / whole for name, value in facts.seconds.items() if name != "queue"}
    for name, share in sorted(shares.items(), key=lambda item: -item[1]):
        if name == PRODUCTIVE or share < _NOTABLE:
            continue
        if name in (LAUNCH, WARM_UP) and facts.wall_s < _LEAST_S:
            continue  # of a short run it is no wonder
        seen, change = _SENTENCES.get(name, ("", ""))
        if seen:
            yield Finding(
                code=name.replace(" ", "-"),
                seen=seen.format(
                    who=who, share=f"{share:.0%}", restarts=_count(facts.restarts, "restart")
                ),
                change=change,
            )


_SENTENCES = {
    DATA_WAIT: (
        "{who} waited for data {share} of the time",
        "give the loaders more processors (--cpus-per-gpu 8), or pack the data set (echelon pack)",
    ),
    STALL: (
        "checkpoints held {who} up {share} of the time",
        "save less often (Trainer(save_every=…)), or where writing is faster (checkpoints=…)",
    ),
    REDONE: (
        "{share} of the work was done again after {restarts}",
        "save more often (Trainer(save_every=…)): a checkpoint costs milliseconds",
    ),
    RESTART: (
        "{restarts} took {share} of the time",
        "see why ranks died: echelon why",
    ),
    LAUNCH: (
        "starting took {share} of the time",
        "use longer jobs (--time), or name what your script imports: --set preload=torch,…",
    ),
    WARM_UP: (
        "preparing to train took {share} of the time, before the first step",
        "look at what the script does between echelon.init() and fit(): it is done at every start",
    ),
    IDLE: (
        "{who} had nothing to do {share} of the time",
        "see when nodes were lost or ranks ended early: echelon status, echelon why",
    ),
}


def _uses(facts: Facts) -> Iterator[Finding]:
    throttled = {node: share for node, share in facts.throttled.items() if share > _NOTABLE}
    slow = _find_starved(facts.ranks)
    behind = None if slow else _find_slow(facts.ranks)
    accused = {*throttled, *(rank.node for rank in (slow, behind) if rank)}
    all_nodes = {*facts.throttled, *(rank.node for rank in facts.ranks)}
    can_exclude = facts.cluster and accused < all_nodes  # somewhere it has to run
    if slow:
        usual = _median([rank.data for rank in facts.ranks])
        yield Finding(
            code="straggler",
            seen=f"rank {slow.rank} on {slow.node} waited for data {slow.data:.0%} of its time, "
            f"the others {usual:.0%}: all ranks wait for it",
            change="look at that node's disk and load" + _or_exclude(slow.node, can=can_exclude),
        )
    elif behind:
        usual = _median([rank.comm for rank in facts.ranks])
        yield Finding(
            code="straggler",
            seen=f"rank {behind.rank} on {behind.node} is slower than the others, which waited for "
            f"it {usual - behind.comm:.0%} of their time",
            change="see what else runs on that node" + _or_exclude(behind.node, can=can_exclude),
        )
    elif (share := _median([rank.comm for rank in facts.ranks])) > _COMMON:
        yield Finding(
            code="communication-bound",
            seen=f"ranks waited for each other's gradients {share:.0%} of the time",
            change="use larger batches or fewer nodes, so that each step computes more",
        )
    used = [rank.gpu_util for rank in facts.ranks if rank.gpu_util is not None]
    waits = _median([rank.data for rank in facts.ranks])
    if used and _median(used) < _BUSY and not any(rank.speaks for rank in facts.ranks):
        yield Finding(
            code="little-used",
            seen=f"GPUs were busy {_median(used):.0%} of the time",
            change="see what ranks do meanwhile (py-spy dump); mostly they wait for data: more "
            "workers of the loader, and --cpus-per-gpu for them",
        )
    elif used and _median(used) < _BUSY and waits < _NOTABLE:
        yield Finding(
            code="launch-bound",
            seen=f"GPUs were busy {_median(used):.0%} of the time, and hardly waited for data",
            change='let whole steps be captured (Trainer(capture="always")), or use a larger batch',
        )
    for node, share in sorted(throttled.items()):
        staff = "tell the cluster's staff" + _or_exclude(node, can=can_exclude)
        yield Finding(
            code="throttled",
            seen=f"GPUs of {node} ran slower than they could {share:.0%} of the time",
            change=staff
            if facts.cluster
            else "see whether they are too hot or short of power: nvidia-smi -q -d PERFORMANCE",
        )


def _or_exclude(node: str, *, can: bool) -> str:
    return f", or leave it out: --exclude {node}" if can else ""


def _find_starved(ranks: Sequence[RankFigures]) -> RankFigures | None:
    """Return a rank that waits for data much more than the others do."""
    if len(ranks) < 2:
        return None
    worst = max(ranks, key=lambda rank: rank.data)
    usual = _median([rank.data for rank in ranks])
    return worst if worst.data > usual + 2 * _NOTABLE else None


def _find_slow(ranks: Sequence[RankFigures]) -> RankFigures | None:
    """Return a rank for which the others wait, and which itself waits much less."""
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
            seen=f"ranks used {_gib(facts.mem_peak)} of the {_gib(facts.mem_asked)} of a node's "
            "memory that were asked for",
            change=f"ask for less, and start sooner: --mem {enough}",
        )
    if facts.cpus_asked and facts.cpu_mean is not None and facts.cpu_mean < _SPARE / 2:
        enough_cpus = max(1, round(2 * facts.cpu_mean * facts.cpus_asked))
        yield Finding(
            code="processors",
            seen=f"{facts.cpu_mean:.0%} of {facts.cpus_asked} processors of a node were busy",
            change=f"ask for fewer, and start sooner: --cpus-per-task or --cpus-per-gpu, so that "
            f"a node has {enough_cpus}",
        )
    if 0 < facts.wall_s < _SPARE * facts.limit_s:
        yield Finding(
            code="time",
            seen=f"it took {render_time(facts.wall_s)} of {render_time(facts.limit_s)}",
            change=f"a shorter limit starts sooner: --time {round(1.3 * facts.wall_s / 60)}m",
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _round_up(mib: float) -> int:
    """Return whole gibibytes, where it is more than one."""
    return int(-(-mib // 1024) * 1024) if mib > 1024 else max(1, int(mib))


def _gib(amount: float) -> str:
    return f"{amount / 2**30:.1f} GiB"


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0
