"""What the cluster says of our job, as reasons to stop."""

import asyncio
import time

import pytest

from echelon.core.shell import FakeShell, Result
from echelon.errors import MissingProgramError
from echelon.launch.backends.slurm import allocation
from echelon.launch.backends.slurm.allocation import SlurmAllocation, find_drained, parse_time
from echelon.launch.backends.stop import Stop

ENVIRON = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_CONF": "/x"}


def stamp(seconds_from_now, *, clock=0.0):
    moment = time.time() + clock + seconds_from_now
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment))


class Answers:
    """A Slurm whose clock may be another."""

    def __init__(
        self, *, left_s=1000.0, clock=0.0, state="RUNNING", nodes=(), preempted=False, reason="None"
    ):
        self.reason = reason
        self.left_s, self.clock, self.state = left_s, clock, state
        self.nodes, self.preempted = nodes, preempted

    def shell(self):
        def answer(argv):
            text = self.show(argv) if argv[0] == "scontrol" else self.diagnose()
            return Result(argv=argv, stdout=text)

        return FakeShell(answers={"scontrol": answer, "sdiag": answer})

    def show(self, argv):
        if argv[-2] == "node":
            return "\n".join(self.nodes)
        end = stamp(self.left_s, clock=self.clock)
        preempted = stamp(0, clock=self.clock) if self.preempted else "None"
        state = f"JobState={self.state} Reason={self.reason}"
        return f"JobId=7 {state} EndTime={end} PreemptTime={preempted} NodeList=x"

    def diagnose(self):
        return f"sdiag output at Sun Nov 15 13:54:36 2026 ({int(time.time() + self.clock)})\n"


class View:
    def __init__(self, lead_s=10.0, *, moves=True):
        self.lead, self.moves = lead_s, moves

    def lead_s(self):
        return self.lead

    def can_move(self):
        return self.moves

    def nodes(self):
        return ["node1", "node2"]


def watch(answers, view, monkeypatch, *, within_s=5.0):
    """Return the stop that comes, or None."""
    monkeypatch.setattr(allocation, "LOOK_S", 0.05)
    found = []

    async def run():
        place = SlurmAllocation(answers.shell(), ENVIRON)
        try:
            async with asyncio.timeout(within_s):
                await place.watch(found.append, view)
        except TimeoutError:
            pass

    asyncio.run(run())
    return found[0] if found else None


@pytest.mark.parametrize("clock", [0.0, 600.0, -600.0])
def test_a_time_limit_is_told_in_time_whatever_the_clocks_say(monkeypatch, clock):
    stop = watch(Answers(left_s=8.0, clock=clock), View(10.0), monkeypatch)
    assert stop.cause == "time limit"
    assert stop.exit_code == 75
    left_s = stop.deadline_s - time.monotonic()
    assert left_s < 8.0 - allocation.RESERVE_S + 1
    assert stop.message.startswith("the job reaches its time limit in")


@pytest.mark.parametrize("clock", [0.0, 600.0, -600.0])
def test_nothing_is_told_before_its_time(monkeypatch, clock):
    answers = Answers(left_s=60.0, clock=clock)
    assert watch(answers, View(10.0), monkeypatch, within_s=0.4) is None


@pytest.mark.parametrize("days", [10, -10])
def test_setting_the_clock_of_this_host_moves_no_limit(monkeypatch, days):
    answers, real, asked = Answers(left_s=60.0), time.time, []
    show = answers.show

    def set_clock(argv):
        asked.append(argv)
        if len(asked) > 2:  # each look asks for the nodes and the job
            monkeypatch.setattr(time, "time", lambda: real() + days * 86400)
            answers.clock = -days * 86400.0  # that of slurmctld stays as it is
        return show(argv)

    answers.show = set_clock
    assert watch(answers, View(10.0), monkeypatch, within_s=0.4) is None
    assert len(asked) > 2


def test_a_limit_that_was_moved_is_seen(monkeypatch):
    answers = Answers(left_s=60.0)
    show = answers.show

    def shorten(argv):
        shown = show(argv)
        answers.left_s = 5.0  # from now on
        return shown

    answers.show = shorten
    assert watch(answers, View(10.0), monkeypatch).cause == "time limit"


def test_a_limit_is_kept_in_mind_while_slurmctld_is_away(monkeypatch):
    answers = Answers(left_s=11.5)
    show = answers.show

    def once(argv):
        shown = show(argv)
        answers.show = lambda _argv: ""
        return shown

    answers.show = once
    assert watch(answers, View(10.0, moves=False), monkeypatch).cause == "time limit"


def test_times_are_asked_for_in_utc():
    """In local time the hour in which clocks are put back comes twice."""
    seen = []

    class Noting(FakeShell):
        def run(self, argv, **more):
            seen.append(more["env"]["TZ"])
            return super().run(argv, **more)

    place = SlurmAllocation(Noting(answers={"scontrol": ""}), {**ENVIRON, "TZ": "Europe/Berlin"})
    asyncio.run(place.explain(Stop("cancelled", "x", 143)))
    assert seen == ["UTC0"]
    assert parse_time("2026-10-25T02:30:00") == 1792895400.0


def test_a_drained_node_is_left_if_the_run_can_move(monkeypatch):
    nodes = (
        "NodeName=node1 State=MIXED+DRAIN Reason=bad fan [root@2026] ",
        "NodeName=node2 State=MIXED",
    )
    stop = watch(Answers(nodes=nodes), View(), monkeypatch)
    assert (stop.cause, stop.message) == ("maintenance", "node1 is being drained (bad fan)")
    assert watch(Answers(nodes=nodes), View(moves=False), monkeypatch, within_s=0.3) is None


def test_a_slurmctld_that_is_away_stops_nobody(monkeypatch):
    answers = Answers()
    answers.show = lambda _argv: ""
    assert watch(answers, View(), monkeypatch, within_s=0.3) is None


def test_nor_does_a_node_without_slurms_commands(monkeypatch):
    answers = Answers()

    def missing(_argv):
        raise MissingProgramError("scontrol")

    answers.show = missing
    assert watch(answers, View(), monkeypatch, within_s=0.3) is None


@pytest.mark.parametrize(
    ("answers", "cause", "signalled"),
    [
        (Answers(state="CANCELLED"), "cancelled", True),
        (Answers(state="COMPLETING"), "cancelled", True),
        (Answers(state="COMPLETING", reason="TimeLimit"), "time limit", True),
        (Answers(state="TIMEOUT"), "time limit", True),
        (Answers(state="COMPLETING", reason="NodeDown"), "lost node", True),
        (Answers(state="NODE_FAIL", reason="NodeDown"), "lost node", True),
        (Answers(preempted=True, left_s=30), "preemption", True),
        (Answers(state="RUNNING"), "preemption", True),  # as it was said
    ],
)
def test_a_signal_means_what_slurm_says(answers, cause, signalled):
    stop = Stop("preemption", "node1 received SIGTERM", 143, signalled=True)
    place = SlurmAllocation(answers.shell(), ENVIRON)
    explained = asyncio.run(place.explain(stop))
    assert (explained.cause, explained.signalled) == (cause, signalled)
    assert (explained.deadline_s is not None) == answers.preempted


def test_the_controllers_own_signal_is_a_users_wish():
    stop = Stop("cancelled", "the controller received SIGTERM", 143)
    place = SlurmAllocation(Answers().shell(), ENVIRON)
    assert asyncio.run(place.explain(stop)) == stop


def left_s(answers):
    return asyncio.run(SlurmAllocation(answers.shell(), ENVIRON).left_s())


@pytest.mark.parametrize("clock", [0.0, 300.0])
def test_how_much_time_is_left(clock):
    assert 595 < left_s(Answers(left_s=600, clock=clock)) <= 600
    assert left_s(Answers(left_s=-5)) == 0.0
    away = FakeShell(answers={"scontrol": Result(argv=("scontrol",), code=1)})
    assert asyncio.run(SlurmAllocation(away, ENVIRON).left_s()) is None


def test_times_that_are_none():
    assert [parse_time(text) for text in ("Unknown", "None", "N/A", "")] == [None] * 4


def test_a_dead_node_is_not_a_drained_one():
    lines = ["NodeName=a State=DOWN+DRAIN+NOT_RESPONDING", "NodeName=b State=ALLOCATED+DRAIN"]
    assert find_drained(lines) == "b is being drained"
    assert find_drained(lines[:1]) == ""
