"""What it means that a rank, its zygote or its node is gone: a failure, in a verdict's words. Pure.

What a failure leads to is decided elsewhere (verdict.py).
"""

import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from echelon.launch.hang import Hang
from echelon.launch.messages import RankExited, ZygoteLost
from echelon.launch.verdict import Failure, classify_exit, last_traceback


def from_exit(gone: RankExited, *, node: str, log: Path) -> Failure:
    """Return the failure of a rank that did not end well; its log is told within the run."""
    cause, message = classify_exit(
        code=gone.code,
        number=gone.signal,
        error=gone.error,
        tail=gone.tail,
        out_of_memory=gone.out_of_memory,
    )
    return Failure(
        cause=cause,
        message=message,
        rank=gone.rank,
        node=node,
        step=gone.step if gone.step >= 0 else None,
        exit_code=_exit_code(gone.code, gone.signal),
        error_type=str(gone.error.get("type", "")),
        traceback=str(gone.error.get("traceback", "")) or last_traceback(gone.tail),
        log=str(log),
        generation=gone.generation,
    )


def from_late_exit(gone: RankExited, *, node: str, log: Path) -> Failure:
    """Return the same of one that fell after the first: by itself, or because we ended it."""
    if gone.signal != signal.SIGKILL:
        return from_exit(gone, node=node, log=log)
    if gone.error:
        # It had failed by itself, and we ended what it did at its exit.
        return from_exit(replace(gone, code=1, signal=0), node=node, log=log)
    failure = from_exit(gone, node=node, log=log)
    return replace(failure, cause="ended", message="ended with its generation")


def from_lost_zygote(lost: ZygoteLost, *, node: str) -> Failure:
    """Return the failure of a node whose ranks have died with their zygote."""
    cause, how = classify_exit(
        code=lost.code, number=lost.signal, error={}, tail="", out_of_memory=lost.out_of_memory
    )
    return Failure(
        cause=cause,
        message=f"its zygote is gone, and its ranks with it: {how}",
        node=node,
        exit_code=_exit_code(lost.code, lost.signal),
        generation=lost.generation,
    )


def from_lost_agent(reason: str, *, node: str, generation: int = 0) -> Failure:
    """Return the failure of a node of which nothing is heard any more."""
    message = f"its agent is gone: {reason}"
    return Failure(cause="lost node", message=message, node=node, generation=generation)


def from_hang(hang: Hang, *, node: str, stacks: Mapping[str, str]) -> Failure:
    """Return the failure of ranks that make no progress."""
    return Failure(
        cause="hang",
        message=hang.message,
        rank=hang.rank,
        node=node,
        step=hang.step if hang.step >= 0 else None,
        traceback=stacks.get(str(hang.rank), ""),
        generation=hang.generation,
    )


def from_standstill(rank: int, *, generation: int) -> Failure:
    """Return the failure of a rank that was to save and go, and did not."""
    message = "it did not end after the step at which all ranks were to stop"
    return Failure(cause="hang", message=message, rank=rank, generation=generation)


def _exit_code(code: int, number: int) -> int:
    return 128 + number if number else code
