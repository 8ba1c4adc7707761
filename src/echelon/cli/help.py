"""Help texts in sections: each command and option stands under its `rich_help_panel`.

Typer shows these headings only when it formats help with rich, whose import takes longer than most
commands. This formats them as plain text.
"""

from typing import Any

from typer.core import TyperCommand, TyperGroup

START, LOOK = "Start and stop runs", "Look at runs"
CHECK, PREPARE = "Check scripts and nodes", "Prepare"
"""Sections of commands."""
CONFIGURATION = "Configuration"
"""The last section of options."""


class SectionedGroup(TyperGroup):
    """A group that lists its commands by section."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        room = formatter.width - 6 - max(map(len, self.commands))
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.commands[name]
            row = (name, command.get_short_help_str(room))
            sections.setdefault(command.rich_help_panel or "Commands", []).append(row)
        _write(formatter, sections)


class SectionedCommand(TyperCommand):
    """A command that lists its options by section."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            one: Any = parameter
            name = one.rich_help_panel or f"{one.param_type_name.capitalize()}s"
            if row := one.get_help_record(ctx):
                first = row[0].partition(" <")[0]  # without typer's name of the type
                sections.setdefault(name, []).append((first, row[1]))
        _write(formatter, sections)


def _write(formatter: Any, sections: dict[str, list[tuple[str, str]]]) -> None:
    """Write the sections, with their second columns below each other."""
    width = max(len(first) for rows in sections.values() for first, _ in rows)
    for name, rows in sections.items():
        with formatter.section(name):
            formatter.write_dl([(first.ljust(width), text) for first, text in rows])
