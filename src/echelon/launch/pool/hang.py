"""A hang: ranks that make no progress; what their stacks and collectives say about it."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from echelon.core.frozen import frozen
from echelon.launch.pool.collective_cause import Cause, idle_s, is_waiting
from echelon.launch.protocol.collective_trace import Trace

_FRAME = re.compile(r'^  File "([^"]*)", line (\d+) in (.+)$', re.MULTILINE)
_COMPILER = re.compile(r"/torch/(?:_dynamo/convert_frame|_inductor/compile_fx)\.py$")
"""Only in stacks of a compilation; other files of the compiler also run what was compiled."""
_OWN_THREAD = re.compile(
    r'^Thread 0x[^\n]*\n(?:  File [^\n]*\n)*  File "[^"\n]*collective_trace\.py", [^\n]*\n\n?',
    re.MULTILINE,
)
"""The thread that answers what a rank has recorded about its collectives."""


@frozen
class Hang:
    """Ranks that make no progress."""

    rank: int
    """The rank that differs from the others, if known."""
    message: str
    step: int = -1
    generation: int = 0
    sure: bool = False
    """Whether the cause is known without comparing stacks,"""
    final: bool = False
    """and without the record of collectives."""
    suspected: bool = False
    """Nothing shows a hang, and nothing shows progress."""

    def refuted_by(self, traces: Mapping[int, Trace], allowed_s: float) -> float | None:
        """Return how long ago ranks made progress, if their collectives show that they do."""
        quiet_s = idle_s(traces)
        if self.suspected:
            waits_s = quiet_s if is_waiting(traces) else 0.0
            return waits_s if waits_s < allowed_s else None
        # Main threads that only wait, while others of their threads communicate.
        by_waits = self.step < 0 and not self.final
        return quiet_s if by_waits and quiet_s < allowed_s / 2 else None

    def with_cause(self, cause: Cause) -> "Hang":
        """Return the hang, with what the ranks' collectives show."""
        if self.final:
            return self
        return replace(self, rank=cause.rank, message=cause.message, sure=True, final=True)

    def with_stacks(self, stacks: Mapping[str, str]) -> "Hang":
        """Return the hang, with what the ranks' stacks show."""
        # A rank that uses CPU time may be polling: in a collective it waits, too.
        polls = place_of(stacks.get(str(self.rank), "")).startswith("in the coll")
        if self.final or (self.sure and not polls) or (found := find_odd(stacks)) is None:
            return self
        rank, message = found
        return replace(self, rank=rank, message=message)


def script_frames(stack: str) -> str:
    """Return a stack without the launcher's own frames and thread."""
    own = re.compile(
        r'^  File "(?:.*/launcher/.*|<frozen runpy>)", line \d+ in .*\n?'
        r'|^  File "<string>", line \d+ in <module>\n?\Z',  # the outermost: Python's -c
        re.MULTILINE,
    )
    return own.sub("", _OWN_THREAD.sub("", stack))


def is_compiling(stack: str) -> bool:
    """Tell whether a rank's script is in `torch.compile`, which may take many minutes."""
    return any(_COMPILER.search(frame[1]) for frame in _main_thread(stack))


def find_odd(stacks: Mapping[str, str]) -> tuple[int, str] | None:
    """Return the rank that is elsewhere than the others, and where; None if there is none."""
    places = {int(rank): place_of(text) for rank, text in stacks.items()}
    if len(places) < 2:
        return None
    counts = Counter(places.values()).most_common()
    usual, most = counts[0]
    if len(counts) == 1 or (len(counts) > 1 and counts[1][1] == most and len(places) > 2):
        return None
    if len(places) == 2:
        # The one that is not in a collective keeps the other one waiting.
        outside = [rank for rank, place in places.items() if not place.startswith("in the coll")]
        odd = outside[0] if len(outside) == 1 else max(places)
        usual = next(place for rank, place in places.items() if rank != odd)
    else:
        odd = next(rank for rank, place in places.items() if place != usual)
    return odd, f"{places[odd]}, the others {usual}"


def place_of(text: str) -> str:
    """Describe where a stack is: its collective, or else the innermost line of the script."""
    frames = [frame.groups() for frame in _main_thread(text)]
    for path, _, name in reversed(frames):
        if path.endswith(("distributed_c10d.py", "c10d_logger.py")) and name != "wrapper":
            return f"in the collective {name}"
    own = [f for f in frames if "/torch/" not in f[0] and "/lib/python" not in f[0]] or frames
    if not own:
        return text.splitlines()[0] if text else "at an unknown place"
    path, line, name = own[0]
    return f"in {name} ({path.rpartition('/')[2]}, line {line})"


def _main_thread(text: str) -> list[re.Match[str]]:
    """Return the frames of the thread that runs the script, the innermost first."""
    threads = re.split(r"^(?:Current thread|Thread) .*$", text, flags=re.MULTILINE)
    found = [list(_FRAME.finditer(thread)) for thread in threads]
    whole = [frames for frames in found if frames and frames[-1][3] == "<module>"]
    return (whole or [frames for frames in found if frames] or [[]])[-1]
