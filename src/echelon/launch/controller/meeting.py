"""Notices ranks that never meet: N ranks without a process group train N separate models.

All that is known is whether any rank has used the store that the first node serves for them. Ranks
may meet elsewhere, so this is said as what it is. Of programs that import nothing beyond Python,
nothing is said.
"""

import math
import time

from echelon.launch.program import Program
from echelon.launch.program_text import find_own_endpoint, trains
from echelon.launch.protocol.messages import MEET_S


class MeetingWatch:
    """See the module. One for all generations: what was told once is not told again."""

    def __init__(self, program: Program, imports: frozenset[str]) -> None:
        self._matters = trains(imports)
        self._name, self._line = program.argv[0], find_own_endpoint(program)
        self._ranks, self._pending, self._told = 0, False, False
        self._began_s = 0.0
        self.due_s = math.inf
        """When to ask for `complain`."""

    def begin(self, ranks: int, *, served: bool) -> None:
        """Start to wait for a generation of ranks whose store is served, or not."""
        self._ranks, self._began_s, self._told = ranks, time.monotonic(), False
        self._pending = self._matters and served and ranks > 1
        self.due_s = self._began_s + MEET_S if self._pending else math.inf

    def meet(self) -> str:
        """Take note that a rank has used the store; return what to tell after a complaint."""
        told, self._told = self._told, False
        self._pending, self.due_s = False, math.inf
        after_s = time.monotonic() - self._began_s
        return f"a rank has used the store after {after_s:.0f} s" if told else ""

    def complain(self) -> str:
        """Return what to tell about ranks that have not met; empty if they have."""
        if not self._pending:
            return ""
        self._matters = self._pending = False
        self._told, self.due_s = True, math.inf
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
