"""The backend of a step: what its controller asks its broker, and what it is told."""

import asyncio
import io
import json
import socket
import sys
from dataclasses import asdict

import pytest

from echelon.launch.backends.base import AgentCommand, AttemptContext
from echelon.launch.backends.step import step_backend
from echelon.launch.backends.stop import Stop
from echelon.launch.protocol.messages import (
    AgentExited,
    Departed,
    Lead,
    Neighbours,
    StartAgents,
    StopStep,
    decode,
    encode,
)
from echelon.launch.protocol.rank_environment import STEP, STEP_ADDRESS, STEP_HOSTS, render_key
from echelon.run.directory import RunDir
from echelon.spec.job_spec import JobSpec

KEY = b"k" * 32
PREEMPTED = Stop("preemption", "another job takes its nodes", 75, signalled=True, deadline_s=1.5)


class View:
    def lead_s(self):
        return 42.0

    def can_move(self):
        return True

    def nodes(self):
        return []


@pytest.fixture
def step(tmp_path, monkeypatch):
    """Return a backend, and a function that tells it something or returns what it said."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(render_key(KEY))))
    run = RunDir.create(tmp_path, "sweep-ab12-3")
    run.claim_attempt()
    attempt = AttemptContext(
        run=run, number=1, request=JobSpec(), owns_job=False, environ={}, script=b""
    )
    environ = {STEP: str(theirs.detach()), STEP_HOSTS: "n3,n4", STEP_ADDRESS: "10.0.0.1", "A": "1"}
    ours.settimeout(10)

    def talk(message=None):
        if message is not None:
            ours.send(json.dumps(encode(message)).encode())
            return None
        return decode(json.loads(ours.recv(1 << 17)))

    backend = step_backend(environ, attempt)
    yield backend, talk, run
    ours.close()
    backend.starter._broker._socket._end.close()


def test_agents_are_asked_of_the_broker_and_their_exits_are_told(step):
    backend, talk, run = step

    async def start():
        noticed = asyncio.Event()
        backend.starter.on_exit(noticed.set)
        env = {"A": "1", "ECHELON_CONTROLLER": "10.0.0.1:7"}
        command = AgentCommand(
            argv=["agent"], env=env, logs=run.attempt(1), key=KEY, arguments=["run", "1"]
        )
        first, second = backend.starter.start([0, 1], command)
        asked = talk()
        talk(AgentExited(step=0, number=2, status=-9))
        await asyncio.wait_for(noticed.wait(), 10)
        return asked, first.poll(), second.poll()

    asked, first, second = asyncio.run(start())
    assert isinstance(asked, StartAgents)
    assert asked.numbers == {"0": 1, "1": 2}
    assert asked.arguments == ["run", "1"]
    assert asked.environ == {"ECHELON_CONTROLLER": "10.0.0.1:7"}  # the rest is the node's
    assert (first, second) == (None, -9)
    assert (backend.key, backend.starter.nodes, backend.starter.host(1)) == (KEY, 2, "n4")


def test_a_stop_arrives_as_it_was_and_explains_a_signal(step):
    backend, talk, _ = step

    async def watch():
        stops = asyncio.Queue()
        watching = asyncio.ensure_future(backend.allocation.watch(stops.put_nowait, View()))
        talk(StopStep(stop=asdict(PREEMPTED)))
        posted = await asyncio.wait_for(stops.get(), 10)
        explained = await backend.allocation.explain(Stop("cancelled", "a signal came", 143))
        watching.cancel()
        return posted, explained

    assert asyncio.run(watch()) == (PREEMPTED, PREEMPTED)
    assert talk() == Lead(seconds=42.0)


@pytest.mark.parametrize(("said", "at_once"), [("stop\n", False), ("cancel\n", True)])
def test_a_command_can_stop_one_step_alone(step, said, at_once):
    backend, _, run = step
    (run.attempt(1) / "stopping").write_text(said)

    async def watch():
        stops = asyncio.Queue()
        watching = asyncio.ensure_future(backend.allocation.watch(stops.put_nowait, View()))
        posted = await asyncio.wait_for(stops.get(), 10)
        watching.cancel()
        return posted

    posted = asyncio.run(watch())
    assert (posted.cause, posted.at_once) == ("cancelled", at_once)


def test_what_happens_to_its_nodes_is_told(step):
    backend, talk, _ = step

    async def hear():
        backend.starter.on_exit(lambda: None)
        talk(Departed(nodes=[1]))
        talk(Neighbours(node=0, runs=["sweep-ab12-1"]))
        while not backend.neighbours("n3"):  # noqa: ASYNC110  nothing tells it
            await asyncio.sleep(0.001)
        return await backend.allocation.held(["n3", "n4"])

    assert asyncio.run(asyncio.wait_for(hear(), 10)) == {"n3"}
    assert set(backend.neighbours("n3")) == {"sweep-ab12-1"}
    assert not backend.neighbours("n4")
