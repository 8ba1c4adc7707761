import math

import pytest

from echelon.launch.controller import rendezvous_watch as module
from echelon.launch.controller.rendezvous_watch import MEET_S, RendezvousWatch
from echelon.launch.program import Program
from echelon.launch.program_text import read_imports

TRAINS = "import torch\n"


class Clock:
    now_s = 100.0

    def monotonic(self):
        return self.now_s


@pytest.fixture
def watch(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "time", Clock())

    def make(text=TRAINS):
        script = tmp_path / "train.py"
        script.write_text(text)
        program = Program(argv=(str(script),))
        return RendezvousWatch(program, read_imports(program))

    return make


def test_ranks_that_do_not_meet_are_told_of_after_a_minute_and_once(watch):
    one = watch()
    one.begin(4, served=True)
    assert one.due_s == 100.0 + MEET_S
    assert "unless its 4 ranks meet elsewhere, they train separate models" in one.warning()
    assert (one.due_s, one.warning()) == (math.inf, "")
    one.begin(4, served=True)  # the next generation
    assert (one.due_s, one.warning()) == (math.inf, "")


def test_nothing_is_said_of_ranks_that_have_met(watch):
    one = watch()
    one.begin(4, served=True)
    assert one.store_used() == ""
    assert (one.due_s, one.warning()) == (math.inf, "")
    one.begin(4, served=True)  # each generation has to meet anew
    assert one.warning()


@pytest.mark.parametrize(
    ("text", "ranks", "served"),
    [(TRAINS, 1, True), (TRAINS, 2, False), ("import os, json\n", 2, True), ("import (", 2, True)],
    ids=["alone", "own store", "plain Python", "no Python"],
)
def test_nothing_is_said_where_nothing_is_known_or_there_is_nobody_to_meet(
    watch, text, ranks, served
):
    one = watch(text)
    one.begin(ranks, served=served)
    assert (one.due_s, one.warning()) == (math.inf, "")


def test_a_script_that_sets_the_port_itself_is_shown_the_line(watch):
    one = watch("import os, torch\n\nos.environ['MASTER_PORT'] = '29500'\n")
    one.begin(2, served=True)
    assert "train.py, line 3, sets MASTER_ADDR or MASTER_PORT itself" in one.warning()


def test_ranks_that_meet_after_all_are_told_of_too(watch):
    one = watch()
    one.begin(2, served=True)
    assert one.warning()
    module.time.now_s += 90
    assert one.store_used() == "a rank has used the store after 90 s"
    assert one.store_used() == ""
