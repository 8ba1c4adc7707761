"""What an agent reads in the shared memory of its ranks."""

from echelon.launch.agent.rank_progress import Motion, read_pace, read_spent, read_spent_so_far
from echelon.launch.protocol.messages import Pace
from echelon.launch.protocol.rank_shm import VARIABLE, RankShm
from echelon.train.stopping import StopBarrier

S = 1_000_000


def test_the_numbers_are_those_of_the_shared_memory(tmp_path):
    agent = RankShm.create(tmp_path / "beacon")
    agent.started_us -= 3 * S
    with StopBarrier({VARIABLE: str(tmp_path / "beacon")}) as line:
        assert agent.began_us == 0
        line.begin(12)
        line.begin(99)  # another training of the same process
        line.wait_for_data(0.25)
        line.wait_for_data(0.5)
        line.wait_for_peers(0.25)
        line.wait_for_peers(1.0)  # in total
    told = read_spent(agent, 1.5)
    assert 3 * S <= told.pop("began_us") <= told.pop("ran_us")
    assert told == {
        "met_us": -1,
        "first": 12,
        "data_us": 750_000,
        "stall_us": -1,
        "comm_us": 1_000_000,
        "still_us": 1_500_000,
    }


def test_the_longest_way_between_two_places_is_known(tmp_path, monkeypatch):
    agent = RankShm.create(tmp_path / "beacon")
    now_s = [100.0]
    monkeypatch.setattr("echelon.train.stopping.time.monotonic", lambda: now_s[0])
    line = StopBarrier({VARIABLE: str(tmp_path / "beacon")})
    for _ in range(2):
        with line:
            for pause_s in (50.0, 1.0, 2.5, 1.0):  # the first step may be slow, and is only one
                now_s[0] += pause_s
                line.arrive()
    assert agent.stop_interval_us == 2_500_000


def test_the_pace_of_a_node_is_that_of_its_slowest_rank(tmp_path):
    ranks = [RankShm.create(tmp_path / str(rank)) for rank in range(2)]
    assert read_pace(ranks) == Pace()
    ranks[0].save_us, ranks[0].saved = 5, 10
    ranks[1].save_us, ranks[1].saved, ranks[1].stop_interval_us = 3, 20, 7
    assert read_pace(ranks) == Pace(save_us=5, stop_interval_us=7, saved_low=10, saved_high=20)
    assert read_pace([]) is None


def test_a_rank_is_seen_to_stand_still(tmp_path):
    shm = RankShm.create(tmp_path / "beacon")
    motion = Motion(shm)
    assert motion.look(10.0) == 0  # it has never moved, and perhaps never speaks of it
    shm.step = 1
    assert [motion.look(now_s) for now_s in (11.0, 12.0, 13.5)] == [0, 1, 2.5]
    shm.passed = 4  # in a validation
    assert motion.look(14.0) == 0


def test_a_nodes_ranks_tell_how_they_have_spent_their_time_so_far(tmp_path):
    ranks = [RankShm.create(tmp_path / str(rank)) for rank in range(2)]
    for shm in ranks:
        shm.started_us -= 10 * S
        shm.met_us, shm.began_us = S, 2 * S
    ranks[0].comm_us = 6 * S
    told = read_spent_so_far(ranks)
    assert told.pop("productive") >= 2 * 8 * S - 6 * S
    assert told == {"rendezvous": 2 * S, "warm-up": 2 * S, "peer wait": 6 * S}
    assert read_spent_so_far([]) == {}
