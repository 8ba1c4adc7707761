"""What a report is made of."""

from echelon.core.rundir import RunDir
from echelon.core.series import Sample
from echelon.monitor.report import _newest, _rank_figures, make_report


def sample(at_s, **lasts):
    named = {name.replace("_", "."): value for name, value in lasts.items()}
    return Sample(time_s=at_s, lasts=named)


def test_only_what_was_measured_of_the_last_ranks_counts():
    before = sample(1.0, rank0_generation=0, rank1_generation=0)
    empty = sample(2.0)
    after = sample(3.0, rank0_generation=1)
    assert _newest([before, empty, after], 1) == [after]
    assert _newest([], 1) == []


def test_ranks_that_say_nothing_of_steps_are_there_too():
    total = Sample(
        time_s=1.0,
        means={"gpu0.util": 0.25, "rank1.data": 0.5},
        lasts={"rank0.generation": 2, "rank0.gpu": 0, "rank1.generation": 2},
    )
    plain, speaking = _rank_figures(total, "n")
    assert (plain.speaks, plain.gpu_util) == (False, 0.25)
    assert (speaking.speaks, speaking.data, speaking.gpu_util) == (True, 0.5, None)


def test_of_a_run_that_has_not_begun_there_is_little_to_say(tmp_path):
    run = RunDir.create(tmp_path, "r-1")
    run.spec.write_text('script = "train.py"\n')
    report = make_report(run)
    assert report.state.phase == "QUEUED"
    assert report.accounts.allocated_us == 0
    assert report.findings == []
