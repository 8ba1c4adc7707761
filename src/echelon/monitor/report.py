"""The report on a run, finished or not: gathered from its directory, and rendered as text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from echelon.core.frozen import frozen
from echelon.core.units import parse_duration
from echelon.monitor.accounting import RUNNING, Accounts, account
from echelon.monitor.advice import LEAST_TRAINED_S, Facts, Finding, RankFigures, advise
from echelon.monitor.reading import RunReader
from echelon.monitor.state import RunState, headline, split_name
from echelon.run.directory import RunDir
from echelon.run.rank_time import (
    DATA_WAIT,
    PEER_WAIT,
    PRODUCTIVE,
    REDONE,
    STALL,
)
from echelon.run.request import read_spec
from echelon.run.series import Sample, read_series, summarise
from echelon.spec.job_spec import JobSpec

_MIB = 2**20
_TRAINING = (PRODUCTIVE, DATA_WAIT, STALL, PEER_WAIT, REDONE, RUNNING)
_WORTH_SAYING = 0.005
_MOST_RANKS = 16
"""Number of ranks that are listed."""
_MOST_WRONG = 12
"""Number of failures that are listed, the latest ones."""


@frozen
class Report:
    """The contents of a report."""

    state: RunState
    accounts: Accounts
    facts: Facts
    findings: list[Finding]

    @property
    def slot_hours(self) -> float:
        """The allocated time in GPU-hours, or rank-hours without GPUs."""
        return self.accounts.allocated_us / 3.6e9

    @property
    def cost(self) -> str:
        """The allocated time in words."""
        unit = "GPU" if self.accounts.gpus else "rank"
        if self.slot_hours < 1:
            return f"{3600 * self.slot_hours:,.0f} {unit}-seconds"
        return f"{self.slot_hours:,.1f} {unit}-hours"


def make_report(run: RunDir, *, most_nodes: int | None = None) -> Report:
    """Read a run directory; `most_nodes` limits how much telemetry is read."""
    state = RunReader(run).read()
    accounts = account(state)
    attempt = state.attempt.number if state.attempt else 0
    generations = state.attempt.generations if state.attempt else []
    number = generations[-1].number if generations else 0
    totals = {
        node: summarise(samples)
        for node in list(state.nodes)[:most_nodes]
        if (samples := of_generation(read_series(partial(run.telemetry, attempt, node)), number))
    }
    facts = gather(state, accounts, totals, read_spec(run))
    return Report(state=state, accounts=accounts, facts=facts, findings=advise(facts))


def of_generation(samples: Sequence[Sample], generation: int) -> list[Sample]:
    """Return the samples of the last generation; earlier ranks may have been on other nodes."""
    return [
        sample
        for sample in samples
        if any(
            name.endswith(".generation") and value == generation
            for name, value in sample.lasts.items()
        )
    ]


def gather(
    state: RunState, accounts: Accounts, totals: Mapping[int, Sample], spec: JobSpec
) -> Facts:
    """Return the facts that suggestions are based on. Pure.

    Args:
        state: the run.
        accounts: where its time went.
        totals: by node of the latest attempt, all samples summarised as one.
        spec: the request.
    """
    names = {number: node.name for number, node in state.nodes.items()}
    limit_s = parse_duration(spec.time) if spec.time else None
    asked = spec.cpus_per_task * spec.procs_per_node or spec.cpus_per_gpu * spec.gpus
    return Facts(
        seconds=accounts.seconds,
        trained_s=sum(accounts.seconds.get(name, 0.0) for name in _TRAINING)
        / max(1, len(state.ranks)),
        gpus=accounts.gpus,
        cluster=bool(state.attempt and state.attempt.job_id),
        wall_s=_wall(state),
        completed=state.phase == "COMPLETED",
        restarts=state.restarts,
        ranks=[
            figures
            for node, total in sorted(totals.items())
            for figures in rank_figures(total, names.get(node, ""))
        ],
        cpu_mean=_share_of_processors(totals.values(), asked),
        cpus_asked=asked,
        mem_peak=max((_ranks_memory(total) for total in totals.values()), default=0.0),
        mem_asked=float(spec.mem_mib * _MIB),
        limit_s=float(limit_s or 0.0),
        imports=[(one.import_s, one.import_waited_s) for one in state.nodes.values()],
        staged=spec.stage,
        throttled={names.get(node, str(node)): _throttled(total) for node, total in totals.items()},
    )


def _wall(state: RunState) -> float:
    """Return the duration of all jobs that have ended."""
    return sum(
        one.ended_s - one.began_s for one in state.attempts.values() if one.ended_s is not None
    )


def rank_figures(total: Sample, node: str) -> Iterable[RankFigures]:
    """Return the figures of the ranks in a sample."""
    for name in sorted(total.lasts):
        kind, rank, what = split_name(name)
        if kind != "rank" or what != "generation":
            continue
        owner = name.removesuffix(".generation")
        gpu = total.lasts.get(f"{owner}.gpu")
        yield RankFigures(
            rank=rank,
            node=node,
            speaks=f"{owner}.data" in total.means,
            data=total.means.get(f"{owner}.data", 0.0),
            comm=total.means.get(f"{owner}.comm", 0.0),
            gpu_util=total.means.get(f"gpu{int(gpu)}.util") if gpu is not None else None,
        )


def _share_of_processors(totals: Iterable[Sample], asked: int) -> float | None:
    """Return the share of requested CPUs that ranks kept busy, on the busiest node."""
    used = [sum(_of_ranks(total.means, "cpu")) for total in totals]
    return max(used) / asked if any(used) and asked else None


def _ranks_memory(total: Sample) -> float:
    """Return the peak memory of ranks and their loaders, including /dev/shm."""
    held = sum(_of_ranks(total.peaks, "mem_all"))
    return held + total.peaks.get("shm", 0.0) if held else 0.0


def _of_ranks(values: Mapping[str, float], what: str) -> Iterable[float]:
    return (
        value
        for name, value in values.items()
        if name.startswith("rank") and name.endswith(f".{what}")
    )


def _throttled(total: Sample) -> float:
    """Return the throttled share of the GPUs that ranks used."""
    had = {int(gpu) for gpu in _of_ranks(total.lasts, "gpu")}
    return max((total.means.get(f"gpu{gpu}.throttled", 0.0) for gpu in had), default=0.0)


def render_short(report: Report) -> str:
    """Return a summary for the end of a run, in a line or two; empty if nothing is known."""
    if not report.accounts.allocated_us:
        return ""
    lines = [f"{describe_training(report)}; details: echelon report {report.state.run_id}"]
    lines += [f"{one.seen}\nhint: {one.change}" for one in report.findings[:1]]
    return "\n".join(lines)


def describe_training(report: Report) -> str:
    """Return how much of the allocated time was training, if that is known."""
    accounts = report.accounts
    if accounts.effective is None:
        return f"ranks ran for {accounts.running:.0%} of {report.cost} and reported no steps"
    return f"{accounts.effective:.0%} of {report.cost} went into training"


def render(report: Report) -> str:
    """Return the report as text."""
    whole = report.accounts.allocated_us
    lines = [f"{report.state.run_id}: {report.state.phase}"]
    if report.state.code:
        lines.append(f"  code: {report.state.code}")
    if whole:
        lines.append(f"  {describe_training(report)}")
        spent = sorted(report.accounts.spent_us.items(), key=lambda item: -item[1])
        shares = [(name, us / whole) for name, us in spent if name != "queue"]
        told = [f"{name} {share:.0%}" for name, share in shares if share > _WORTH_SAYING]
        lines.append(f"  {', '.join(told)}")
    wrong = failures(report.state)
    if len(wrong) > _MOST_WRONG:
        lines.append(f"  {len(wrong) - _MOST_WRONG} earlier failures are not shown")
    lines += [f"  {text}" for text in wrong[-_MOST_WRONG:]]
    if used := [one for one in report.facts.ranks if one.gpu_util is not None]:
        told = [f"{one.rank}: {one.gpu_util:.0%}" for one in used[:_MOST_RANKS]]
        more = f", and {len(used) - _MOST_RANKS} more" if len(used) > _MOST_RANKS else ""
        lines.append(f"  GPU utilisation by rank: {', '.join(told)}{more}")
    for finding in report.findings:
        lines += [f"- {finding.seen}", f"  {finding.change}"]
    if whole and not report.findings:
        lines.append(f"  {no_findings(report)}")
    return "\n".join(lines)


def no_findings(report: Report) -> str:
    """Return why there are no suggestions."""
    if report.facts.trained_s < LEAST_TRAINED_S:
        return "no suggestions: the ranks ran for less than a minute"
    return "no suggestions"


def failures(state: RunState) -> list[str]:
    """Return one line per failure: why ranks were restarted, and why a job ended."""
    found = []
    for job in state.attempts.values():
        name = f"job {job.job_id}" if job.job_id else f"attempt {job.number}"
        # The last ranks of a job that ended were not restarted; its outcome says why they ended.
        ranks = job.generations[:-1] if job.outcome else job.generations
        found += [f"{name}, restarted: {one.why}" for one in ranks if one.why]
        if job is state.attempt:
            now = headline(state.verdict) if not job.outcome else job.why  # a hang of a running job
            found += [f"{'ended' if job.outcome else 'now'}: {now}"] if now else []
        elif not job.outcome:
            found.append(
                f"{name} exited without reporting an outcome; its controller or host probably died"
            )
        elif job.why:
            found.append(f"{name}, {job.outcome}: {job.why}")
    return found


def to_record(report: Report) -> dict[str, Any]:
    """Return the report for --json."""
    return {
        "run": report.state.run_id,
        "state": report.state.phase,
        "code": report.state.code,
        "effective": report.accounts.effective,
        "slot_hours": round(report.slot_hours, 4),
        "gpus": report.accounts.gpus,
        "seconds": report.accounts.seconds,
        "restarts": report.facts.restarts,
        "failures": failures(report.state),
        "ranks": [
            {
                "rank": one.rank,
                "node": one.node,
                "data": one.data,
                "comm": one.comm,
                "gpu_util": one.gpu_util,
            }
            for one in report.facts.ranks
        ],
        "findings": [asdict(one) for one in report.findings],
    }
