"""Scratch folders of agents: those of dead agents are removed."""

import os

from echelon.launch.agent import scratch
from echelon.launch.agent.scratch import make_scratch


def test_folders_of_dead_agents_are_removed_by_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "SHARED", tmp_path)
    dead, lock = make_scratch()
    (dead / "mp-1.0-0").mkdir()
    alive, kept = make_scratch()
    assert dead.exists()  # its lock is held
    os.close(lock)
    for name in ("echelon-of-somebody", "echelon-new"):
        (tmp_path / name).mkdir()
    (tmp_path / "echelon-link").symlink_to(alive)
    _, last = make_scratch()
    assert not dead.exists()
    assert alive.exists()
    assert (tmp_path / "echelon-of-somebody").exists()
    for handle in (kept, last):
        os.close(handle)
