"""What the stacks of ranks say about a hang."""

from pathlib import Path

from echelon.launch.pool.hang import Hang, find_odd, is_compiling, place_of, script_frames
from unit.launch.stacks import COMPILES, RUNS_COMPILED

STACKS = Path(__file__).parents[3] / "golden" / "stacks"


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


def test_a_compilation_is_told_from_what_was_compiled():
    assert is_compiling(COMPILES)
    assert not is_compiling(RUNS_COMPILED)
    assert not is_compiling("")
