"""Nodes are turned off, disconnected and restored while a run uses them."""

import json
import random
import time
from collections import Counter

from soaking.ground import events, say
from soaking.ranks import living_ranks

from echelon.core.nodes import expand
from slurm.survival import check_samples

DOWN_AT_ONCE = 2
FAVOURITE = 0.5
"""Probability of choosing one particular node, so that it fails twice."""


def soak_nodes(here, asked, report):
    """Apply random faults to random nodes of a run, and check that it completes."""
    chance = random.Random(asked.seed)  # noqa: S311  not a secret
    steps = round(60 * asked.minutes / asked.pace_s)
    options = (f"--nodes={asked.nodes}", "--procs=1", "--restarts=1000")
    chain = here.chain("training", *options, steps=steps, pace_s=asked.pace_s)
    done, record, began_s = [], [], time.time()
    with report.trial("the training"):
        chain.await_step(10, timeout_s=120)
        began_s = time.time()
        done = _disturb(here, chain, chance, asked)
        code, said = chain.wait(timeout_s=60 * asked.minutes + 300)
        assert code == 0, f"it ended with {code}\n{said}"
        check_samples(chain.records(), steps)
    with report.trial("bad nodes"):
        record = json.loads(chain.command("nodes", "--json").stdout or "[]")
        _check_excluded(here, chain, record, done)
    with report.trial("the queue afterwards"):
        here.await_empty_queue()
    sizes = {}
    for number, record_ in events(chain, "generation"):
        sizes.setdefault(number, []).append(record_["nodes"])
    report.figures = {
        "finished, samples exact": not any(one.startswith("the tr") for one in report.failures),
        "faults": dict(Counter(what for _, what, _ in done)),
        "nodes of each attempt's generations": list(sizes.values()),
        "excluded": {one["node"]: one["reason"] for one in record},
        "what was done": [f"{at_s - began_s:.0f} s: {what} {node}" for at_s, what, node in done],
    }
    report.goals = {"things that went wrong": (len(report.failures), "≤", 0)}


def _disturb(here, chain, chance, asked):
    """Break and repair nodes, ending with all repaired. Return (time, fault, node) of each."""
    done, down, favourite = [], [], None
    began_s = time.monotonic()
    while time.monotonic() - began_s < 60 * asked.minutes:
        time.sleep(asked.every)
        if chain.process.poll() is not None:
            break
        hosts = sorted({rank.host for rank in living_ranks(chain.folder)} - set(down))
        if down and (len(down) >= DOWN_AT_ONCE or not hosts or chance.random() < 0.4):
            what, node = "restore", down.pop(0)
        elif hosts:
            favourite = favourite or chance.choice(hosts[1:] or hosts)
            mine = favourite in hosts and chance.random() < FAVOURITE
            what, node = chance.choice(["kill", "cut"]), favourite if mine else chance.choice(hosts)
            down.append(node)
        else:
            continue
        here.cause(what, node)
        done.append((time.time(), what, node))
        say(f"{what} {node}")
    for node in down:
        here.cause("restore", node)
    return done


def _check_excluded(here, chain, record, done):
    """Check that a node lost twice is excluded and gets no further attempt.

    Nodes lost because the controller's own host was disconnected do not count.
    """
    since = {}
    for number, event in events(chain, "restart"):
        failure = event["verdict"]["failure"]
        own_host = here.cluster.job(chain.job(number)).get("BatchHost", "")
        if failure["cause"] == "lost node" and not _is_cut(own_host, event["time"], done):
            since.setdefault(failure["node"], []).append(number)
    twice = {node for node, attempts in since.items() if node and len(attempts) >= 2}
    excluded = {one["node"] for one in record}
    assert twice <= excluded, f"lost twice: {sorted(twice)}; excluded: {sorted(excluded)}"
    for node in twice:
        second = since[node][1]
        later = [number for number in chain.attempts() if number > second]
        for number in later:
            job = here.cluster.job(chain.job(number))
            given = expand(job["NodeList"]) if job["NodeList"] != "(null)" else []
            assert node not in given, f"attempt {number} got {node}, which was excluded"


def _is_cut(host, at_s, done):
    """Tell whether a host was disconnected at that time."""
    before = [what for when_s, what, node in done if node == host and when_s <= at_s]
    return before[-1:] == ["cut"]
