"""What a run's figures say about how it was asked for."""

import pytest

from echelon.launch.protocol.time_accounting import PHASES
from echelon.monitor.advice import Facts, RankFigures, advise

GIB = 2.0**30
HOUR = 3600.0


def codes(**facts):
    return [finding.code for finding in advise(Facts(**{"seconds": {}, **facts}))]


def told(**facts):
    (finding,) = advise(Facts(**{"seconds": {}, **facts}))
    return f"{finding.seen}: {finding.change}"


def test_of_a_run_that_trained_all_the_time_nothing_is_said():
    assert codes(seconds={"queue": 500, "productive": 97, "launch": 1, "idle": 2}) == []
    assert codes() == []


def test_gpus_that_wait_for_data():
    said = told(seconds={"productive": 57, "data wait": 43}, gpus=True)
    assert said == (
        "GPUs waited for data 43% of the time: give the loaders more processors "
        "(--cpus-per-gpu 8), or pack the data set (echelon pack)"
    )


def test_the_largest_loss_comes_first():
    seconds = {"productive": 50, "restart": 10, "redone work": 30, "launch": 10, "queue": 9000}
    found = codes(seconds=seconds, restarts=3, wall_s=HOUR)
    assert found == ["redone-work", "restart", "launch"]
    assert codes(seconds=seconds, wall_s=60.0) == ["redone-work", "restart"]


@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase != "productive"])
def test_every_loss_has_a_sentence(phase):
    found = codes(seconds={"productive": 50, phase: 50}, wall_s=HOUR)
    assert found == [phase.replace(" ", "-")] or phase == "rendezvous"


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


def test_of_a_script_of_ones_own_it_is_not_known_what_it_waits_for():
    plain = RankFigures(rank=0, node="n", speaks=False, gpu_util=0.3)
    assert told(ranks=[plain]).startswith("GPUs were busy 30% of the time: see what ranks do")


def test_what_was_asked_for_and_not_used():
    spare = {"mem_peak": 10 * GIB, "mem_asked": 64 * GIB, "wall_s": HOUR}
    assert told(**spare).endswith("ask for less, and start sooner: --mem 13G")
    assert codes(**{**spare, "wall_s": 60.0}) == []
    assert codes(**{**spare, "mem_peak": 40 * GIB}) == []
    assert told(cpu_mean=0.1, cpus_asked=32, wall_s=HOUR).endswith("so that a node has 6")
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
    assert told(ranks=[*ranks, slow]).endswith("or leave it out: --exclude n3")
    assert "--exclude" not in told(ranks=[*ranks, slow], cluster=False)
    alone = [RankFigures(rank=number, node="n0", data=0.02) for number in range(3)]
    assert "--exclude" not in told(ranks=[*alone, RankFigures(rank=3, node="n0", data=0.4)])
    behind = RankFigures(rank=3, node="n0", comm=0.02)
    waiting = [RankFigures(rank=number, node="n0", comm=0.5) for number in range(3)]
    assert "--exclude" not in told(ranks=[*waiting, behind])


def test_not_all_nodes_are_left_out_because_their_gpus_are_hot():
    assert told(throttled={"n0": 0.3, "n1": 0.0}).endswith("staff, or leave it out: --exclude n0")
    both = advise(Facts(seconds={}, throttled={"n0": 0.3, "n1": 0.3}))
    assert [finding.change for finding in both] == ["tell the cluster's staff"] * 2
    own = told(throttled={"node0": 0.3, "node1": 0.0}, cluster=False)
    assert "nvidia-smi" in own
    assert "--exclude" not in own
