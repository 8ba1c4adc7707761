"""Why a run ended: the first failure across all nodes, told apart from those that it caused. Pure.

When a rank dies its peers die of the broken connection, often within milliseconds and each with a
traceback of its own. What a rank says of itself decides whether it is the cause or a victim; among
causes, the one that reached the controller first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from echelon.core.nodes import compress
from echelon.core.records import MOST_RANKS, to_count

CAUSES = {
    "exception": "a Python exception",
    "import error": "an import that failed",
    "bad arguments": "arguments that the script refused",
    "exit": "an exit code other than 0",
    "cuda out of memory": "the GPU's memory was full",
    "gpu fault": "a GPU or a link between GPUs that is broken",
    "out of memory": "the node's or the job's memory was full",
    "signal": "killed by a signal",
    "port taken": "a port that somebody else had",
    "collective time-out": "a collective that not all ranks joined in time",
    "lost peer": "a connection to another rank broke, and no rank says why",
    "disk full": "no space left on a disk, or no quota",
    "hang": "ranks that made no progress",
    "lost node": "a node that was lost",
    "time limit": "the time limit of the job",
    "preemption": "another job took the nodes",
    "maintenance": "a node that was taken out of service",
    "cancelled": "somebody cancelled it",
    "superseded": "another attempt of the run has begun",
    "start": "ranks that could not be started",
    "ended": "ended because another rank had failed",
}
"""Every cause, and what it means."""


OUR_PAUSE = "while this controller was stopped"
"""In the message of a node that was lost by our own doing."""

VICTIMS = ("lost peer", "collective time-out", "ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One thing that went wrong: of a rank, or of a node."""

    cause: str
    message: str
    rank: int | None = None
    node: str = ""
    step: int | None = None
    exit_code: int = 1
    """What a shell would see: 128 + the number of a signal."""
    error_type: str = ""
    traceback: str = ""
    log: str = ""
    """The rank's log, seen from the run's directory."""
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Why a run ended."""

    failure: Failure
    victims: tuple[Failure, ...] = ()
    not_retried: str = ""
    """Why it was not tried again."""
    advice: str = ""
    stacks: Mapping[str, str] = field(default_factory=dict)
    """Of a hang: each rank's."""


# --- judging ----------------------------------------------------------------------------------


def is_victim(failure: Failure) -> bool:
    """Tell whether a failure is of the kind that another rank's death causes."""
    return failure.cause in VICTIMS


def judge(failures: Sequence[Failure], *, not_retried: str = "") -> Verdict:
    """Return the verdict on a generation's failures, which come in the order of their arrival."""
    assert failures, "without a failure there is nothing to judge"
    first = next((f for f in failures if not is_victim(f)), None) or _find_absent(failures)
    victims = tuple(
        f for f in failures if f is not first and (f.rank is None or f.rank != first.rank)
    )
    return Verdict(failure=first, victims=victims, not_retried=not_retried, advice=advise(first))


def _find_absent(victims: Sequence[Failure]) -> Failure:
    """Return what to say where there are victims alone: who kept them waiting, if it can be told.

    That is the one which was still running when all others had given up, and had to be ended.
    """
    first, absent = victims[0], [failure for failure in victims if failure.cause == "ended"]
    if len(absent) != 1 or first is absent[0]:
        return first
    gave_up = f"it alone was still running when rank {first.rank} had given up: {first.message}"
    return replace(absent[0], cause=first.cause, message=gave_up, exit_code=first.exit_code)


def advise(failure: Failure) -> str:
    """Return what to do about a failure, where that is known."""
    if failure.cause == "start" and failure.node:
        return "allow fewer nodes (--nodes MIN:MAX); the next job does without it: echelon nodes"
    return {
        "cuda out of memory": "use a smaller batch, or more GPUs",
        "gpu fault": "tell who runs the cluster; see who is left out: echelon nodes",
        "out of memory": "ask for more memory (--mem), or start fewer DataLoader workers",
        "import error": "check the environment of the ranks: echelon config shows python and venv",
        "collective time-out": "some rank did not come: look at the logs of the others",
        "port taken": "try again; if it stays, set no MASTER_PORT of your own",
        "disk full": "make room, or write elsewhere",
        "lost node": "with --nodes MIN:MAX a run goes on without it, as long as MIN are left",
        "time limit": "ask for more time (--time)",
        "hang": "see where each rank waits: echelon why --json",
    }.get(failure.cause, "")


# --- rendering --------------------------------------------------------------------------------


def to_record(verdict: Verdict) -> dict[str, Any]:
    """Return what verdict.json holds."""
    return asdict(verdict)


def from_record(record: Any) -> Verdict:
    """Return a verdict from what verdict.json holds; other versions may know other fields.

    Raises:
        ValueError: it is damaged.
    """
    if not isinstance(record, Mapping):
        raise ValueError("a verdict is an object")  # noqa: TRY004  damaged content
    victims, stacks = record.get("victims"), record.get("stacks")
    hurt = victims if isinstance(victims, list) else []
    return Verdict(
        failure=_failure_from(record.get("failure")),
        victims=tuple(_failure_from(one) for one in hurt if isinstance(one, Mapping)),
        not_retried=str(record.get("not_retried", "")),
        advice=str(record.get("advice", "")),
        stacks={key: str(stack) for key, stack in stacks.items()}
        if isinstance(stacks, Mapping)
        else {},
    )


def _failure_from(record: Any) -> Failure:
    if not isinstance(record, Mapping):
        raise ValueError("a failure is an object")  # noqa: TRY004  damaged content
    texts = ("cause", "message", "node", "error_type", "traceback", "log")
    code = to_count(record.get("exit_code"), below=256)
    return Failure(
        **{name: str(record.get(name, "")) for name in texts},
        rank=to_count(record.get("rank"), below=MOST_RANKS),
        step=to_count(record.get("step")),
        exit_code=1 if code is None else code,
        generation=to_count(record.get("generation")) or 0,
    )


def headline(failure: Failure) -> str:
    """Return what failed, and where."""
    who = failure.node if failure.rank is None else f"rank {failure.rank}"
    where = f" on {failure.node}" if failure.node and failure.rank is not None else ""
    step = f" at step {failure.step}" if failure.step is not None else ""
    return f"{(who + where + step) or 'the run'}: {failure.message}"


def render(verdict: Verdict, *, whole: bool = False, run: Path | None = None) -> str:
    """Return a verdict for people.

    Args:
        verdict: what to tell.
        whole: with all of the traceback, not only its end.
        run: the run's directory, for names of files that can be pasted.
    """
    failure = verdict.failure
    meaning = CAUSES.get(failure.cause, "not known to this version of Echelon")
    lines = [headline(failure), f"  cause: {failure.cause} ({meaning})"]
    trace = failure.traceback.rstrip().splitlines()
    if trace:
        shown = trace if whole or len(trace) <= 8 else ["  …", *trace[-7:]]
        lines += [f"  | {line}" for line in shown]
    if verdict.victims:
        ranks = sorted(v.rank for v in verdict.victims if v.rank is not None)
        lines.append(f"  victims: {_ranks(ranks)}" if ranks else "")
    if verdict.not_retried:
        lines.append(f"  not tried again: {verdict.not_retried}")
    if verdict.advice:
        lines.append(f"  hint: {verdict.advice}")
    if failure.log:
        lines.append(f"  log: {run / failure.log if run else failure.log}")
    return "\n".join(line for line in lines if line)


def _ranks(ranks: Sequence[int]) -> str:
    """Write 0, 1, 2, 5 as `ranks 0-2,5`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    folded = compress([f"r{rank}" for rank in ranks])
    return f"ranks {folded.removeprefix('r').strip('[]')}"
