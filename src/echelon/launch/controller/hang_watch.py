"""Detects that ranks make no progress, and which of them is the cause. Pure: time is an argument.

A rank that reports its steps hangs if it starts no step for the allowed time. Others hang if their
main threads are blocked and use no CPU time for that long. A slow rank is not a hang, because those
that wait for it wake up at every step. A rank that waits for NCCL uses CPU time; so where neither
shows a hang, it is only suspected, and what ranks have recorded about their collectives decides.
"""

from dataclasses import dataclass, replace

from echelon.launch.pool.hang import Hang, is_compiling
from echelon.launch.protocol.link import PULSE_S
from echelon.launch.protocol.messages import UNSTARTED, Pulse

_ASLEEP_S = 0.005
"""CPU time that a main thread may use while it only waits."""
_RECENT_S = 2.5
"""Two pulses of an agent, and some delay."""
_JUDGE_S = PULSE_S / 2
"""How often, at most, ranks are judged. A heartbeat may arrive a little early."""
COMPILE_S = 1800.0
"""How long ranks may wait for one that compiles, beyond the time that counts as a hang."""
_STOPPED = ("T", "t")
_HELD = ("D",)
"""In an uninterruptible wait, nearly always for storage."""


@dataclass(slots=True)
class _Seen:
    """The last state of a rank, and since when it has lasted."""

    step: int
    step_since_s: float
    cpu_s: float
    awake_s: float
    """When its main thread last used CPU."""
    state: str
    state_since_s: float
    observed_s: float
    """When it was last observed; nothing is concluded about the time since."""


class HangWatch:
    """Observes the ranks of one generation, and reports one hang at a time."""

    def __init__(self, generation: int, timeout_s: float) -> None:
        self._generation, self._timeout_s = generation, timeout_s
        self._active = False
        self._judged_s = float("-inf")
        """When ranks were last judged."""
        self._ranks: dict[int, _Seen] = {}
        self._active_s = 0.0
        """When collectives were last known to make progress."""
        self._compiling_s = self._excused_s = float("-inf")
        """When a compilation was first seen, and last."""

    def begin(self) -> None:
        """Watch the ranks, as if none of them had been observed yet."""
        self._active, self._ranks = True, {}

    def take(self, pulse: Pulse, now_s: float) -> Hang | None:
        """Take a heartbeat of an agent; return a hang, if there is one.

        All ranks are judged once for the heartbeats of many agents.
        """
        if pulse.generation != self._generation:
            return None
        for rank, step, state, cpu_s in pulse.ranks:
            self.observe(now_s, rank=rank, step=step, state=state, cpu_s=cpu_s)
        if now_s - self._judged_s < _JUDGE_S:
            return None
        self._judged_s = now_s
        return self.judge(now_s)

    def resume(self, hang: Hang, active_s: float) -> None:
        """Continue to watch: the ranks made progress at that time, so they did not hang."""
        self._active, self._active_s = True, active_s
        if not hang.suspected:
            for seen in self._ranks.values():
                seen.awake_s = max(seen.awake_s, active_s)
                seen.step_since_s = max(seen.step_since_s, active_s)

    def excuse(self, hang: Hang, stack: str, now_s: float) -> bool:
        """Continue to watch if a rank compiles, or did at the last look; tell whether that is so.

        A compilation may take many minutes. When it ended is not known: perhaps just now.
        """
        recently = now_s - self._excused_s <= 2 * self._timeout_s
        if is_compiling(stack):
            self._compiling_s = self._compiling_s if recently else now_s
            self._excused_s = now_s
            if now_s - self._compiling_s >= COMPILE_S:
                return False
        elif recently:
            self._excused_s = float("-inf")
        else:
            return False
        self.resume(hang, now_s)
        return True

    def end(self) -> None:
        """Stop to observe ranks."""
        self._active = False

    def forget(self, rank: int) -> None:
        """Forget a rank that has exited."""
        self._ranks.pop(rank, None)

    def observe(self, now_s: float, *, rank: int, step: int, state: str, cpu_s: float) -> None:
        """Record what an agent has observed about a rank."""
        if not self._active:
            return
        seen = self._ranks.get(rank)
        if seen is None or (seen.step == UNSTARTED) != (step == UNSTARTED):
            self._ranks[rank] = _Seen(step, now_s, cpu_s, now_s, state, now_s, now_s)
            self._active_s = now_s
            return
        seen.observed_s = now_s
        if step != seen.step:
            seen.step, seen.step_since_s = step, now_s
        if abs(cpu_s - seen.cpu_s) > _ASLEEP_S:  # less than before: of another zygote
            seen.cpu_s, seen.awake_s = cpu_s, now_s
        if any((state in kind) != (seen.state in kind) for kind in (_STOPPED, _HELD)):
            seen.state_since_s = now_s
        seen.state = state

    def judge(self, now_s: float) -> Hang | None:
        """Return a hang, if there is one; each is returned once."""
        if not self._active or not self._timeout_s or not self._ranks:
            return None
        hang = self._find(now_s)
        if hang is None:
            return None
        self._active = False
        return replace(hang, generation=self._generation)

    def _find(self, now_s: float) -> Hang | None:
        if unstarted := [rank for rank, seen in self._ranks.items() if seen.step == UNSTARTED]:
            return self._blame_zygote(unstarted)  # the other ranks may be waiting for these
        stopped = [rank for rank, seen in self._ranks.items() if seen.state in _STOPPED]
        for rank in stopped:
            if self._is_long(self._ranks[rank], self._ranks[rank].state_since_s):
                return self._blame_stopped(rank, now_s)
        speak = any(seen.step >= 0 for seen in self._ranks.values())
        found = self._find_by_steps(now_s) if speak else self._find_by_waits(now_s)
        if found is None:
            return None if speak or stopped else self._suspect(now_s)
        # A suspended rank may become visible later than the lack of progress.
        return self._blame_stopped(stopped[0], now_s) if stopped else self._blame_storage(found)

    def _blame_storage(self, hang: Hang) -> Hang:
        """Return the hang of ranks that were blocked on storage most of the time, if it is that."""
        held = [
            rank
            for rank, seen in self._ranks.items()
            if seen.state in _HELD and seen.observed_s - seen.state_since_s >= self._timeout_s / 2
        ]
        if not held:
            return hang
        seen = self._ranks[held[0]]
        message = f"blocked on storage for {seen.observed_s - seen.state_since_s:.0f} s"
        if others := len(held) - 1:
            more = "is another rank" if others == 1 else f"are {others} others"
            message = f"{message}, and so {more}"
        return replace(hang, rank=held[0], message=message, step=seen.step, sure=True, final=True)

    def _blame_zygote(self, unstarted: list[int]) -> Hang | None:
        """Return the hang of a rank whose zygote makes no progress, if there is one."""
        for rank in unstarted:
            seen = self._ranks[rank]
            if self._is_long(seen, seen.awake_s):
                how = {"T": "suspended (SIGSTOP)", "t": "suspended", "D": "blocked on storage"}
                message = (
                    f"not started: its zygote, which imports modules and starts ranks, is "
                    f"{how.get(seen.state, 'waiting')} and has made no progress for "
                    f"{self._timeout_s:g} s"
                )
                return Hang(rank=rank, message=message, sure=True, final=True)
        return None

    def _blame_stopped(self, rank: int, now_s: float) -> Hang:
        seen = self._ranks[rank]
        message = f"suspended (SIGSTOP) for {now_s - seen.state_since_s:.0f} s"
        return Hang(rank=rank, message=message, step=seen.step, sure=True, final=True)

    def _suspect(self, now_s: float) -> Hang | None:
        observed_s = min(seen.observed_s for seen in self._ranks.values())
        if min(observed_s, now_s) - self._active_s < self._timeout_s:
            return None
        message = f"no progress for {self._timeout_s:g} s"
        return Hang(rank=min(self._ranks), message=message, suspected=True)

    def _find_by_waits(self, now_s: float) -> Hang | None:
        waiting, busy = self._split(now_s)
        if not waiting:
            return None
        waits = f"no progress for {self._timeout_s:g} s"
        if busy:
            return Hang(
                rank=busy[0],
                message=f"it computes or loops while {_count(waiting)} for it: {waits}",
                sure=True,
            )
        return Hang(rank=waiting[0], message=f"all ranks wait: {waits}")

    def _is_long(self, seen: _Seen, since_s: float) -> bool:
        """Tell whether a state has provably lasted for the allowed time."""
        return seen.observed_s - since_s >= self._timeout_s

    def _split(self, now_s: float) -> tuple[list[int], list[int]]:
        """Return the ranks that wait and those that compute; none if some rank does neither.

        Pulses of different nodes arrive at different times, so a rank that has just started to
        wait means nothing.
        """
        waiting = [r for r, seen in self._ranks.items() if self._is_long(seen, seen.awake_s)]
        busy = [r for r, seen in self._ranks.items() if seen.awake_s > now_s - _RECENT_S]
        return (waiting, busy) if len(waiting) + len(busy) == len(self._ranks) else ([], [])

    def _find_by_steps(self, now_s: float) -> Hang | None:
        # If only some report their steps, the others are not behind.
        ranks = {rank: seen for rank, seen in self._ranks.items() if seen.step >= 0}
        if not all(self._is_long(seen, seen.step_since_s) for seen in ranks.values()):
            return None
        behind = min(ranks, key=lambda rank: (ranks[rank].step, ranks[rank].awake_s))
        low, high = ranks[behind].step, max(seen.step for seen in ranks.values())
        stuck = f"no new step for {self._timeout_s:g} s"
        if low != high:
            return Hang(
                rank=behind,
                step=low,
                message=f"{stuck}; it is at step {low}, others are at {high}",
                sure=True,
            )
        waiting, busy = self._split(now_s)
        if waiting and busy:
            return Hang(
                rank=busy[0],
                step=low,
                message=f"{stuck}; it computes or loops while {_count(waiting)} for it",
                sure=True,
            )
        return Hang(rank=behind, step=low, message=stuck)


def _count(ranks: list[int]) -> str:
    return "another rank waits" if len(ranks) == 1 else f"{len(ranks)} other ranks wait"
