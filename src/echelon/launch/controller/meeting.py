"""Notices ranks that never meet: N ranks without a process group train N separate models.

All that is known is whether any rank has used the store that the first node serves for them. So
nothing is said of programs that import nothing beyond Python, and of ranks with their own store.
"""

import math
import time

from echelon.launch.protocol.messages import MEET_S
from echelon.launch.protocol.program import Program
from echelon.launch.protocol.program_text import find_own_endpoint, trains


class MeetingWatch:
    """See the module. One for all generations: what was told once is not told again."""

    def __init__(self, program: Program, imports: frozenset[str]) -> None:
        self._matters = trains(imports)
        self._name, self._line = program.argv[0], find_own_endpoint(program)
        self._ranks, self._pending = 0, False
        self.due_s = math.inf
        """When to ask for `complaint`."""

    def begin(self, ranks: int, *, served: bool) -> None:
        """Start to wait for a generation of ranks whose store is served, or not."""
        self._ranks = ranks
        self._pending = self._matters and served and ranks > 1
        self.due_s = time.monotonic() + MEET_S if self._pending else math.inf

    def met(self) -> None:
        """Take note that some rank has used the store."""
        self._pending, self.due_s = False, math.inf

    def complain(self) -> str:
        """Return what to tell about ranks that have not met; empty if they have."""
        if not self._pending:
            return ""
        self._matters = False
        self.met()
        lines = [
            "no process group was formed: no rank has used the store at MASTER_ADDR:MASTER_PORT",
            f"  {self._ranks} ranks that do not communicate train {self._ranks} separate models",
        ]
        if self._line:
            lines.append(
                f"  {self._name}, line {self._line}, sets MASTER_ADDR or MASTER_PORT itself, "
                "where no store is served: remove that"
            )
        return "\n".join(lines)
