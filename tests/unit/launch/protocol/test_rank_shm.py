"""A few numbers that two processes share: each has its place, and one of another size is none."""

import os
import struct
import time

import pytest

from echelon.launch.protocol import rank_shm as module
from echelon.launch.protocol.rank_shm import VARIABLE, RankShm, find_rank_shm

FIELDS = [name for name, value in vars(RankShm).items() if isinstance(value, module._Field)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "beacon"


def test_each_number_has_a_place_of_its_own(path):
    agent, rank = RankShm.create(path), RankShm.open(path)
    untouched = [name for name in FIELDS if getattr(rank, name) == -1]
    assert sorted([*untouched, "started_us"]) == sorted(FIELDS)
    for number, name in enumerate(FIELDS):
        setattr(agent, name, number + 2**40)
    assert [getattr(rank, name) for name in FIELDS] == [n + 2**40 for n in range(len(FIELDS))]


def test_a_rank_knows_since_when_it_was_asked_for(path):
    agent = RankShm.create(path)
    assert 0 <= time.monotonic_ns() // 1000 - agent.started_us < 60e6
    agent.started_us -= 5_000_000
    if (child := os.fork()) == 0:
        found = find_rank_shm({VARIABLE: str(path)})
        found.met_us = found.elapsed_us()
        os._exit(0)
    os.waitpid(child, 0)
    assert 5_000_000 < agent.met_us < 65_000_000


def test_an_instant_is_not_mistaken_for_nothing(path):
    agent = RankShm.create(path)
    agent.started_us += 10**9
    assert agent.elapsed_us() == 1


def test_one_that_is_not_there_is_none(path):
    assert find_rank_shm({}) is None
    assert find_rank_shm({VARIABLE: str(path)}) is None
    path.touch()
    assert find_rank_shm({VARIABLE: str(path)}) is None
    RankShm.create(path)
    assert find_rank_shm({VARIABLE: str(path)}) is not None


def test_one_of_an_older_agents_does_what_it_can(path):
    """A run keeps its launcher; the library may be newer when it goes on."""
    path.write_bytes(struct.pack("=q", -1) * 14)
    beacon = find_rank_shm({VARIABLE: str(path)})
    beacon.step, beacon.comm_us = 7, 9
    assert (beacon.step, beacon.proposed, beacon.comm_us) == (7, -1, -1)
    assert path.stat().st_size == 14 * 8
