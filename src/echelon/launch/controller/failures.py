"""Turns the exit of a rank, its zygote or its node into a failure; decides about retries. Pure."""

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from echelon.launch.pool.controller_events import Lost
from echelon.launch.pool.hang import Hang
from echelon.launch.protocol.messages import RankExited, ZygoteLost
from echelon.run.verdict import CAUSES, VICTIMS, Failure


def from_exit(gone: RankExited, *, node: str, log: Path) -> Failure:
    """Return the failure of a rank; its log is relative to the run directory."""
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
        printed=_printed_before(gone.tail),
    )


def from_late_exit(gone: RankExited, *, node: str, log: Path) -> Failure:
    """Return the failure of a rank that exited after the first one, or that we ended."""
    if gone.signal != signal.SIGKILL:
        return from_exit(gone, node=node, log=log)
    if gone.error:
        # It had failed by itself, and we killed it while it was exiting.
        return from_exit(replace(gone, code=1, signal=0), node=node, log=log)
    failure = from_exit(gone, node=node, log=log)
    return replace(failure, cause="ended", message="ended with its generation")


def from_lost_zygote(lost: ZygoteLost, *, node: str) -> Failure:
    """Return the failure of a node whose ranks died with their zygote."""
    cause, how = classify_exit(
        code=lost.code, number=lost.signal, error={}, tail="", out_of_memory=lost.out_of_memory
    )
    return Failure(
        cause=cause,
        message=f"its zygote died, and its ranks with it: {how}",
        node=node,
        exit_code=_exit_code(lost.code, lost.signal),
        generation=lost.generation,
    )


def from_lost_agent(lost: Lost, *, generation: int = 0) -> Failure:
    """Return the failure of a node whose agent was lost, or which was excluded."""
    failure = Failure(
        cause="lost node",
        message=f"its agent was lost: {lost.reason}",
        node=lost.agent.name,
        generation=generation,
    )
    return (
        replace(failure, cause="start", message=lost.reason, exit_code=69)
        if lost.excluded
        else failure
    )


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
    """Return the failure of a rank that did not save and exit when it should have."""
    message = "did not exit after the step at which all ranks were to stop"
    return Failure(cause="hang", message=message, rank=rank, generation=generation)


def _exit_code(code: int, number: int) -> int:
    return 128 + number if number else code


NEVER_RETRIED = frozenset({"import error", "bad arguments", "time limit", "cancelled", "start"})


# The last one is gRPC's, on which the coordinator of JAX is based.
_PORT_TAKEN = (
    "port taken",
    r"EADDRINUSE|Address already in use|Failed to add port to server: No address added",
)
_PATTERNS = (
    (
        # Not "busy or unavailable": a GPU in exclusive mode reports that to ranks that share it.
        "gpu fault",
        (
            r"uncorrectable ECC error encountered|"
            r"uncorrectable NVLink error detected|"
            r"(?:802\)? ?|CUDA error): system not yet initialized|"
            r"GPU is lost|"
            r"GPU has fallen off the bus"
        ),
    ),
    ("cuda out of memory", r"CUDA out of memory|OutOfMemoryError|CUDA error: out of memory"),
    # torch's allocator prints "can't allocate memory" on x86, "not enough memory" elsewhere.
    (
        "out of memory",
        r"^MemoryError|can't allocate memory|CPUAllocator: not enough memory|\[Errno 12\]",
    ),
    ("disk full", r"No space left on device|\[Errno 28\]|Disk quota exceeded|\[Errno 122\]"),
    _PORT_TAKEN,
    (
        "collective time-out",
        (
            r"Watchdog caught collective operation timeout|"
            r"Timed out waiting \d+ms for|"
            r"Application timeout caused pair closure|"
            r"failed to pass monitoredBarrier|"
            r"timed out in monitoredBarrier|"
            r"wait timeout after \d+ms|"
            r"Timed out after \d+ seconds waiting for clients"
        ),
    ),
    (
        "lost peer",
        (
            r"Connection closed by peer|"
            r"Connection reset by peer|"
            r"Broken pipe|"
            r"remote process exited|"
            r"NCCL error.*(?:remote|unhandled system error)|"
            r"DistNetworkError|"
            r"failed to recv, got 0 bytes|"
            r"Socket Timeout|"
            r"Connection was likely closed"
        ),
    ),
)


_FAILED_IMPORTS = (
    *("ImportError", "ModuleNotFoundError"),
    *("SyntaxError", "IndentationError", "TabError"),
)


_UNCAUGHT = 1
"""Exit code of Python after an uncaught exception."""


_REFUSED = 2
"""Exit code of argparse."""


_KILLED_WORKER = re.compile(r"DataLoader worker .*(killed by signal: Killed|exited unexpectedly)")


def classify_exit(  # noqa: PLR0911  one return per cause
    *,
    code: int,
    number: int,
    error: Mapping[str, Any],
    tail: str,
    out_of_memory: bool,
) -> tuple[str, str]:
    """Return the cause and the message of a rank's failure.

    Args:
        code: its exit code.
        number: the signal that killed it, or 0.
        error: its own record of an exception, or nothing.
        tail: the end of its log, for what the record lacks.
        out_of_memory: whether the kernel has just killed a process for memory on that node.
    """
    if number and (found := _classify_signal(number, error, tail, out_of_memory)):
        return found
    kind, message = str(error.get("type", "")), str(error.get("message", ""))
    if not kind and (number or code == _UNCAUGHT):
        kind, message = _last_exception(tail)
    if kind in ("", "SystemExit"):
        if code == _REFUSED and "usage:" in tail:
            return "bad arguments", _last_line(tail)
        # Whether what it printed last is the reason, nobody knows.
        last = f"; the last output was: {_last_line(tail)}" if tail.strip() else ""
        return "exit", f"exit code {code}{last}"
    text = f"{kind}: {message}".rstrip(": ")
    if kind in _FAILED_IMPORTS:
        return "import error", text
    if out_of_memory and _KILLED_WORKER.search(text):
        return "out of memory", text
    cause, _ = _match(text, _PATTERNS) or ("exception", "")
    if cause in VICTIMS and not (_is_torchs(kind, error) or "gloo/" in text):
        return "exception", text  # a connection of the script itself: to a database, say
    return cause, text


def _classify_signal(
    number: int, error: Mapping[str, Any], tail: str, out_of_memory: bool
) -> tuple[str, str] | None:
    """Return what a signal means; None if the rank was exiting anyway, for another reason.

    Torch's threads may abort a process during its exit.
    """
    name = _signal_name(number)
    if out_of_memory and number == signal.SIGKILL:
        return "out of memory", f"killed by the kernel ({name}): out of memory"
    if number == signal.SIGSEGV and (found := _match(tail, [_PORT_TAKEN])):
        return found  # JAX does not check that its coordinator could listen
    if number == signal.SIGABRT:
        if found := _match(tail, _PATTERNS):
            return found
        if error.get("type", "SystemExit") != "SystemExit" or _LEAVING.search(tail):
            return None
    return "signal", f"killed by {name}"


def _is_torchs(kind: str, error: Mapping[str, Any]) -> bool:
    """Tell whether an exception can come from torch's communication, which is written in C++."""
    return "RuntimeError" in (kind, *error.get("bases", ())) or kind.startswith("Dist")


def _match(text: str, patterns: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    for cause, pattern in patterns:
        for line in reversed(text.splitlines()):
            if re.search(pattern, line):
                return cause, line.strip()
    return None


_PRINTED_LINES = 3
_FRAME = re.compile(r"^ *File .*, line [0-9]+, in .*$", re.MULTILINE)
"""A place in a traceback."""


_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?(\w+)(?:: (.*))?$")


_LEAVING = re.compile(r"^(?:\[rank\d+\]: )?[\w.]+(?:: .*)?\nterminate called", re.MULTILINE)
"""The last line of a traceback, followed by an abort."""


_LABEL = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
"""Prefix that torch adds to each line of a traceback in a process group."""


def _last_exception(text: str) -> tuple[str, str]:
    """Return type and message of the last traceback in a log."""
    # All lines of a traceback are indented, except for its first one and the exception.
    lines = [line for line in last_traceback(text).splitlines()[1:] if line[:1].strip()]
    # A script that cannot be parsed has no traceback.
    lines = lines or [_last_line(text)] * _last_line(text).startswith(_FAILED_IMPORTS)
    match = _EXCEPTION.match(lines[0]) if lines else None
    return (match[1], match[2] or "") if match else ("", "")


def last_traceback(text: str) -> str:
    """Return the last traceback in a log, and what follows it."""
    start = text.rfind("Traceback (most recent call last)")
    return _LABEL.sub("", text[start:]) if start >= 0 else ""


def _printed_before(text: str) -> str:
    """Return the last lines in a log before its last traceback."""
    start = text.rfind("Traceback (most recent call last)")
    lines = text[: max(0, start)].splitlines() if start >= 0 else text.splitlines()
    return "\n".join(lines[-_PRINTED_LINES:])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def decide_retry(
    failure: Failure,
    earlier: Sequence[Failure],
    *,
    restarts: int | None,
    insists: bool = False,
    nodes: int,
    low: int,
    stop_on_hang: bool = False,
) -> str:
    """Return why another generation makes no sense; empty if it does.

    Args:
        failure: what ended this generation.
        earlier: what ended those before it.
        restarts: how many are allowed; None if none, because nobody asked for any.
        insists: whether the user has set that number, so that a repeated error is retried too.
        nodes: how many are left.
        low: how many the run needs.
        stop_on_hang: whether a hang ends the run.
    """
    excluded = failure.cause == "start" and failure.node and nodes >= low
    if failure.cause in NEVER_RETRIED and not excluded:
        return f"a restart would not help: {CAUSES[failure.cause]}"
    if failure.cause == "hang" and stop_on_hang:
        return "hangs end the run (--on-hang stop)"
    if nodes < low:
        return too_few_nodes(nodes, low)
    if (
        earlier
        and not insists
        and _same(failure, earlier[-1])
        and (missing := _lacks_progress(failure, earlier[-1]))
    ):
        return f"the same error occurred again at the same place, {missing}"
    return used_up(restarts) if len(earlier) >= (restarts or 0) else ""


def used_up(restarts: int | None) -> str:
    """Return why there is no restart left, of so many that were allowed."""
    if restarts is None:
        return (
            "the script does not use echelon; if it resumes from its own checkpoints, "
            "allow restarts: --restarts N"
        )
    return f"all {restarts} restarts are used up" if restarts else "restarts are disabled"


def too_few_nodes(nodes: int, low: int) -> str:
    left = "1 node is left" if nodes == 1 else f"{nodes} nodes are left"
    return f"{left}; the run needs at least {low}"


def _same(one: Failure, other: Failure) -> bool:
    """Tell whether a failure of the script repeats; signals and lost nodes do not count."""
    if one.cause not in ("exception", "exit", "cuda out of memory", "disk full"):
        return False
    keys = [(f.cause, f.error_type, f.message, _FRAME.findall(f.traceback)) for f in (one, other)]
    return keys[0] == keys[1]


def _lacks_progress(later: Failure, earlier: Failure) -> str:
    """Return what shows that the script got no further between two failures; empty if it may have.

    A script that resumes by itself, but reports no steps, prints something else before the second.
    """
    if later.saved > earlier.saved:
        return ""
    if later.step is not None or earlier.step is not None:
        return f"after step {later.step} both times" if later.step == earlier.step else ""
    if later.printed != earlier.printed:
        return ""
    known = "no step was reported, there is no new checkpoint"
    return f"without progress: {known}, and the output before it was the same"
