"""Detects ranks that form no process group: N such ranks train N separate models.

All that is known is whether any rank has used the store that the first node serves for them. Ranks
may use another one, so the warning states only what was observed. There is no warning for programs
that import nothing beyond Python.
"""

import math
import time

from echelon.launch.program import Program
from echelon.launch.program_text import find_own_endpoint, trains
from echelon.launch.protocol.messages import MEET_S


class RendezvousWatch:
    """See the module. One for all generations: the warning is given once."""

    def __init__(self, program: Program, imports: frozenset[str]) -> None:
        self._matters = trains(imports)
        self._name, self._line = program.argv[0], find_own_endpoint(program)
        self._ranks, self._pending, self._warned = 0, False, False
        self._began_s = 0.0
        self.due_s = math.inf
        """When to ask for `warning`."""

    def begin(self, ranks: int, *, served: bool) -> None:
        """Start to wait for a generation of ranks whose store is served, or not."""
        self._ranks, self._began_s, self._warned = ranks, time.monotonic(), False
        self._pending = self._matters and served and ranks > 1
        self.due_s = self._began_s + MEET_S if self._pending else math.inf

    def store_used(self) -> str:
        """Record that a rank has used the store; return a message if there was a warning."""
        warned, self._warned = self._warned, False
        self._pending, self.due_s = False, math.inf
        after_s = time.monotonic() - self._began_s
        return f"a rank has used the store after {after_s:.0f} s" if warned else ""

    def warning(self) -> str:
        """Return a warning if no rank has used the store; empty if one has."""
        if not self._pending:
            return ""
        self._matters = self._pending = False
        self._warned, self.due_s = True, math.inf
        after_s = time.monotonic() - self._began_s
        lines = [
            f"after {after_s:.0f} s, no rank has used the store at MASTER_ADDR:MASTER_PORT",
            f"  unless its {self._ranks} ranks meet elsewhere, they train separate models",
        ]
        if self._line:
            lines.append(
                f"  {self._name}, line {self._line}, sets MASTER_ADDR or MASTER_PORT itself, "
                "where no store is served: remove that"
            )
        return "\n".join(lines)
