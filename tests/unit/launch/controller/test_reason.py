"""Which stop counts when several come."""

import asyncio
from dataclasses import replace

import pytest

from echelon.launch.backends.stop import Stop
from echelon.launch.controller.stopping import Reason

LIMIT = Stop("time limit", "its time is over", 75, deadline_s=9.0)
USERS = Stop("cancelled", "the controller received SIGTERM", 143)
SIGNALLED = Stop("preemption", "node1 was told to stop", 143, signalled=True)


async def settle(slurm_says, *stops):
    """Return the stop that counts when these came one after the other."""

    async def explain(stop):
        return replace(stop, cause=slurm_says) if slurm_says and stop is not LIMIT else stop

    return await Reason(stops[0], explain, lambda _: None).settle(stops[-1])


@pytest.mark.parametrize(
    ("slurm_says", "stops", "cause"),
    [
        ("", [LIMIT], "time limit"),
        ("", [LIMIT, USERS], "cancelled"),  # `echelon stop` while it saves
        ("cancelled", [LIMIT, SIGNALLED], "cancelled"),  # `scancel`
        ("time limit", [LIMIT, SIGNALLED], "time limit"),  # saving took too long
        ("cancelled", [SIGNALLED, SIGNALLED], "cancelled"),
        ("preemption", [SIGNALLED, SIGNALLED], "preemption"),
        ("", [USERS, SIGNALLED], "cancelled"),
    ],
)
def test_a_users_word_counts_whenever_it_comes(slurm_says, stops, cause):
    assert asyncio.run(settle(slurm_says, *stops)).cause == cause


def test_a_stop_that_comes_while_ranks_are_ended_is_explained_too():
    async def scenario():
        async def explain(stop):
            return replace(stop, cause="cancelled")

        return await Reason(None, explain, lambda _: None).settle(SIGNALLED)

    assert asyncio.run(scenario()).cause == "cancelled"
