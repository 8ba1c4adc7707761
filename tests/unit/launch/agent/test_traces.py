"""What an agent asks NCCL: a recorded answer, given over a real connection."""

import asyncio
import contextlib
import json
import os
from pathlib import Path

import pytest

from echelon.launch.agent import traces

ANSWER = json.loads((Path(__file__).parents[3] / "golden" / "nccl" / "lock.json").read_text())[
    "answer"
]
PIDS = {rank["rank"]: rank["pid"] for rank in ANSWER["communicators"][0]["ranks"]}
COUNTS = {0: {"AllReduce": 5}, 1: {"AllReduce": 4}}


async def ask(answer, pids=PIDS):
    """Ask a process that greets as NCCL does, and then calls `answer(writer)`."""

    async def serve(reader, writer):
        with contextlib.closing(writer):
            for greeting in (b"SERVER PROTOCOL 2\n", b"OK\n", b"OK\n"):
                await reader.readline()
                writer.write(greeting)
            assert await reader.readline() == b"STATUS\n"
            await answer(writer)

    async with await asyncio.start_server(serve, "localhost") as server:
        port = server.sockets[0].getsockname()[1]
        return await traces.ask_nccl({"NCCL_RAS_ADDR": f"localhost:{port}"}, pids)


async def tell_all(writer):
    writer.write(json.dumps(ANSWER).encode())


async def tell_half(writer):
    writer.write(json.dumps(ANSWER).encode()[:500])


async def tell_nothing(writer):
    await asyncio.Event().wait()


def test_nccl_tells_the_counts_of_all_ranks():
    assert asyncio.run(ask(tell_all)) == COUNTS


@pytest.mark.parametrize("answer", [tell_half, tell_nothing])
def test_nccl_that_does_not_answer_is_not_waited_for(monkeypatch, answer):
    monkeypatch.setattr(traces, "ANSWER_S", 0.2)
    assert asyncio.run(ask(answer)) == {}


def test_nobody_listens():
    assert asyncio.run(traces.ask_nccl({"NCCL_RAS_ADDR": "localhost:1"}, PIDS)) == {}
    assert asyncio.run(traces.ask_nccl({"NCCL_RAS_ADDR": "nonsense"}, PIDS)) == {}


def test_a_process_of_another_user_is_not_asked(monkeypatch):
    own = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: own + 1)
    assert asyncio.run(ask(tell_all)) == {}
