"""Immutable classes whose fields are given by name.

`@frozen` replaces `@dataclass(frozen=True, kw_only=True)`, which compiles methods for each class:
before Python 3.13 that takes 0.7 ms, most of the time in which our programs import their modules.
All frozen classes share their methods. The functions of `dataclasses` work with them.
"""

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """Give a class its fields, and those methods of `Frozen` that it does not define itself."""
    own = vars(cls)
    for name in _METHODS:
        if own.get(name) is None:
            setattr(cls, name, vars(Frozen)[name])
    known = fields(dataclass(init=False, repr=False, eq=False, kw_only=True)(cls))  # type: ignore[arg-type]
    names = frozenset(one.name for one in known)
    defaults = {one.name: one.default for one in known if one.default is not MISSING}
    factories = {
        one.name: one.default_factory for one in known if one.default_factory is not MISSING
    }
    compared = [one.name for one in known if one.compare]
    cls.__table__ = Table(  # type: ignore[attr-defined]
        names=names,
        required=names - defaults.keys() - factories.keys(),
        defaults=defaults,
        factories=factories,
        compared=attrgetter(*compared) if compared else type,
    )
    return cls


class Table(NamedTuple):
    """What the methods have to know about a class."""

    names: frozenset[str]
    required: frozenset[str]
    defaults: dict[str, Any]
    factories: dict[str, Callable[[], Any]]
    compared: Callable[[object], object]
    """Returns the fields that count when two objects are compared."""


class Frozen:
    """The methods of every frozen class; not a base class."""

    __table__: ClassVar[Table]

    def __init__(self, **values: object) -> None:
        own, table = vars(self), self.__table__
        own.update(table.defaults)
        for name, make in table.factories.items():
            if name not in values:
                own[name] = make()
        own.update(values)
        if len(own) > len(table.names) or not table.required <= values.keys():
            wrong = (table.required - values.keys()) | (own.keys() - table.names)
            raise TypeError(f"{type(self).__name__}: missing or unknown: {sorted(wrong)}")
        if prepare := getattr(self, "__post_init__", None):
            prepare()

    def __repr__(self) -> str:
        shown = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)  # type: ignore[arg-type]
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        compared = self.__table__.compared
        return bool(compared(self) == compared(other))

    def __hash__(self) -> int:
        return hash(self.__table__.compared(self))

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")


_METHODS = ("__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__")
