"""The dataclasses are the protocol: each comes back as it was, and nothing else comes."""

import json
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.core.proc import fit
from echelon.launch.protocol import messages
from echelon.launch.protocol.messages import (
    Hello,
    Message,
    Pace,
    Pulse,
    RankExited,
    Stacks,
    Start,
    decode,
    encode,
)
from echelon.launch.protocol.wire import MAX_PAYLOAD, WireError
from echelon.launch.zygote.rank import read_record

KINDS = [kind for kind in vars(messages).values() if isinstance(kind, type)]
KINDS = [kind for kind in KINDS if issubclass(kind, Message) and kind is not Message]

anything = st.none() | st.booleans() | st.integers() | st.text()
VALUES = {
    int: st.integers(),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    str: st.text(),
    list[str]: st.lists(st.text()),
    list[int]: st.lists(st.integers()),
    Pace | None: st.none() | st.builds(Pace, *[st.integers()] * 4),
    list[list[Any]]: st.lists(st.lists(anything)),
    dict[str, int]: st.dictionaries(st.text(), st.integers()),
    dict[str, str]: st.dictionaries(st.text(), st.text()),
    dict[str, dict[str, int]]: st.dictionaries(
        st.text(), st.dictionaries(st.text(), st.integers())
    ),
    dict[str, Any]: st.dictionaries(st.text(), anything),
    dict[str, dict[str, Any]]: st.dictionaries(st.text(), st.dictionaries(st.text(), anything)),
}


@st.composite
def some_message(draw):
    kind = draw(st.sampled_from(KINDS))
    hints = get_type_hints(kind)
    return kind(**{field.name: draw(VALUES[hints[field.name]]) for field in fields(kind)})


def test_all_kinds_are_tried():
    assert KINDS
    names = {kind.__name__ for kind in Message.__subclasses__()}
    assert names == {kind.__name__ for kind in KINDS}


@given(some_message())
def test_every_message_round_trips(message):
    assert decode(json.loads(json.dumps(encode(message)))) == message


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_kind_says_its_name_and_survives_with_its_defaults(kind):
    needed = [f for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    message = kind(**{field.name: 1 for field in needed})
    record = encode(message)
    assert record["kind"] == kind.__name__
    assert decode(record) == message
    assert decode({"kind": kind.__name__, **{field.name: 1 for field in needed}}) == message
    for field in needed:
        less = {name: value for name, value in record.items() if name != field.name}
        with pytest.raises(WireError, match=f"incomplete message: {kind.__name__}"):
            decode(less)
    with pytest.raises(WireError, match=rf"unknown message: {kind.__name__}\(extra\)"):
        decode({**record, "extra": 1})


@pytest.mark.parametrize(
    "kind",
    [None, "", "Message", "hello", "__init__", "dict", 1, ["Pulse"], {"Pulse": 1}, "x" * 999],
)
def test_a_kind_that_does_not_exist_is_refused(kind):
    with pytest.raises(WireError, match="an unknown message") as caught:
        decode({"kind": kind})
    assert len(str(caught.value)) < 140


def test_a_record_without_a_kind_is_refused():
    with pytest.raises(WireError, match="an unknown message"):
        decode({"generation": 1})


def test_a_deep_or_huge_value_is_not_part_of_the_complaint():
    deep: list[Any] = []
    for _ in range(5000):  # deeper than repr goes
        deep = [deep]
    for record in ({"kind": "Pulse", "extra": deep}, {"kind": deep}, {"kind": "Open", "x": deep}):
        with pytest.raises(WireError):
            decode(record)
    with pytest.raises(WireError, match=r"incomplete message: Dump"):
        decode({"kind": "Dump"})


def test_defaults_are_not_shared_between_messages():
    Pulse().ranks.append([1])
    assert Pulse().ranks == []


def test_messages_are_values():
    start = Start(
        generation=0,
        node_rank=0,
        nodes=1,
        first_rank=0,
        count=2,
        world_size=2,
        address="127.0.0.1",
        port=1,
        served=True,
    )
    assert decode(encode(start)) == start
    with pytest.raises(AttributeError):
        start.port = 2  # type: ignore[misc]
    hello = Hello(node=0, name="n", host="h", addresses=["127.0.0.1"])
    assert encode(hello)["gpus"] == 0


def test_stacks_of_many_ranks_fit_into_a_message():
    """What counts is at their ends: faulthandler writes the main thread last."""
    for ranks in (1, 8, 64, 512):
        texts = {str(rank): '"\n' * 40_000 + f"end {rank}" for rank in range(ranks)}
        stacks = Stacks(generation=9, ranks=fit(texts, MAX_PAYLOAD - 1024))
        assert len(json.dumps(encode(stacks))) <= MAX_PAYLOAD
        assert all(text.endswith(f"end {rank}") for rank, text in stacks.ranks.items())
    assert fit({"0": "short"}, MAX_PAYLOAD) == {"0": "short"}
    assert fit({}, MAX_PAYLOAD) == {}


def test_a_record_that_a_script_wrote_itself_fits_into_a_message(tmp_path):
    path = tmp_path / "error.json"
    huge = "\U0001f600" * 100_000  # twelve bytes each, in JSON
    for message in (huge, {"message": huge, "extraInfo": {"py_callstack": huge}}):
        path.write_text(
            json.dumps({"message": message, "type": huge, "modules": [huge, *"abc" * 9999]})
        )
        gone = RankExited(generation=0, rank=0, error=read_record(path), tail=huge[:4096])
        assert len(json.dumps(encode(gone))) <= MAX_PAYLOAD


def test_a_record_that_is_none_says_nothing(tmp_path):
    path = tmp_path / "error.json"
    for text in ("[]", '"x"', "null", "{", "[" * 100_000):
        path.write_text(text)
        assert read_record(path) == {}
