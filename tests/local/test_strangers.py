"""A real run among strangers: they are turned away, and find nothing out."""

import ipaddress
import json
import resource
import secrets
import socket
import struct
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from echelon.launch.protocol.wire import GREETING, Channel
from procfs import cmdline, environ_of, listeners
from run_key import recorded_key

VERSION = b"echelon wire 1\n"
OVERSIZED = GREETING + bytes(64) + struct.pack(">I", 0xFFFFFFFF)


class Strangers:
    """Connections to an address, closed with the test."""

    def __init__(self, address, stack):
        self._address, self._stack = address, stack

    def connect(self, data=b""):
        """Connect and say this, then nothing more."""
        link = self._stack.enter_context(socket.create_connection(self._address, timeout=10))
        link.sendall(data)
        return link


def ended(link):
    """Tell whether the other side has closed, and what it had said until then."""
    said = b""
    try:
        while data := link.recv(4096):
            said += data
    except ConnectionResetError:
        return True, said
    except TimeoutError:
        return False, said
    return True, said


def handshake(strangers, key):
    """Shake hands as an agent of the run would; return what it said for that."""
    link, agent = strangers.connect(), Channel(key, "agent")
    said = b""
    while not agent.open:
        said += (data := agent.take_outgoing())
        link.sendall(data)
        agent.receive(link.recv(4096))
    return said


def check_log(run):
    """One line for the first stranger, and then for every thousandth."""
    counts = [event["count"] for event in run.events("stranger")]
    assert counts[:1] == [1]
    assert all(count % 1000 == 0 for count in counts[1:])
    return run.events("stranger")[0]


def test_a_run_among_strangers_ends_well(start_run):
    run = start_run(record=True)
    with ExitStack() as stack:
        strangers = Strangers(run.await_listening(), stack)
        # While the agents are still on their way.
        early = [strangers.connect(b"\0garbage") for _ in range(50)]
        for _ in range(10):
            strangers.connect()
        run.await_ranks()
        slow = strangers.connect()
        for byte in GREETING:
            slow.sendall(bytes([byte]))
            time.sleep(0.05)
        answer = handshake(strangers, recorded_key(run.folder))
        attacks = [secrets.token_bytes(4096), VERSION, OVERSIZED, answer, GREETING + answer]
        for link in [*early, *(strangers.connect(data) for data in attacks)]:
            over, said = ended(link)
            assert over
            # A replayed knock gets a greeting and a nonce; nobody gets a proof of the key.
            assert len(said) in (0, len(GREETING) + 32)
        crowd = [strangers.connect(secrets.token_bytes(20) * (n % 2)) for n in range(200)]
        assert all(ended(link)[0] for link in crowd[1::2])
        run.finish()
    assert check_log(run)["address"] == "127.0.0.1"
    assert len(run.events("joined")) == 1
    assert run.events("lost") == []


def test_those_who_connect_and_stay_silent_take_nothing_away(start_run):
    """More connections than the controller may have files open."""
    run = start_run(record=True)
    with ExitStack() as stack:
        strangers = Strangers(run.await_listening(), stack)
        run.await_ranks()
        (controller,) = run.role("controller")
        resource.prlimit(controller, resource.RLIMIT_NOFILE, (200, 200))
        crowd = [strangers.connect() for _ in range(400)]
        # The first had to make room, and an agent would still be heard.
        assert ended(crowd[0])[0]
        assert handshake(strangers, recorded_key(run.folder))
        run.finish()
    check_log(run)


def test_a_dropped_stranger_is_told_nothing_more_and_its_version_is_named(start_run):
    run = start_run()
    with ExitStack() as stack:
        strangers = Strangers(run.await_listening(), stack)
        assert ended(strangers.connect(VERSION))[0]
        run.await_ranks()
        run.finish()
    assert "'echelon wire 1\\n'" in check_log(run)["reason"]


def test_nothing_listens_on_all_addresses(start_run):
    run = start_run()
    run.await_ranks()
    found = {pid: listeners(pid) for pid in run.pids()}
    (controller,) = run.role("controller")
    assert len(found[controller]) == 1
    assert all(found[rank] for rank in run.ranks()), "gloo listens in every rank"
    # The store is a fork of the zygote, as the ranks are.
    assert any(found[pid] for pid in set(run.role("zygote")) - set(run.ranks()))
    for address, _port in [pair for pairs in found.values() for pair in pairs]:
        assert ipaddress.ip_address(address).is_loopback, found
    run.finish()


def files_below(*folders):
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                yield path


@pytest.mark.parametrize("which", ["canary", "key"])
def test_a_secret_is_in_no_argument_and_no_file(start_run, which):
    canary = secrets.token_hex(16)
    run = start_run(record=True, CANARY_SECRET=canary)
    run.await_ranks()
    key = recorded_key(run.folder)
    forms = [canary.encode()] if which == "canary" else [key, key.hex().encode()]
    seen = [json.loads((run.folder / f"ready-{rank}").read_text()) for rank in range(run.RANKS)]
    (scratch,) = {Path(variables["ECHELON_BEACON"]).parent for variables in seen}

    def check(pids, *folders):
        searched = {pid: cmdline(pid) for pid in pids}
        searched |= {path: path.read_bytes() for path in files_below(*folders)}
        assert [place for place, text in searched.items() if any(f in text for f in forms)] == []

    assert len(run.pids()) >= 7, "command, controller, agent, guard, zygote, store, ranks"
    assert list(files_below(scratch)), "the beacons"
    check(run.pids(), run.path, scratch)
    for variables in seen:
        assert variables["CANARY_SECRET"] == canary, "what the user sets, ranks do see"
        assert "ECHELON_CONTROLLER" not in variables
        assert key.hex() not in variables.values()
    environs = [environ_of(pid) for pid in run.pids()]
    assert all(environs)
    assert not any(key in text or key.hex().encode() in text for text in environs)
    run.finish()
    check([], run.path)
