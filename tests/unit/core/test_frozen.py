"""Immutable classes: the same behaviour as dataclasses, without compiled methods."""

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, field, fields, replace

import pytest

from echelon.core.frozen import frozen


@frozen
class Base:
    number: int
    name: str = "none"


@frozen
class Derived(Base):
    places: list[str] = field(default_factory=list)
    note: str = field(default="", compare=False, repr=False)


def test_fields_are_those_that_were_given_or_their_defaults():
    assert Derived(number=1) == Derived(number=1, name="none", places=[])
    assert [one.name for one in fields(Derived)] == ["number", "name", "places", "note"]
    assert asdict(replace(Derived(number=1), name="b")) == {
        "number": 1,
        "name": "b",
        "places": [],
        "note": "",
    }


def test_each_object_gets_a_default_of_its_own_from_a_factory():
    assert Derived(number=1).places is not Derived(number=1).places


@pytest.mark.parametrize("given", [{}, {"name": "a"}, {"number": 1, "other": 2}, {"other": 2}])
def test_missing_and_unknown_fields_are_refused(given):
    with pytest.raises(TypeError, match="missing or unknown"):
        Base(**given)


def test_nothing_can_be_changed():
    one = Base(number=1)
    with pytest.raises(FrozenInstanceError):
        one.number = 2
    with pytest.raises(FrozenInstanceError):
        del one.number
    with pytest.raises(FrozenInstanceError):
        one.other = 2


def test_what_is_not_compared_does_not_count():
    assert Derived(number=1, note="a") == Derived(number=1, note="b")
    assert Base(number=1) != Base(number=2)
    assert Base(number=1) != Derived(number=1)
    assert {Base(number=1), Base(number=1)} == {Base(number=1)}
    with pytest.raises(TypeError, match="unhashable"):
        hash(Derived(number=1))


def test_the_text_shows_the_fields():
    assert repr(Derived(number=1, note="a")) == "Derived(number=1, name='none', places=[])"


def test_copies_are_equal():
    one = Derived(number=1, places=["a"])
    assert copy.deepcopy(one) == pickle.loads(pickle.dumps(one)) == one


def test_a_class_keeps_its_own_methods():
    @frozen
    class Own:
        number: int

        def __post_init__(self):
            object.__setattr__(self, "number", self.number + 1)

        def __repr__(self):
            return "own"

    assert repr(Own(number=1)) == "own"
    assert Own(number=1).number == 2
