"""The command line is a public interface: a change of it must also change the golden file."""

from pathlib import Path

import typer.main

from echelon.cli.app import app

GOLDEN = Path(__file__).parents[2] / "golden" / "cli.txt"


def render_command(command, path=()):
    path = (*path, command.name)
    lines = [" ".join(path)]
    for parameter in command.params:
        names = "/".join(parameter.opts + parameter.secondary_opts)
        lines.append(f"    {parameter.param_type_name} {names}")
    for child in getattr(command, "commands", {}).values():
        lines += render_command(child, path)
    return lines


def test_commands_and_flags_match_the_golden_file():
    assert "\n".join(render_command(typer.main.get_command(app))) + "\n" == GOLDEN.read_text()
