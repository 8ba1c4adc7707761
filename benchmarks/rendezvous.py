"""How fast one controller collects thousands of agents, and gets an answer from each.

    .venv/bin/python benchmarks/rendezvous.py [--agents N] [--trials N]

One process runs the controller's AgentPool; another has one authenticated Link per simulated agent.
As root, it is repeated where name resolution is impossible: in a network namespace with only
loopback and a resolver that does not exist. Writes benchmarks/results/rendezvous.json.
"""

import argparse
import asyncio
import json
import os
import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path

import measuring
from measuring import summary, workshop

from echelon.core.shell import LocalShell
from echelon.launch.backends.base import Started
from echelon.launch.controller.rendezvous import collect
from echelon.launch.pool.agent_pool import AgentPool
from echelon.launch.protocol.link import Link, connect
from echelon.launch.protocol.messages import Dump, Hello, Pulse, Stacks
from echelon.launch.protocol.rank_environment import CONTROLLER, receive_key, render_key
from echelon.run.event_log import EventWriter

AGENTS = 4096
BARRIERS = 5


# --- the controller's side ----------------------------------------------------------------------


class PretendingStarter:
    """Starts one process that simulates all agents."""

    def __init__(self, nodes, folder):
        self.nodes, self._folder = nodes, folder

    def ranks(self, _node):
        return 1

    def candidates(self):
        return ["127.0.0.1"]

    def start(self, _nodes, command):
        log = self._folder / "agents.log"
        argv = [sys.executable, __file__, "--play-agents", str(self.nodes), str(self._folder)]
        key = render_key(command.key)
        pid = LocalShell().start(argv, log=log, env=command.env, stdin=key)
        return [Started(pid=pid, nodes=frozenset(range(self.nodes)), log=log)]


async def gather(agents, folder):
    """Return the seconds until all agents have joined, those of several barriers, and CPU time."""
    with EventWriter(folder / "events.jsonl", clock=time.time) as events:
        pool = AgentPool(PretendingStarter(agents, folder), events.write, sys.stderr.write)
        await pool.start([], folder, os.environ)
        try:
            while len(pool.agents) < agents:
                assert await pool.next(time.monotonic() + 60), (folder / "agents.log").read_text()
            joined_s = time.monotonic() - float((folder / "began").read_text())
            cpu_s = time.process_time()
            barriers_s = [await barrier(pool, number) for number in range(BARRIERS)]
            cpu_s = (time.process_time() - cpu_s) / BARRIERS
        finally:
            await pool.leave()
    return {"joined_s": joined_s, "barriers_s": barriers_s, "cpu_s": cpu_s}


async def barrier(pool, generation):
    """Return the seconds until every agent has answered a message."""
    here = list(pool.agents.values())
    began = time.monotonic()
    for agent in here:
        agent.link.say(Dump(generation=generation))
    await collect(pool, here, Stacks, generation, needed=here)
    return time.monotonic() - began


# --- the agents' side ---------------------------------------------------------------------------


async def play_agents(count, folder):
    """Connect all agents at once, and answer messages until the controller disconnects."""
    address, _, port = os.environ[CONTROLLER].rpartition(":")
    key = receive_key(sys.stdin.buffer)
    left, all_left = count, asyncio.Event()

    def make(node):
        def opened(link):
            name = f"node{node}"
            link.say(Hello(node=node, name=name, host=name, addresses=["127.0.0.1"], gpus=8))

        def received(link, message):
            if isinstance(message, Dump):
                link.say(Stacks(generation=message.generation, ranks={}))
            elif isinstance(message, Pulse):
                link.say(message)

        def lost(_link, _reason):
            nonlocal left
            left -= 1
            if not left:
                all_left.set()

        return Link(key, "agent", opened=opened, received=received, lost=lost)

    (folder / "began").write_text(str(time.monotonic()))
    candidates = [(address, int(port))]
    await asyncio.gather(
        *(connect(candidates, lambda node=node: make(node)) for node in range(count))
    )
    await all_left.wait()


# --- trials -------------------------------------------------------------------------------------


def try_once(agents, folder, *, names=True):
    """Run one trial in a separate process; without names, also in a separate network."""
    folder.mkdir()
    argv = [sys.executable, __file__, "--once", str(agents), str(folder)]
    if not names:
        nowhere = folder / "resolv.conf"
        nowhere.write_text("nameserver 192.0.2.1\n")
        lines = [
            "ip link set lo up",
            f"mount --bind {shlex.quote(str(nowhere))} $(readlink -f /etc/resolv.conf)",
            "! getent hosts example.org",  # otherwise this trial would prove nothing
            f"exec {shlex.join(argv)}",
        ]
        argv = ["unshare", "--net", "--mount", "bash", "-e", "-c", "\n".join(lines)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--agents", type=int, default=AGENTS)
    parser.add_argument("--once", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--play-agents", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.play_agents or asked.once:
        count, folder = asked.play_agents or asked.once
        play(int(count), Path(folder), agents=bool(asked.play_agents))
        return
    kinds = {"": True, ", no name resolves": False} if os.geteuid() == 0 else {"": True}
    rows, goals = {}, {}
    with workshop() as folder:
        taken = {kind: [] for kind in kinds}
        for trial in range(asked.trials):
            for number, (kind, names) in enumerate(kinds.items()):
                place = folder / f"{trial}-{number}"
                taken[kind].append(try_once(asked.agents, place, names=names))
    for kind, found in taken.items():
        joins = summary([each["joined_s"] for each in found])
        barriers = summary([each for one in found for each in one["barriers_s"]])
        # The controller's own CPU time, which other load does not distort.
        barriers["controller_cpu_s"] = round(min(each["cpu_s"] for each in found), 3)
        rows[f"{asked.agents} agents join{kind}"] = joins
        rows[f"a barrier over them{kind}"] = barriers
        goals[f"join{kind}, median, s"] = (joins["median_s"], 5.0)
        goals[f"barrier{kind}, median, s"] = (barriers["median_s"], 0.5)
    measuring.write_results("rendezvous", rows, goals)


def play(count, folder, *, agents):
    """Run one of the two processes of a trial."""
    if agents:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        asyncio.run(play_agents(count, folder))
    else:
        print(json.dumps(asyncio.run(gather(count, folder))))


if __name__ == "__main__":
    main()
