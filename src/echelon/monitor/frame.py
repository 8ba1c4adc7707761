"""Draw a run as lines of text that fit a terminal. Pure.

The most important lines come first, because those that do not fit are cut.
"""

import math
from collections.abc import Mapping, Sequence

from echelon.core.frozen import frozen
from echelon.core.terminal_escape import in_one_line
from echelon.core.units import counted, render_time
from echelon.monitor.advice import RankFigures, Straggler, find_straggler
from echelon.monitor.report import of_generation, rank_figures
from echelon.monitor.state import NodeState, RankState, RunState
from echelon.run.series import Sample, summarise

_BARS = "▁▂▃▄▅▆▇█"
_GIB = 2.0**30
_MOST_LOGS = 5
_RECENT = 10
"""Number of samples in which a straggler is looked for; the mean of fewer varies too much."""


@frozen
class View:
    """The data of a frame."""

    state: RunState
    history: Mapping[int, Sequence[Sample]]
    """By node."""
    effective: str = ""
    """Share of the time that went into training, as text."""
    logs: Sequence[str] = ()
    """The last lines of the ranks' output."""
    now_s: float = 0.0


def draw(view: View, *, width: int, height: int) -> list[str]:
    """Return the lines of a frame: at most `height` lines of at most `width` characters."""
    straggler = _find_straggler(view)
    lines = _head(view, width)
    lines += [f"straggler  {straggler.seen}"] if straggler else []
    lines += ["", *_nodes(view, width)]
    logs = [line for line in view.logs if line.strip()][-_MOST_LOGS:]
    room = height - len(lines) - (len(logs) + 1 if logs else 0) - 1
    first = straggler.rank.rank if straggler else -1
    lines += ["", *_ranks(view, width, max(3, room), first)]
    if logs:
        lines += ["", *logs]
    # Names and output are foreign text: escape them before cutting, not within an escape code.
    return [in_one_line(line)[:width].rstrip() for line in lines[:height]]


def _head(view: View, width: int) -> list[str]:
    state, attempt = view.state, view.state.attempt
    words = [state.run_id, state.phase]
    if attempt is not None:
        job = f" (job {attempt.job_id})" if attempt.job_id else ""
        words.append(f"attempt {attempt.number}{job}")
        if attempt.began_s and attempt.ended_s is None:
            words.append(render_time(view.now_s - attempt.began_s))
    words.append(counted(len(state.ranks), "rank"))
    if state.step >= 0:
        words.append(f"step {state.step:,}")
    lines = ["  ".join(words)]
    shown = [name for name in ("loss", "rate") if name in state.metrics]
    for name in shown[:2]:
        values = [value for _, value in state.metrics[name]]
        room = max(10, width - 30)
        lines.append(f"{name:<10} {values[-1]:>12.5g}  {sparkline(values, room)}")
    if view.effective:
        lines.append(f"effective  {view.effective}")
    if attempt is not None and (restarts := [one for one in attempt.generations if one.why]):
        lines.append(f"restarts   {len(restarts)}, last: {restarts[-1].why}")
    if state.said:
        lines.append(f"message    {state.said[-1][1]}")
    return lines


def _nodes(view: View, width: int) -> list[str]:
    head = f"{'node':<12} {'cpu':>5} {'memory':>13} {'net in':>8} {'net out':>8}  "
    rows = [head]
    for number, node in sorted(view.state.nodes.items()):
        if not node.here:
            rows.append(f"{node.name:<12} lost")
            continue
        loads = [sample.means.get("cpu", 0.0) for sample in view.history.get(number, ())]
        rows.append(_node(node) + sparkline(loads, max(5, width - len(head)), most=1.0))
    return rows


def _node(node: NodeState) -> str:
    told = node.numbers
    memory = f"{told.get('mem', 0) / _GIB:.1f}/{told.get('mem_size', 0) / _GIB:.0f}G"
    net = [f"{_bytes(told.get(name, 0.0)):>8}" for name in ("received", "sent")]
    return f"{node.name:<12} {told.get('cpu', 0.0):>5.0%} {memory:>13} {' '.join(net)}  "


def _find_straggler(view: View) -> Straggler | None:
    """Return the rank that the others waited for in the last seconds."""
    ranks, nodes = view.state.ranks, view.state.nodes
    generation = max((rank.generation for rank in ranks.values()), default=-1)
    found: list[RankFigures] = []
    for number, samples in view.history.items():
        recent = of_generation(list(samples)[-_RECENT:], generation)
        if recent and number in nodes:
            found += rank_figures(summarise(recent), nodes[number].name)
    return find_straggler([one for one in found if one.rank in ranks and ranks[one.rank].alive])


def _ranks(view: View, width: int, room: int, first: int) -> list[str]:
    ranks = sorted(view.state.ranks.values(), key=lambda rank: (*_trouble(rank, first), rank.rank))
    head = f"{'rank':>5} {'node':<10} {'step':>8} {'steps/s':>8} "
    head += f"{'data':>5} {'peers':>5} {'memory':>7}"
    if any(rank.numbers.get("gpu", -1) >= 0 for rank in ranks):
        head += f" {'gpu':>3} {'util':>5} {'memory':>8} {'power':>6}"
    shown = [_rank(rank, view.state.nodes) for rank in ranks[: room - 1]]
    if len(ranks) > room - 1:
        rest = f"… and {len(ranks) - room + 2} more"
        shown = [*shown[: room - 2], rest]
    return [head[:width], *shown]


def _trouble(rank: RankState, first: int) -> tuple[bool, bool, bool, float]:
    """Sort key: failed ranks first, then ended ones, then the straggler, then the slowest."""
    return not rank.failed, rank.alive, rank.rank != first, rank.numbers.get("steps", 0.0)


def _rank(rank: RankState, nodes: Mapping[int, NodeState]) -> str:
    told = rank.numbers
    node = nodes.get(rank.node)
    where = node.name if node else ""
    if rank.failed or not rank.alive:
        return f"{rank.rank:>5} {where:<10} {'failed' if rank.failed else 'ended':>8}"
    line = f"{rank.rank:>5} {where:<10} {_known(told.get('step'), ',.0f'):>8} "
    line += f"{_known(told.get('steps'), '.2f'):>8} {_known(told.get('data'), '.0%'):>5} "
    line += f"{_known(told.get('comm'), '.0%'):>5} {told.get('mem', 0.0) / _GIB:>6.1f}G"
    if node and (gpu := node.gpus.get(int(told.get("gpu", -1)))):
        memory = f"{gpu.get('mem', 0) / _GIB:.0f}/{gpu.get('mem_size', 0) / _GIB:.0f}G"
        line += f" {int(told['gpu']):>3} {gpu.get('util', 0.0):>5.0%} {memory:>8}"
        line += f" {gpu.get('power', 0.0):>4.0f} W"
    return line


def _known(value: float | None, form: str) -> str:
    """Format a number; a dash if the rank does not report it."""
    return "-" if value is None else format(value, form)


def sparkline(values: Sequence[float], room: int, *, most: float | None = None) -> str:
    """Return numbers as small bars, the newest at the right; with `most`, the scale starts at 0."""
    fits = thin([value for value in values if math.isfinite(value)], room)
    if not fits:
        return ""
    low = 0.0 if most is not None else min(fits)
    high = most if most is not None else max(fits)
    if high <= low:
        return _BARS[0] * len(fits)
    scale = (len(_BARS) - 1) / (high - low)
    return "".join(_BARS[round((min(max(one, low), high) - low) * scale)] for one in fits)


def thin(values: Sequence[float], room: int) -> list[float]:
    """Return at most `room` values, each the mean of those that it replaces."""
    if len(values) <= room:
        return list(values)
    edges = [len(values) * place // room for place in range(room + 1)]
    parts = [values[edges[place] : edges[place + 1]] for place in range(room)]
    return [sum(part) / len(part) for part in parts]


def _bytes(rate: float) -> str:
    for unit in ("B", "K", "M", "G"):
        if rate < 1000:
            return f"{rate:.0f}{unit}/s"
        rate /= 1000
    return f"{rate:.0f}T/s"
