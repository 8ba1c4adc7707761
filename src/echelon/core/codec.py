"""Dataclasses to JSON objects and back, for files that other versions wrote or a crash damaged.

A field that is missing or has a value of the wrong type gets its default, or the neutral value of
its type: 0, an empty text. Unknown fields are ignored.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from types import NoneType
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from echelon.core.records import MOST_COUNT, MOST_NUMBER, MOST_RANKS, to_count

T = TypeVar("T")


class Read(NamedTuple):
    """How to read a field, as part of its annotation."""

    read: Callable[[Any], Any]
    """Return the value, or None to reject it."""
    neutral: Any
    """Replaces a rejected value, unless the field has a default; None if nothing can."""


def _of(kind: type) -> Callable[[Any], Any]:
    return lambda value: value if isinstance(value, kind) else None


def _seconds(value: Any) -> float | None:
    return value if type(value) in (int, float) and 0 <= value < MOST_COUNT else None


def to_figure(value: Any) -> float | None:
    """Return a finite number; None for anything else."""
    return value if type(value) in (int, float) and abs(value) < MOST_NUMBER else None  # not NaN


def _measured(value: Any) -> float | None:
    """Return a number; NaN and infinity are values that a training can measure."""
    whole = type(value) is int and abs(value) < MOST_NUMBER
    return value if whole or isinstance(value, float) else None


def _mapping(read: Callable[[Any], Any], value: Any) -> Mapping[str, Any] | None:
    if not isinstance(value, Mapping):
        return None
    return {name: one for name, raw in value.items() if (one := read(raw)) is not None}


def _objects(value: Any) -> list[Mapping[str, Any]] | None:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else None


def _tuple(read: Callable[[Any], Any], value: Any) -> tuple[Any, ...] | None:
    items = value if isinstance(value, list) else ()
    return tuple(one for item in items if (one := read(item)) is not None)


Index = Annotated[int, Read(to_count, -1)]
"""An integer; -1 if unknown."""
RankCount = Annotated[int, Read(partial(to_count, below=MOST_RANKS), 0)]
Seconds = Annotated[float, Read(_seconds, 0.0)]
SecondsByName = Annotated[Mapping[str, float], Read(partial(_mapping, _seconds), {})]
Figure = Annotated[float, Read(to_figure, 0.0)]
"""A finite number."""
Metrics = Annotated[Mapping[str, float], Read(partial(_mapping, _measured), {})]
Texts = Annotated[Mapping[str, str], Read(partial(_mapping, _of(str)), {})]
Objects = Annotated[Sequence[Mapping[str, Any]], Read(_objects, [])]

_PLAIN = {
    int: Read(to_count, 0),
    str: Read(_of(str), ""),
    bool: Read(_of(bool), False),
}


class Field(NamedTuple):
    """A field of a dataclass, by its annotation."""

    name: str
    read: Callable[[Any], Any]
    neutral: Any
    about: str
    """The text in its annotation."""
    optional: bool
    """Whether it is None by default: then it is left out of the JSON object."""


_FIELDS: dict[type, tuple[Field, ...]] = {}
"""Cached by class: there are thousands of events of each."""


def describe(cls: type) -> tuple[Field, ...]:
    """Return the fields of a dataclass."""
    if cls not in _FIELDS:
        hints = get_type_hints(cls, include_extras=True)
        _FIELDS[cls] = tuple(_describe(field, hints[field.name]) for field in fields(cls))
    return _FIELDS[cls]


def _describe(field: dataclasses.Field[Any], hint: Any) -> Field:
    kind, notes = _split(hint)
    read, neutral = _reader(hint)
    if field.default is not MISSING:
        neutral = field.default
    elif NoneType in get_args(kind):
        neutral = None
    elif neutral is None:
        read = partial(_require, field.name, read)
    about = next((note for note in notes if isinstance(note, str)), "")
    return Field(field.name, read, neutral, about, field.default is None)


def _split(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type and its annotations."""
    kind, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    return kind, tuple(notes)


def _reader(hint: Any) -> Read:
    kind, notes = _split(hint)
    for note in notes:
        if isinstance(note, Read):
            return note
    if inner := [one for one in get_args(kind) if one not in (NoneType, ...)]:
        read = _reader(inner[0])
        several = get_origin(kind) in (tuple, Sequence)
        return Read(partial(_tuple, read.read), ()) if several else read
    if is_dataclass(kind):
        return Read(partial(_nested, kind), None)
    return _PLAIN[kind]


def _nested(cls: Any, value: Any) -> Any:
    try:
        return decode(cls, value) if isinstance(value, Mapping) else None
    except ValueError:
        return None


def _require(name: str, read: Callable[[Any], Any], value: Any) -> Any:
    if (found := read(value)) is None:
        raise ValueError(f"{name} is missing or damaged")
    return found


def decode(cls: type[T], record: Mapping[str, Any]) -> T:
    """Return a dataclass from a JSON object.

    Raises:
        ValueError: a field that holds an object, and is not optional, is missing or damaged.
    """
    get = record.get
    return cls(
        **{
            name: neutral if (value := read(get(name))) is None else value
            for name, read, neutral, _, _ in describe(cls)
        }
    )


def encode(value: Any) -> dict[str, Any]:
    """Return a dataclass's fields, without those that are None."""
    return {
        name: one
        for name, _, _, _, _ in describe(type(value))
        if (one := getattr(value, name)) is not None
    }
