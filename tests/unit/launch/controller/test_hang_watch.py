"""Hangs that are noticed, and a thousand runs that do not hang. No time passes in here."""

import math
import random

import pytest

from echelon.launch.controller.hang_watch import COMPILE_S, HangWatch
from echelon.launch.pool.hang import Hang
from echelon.launch.protocol.messages import UNSTARTED, Pulse
from unit.launch.stacks import COMPILES, RUNS_COMPILED

TIMEOUT_S = 10


class Bench:
    """Ranks whose pulse is felt once a second, and a clock that is ours."""

    def __init__(self, ranks=4, timeout_s=TIMEOUT_S, phases=()):
        self.watch = HangWatch(0, timeout_s)
        self.watch.begin()
        self.phases = phases or [0.0] * ranks
        self.now_s = 0
        self.suspicions = []

    def run(self, seconds, *, step=lambda _rank, _s: -1, state=lambda _rank, _s: "S", cpu):
        """Let time pass; return the first alarm and when it came."""
        for _ in range(seconds):
            for rank, phase in enumerate(self.phases):
                now_s = self.now_s + phase
                self.watch.observe(
                    now_s,
                    rank=rank,
                    step=step(rank, now_s),
                    state=state(rank, now_s),
                    cpu_s=cpu(rank, now_s),
                )
            hang = self.watch.judge(self.now_s + 0.99)
            if hang and hang.suspected:  # as where ranks have recorded nothing
                self.suspicions.append(self.now_s)
                self.watch.resume(hang, self.now_s)
            elif hang:
                return hang, self.now_s
            self.now_s += 1
        return None, self.now_s


def asleep(_rank, _now_s):
    return 1.0


def busy(_rank, now_s):
    return now_s


def test_a_rank_that_was_stopped():
    bench = Bench()
    stopped = lambda rank, now_s: "T" if rank == 2 and now_s >= 3 else "S"  # noqa: E731
    hang, when_s = bench.run(60, state=stopped, cpu=asleep, step=lambda _rank, now_s: int(now_s))
    assert hang == Hang(
        rank=2, message="suspended (SIGSTOP) for 11 s", step=hang.step, sure=True, final=True
    )
    assert when_s == 3 + TIMEOUT_S


def test_a_rank_that_was_stopped_after_everything_had_come_to_rest():
    """It is the one, although all have waited for longer than it has been stopped."""
    stopped = lambda rank, now_s: "T" if rank == 2 and now_s >= 3 else "S"  # noqa: E731
    for step in (lambda _rank, _now_s: -1, lambda _rank, _now_s: 5):
        hang, when_s = Bench().run(60, state=stopped, cpu=asleep, step=step)
        assert (hang.rank, hang.sure) == (2, True)
        assert "SIGSTOP" in hang.message
        assert when_s == TIMEOUT_S


def test_a_rank_that_is_stopped_for_a_moment_is_none():
    bench = Bench()
    state = lambda _rank, now_s: "T" if now_s % 8 < 7 else "R"  # noqa: E731
    assert bench.run(100, state=state, cpu=busy)[0] is None


def test_a_rank_that_computes_while_all_others_wait():
    """One that holds the interpreter's lock in a loop, say."""
    bench = Bench()
    hang, when_s = bench.run(60, cpu=lambda rank, now_s: now_s if rank == 3 else 1.0)
    assert (hang.rank, hang.sure) == (3, True)
    assert hang.message == (
        "it computes or loops while 3 other ranks wait for it: no progress for 10 s"
    )
    assert when_s == TIMEOUT_S


@pytest.mark.parametrize(
    ("kind", "how"), [("T", "suspended (SIGSTOP)"), ("D", "blocked on storage"), ("S", "waiting")]
)
def test_a_zygote_that_makes_no_progress_does_not_start_its_rank(kind, how):
    hang, when_s = Bench().run(
        60,
        step=lambda rank, _s: UNSTARTED if rank == 2 else -1,
        state=lambda rank, _s: kind if rank == 2 else "S",
        cpu=asleep,
    )
    assert (hang.rank, when_s) == (2, TIMEOUT_S)
    assert (
        f"not started: its zygote, which imports modules and starts ranks, is {how}" in hang.message
    )


def test_a_slow_import_is_none():
    """The other ranks wait for the one that its zygote cannot start yet."""
    hang, _ = Bench().run(
        200,
        step=lambda rank, _s: UNSTARTED if rank == 2 else -1,
        cpu=lambda rank, now_s: now_s / 10 if rank == 2 else 1.0,
    )
    assert hang is None


def test_a_rank_that_its_zygote_has_just_started_has_not_waited_yet():
    """It has used less CPU time than its zygote."""
    bench = Bench(ranks=1)
    assert bench.run(8, step=lambda *_: UNSTARTED, cpu=lambda *_: 5.0)[0] is None
    assert bench.run(8, cpu=lambda *_: 1.0)[0] is None


def test_all_ranks_wait():
    hang, when_s = Bench().run(60, cpu=asleep)
    assert hang == Hang(rank=0, message="all ranks wait: no progress for 10 s")
    assert not hang.sure  # their stacks may tell
    assert when_s == TIMEOUT_S


def test_all_ranks_compute():
    assert Bench().run(100, cpu=busy)[0] is None


def test_a_rank_that_speaks_of_its_steps_falls_behind():
    def step(rank, now_s):
        return min(int(now_s), 6 if rank == 1 else 7)

    hang, when_s = Bench().run(60, step=step, cpu=busy)
    assert (hang.rank, hang.step, hang.sure) == (1, 6, True)
    assert hang.message == "no new step for 10 s; it is at step 6, others are at 7"
    assert when_s == 7 + TIMEOUT_S


def test_all_ranks_stay_at_one_step():
    step = lambda _rank, now_s: min(int(now_s), 7)  # noqa: E731
    hang, _ = Bench().run(60, step=step, cpu=asleep)
    assert (hang.step, hang.sure, hang.message) == (7, False, "no new step for 10 s")
    one_busy = lambda rank, now_s: now_s if rank == 2 else 1.0  # noqa: E731
    hang, _ = Bench().run(60, step=step, cpu=one_busy)
    assert (hang.rank, hang.sure) == (2, True)


def test_ranks_that_do_not_speak_of_their_steps_are_not_behind():
    """Often only the first does."""
    step = lambda rank, now_s: min(int(now_s), 7) if rank == 0 else -1  # noqa: E731
    hang, _ = Bench().run(60, step=step, cpu=asleep)
    assert (hang.rank, hang.step) == (0, 7)


def test_a_step_that_goes_on_is_seen_however_little_else_moves():
    step = lambda _rank, now_s: int(now_s / 9)  # noqa: E731
    assert Bench().run(200, step=step, cpu=asleep)[0] is None


def test_a_rank_that_polls_in_a_collective_is_not_the_cause():
    main = '  File "/t.py", line 1 in <module>'
    polls = f'  File "/x/torch/distributed/distributed_c10d.py", line 9 in recv\n{main}'
    sleeps = f'  File "/t.py", line 7 in load\n{main}'
    hang = Hang(rank=0, message="it computes or loops while another rank waits", sure=True)
    found = hang.with_stacks({"0": polls, "1": sleeps})
    assert (found.rank, found.message) == (
        1,
        "in load (t.py, line 7), the others in the collective recv",
    )
    assert hang.with_stacks({"0": sleeps, "1": polls}) == hang


def test_ranks_that_are_busy_without_an_end_are_suspected_in_turn():
    """NCCL waits by polling. Whether these ranks wait is left to their record of collectives."""
    bench = Bench()
    assert bench.run(35, cpu=busy)[0] is None
    assert bench.suspicions == [10, 20, 30]


def test_a_suspicion_waits_for_the_rest_of_the_time():
    bench = Bench()
    hang = None
    while hang is None:
        for rank in range(4):
            bench.watch.observe(bench.now_s, rank=rank, step=-1, state="R", cpu_s=bench.now_s)
        hang = bench.watch.judge(bench.now_s)
        bench.now_s += 1
    bench.watch.resume(hang, 7.0)  # they have been waiting since
    bench.run(20, cpu=busy)
    assert bench.suspicions[0] == 7 + TIMEOUT_S


def test_main_threads_that_sleep_while_others_communicate():
    bench = Bench()
    hang, when_s = bench.run(60, cpu=asleep)
    bench.watch.resume(hang, when_s)
    again, again_s = bench.run(60, cpu=asleep)
    assert again == hang
    assert again_s == when_s + TIMEOUT_S


def test_pulses_at_different_moments():
    """The nodes' clocks tick at different times; a rank that has just begun to wait is no sign."""
    bench = Bench(phases=[0.0, 0.3, 0.6, 0.9])
    # For 9.7 s each rank waits for another, in turn.
    turn = lambda rank, now_s: math.floor((now_s + rank) / 9.7) * 0.1  # noqa: E731
    assert bench.run(300, cpu=turn)[0] is None
    hang, _ = Bench(phases=[0.0, 0.3, 0.6, 0.9]).run(60, cpu=asleep)
    assert hang is not None


def test_a_rank_that_is_not_looked_at_any_more_is_not_judged():
    """Its node may be slow to say; when it is gone, that is another matter."""
    bench = Bench()
    bench.run(5, cpu=asleep)
    assert bench.watch.judge(1000) is None


def test_each_hang_is_told_once_and_the_next_generation_begins_anew():
    bench = Bench()
    assert bench.run(60, cpu=asleep)[0] is not None
    assert bench.run(60, cpu=asleep)[0] is None
    bench.watch.begin()
    hang, _ = bench.run(60, cpu=asleep)
    assert hang.generation == 0


def make_pulse(generation):
    return Pulse(generation=generation, ranks=[[0, -1, "S", 1.0], [1, -1, "S", 1.0]])


def test_a_hang_is_found_in_the_pulses_of_its_own_generation():
    for generation, found in ((0, True), (1, False)):
        watch = HangWatch(0, TIMEOUT_S)
        watch.begin()
        hangs = [watch.take(make_pulse(generation), float(now_s)) for now_s in range(100)]
        assert any(hangs) is found


def test_ranks_are_judged_once_for_the_pulses_of_many_agents(monkeypatch):
    judged = []
    monkeypatch.setattr(HangWatch, "judge", lambda _, now_s: judged.append(now_s))
    watch = HangWatch(0, TIMEOUT_S)
    watch.begin()
    for now_s in (0.0, 0.1, 0.2, 1.0, 1.1, 2.0):
        watch.take(make_pulse(0), now_s)
    assert judged == [0.0, 1.0, 2.0]


def test_nothing_is_watched_where_that_was_asked_or_no_generation_runs():
    assert Bench(timeout_s=0).run(100, cpu=asleep)[0] is None
    bench = Bench()
    bench.watch.end()
    assert bench.run(100, cpu=asleep)[0] is None


def test_a_rank_that_has_gone_is_left_out():
    """It finished early; that the others go on is no hang of its own."""
    bench = Bench(2)
    bench.run(5, cpu=asleep)
    bench.watch.forget(0)
    bench.phases = [0.0]  # only one is felt from now on
    for rank in (0, 1):
        bench.watch.forget(rank)
    assert bench.watch.judge(1000) is None


# --- a thousand runs ----------------------------------------------------------------------------


def simulate(seed, *, speaks, hung=None):
    """Return the alarm of a run with jitter, lost pulses and steps of any length that is allowed.

    With `hung` that rank stays behind, asleep, after the tenth step; everybody else waits for it.
    """
    chance = random.Random(seed)  # noqa: S311  no secret
    ranks, timeout_s = chance.randint(2, 6), chance.choice([3, 5, 12, 30])
    begins_s, now_s = [], 0.0
    while now_s < 12 * timeout_s and (hung is None or len(begins_s) < 10):
        now_s += chance.uniform(0.01, 0.8 * timeout_s)
        begins_s.append(now_s)
    end_s = now_s + (2 * timeout_s + 20 if hung is not None else 0)
    delays_s = [chance.uniform(0, 0.1) for _ in range(ranks)]
    slowest = chance.randrange(ranks)
    lost = chance.uniform(0, 0.5)
    pulses = []
    for rank in range(ranks):
        now_s = chance.random()
        while now_s < end_s:
            if chance.random() > lost:
                pulses.append((now_s, rank))
            now_s += chance.uniform(1.0, 1.2)
    now_s = chance.random()
    while now_s < end_s:
        pulses.append((now_s, -1))
        now_s += 1.0
    watch = HangWatch(0, timeout_s)
    watch.begin()
    for now_s, rank in sorted(pulses):
        if rank < 0:
            found = watch.judge(now_s)
            if found and not found.suspected:
                return found, now_s - begins_s[-1], timeout_s
            if found:
                watch.resume(found, now_s)
            continue
        begun = sum(begin_s + delays_s[rank] <= now_s for begin_s in begins_s)
        # The slowest computes throughout; the others wait for it, and wake at each step.
        working = rank == slowest and hung is None
        step = begun - (hung == rank and begun == 10)
        watch.observe(
            now_s,
            rank=rank,
            step=step if speaks else -1,
            state="R" if working else "S",
            cpu_s=now_s if working else 0.02 * begun,
        )
    return None, 0.0, timeout_s


@pytest.mark.parametrize("speaks", [True, False], ids=["steps", "no steps"])
def test_a_thousand_healthy_runs_raise_no_alarm(speaks):
    alarms = {seed: simulate(seed, speaks=speaks)[0] for seed in range(500)}
    assert not {seed: hang for seed, hang in alarms.items() if hang}


@pytest.mark.parametrize("speaks", [True, False], ids=["steps", "no steps"])
def test_a_hundred_hung_runs_raise_one_each(speaks):
    for seed in range(100):
        hang, after_s, timeout_s = simulate(seed, speaks=speaks, hung=0)
        assert hang is not None, seed
        assert timeout_s <= after_s < timeout_s + 20, seed
        if speaks:
            assert hang.rank == 0, seed


# --- storage -----------------------------------------------------------------------------------


def test_ranks_that_storage_holds():
    """Half of them write; the others wait for those."""
    bench = Bench()
    state = lambda rank, now_s: "D" if rank >= 2 and now_s >= 1 else "S"  # noqa: E731
    hang, _ = bench.run(60, state=state, cpu=asleep, step=lambda _rank, _s: 7)
    assert hang.rank == 2
    assert hang.step == 7
    assert hang.message == "blocked on storage for 9 s, and so is another rank"
    assert hang.with_stacks({"0": "elsewhere", "1": "here", "2": "here", "3": "here"}) == hang


def test_a_moment_of_storage_explains_no_hang():
    bench = Bench()
    state = lambda rank, now_s: "D" if rank == 2 and now_s >= 8 else "S"  # noqa: E731
    hang, _ = bench.run(60, state=state, cpu=asleep, step=lambda _rank, _s: 7)
    assert "storage" not in hang.message


# --- compilation ------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [-1, 7])
def test_ranks_that_wait_for_a_compilation_do_not_hang_until_it_takes_too_long(step):
    bench = Bench(ranks=2)
    while True:
        hang, now_s = bench.run(
            100, step=lambda _rank, _s: step, cpu=lambda rank, s: 0.0 if rank else s
        )
        assert hang is not None
        if not bench.watch.excuse(hang, COMPILES, now_s):
            break
    assert now_s == pytest.approx(COMPILE_S, abs=3 * TIMEOUT_S)


def test_another_compilation_has_its_own_time():
    watch = HangWatch(0, TIMEOUT_S)
    hang = Hang(rank=0, message="", generation=0)
    assert watch.excuse(hang, COMPILES, 0.0)
    assert watch.excuse(hang, COMPILES, 2 * COMPILE_S)


def test_the_time_after_a_compilation_counts_from_the_first_look_that_does_not_see_it():
    bench = Bench(ranks=2)
    asleep = {"cpu": lambda _rank, _s: 0.0}
    hang, now_s = bench.run(100, **asleep)
    assert bench.watch.excuse(hang, COMPILES, now_s)
    hang, ended_s = bench.run(100, **asleep)
    assert bench.watch.excuse(hang, RUNS_COMPILED, ended_s)  # perhaps it ended a moment ago
    hang, now_s = bench.run(100, **asleep)
    assert now_s - ended_s >= TIMEOUT_S
    assert not bench.watch.excuse(hang, RUNS_COMPILED, now_s)
