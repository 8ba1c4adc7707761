"""Channels, byte by byte: messages of a peer arrive, and all other input is a `WireError`."""

import hmac
import json
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.launch.protocol.wire import (
    GREETING,
    KNOCK,
    MAX_PAYLOAD,
    Channel,
    WireError,
    has_knocked,
)

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
HANDSHAKE = len(GREETING) + 32 + 32
"""Bytes of an agent's first words: the longest that a handshake waits for."""
HEAD = 4 + 32

# What JSON carries without loss; NaN is not even equal to itself.
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
messages = st.dictionaries(st.text(), values, max_size=4)


def channel(role, key=KEY):
    return Channel(key, role)


def shake_hands(controller, agent):
    """Carry the handshake to its end and return what each side sent, in order."""
    greeting, knock = controller.take_outgoing(), agent.take_outgoing()
    assert controller.receive(knock) == []
    assert not controller.open
    assert agent.receive(greeting) == []
    answer = agent.take_outgoing()
    assert controller.receive(answer) == []
    proof = controller.take_outgoing()
    assert agent.receive(proof) == []
    return greeting, knock + answer, proof


def session():
    """Return a controller and an agent that know each other."""
    controller, agent = channel("controller"), channel("agent")
    shake_hands(controller, agent)
    return controller, agent


def frame(sender, message):
    sender.send(message)
    return sender.take_outgoing()


class HandmadeController:
    """A second implementation of the controller's end, from the description in wire.py.

    It sends what `Channel` would not: proofs under another key, and frames with any payload.
    """

    def __init__(self, key=KEY):
        self.key, self.nonce = key, b"n" * 32
        self.greeting = GREETING + self.nonce
        self.session, self.sent = b"", 0

    def prove(self, knock):
        """Return the proof for an agent that knocked; its own proof is not checked."""
        nonces = self.nonce + knock[len(GREETING) :][:32]
        self.session = hmac.digest(self.key, b"session" + nonces, "sha256")
        return hmac.digest(self.key, b"controller" + nonces, "sha256")

    def seal(self, payload):
        """Return a frame."""
        counter = struct.pack(">Q", self.sent)
        self.sent += 1
        mac = hmac.digest(self.session, b"controller" + counter + payload, "sha256")
        return struct.pack(">I", len(payload)) + mac + payload


def agent_of(controller):
    """Return an agent that has shaken hands with a handmade controller."""
    agent = channel("agent")
    agent.receive(controller.greeting + controller.prove(agent.take_outgoing()))
    return agent


# --- what is meant to happen ----------------------------------------------------------------------


def test_both_sides_open_when_both_know_the_key():
    controller, agent = channel("controller"), channel("agent")
    assert not controller.open
    assert not agent.open
    greeting, answer, proof = shake_hands(controller, agent)
    assert controller.open
    assert agent.open
    assert greeting.startswith(GREETING)
    assert len(greeting + answer + proof) == 2 * len(GREETING) + 5 * 32
    assert KEY not in greeting + answer + proof


@given(st.lists(messages, max_size=4), st.lists(messages, max_size=4))
def test_messages_round_trip_both_ways(down, up):
    controller, agent = session()
    for sender, receiver, said in ((controller, agent, down), (agent, controller, up)):
        for message in said:
            sender.send(message)
        assert receiver.receive(sender.take_outgoing()) == said


@given(st.lists(messages, min_size=1, max_size=3), st.integers(1, 50))
def test_bytes_may_come_in_any_portions(said, size):
    controller, agent = channel("controller"), channel("agent")

    def feed(receiver, data):
        portions = [data[start : start + size] for start in range(0, len(data), size)]
        return [message for portion in portions for message in receiver.receive(portion)]

    feed(agent, controller.take_outgoing())
    feed(controller, agent.take_outgoing())
    feed(agent, controller.take_outgoing())
    for sender, receiver in ((controller, agent), (agent, controller)):
        assert feed(receiver, b"".join(frame(sender, message) for message in said)) == said


def test_frames_may_come_together_with_the_end_of_the_handshake():
    controller, agent = channel("controller"), channel("agent")
    agent.receive(controller.take_outgoing())
    controller.receive(agent.take_outgoing())
    controller.send({"a": 1})
    assert agent.receive(controller.take_outgoing()) == [{"a": 1}]


def test_nothing_is_said_to_a_stranger():
    with pytest.raises(AssertionError):
        channel("controller").send({"kind": "Leave"})


def test_a_message_as_long_as_may_be_arrives_and_a_longer_one_is_not_sent():
    controller, agent = session()
    longest = {"t": "x" * (MAX_PAYLOAD - len('{"t":""}'))}
    assert agent.receive(frame(controller, longest)) == [longest]
    with pytest.raises(WireError, match="too long to send"):
        controller.send({"t": longest["t"] + "x"})
    assert agent.receive(frame(controller, {"still": "well"})) == [{"still": "well"}]


# --- strangers ------------------------------------------------------------------------------------


def test_an_agent_without_the_key_is_turned_away():
    controller, agent = channel("controller"), channel("agent", OTHER_KEY)
    agent.receive(controller.take_outgoing())
    with pytest.raises(WireError, match="the peer does not know the run's key"):
        controller.receive(agent.take_outgoing())
    assert not controller.open
    assert controller.take_outgoing() == b""


def test_a_controller_without_the_key_is_not_obeyed():
    """It cannot check the agent's proof, and continues as if it were valid."""
    for key, knows in ((KEY, True), (OTHER_KEY, False)):
        controller, agent = HandmadeController(key), channel("agent")
        agent.receive(controller.greeting)
        proof = controller.prove(agent.take_outgoing())
        if knows:
            agent.receive(proof)
        else:
            with pytest.raises(WireError, match="the controller does not know the run's key"):
                agent.receive(proof)
        assert agent.open == knows


def test_what_a_controller_sent_is_no_answer_to_it():
    controller = channel("controller")
    greeting = controller.take_outgoing()
    with pytest.raises(WireError, match="does not know the run's key"):
        controller.receive(greeting + bytes(32))


def test_an_agent_s_own_knock_is_no_controller_s_greeting():
    agent = channel("agent")
    with pytest.raises(WireError, match="returned our own nonce"):
        agent.receive(agent.take_outgoing())


def test_what_an_agent_sent_is_no_answer_to_it():
    """Its own proof, sent back, is not the controller's."""
    agent = channel("agent")
    agent.receive(channel("controller").take_outgoing())
    answer = agent.take_outgoing()
    with pytest.raises(WireError, match="does not know the run's key"):
        agent.receive(answer[-32:])


def test_two_controllers_cannot_be_made_to_answer_each_other():
    first, second = channel("controller"), channel("controller")
    own, greeting = first.take_outgoing(), second.take_outgoing()
    with pytest.raises(WireError, match="does not know the run's key"):
        first.receive(greeting + own[len(GREETING) :])


def test_a_replayed_knock_does_not_open_a_channel():
    knock = channel("agent").take_outgoing()
    for _ in range(2):
        controller = channel("controller")
        controller.take_outgoing()
        controller.receive(knock)
        assert not controller.open
        assert controller.take_outgoing() == b"", "a stranger gets nothing to work on"


@pytest.mark.parametrize("more", [b"", b"\0" * 32], ids=["alone", "with what follows"])
def test_a_knock_is_one_when_all_of_it_is_there(more):
    knock = channel("agent").take_outgoing()
    assert len(knock) == KNOCK
    assert [has_knocked(KEY, knock[:size]) for size in range(KNOCK)] == [False] * KNOCK
    assert has_knocked(KEY, knock + more)


def test_a_knock_under_another_key_or_nonce_is_refused():
    knock = channel("agent").take_outgoing()
    forged = knock[: len(GREETING)] + bytes(32) + knock[-32:]
    for said in (forged, channel("agent", OTHER_KEY).take_outgoing()):
        with pytest.raises(WireError, match="the peer does not know the run's key"):
            has_knocked(KEY, said)
        with pytest.raises(WireError, match="the peer does not know the run's key"):
            channel("controller").receive(said)


def test_a_replayed_handshake_is_worthless():
    controller, agent = channel("controller"), channel("agent")
    _, answer, proof = shake_hands(controller, agent)
    with pytest.raises(WireError, match="does not know the run's key"):
        channel("controller").receive(answer)
    again = channel("agent")
    again.receive(channel("controller").take_outgoing())
    with pytest.raises(WireError, match="does not know the run's key"):
        again.receive(proof)


@pytest.mark.parametrize("role", ["controller", "agent"])
@pytest.mark.parametrize(
    "other", [b"echelon wire 1\n", b"echelon wire 10\n", b"echelon wire \xff\n"]
)
def test_another_version_is_named(role, other):
    with pytest.raises(WireError, match=r"version 'echelon wire .*expected 'echelon wire 2"):
        channel(role).receive(other + bytes(64))


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\0", b"SSH-2.0-x\r\n", b"echelon!"])
def test_another_protocol_is_known_from_its_first_bytes(data):
    with pytest.raises(WireError, match="does not use our protocol"):
        channel("controller").receive(data)


# --- frames that were touched ---------------------------------------------------------------------


@pytest.mark.parametrize("sender", ["controller", "agent"])
def test_a_replayed_frame_is_refused(sender):
    first, second = session()[:: 1 if sender == "controller" else -1]
    data = frame(first, {"order": "end"})
    assert second.receive(data) == [{"order": "end"}]
    with pytest.raises(WireError, match="altered, repeated or dropped"):
        second.receive(data)


def test_reordered_frames_are_refused():
    controller, agent = session()
    first, second = frame(controller, {"n": 1}), frame(controller, {"n": 2})
    with pytest.raises(WireError, match="altered, repeated or dropped"):
        agent.receive(second + first)


def test_a_dropped_frame_is_noticed():
    controller, agent = session()
    frame(controller, {"n": 1})
    with pytest.raises(WireError, match="altered, repeated or dropped"):
        agent.receive(frame(controller, {"n": 2}))


def test_every_altered_bit_is_noticed():
    size = HEAD + len('{"n":1}')
    for bit in range(32, 8 * size):
        controller, agent = session()
        data = bytearray(frame(controller, {"n": 1}))
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError, match="altered, repeated or dropped"):
            agent.receive(bytes(data))


def test_a_frame_of_ones_own_is_not_taken_back():
    controller, agent = session()
    with pytest.raises(WireError, match="altered, repeated or dropped"):
        agent.receive(frame(agent, {"n": 1}))
    with pytest.raises(WireError, match="altered, repeated or dropped"):
        controller.receive(frame(controller, {"n": 1}))


def test_frames_of_one_session_are_worthless_in_another():
    controller, _ = session()
    _, agent = session()
    with pytest.raises(WireError, match="altered, repeated or dropped"):
        agent.receive(frame(controller, {"n": 1}))


def test_after_a_forged_frame_a_good_one_counts_no_more():
    controller, agent = session()
    good = frame(controller, {"n": 1})
    forged = good[:4] + bytes(32) + good[HEAD:]
    with pytest.raises(WireError):
        agent.receive(forged)
    for data in (good, b""):
        with pytest.raises(WireError, match="closed after an error"):
            agent.receive(data)
    assert not agent._incoming


@pytest.mark.parametrize("size", [MAX_PAYLOAD + 1, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_frame_that_is_too_long_is_refused_by_its_length(size):
    controller, _ = session()
    with pytest.raises(WireError, match=f"a frame of {size} bytes is too long"):
        controller.receive(struct.pack(">I", size))


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"[]", "contains a list"),
        (b'"text"', "contains a str"),
        (b"null", "contains a NoneType"),
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"a":1}{"b":2}', "not valid JSON"),
        (b'{"a":"\xff\xfe"}', "not valid JSON: UnicodeDecodeError"),
        ('{"a":1}'.encode("utf-16"), "not valid JSON: UnicodeDecodeError"),
        ('{"a":1}'.encode("utf-32-le"), "not valid JSON"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not valid JSON: RecursionError"),
        (b'{"a":' * 100_000, "not valid JSON: RecursionError"),
        (b'{"a":' + b"9" * 100_000 + b"}", "not valid JSON: ValueError"),
    ],
    ids=lambda value: repr(value[:12]),
)
def test_a_payload_that_is_no_message_is_refused(payload, said):
    """Even from a peer that knows the key."""
    controller = HandmadeController()
    agent = agent_of(controller)
    assert agent.receive(controller.seal(b'{"a":1}')) == [{"a": 1}]
    with pytest.raises(WireError, match=said):
        agent.receive(controller.seal(payload))


# --- anything at all ------------------------------------------------------------------------------


def _mutate(rng, data):
    """Return what is left of good bytes after some accident."""
    data = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0 if start < len(data):
                data[start] ^= 1 << rng.randrange(8)
            case 1:
                data[start:start] = rng.randbytes(rng.randint(1, 40))
            case 2:
                del data[start : start + rng.randint(1, 40)]
            case 3:
                data[start:start] = data[: rng.randrange(len(data) + 1)]
            case 4:
                data[start:] = rng.randbytes(rng.randint(0, 100))
    return bytes(data)


def _feed(rng, receiver, data, bound):
    """Feed in random portions; return the messages that came out before an error, if one came."""
    found = []
    while data:
        size = min(len(data), rng.choice([1, 3, 40, 1000]))
        try:
            found += receiver.receive(data[:size])
        except WireError:
            assert not receiver._incoming
            return found
        assert len(receiver._incoming) <= bound
        data = data[size:]
    return found


def test_random_bytes_are_at_worst_an_error():
    rng = random.Random(1)  # noqa: S311  the same ones every time
    for _ in range(4000):
        receiver = channel(rng.choice(["controller", "agent"]))
        start = GREETING[: rng.choice([0, 0, 5, 14, 15])]
        assert _feed(rng, receiver, start + rng.randbytes(rng.randint(0, 300)), HANDSHAKE) == []
        assert not receiver.open


def test_mutated_handshakes_are_at_worst_an_error():
    rng = random.Random(2)  # noqa: S311  the same ones every time
    for _ in range(3000):
        controller, agent = channel("controller"), channel("agent")
        greeting = controller.take_outgoing()
        if rng.randrange(2):
            agent.receive(greeting)
            good = agent.take_outgoing()
            receiver = controller
        else:
            good = greeting + rng.randbytes(32)
            receiver = agent
        data = _mutate(rng, good)
        if data.startswith(good):  # what follows a good handshake is a frame
            continue
        assert _feed(rng, receiver, data, HANDSHAKE) == []
        assert not receiver.open


def test_of_mutated_sessions_only_what_was_said_comes_out():
    rng = random.Random(3)  # noqa: S311  the same ones every time
    said = [{"n": number, "text": "x" * 20 * number} for number in range(4)]
    for _ in range(3000):
        controller, agent = session()
        data = _mutate(rng, b"".join(frame(controller, message) for message in said))
        found = _feed(rng, agent, data, MAX_PAYLOAD + HEAD)
        assert found == said[: len(found)]


def test_a_stranger_cannot_make_us_keep_much():
    receiver = channel("controller")
    data = GREETING + bytes(HANDSHAKE - len(GREETING) - 1)
    for start in range(len(data)):
        receiver.receive(data[start : start + 1])
        assert len(receiver._incoming) < HANDSHAKE
    with pytest.raises(WireError):
        receiver.receive(bytes(1 << 20))
    assert not receiver._incoming


def test_a_payload_is_plain_json():
    controller, _ = session()
    data = frame(controller, {"a": ["ü", 1]})
    assert json.loads(data[HEAD:]) == {"a": ["ü", 1]}
