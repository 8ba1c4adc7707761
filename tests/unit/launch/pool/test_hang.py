"""Hangs that are noticed, and a thousand runs that do not hang. No time passes in here."""

import math
import random
from pathlib import Path

import pytest

from echelon.launch.pool.hang import (
    COMPILE_S,
    Hang,
    HangWatch,
    find_odd,
    is_compiling,
    place_of,
    script_frames,
)
from echelon.launch.protocol.messages import UNSTARTED

STACKS = Path(__file__).parents[3] / "golden" / "stacks"
TIMEOUT_S = 10


class Bench:
    """Ranks whose pulse is felt once a second, and a clock that is ours."""

    def __init__(self, ranks=4, timeout_s=TIMEOUT_S, phases=()):
        self.watch = HangWatch(timeout_s)
        self.watch.begin(0)
        self.phases = phases or [0.0] * ranks
        self.now_s = 0
        self.suspicions = []

    def run(self, seconds, *, step=lambda _rank, _s: -1, state=lambda _rank, _s: "S", cpu):
        """Let time pass; return the first alarm and when it came."""
        for _ in range(seconds):
            for rank, phase in enumerate(self.phases):
                now_s = self.now_s + phase
                self.watch.feel(
                    now_s,
                    generation=0,
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
            bench.watch.feel(
                bench.now_s, generation=0, rank=rank, step=-1, state="R", cpu_s=bench.now_s
            )
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
    bench.watch.begin(0)
    hang, _ = bench.run(60, cpu=asleep)
    assert hang.generation == 0


def test_pulses_of_an_earlier_generation_are_not_felt():
    watch = HangWatch(TIMEOUT_S)
    watch.begin(1)
    for now_s in range(100):
        watch.feel(now_s, generation=0, rank=0, step=-1, state="S", cpu_s=1.0)
        assert watch.judge(now_s) is None


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
    watch = HangWatch(timeout_s)
    watch.begin(0)
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
        watch.feel(
            now_s,
            generation=0,
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


# --- stacks -------------------------------------------------------------------------------------


def stacks(name):
    """Return what faulthandler really wrote for four ranks, by rank."""
    folder = STACKS / name
    return {path.stem: script_frames(path.read_text()) for path in sorted(folder.glob("*.txt"))}


def test_a_rank_in_another_collective():
    found = stacks("another-collective")
    assert find_odd(found) == (
        3,
        "in the collective recv, the others in the collective all_reduce",
    )


def test_a_rank_in_no_collective():
    assert find_odd(stacks("no-collective")) == (
        0,
        "in <module> (train.py, line 31), the others in the collective all_reduce",
    )


def test_a_rank_that_holds_the_interpreters_lock():
    assert find_odd(stacks("interpreter-lock")) == (
        2,
        "in <module> (train.py, line 33), the others in the collective all_reduce",
    )


def test_a_stack_is_shown_without_how_the_launcher_got_there():
    text = stacks("no-collective")["0"]
    assert "launcher" not in text
    assert "frozen runpy" not in text
    assert 'train.py", line 31 in <module>' in text


def test_of_several_threads_the_one_that_runs_the_script_counts():
    """Others that wait, a prefetching one say, are in every rank."""
    text = (
        "Thread 0x00007f93bd001b80 (most recent call first):\n"
        '  File "/usr/lib/python3.11/threading.py", line 327 in wait\n'
        '  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap\n\n'
        "Current thread 0x00007f93bd001b80 (most recent call first):\n"
        '  File "/home/me/model.py", line 5 in forward\n'
        '  File "/home/me/train.py", line 27 in <module>\n'
    )
    assert place_of(text) == "in forward (model.py, line 5)"


def test_what_has_no_frames_is_told_as_it_is():
    assert place_of("process 7 is stopped by a signal, CPU time 1.0 s") == (
        "process 7 is stopped by a signal, CPU time 1.0 s"
    )
    assert place_of("") == "at an unknown place"


def test_nobody_is_odd():
    same = stacks("no-collective")
    assert find_odd({"0": same["1"], "1": same["2"], "2": same["3"]}) is None
    two_and_two = {"0": same["0"], "1": same["0"], "2": same["1"], "3": same["1"]}
    assert find_odd(two_and_two) is None
    assert find_odd({"0": same["0"]}) is None


def test_of_two_the_one_in_no_collective_keeps_the_other_waiting():
    found = stacks("no-collective")
    assert find_odd({"0": found["0"], "1": found["1"]})[0] == 0
    assert find_odd({"0": found["1"], "1": found["0"]})[0] == 1


def test_stacks_tell_whose_hang_it_is_unless_that_is_known():
    found = stacks("another-collective")
    hang = Hang(rank=0, message="all ranks wait", step=4)
    assert hang.with_stacks(found).rank == 3
    assert hang.with_stacks(found).step == 4
    assert hang.with_stacks({}) == hang
    sure = Hang(rank=1, message="stopped", sure=True, final=True)
    assert sure.with_stacks(found) == sure


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

COMPILES = """Current thread 0x1 (most recent call first):
  File "/env/lib/python3.12/site-packages/torch/_inductor/async_compile.py", line 1 in wait
  File "/env/lib/python3.12/site-packages/torch/_dynamo/convert_frame.py", line 2316 in __call__
  File "/env/lib/python3.12/site-packages/torch/_dynamo/eval_frame.py", line 1024 in compile_wrapper
  File "/home/me/train.py", line 75 in <module>
"""
RUNS_COMPILED = """Current thread 0x1 (most recent call first):
  File "/tmp/torchinductor_me/ab/cab.py", line 9 in call
  File "/env/lib/python3.12/site-packages/torch/_inductor/output_code.py", line 6 in __call__
  File "/env/lib/python3.12/site-packages/torch/_dynamo/eval_frame.py", line 1024 in compile_wrapper
  File "/home/me/train.py", line 75 in <module>
"""


def test_a_compilation_is_told_from_what_was_compiled():
    assert is_compiling(COMPILES)
    assert not is_compiling(RUNS_COMPILED)
    assert not is_compiling("")


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
    watch = HangWatch(TIMEOUT_S)
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
