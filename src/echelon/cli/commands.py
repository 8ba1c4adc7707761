"""All commands, and the module of each: loading one does not load the others.

A fast start matters twice for a command on a login host: it starts on both machines.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer

from echelon.cli.help import LOOK, PREPARE, START, SectionedGroup

_MODULES = {
    "runs": ("submit", "run", "ps", "status", "logs", "stop", "cancel", "resume", "why"),
    "code": ("diff", "rerun"),
    "watch": ("watch",),
    "report": ("report", "export"),
    "dash": ("dash",),
    "fetch": ("fetch",),
    "clean": ("clean",),
    "lint": ("lint",),
    "doctor": ("doctor",),
    "nodes": ("nodes",),
    "init": ("init",),
    "options": ("script", "config"),
    "pack": ("pack",),
}
"""Module of this package → its commands, in the order of the help."""
_GROUPS = {"sweep": START, "checkpoint": LOOK, "sandbox": PREPARE, "image": PREPARE}
"""Modules whose commands have a second word → section of the help."""


class Commands(Mapping[str, Any]):
    """Commands by name, loaded when they are looked up."""

    def __init__(self) -> None:
        self._modules = {name: module for module, names in _MODULES.items() for name in names}
        self._modules |= {name: name for name in _GROUPS}
        self._loaded: dict[str, Any] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(self._modules[name], name)
        return self._loaded[name]


class LazyGroup(SectionedGroup):
    """The group of all commands."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        commands: Any = Commands()
        self.commands = commands


def _load(module: str, name: str) -> Any:
    part: typer.Typer = import_module(f"echelon.cli.{module}").app
    alone = typer.Typer(rich_markup_mode=None)
    if name in _GROUPS:
        alone.add_typer(part, rich_help_panel=_GROUPS[name])
    else:
        alone.registered_commands += [
            one for one in part.registered_commands if name == (one.name or _name(one.callback))
        ]
    return typer.main.get_group(alone).commands[name]


def _name(callback: Any) -> str:
    return typer.main.get_command_name(callback.__name__)
