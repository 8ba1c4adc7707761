"""A picture of a run in lines of text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.monitor.frame import View, draw, sparkline, thin
from echelon.monitor.state import RunState
from echelon.run.series import Sample
from eventlines import at


def make_state(ranks=4, nodes=2):
    state = RunState(run_id="train-ab12")

    def feed(at_s, kind, **data):
        state.feed_event(1, at(at_s, kind, **data))

    feed(10, "attempt", job="42")
    for node in range(nodes):
        feed(11, "joined", node=node, name=f"node{node + 1}")
    feed(12, "generation", generation=0, world_size=ranks, nodes=nodes)
    for rank in range(ranks):
        means = {"cpu": 0.25, f"rank{rank}.steps": 9.0 + rank, f"rank{rank}.data": 0.5}
        lasts = {f"rank{rank}.step": 1200 + rank, f"rank{rank}.generation": 0}
        sample = Sample(time_s=20, means=means, lasts=lasts, peaks={"mem": 2**31})
        state.feed_sample(1, rank * nodes // ranks, sample)
    return state


def frame(state, width=80, height=24, **more):
    return draw(View(state=state, history={}, now_s=100.0, **more), width=width, height=height)


def test_a_run_that_trains():
    lines = frame(make_state(), effective="91 % of 40 GPU-seconds", logs=["0: hello"])
    assert lines[0] == "train-ab12  RUNNING  attempt 1 (job 42)  1 min 30 s  4 ranks  step 1,200"
    assert "effective  91 % of 40 GPU-seconds" in lines
    assert lines[-1] == "0: hello"
    assert [line.split()[0] for line in lines if "node" in line][1:3] == ["node1", "node2"]
    (slowest,) = [line for line in lines if line.startswith("    0 ")]
    assert slowest.split() == ["0", "node1", "1,200", "9.00", "50%", "-", "0.0G"]


def test_a_script_that_tells_no_steps_has_a_dash_for_them():
    state = make_state(ranks=1, nodes=1)
    state.feed_event(1, at(30, "generation", generation=1, world_size=1))
    lasts = {"rank0.step": -1, "rank0.generation": 1}
    state.feed_sample(1, 0, Sample(time_s=31, lasts=lasts, peaks={"rank0.mem": 2**30}))
    lines = frame(state)
    assert "step" not in lines[0]
    assert lines[-1].split() == ["0", "node1", "-", "-", "-", "-", "1.0G"]


def test_one_that_waits_in_the_queue():
    assert frame(RunState(run_id="r"))[0] == "r  QUEUED  0 ranks"


def test_of_a_thousand_ranks_the_worst_are_shown():
    state = make_state(ranks=1000, nodes=4)
    state.feed_event(1, at(30, "exited", rank=77, signal=9))
    lines = frame(state)
    shown = [line.split()[0] for line in lines if line[:5].strip().isdecimal()]
    assert shown[:3] == ["77", "0", "1"]  # the failed, then the slowest
    assert len(lines) <= 24
    assert any(line.startswith("… and ") for line in lines)


def test_the_rank_that_others_wait_for_comes_first():
    state, history = make_state(), {0: [], 1: []}
    for second in range(30):
        for node, ranks in ((0, (0, 1)), (1, (2, 3))):
            # In a single second, the straggler may seem faster; before, rank 0 was slow.
            slow = 2 if second >= 20 else 0
            means = {f"rank{rank}.comm": 0.0 if rank == slow else 0.76 for rank in ranks}
            means |= {f"rank{rank}.steps": 9.0 + (rank == slow) for rank in ranks}
            lasts = {f"rank{rank}.generation": 0 for rank in ranks}
            history[node].append(Sample(time_s=20 + second, means=means, lasts=lasts))
            state.feed_sample(1, node, history[node][-1])
    state.feed_event(1, at(60, "exited", rank=3, code=1))
    lines = draw(View(state=state, history=history, now_s=100.0), width=100, height=24)
    said = "rank 2 on node2 is slower than the others, which waited for it 76% of their time"
    assert f"straggler  {said}" in lines
    shown = [line.split()[0] for line in lines if line[:5].strip().isdecimal()]
    assert shown == ["3", "2", "0", "1"]  # the failed one, the straggler, the others


def test_without_a_straggler_none_is_named():
    assert not any(line.startswith("straggler") for line in frame(make_state()))


def test_gpus_stand_beside_their_ranks():
    state = make_state(ranks=1, nodes=1)
    numbers = {"gpu0.util": 0.98, "gpu0.power": 640.0}
    lasts = {"rank0.gpu": 0, "rank0.generation": 0, "gpu0.mem_size": 80 * 2**30}
    peaks = {"gpu0.mem": 40 * 2**30}
    state.feed_sample(1, 0, Sample(time_s=21, means=numbers, lasts=lasts, peaks=peaks))
    assert frame(state)[-1].endswith("  0   98%   40/80G  640 W")


def test_a_lost_node_is_said_to_be():
    state = make_state()
    state.feed_event(1, at(30, "lost", node=1))
    assert "node2        lost" in frame(state)


@given(st.integers(20, 200), st.integers(3, 60), st.integers(1, 40), st.text())
def test_a_frame_fits_its_terminal(width, height, ranks, log):
    lines = frame(make_state(ranks, nodes=1), width, height, logs=[log])
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize(
    ("values", "most", "drawn"),
    [
        ([], None, ""),
        ([1, 1, 1], None, "▁▁▁"),
        ([0, 7], None, "▁█"),
        ([0.0, 0.5, 1.0, 2.0, -1.0], 1.0, "▁▅██▁"),
    ],
)
def test_sparklines(values, most, drawn):
    assert sparkline(values, 10, most=most) == drawn


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(1, 100))
def test_what_is_thinned_keeps_its_length_and_its_limits(values, room):
    fits = thin(values, room)
    assert len(fits) == min(room, len(values))
    assert min(values) - 1 <= min(fits) <= max(fits) <= max(values) + 1
