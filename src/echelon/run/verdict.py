"""Why a run ended: the first failure across all nodes, as opposed to those that it caused. Pure.

When a rank dies, its peers die of the broken connection, often within milliseconds and each with a
traceback of its own. A rank's own error decides whether it is the cause or a victim; among causes,
the one that reached the controller first counts.
"""

import re
from collections.abc import Sequence
from dataclasses import field, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Self

from echelon.core.codec import Read, Texts, encode
from echelon.core.frozen import frozen
from echelon.core.nodes import compress
from echelon.core.records import MOST_RANKS, to_count

CAUSES = {
    "exception": "a Python exception",
    "import error": "a failed import",
    "bad arguments": "the script rejected its arguments",
    "exit": "a nonzero exit code",
    "cuda out of memory": "the GPU ran out of memory",
    "gpu fault": "a broken GPU or GPU link",
    "out of memory": "the node or the job ran out of memory",
    "signal": "killed by a signal",
    "port taken": "a port was in use by another process",
    "collective time-out": "not all ranks joined a collective in time",
    "lost peer": "a connection to another rank broke, and no rank reported why",
    "disk full": "no space or quota left on a disk",
    "hang": "ranks made no progress",
    "lost node": "a node was lost",
    "time limit": "the time limit of the job",
    "preemption": "another job took the nodes",
    "maintenance": "a node was taken out of service",
    "cancelled": "the run was cancelled or told to stop",
    "superseded": "another attempt of the run has started",
    "start": "ranks could not be started",
    "ended": "ended because another rank had failed",
}
"""Every cause, and what it means."""


OUR_PAUSE = "while this controller was suspended"
"""In the message of a node that was lost because of the controller itself."""

VICTIMS = ("lost peer", "collective time-out", "ended")

_MISTAKES = (
    (
        "EOFError",
        re.compile("EOF when reading a line"),
        "ranks have no standard input: pass what the script asks for as an argument",
    ),
    (
        "FileNotFoundError",
        re.compile(r"No such file or directory: '[^/]"),
        "relative paths begin at the directory of the submission, or at --chdir",
    ),
    (
        "PermissionError",
        re.compile(r"Permission denied: '/[^']*/code/"),
        "the copy of the code is read-only: write to $ECHELON_RUN_DIR, or use --no-snapshot",
    ),
    (
        "ModuleNotFoundError",
        re.compile("No module named 'echelon'"),
        "install it in the ranks' Python from a checkout or a wheel: PYTHON -m pip install PATH",
    ),
)
"""Exceptions that come of how ranks are started: type, message, what to do."""
_EXCERPT = 8
"""Number of lines shown of a traceback."""
_FRAME = re.compile(r' *File "')
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3[^/]*/|<frozen ")


@frozen
class Failure:
    """A failure of a rank or of a node."""

    cause: str
    message: str
    rank: Annotated[int | None, Read(partial(to_count, below=MOST_RANKS), None)] = None
    node: str = ""
    step: int | None = None
    exit_code: Annotated[int, Read(partial(to_count, below=256), 1)] = 1
    """As in a shell: 128 + the signal's number."""
    error_type: str = ""
    traceback: str = ""
    log: str = ""
    """The rank's log, relative to the run directory."""
    generation: int = 0
    saved: int = -1
    """The step of the newest checkpoint at that time; -1 if none is known."""
    printed: str = ""
    """The last lines that the rank printed before its error."""


_FAILURE = ", ".join(f"`{field.name}`" for field in fields(Failure))


@frozen
class Verdict:
    """Why a run ended."""

    failure: Annotated[Failure, f"the first failure, an object: {_FAILURE}"]
    victims: Annotated[tuple[Failure, ...], "failures of other ranks after the first one"] = ()
    not_retried: Annotated[str, "why the ranks were not started again"] = ""
    advice: Annotated[str, "what to do about it"] = ""
    stacks: Annotated[Texts, "for a hang: rank → its Python stack"] = field(default_factory=dict)

    @classmethod
    def of(cls, verdict: "Verdict") -> Self:
        """Return the same verdict as this class, which may be an event."""
        return cls(**encode(verdict))


# --- judging ----------------------------------------------------------------------------------


def is_victim(failure: Failure) -> bool:
    """Tell whether a failure is of a kind that the death of another rank causes."""
    return failure.cause in VICTIMS


def judge(failures: Sequence[Failure], *, not_retried: str = "") -> Verdict:
    """Return the verdict on a generation's failures, which are in the order of their arrival."""
    assert failures, "without a failure there is nothing to judge"
    first = next((f for f in failures if not is_victim(f)), None) or _find_absent(failures)
    victims = tuple(
        f for f in failures if f is not first and (f.rank is None or f.rank != first.rank)
    )
    return Verdict(failure=first, victims=victims, not_retried=not_retried, advice=advise(first))


def _find_absent(victims: Sequence[Failure]) -> Failure:
    """Return the failure to report if there are only victims: that of the rank they waited for.

    That is the only one which still ran when all others had given up. Without such a rank, it is
    the first victim's.
    """
    absent = [failure for failure in victims if failure.cause == "ended"]
    if len(absent) != 1 or victims[0] is absent[0]:
        return victims[0]
    # A rank that lost its peer because the peer had given up may report before the peer does.
    late = [failure for failure in victims if failure.cause == "collective time-out"]
    last = late[-1] if late else victims[0]
    gave_up = f"the only rank still running when rank {last.rank} had given up: {last.message}"
    return replace(absent[0], cause=last.cause, message=gave_up, exit_code=last.exit_code)


def advise(failure: Failure) -> str:
    """Return what to do about a failure, if that is known."""
    if failure.cause == "start" and failure.node:
        return "allow fewer nodes (--nodes MIN:MAX); the next job avoids this node: echelon nodes"
    for kind, pattern, advice in _MISTAKES:
        if failure.error_type == kind and pattern.search(failure.message):
            return advice
    return {
        "cuda out of memory": "use a smaller batch, or more GPUs",
        "gpu fault": "report it to the cluster's administrators; see excluded nodes: echelon nodes",
        "out of memory": "request more memory (--mem), or start fewer DataLoader workers",
        "import error": "check the Python environment of the ranks: echelon config",
        "collective time-out": "some rank did not join; look at the logs of the others",
        "port taken": (
            "at MASTER_PORT, the launcher's own store listens: a server in the script, such as "
            "JAX's coordinator, needs another port; do not set MASTER_PORT yourself"
        ),
        "disk full": "free some space, or write elsewhere",
        "lost node": "with --nodes MIN:MAX a run continues as long as MIN nodes are left",
        "time limit": "request more time (--time)",
        "hang": "see where each rank is: echelon why --json",
    }.get(failure.cause, "")


# --- rendering --------------------------------------------------------------------------------


def headline(failure: Failure) -> str:
    """Return what failed and where, in one line."""
    who = failure.node if failure.rank is None else f"rank {failure.rank}"
    where = f" on {failure.node}" if failure.node and failure.rank is not None else ""
    step = f" at step {failure.step}" if failure.step is not None else ""
    return f"{(who + where + step) or 'the run'}: {failure.message}"


def render(verdict: Verdict, *, whole: bool = False, run: Path | None = None) -> str:
    """Return a verdict as text.

    Args:
        verdict: the verdict.
        whole: with the whole traceback, not only its end.
        run: the run directory, to show full paths.
    """
    failure = verdict.failure
    meaning = CAUSES.get(failure.cause, "unknown to this version of Echelon")
    lines = [headline(failure), f"  cause: {failure.cause} ({meaning})"]
    trace = failure.traceback.rstrip().splitlines()
    lines += [f"  | {line}" for line in (trace if whole else _excerpt(trace))]
    for label, ones in (
        ("also failed", [other for other in verdict.victims if not is_victim(other)]),
        ("victims", [other for other in verdict.victims if is_victim(other)]),
    ):
        if ranks := sorted(one.rank for one in ones if one.rank is not None):
            lines.append(f"  {label}: {_ranks(ranks)}")
    if verdict.not_retried:
        lines.append(f"  not retried: {verdict.not_retried}")
    if verdict.advice:
        lines.append(f"  hint: {verdict.advice}")
    if failure.log:
        lines.append(f"  log: {run / failure.log if run else failure.log}")
    return "\n".join(line for line in lines if line)


def _excerpt(trace: list[str]) -> list[str]:
    """Return the end of a traceback, with the last line of the user's own code."""
    if len(trace) <= _EXCERPT:
        return trace
    own = [at for at, line in enumerate(trace) if _FRAME.match(line) and not _LIBRARY.search(line)]
    if not own or own[-1] > len(trace) - _EXCERPT:
        return ["  …", *trace[1 - _EXCERPT :]]
    return ["  …", *trace[own[-1] : own[-1] + 2], "  …", *trace[4 - _EXCERPT :]]


def _ranks(ranks: Sequence[int]) -> str:
    """Write 0, 1, 2, 5 as `ranks 0-2,5`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    folded = compress([f"r{rank}" for rank in ranks])
    return f"ranks {folded.removeprefix('r').strip('[]')}"
