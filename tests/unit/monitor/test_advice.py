"""Suggestions follow from what was measured, and only if there is enough of it."""

import pytest

from echelon.monitor.advice import LEAST_TRAINED_S, Facts, RankFigures, advise
from echelon.run.rank_time import PHASES

GIB = 2.0**30
HOUR = 3600.0
DEFAULTS = {"seconds": {}, "trained_s": HOUR}


def codes(**facts):
    return [finding.code for finding in advise(Facts(**{**DEFAULTS, **facts}))]


def told(**facts):
    (finding,) = advise(Facts(**{**DEFAULTS, **facts}))
    return f"{finding.seen}: {finding.change}"


def test_of_a_run_that_trained_all_the_time_nothing_is_said():
    assert codes(seconds={"queue": 500, "productive": 97, "launch": 1, "idle": 2}) == []
    assert codes() == []


def test_gpus_that_wait_for_data():
    said = told(seconds={"productive": 57, "data wait": 43}, gpus=True)
    assert said == (
        "GPUs waited for data 43% of the time: request more CPUs for the loaders "
        "(--cpus-per-gpu), or pack the data set (echelon pack)"
    )


LATE = {"productive": 57, "data wait": 43}


def test_ranks_without_gpus_are_not_told_to_use_flags_for_gpus():
    assert "(--cpus-per-task)" in told(seconds=LATE)


def test_loaders_that_leave_cpus_idle_do_not_need_more_of_them():
    idle = {"cpu_mean": 0.1, "cpus_asked": 32, "wall_s": HOUR}
    assert "more DataLoader workers" in told(seconds=LATE, **idle)  # and not: fewer CPUs
    assert "request more CPUs" in told(seconds=LATE, **{**idle, "cpu_mean": 0.9})


@pytest.mark.parametrize(
    "facts",
    [
        {"seconds": LATE},
        {"seconds": {"productive": 50, "restart": 50}, "restarts": 2},
        {"ranks": [RankFigures(rank=0, node="n", speaks=False, gpu_util=0.0)]},
        {"ranks": [RankFigures(rank=0, node="n", gpu_util=0.3)]},
        {"ranks": [RankFigures(rank=rank, node="n", comm=0.5) for rank in range(4)]},
        {"throttled": {"n1": 0.4}},
        {"mem_peak": GIB, "mem_asked": 64 * GIB, "wall_s": HOUR},
    ],
)
def test_a_run_that_hardly_trained_is_not_judged(facts):
    assert codes(**facts, trained_s=LEAST_TRAINED_S - 1) == []


def test_saving_less_often_is_not_suggested_where_work_was_repeated():
    found = advise(
        Facts(
            seconds={"productive": 60, "checkpoint stall": 20, "redone work": 20},
            trained_s=HOUR,
            restarts=1,
        )
    )
    assert [one.code for one in found] == ["checkpoint-stall", "redone-work"]
    assert "less often" not in found[0].change
    assert "more often" in found[1].change


def test_the_largest_loss_comes_first():
    seconds = {"productive": 50, "restart": 10, "redone work": 30, "launch": 10, "queue": 9000}
    found = codes(seconds=seconds, restarts=3, wall_s=HOUR)
    assert found == ["redone-work", "restart", "launch"]
    assert codes(seconds=seconds, wall_s=60.0) == ["redone-work", "restart"]


@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase != "productive"])
def test_every_loss_has_a_sentence(phase):
    found = codes(seconds={"productive": 50, phase: 50}, wall_s=HOUR)
    code = "communication-bound" if phase == "peer wait" else phase.replace(" ", "-")
    assert found == [code] or phase == "rendezvous"


def test_a_rank_that_starves_holds_all_others_up():
    ranks = [RankFigures(rank=number, node=f"n{number}", data=0.02) for number in range(7)]
    slow = RankFigures(rank=7, node="n7", data=0.4)
    assert "rank 7 on n7 waited for data 40% of its time, the others 2%" in told(
        ranks=[*ranks, slow]
    )
    assert codes(ranks=ranks) == codes(ranks=[slow]) == []


def test_a_rank_that_is_slow_is_the_one_that_never_waits():
    ranks = [RankFigures(rank=number, node=f"n{number}", comm=0.5) for number in range(3)]
    slow = RankFigures(rank=3, node="n3", comm=0.02)
    assert told(ranks=[*ranks, slow]).startswith(
        "rank 3 on n3 is slower than the others, which waited for it 48% of their time"
    )
    starved = RankFigures(rank=3, node="n3", comm=0.02, data=0.4)
    assert "waited for data" in told(ranks=[*ranks, starved])
    assert codes(ranks=ranks) == ["communication-bound"]


def test_gpus_that_nobody_feeds_fast_enough():
    idle = [RankFigures(rank=0, node="n", gpu_util=0.3)]
    assert codes(ranks=idle) == ["launch-bound"]
    assert codes(ranks=[RankFigures(rank=0, node="n", gpu_util=0.9)]) == []
    starved = [RankFigures(rank=0, node="n", gpu_util=0.3, data=0.5)]
    assert codes(ranks=starved) == []  # the data are why
    waiting = [RankFigures(rank=rank, node="n", gpu_util=0.3, comm=0.5) for rank in range(2)]
    assert codes(ranks=waiting) == ["communication-bound"]  # the other ranks are why
    starting = {"productive": 40, "warm-up": 60}
    assert codes(ranks=idle, seconds=starting, wall_s=HOUR) == ["warm-up"]  # the start is why


def test_gpus_that_the_script_does_not_use():
    for speaks in (True, False):
        unused = [RankFigures(rank=0, node="n", speaks=speaks, gpu_util=0.0)]
        assert codes(ranks=unused, wall_s=HOUR) == ["unused"]


def test_of_a_script_of_ones_own_it_is_not_known_what_it_waits_for():
    plain = RankFigures(rank=0, node="n", speaks=False, gpu_util=0.3)
    assert told(ranks=[plain]).startswith("GPUs were busy 30% of the time: profile a rank")
    assert codes(ranks=[plain], trained_s=100.0) == []  # its start may be most of that


def test_what_was_asked_for_and_not_used():
    spare = {"mem_peak": 10 * GIB, "mem_asked": 64 * GIB, "wall_s": HOUR}
    assert told(**spare).endswith("so that jobs start sooner: --mem 13G")
    assert codes(**{**spare, "wall_s": 60.0}) == []
    assert codes(**{**spare, "mem_peak": 40 * GIB}) == []
    assert "request about 6 CPUs per node" in told(cpu_mean=0.1, cpus_asked=32, wall_s=HOUR)
    assert told(limit_s=24 * HOUR, wall_s=HOUR).endswith("--time 78m")
    assert codes(limit_s=1.5 * HOUR, wall_s=HOUR) == []


def test_a_run_that_was_stopped_says_nothing_of_what_it_would_have_needed():
    spare = {"mem_peak": 1 * GIB, "mem_asked": 64 * GIB, "limit_s": 24 * HOUR, "wall_s": HOUR}
    assert codes(**spare) == ["memory", "time"]
    assert codes(**spare, completed=False) == []


def test_a_node_that_runs_hot():
    assert codes(throttled={"n1": 0.4, "n2": 0.01}) == ["throttled"]


def test_a_node_is_left_out_only_where_there_are_others():
    ranks = [RankFigures(rank=number, node=f"n{number}", data=0.02) for number in range(3)]
    slow = RankFigures(rank=3, node="n3", data=0.4)
    assert told(ranks=[*ranks, slow]).endswith("or exclude it: --exclude n3")
    assert "--exclude" not in told(ranks=[*ranks, slow], cluster=False)
    alone = [RankFigures(rank=number, node="n0", data=0.02) for number in range(3)]
    assert "--exclude" not in told(ranks=[*alone, RankFigures(rank=3, node="n0", data=0.4)])
    behind = RankFigures(rank=3, node="n0", comm=0.02)
    waiting = [RankFigures(rank=number, node="n0", comm=0.5) for number in range(3)]
    assert "--exclude" not in told(ranks=[*waiting, behind])


def test_not_all_nodes_are_left_out_because_their_gpus_are_hot():
    assert told(throttled={"n0": 0.3, "n1": 0.0}).endswith("or exclude it: --exclude n0")
    both = advise(Facts(**DEFAULTS, throttled={"n0": 0.3, "n1": 0.3}))
    assert [finding.change for finding in both] == ["tell the cluster's administrators"] * 2
    own = told(throttled={"node0": 0.3, "node1": 0.0}, cluster=False)
    assert "nvidia-smi" in own
    assert "--exclude" not in own


def test_imports_that_wait_for_storage_recommend_a_stage():
    slow = [(12.0, 4.0), (41.3, 37.9)]
    assert told(imports=slow) == (
        "importing modules took 41 s on the slowest of 2 nodes, which waited 38 s of that for "
        "storage: copy the environment to the nodes' own disks; later jobs find it there: --stage"
    )
    assert codes(imports=slow, trained_s=1.0) == ["stage"], "a short run started slowly too"
    assert codes(imports=slow, staged=True) == []


def test_imports_that_compute_do_not():
    assert codes(imports=[(41.3, 2.0)]) == []
