"""GPUs that ranks have and do not use."""

from echelon.launch.telemetry.telemetry import IDLE_S, IdleGpus
from echelon.run.series import Sample


def sample(at_s, *, util, rank=3, generation=0.0):
    return Sample(
        time_s=at_s,
        means={"gpu1.util": util, "gpu0.util": 0.0},
        lasts={f"rank{rank}.gpu": 1.0, f"rank{rank}.generation": generation},
    )


def test_one_that_does_nothing_for_minutes_is_told_once():
    watch = IdleGpus()
    assert watch.feed(sample(0, util=0.0)) == []
    assert watch.feed(sample(IDLE_S - 1, util=0.01)) == []
    (told,) = watch.feed(sample(IDLE_S, util=0.0))
    assert told.startswith("GPU 1 of rank 3 has been idle for 5 minutes")
    assert watch.feed(sample(3 * IDLE_S, util=0.0)) == []
    assert watch.feed(sample(4 * IDLE_S, util=0.0, generation=1.0)) == []
    assert watch.feed(sample(5 * IDLE_S, util=0.0, generation=1.0))


def test_one_that_works_now_and_then_is_not():
    watch = IdleGpus()
    for minute in range(60):
        assert watch.feed(sample(60.0 * minute, util=0.9 * (minute % 4 == 0))) == []


def test_one_that_does_not_tell_is_taken_for_busy():
    watch, unknown = IdleGpus(), {"rank0.gpu": 0.0, "rank0.generation": 0.0}
    for at_s in (0, IDLE_S, 2 * IDLE_S):
        assert watch.feed(Sample(time_s=at_s, lasts=unknown)) == []
