"""Help is where most people learn a command: each has an example that can be pasted."""

import re
import shlex

import pytest
import typer.main

from echelon.cli import main

EXAMPLE = re.compile(r"^  Example: (.+)$", re.MULTILINE)


def commands(command, path=()):
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


ALL = dict(commands(typer.main.get_command(main.app)))


@pytest.fixture(params=list(ALL), ids=lambda path: " ".join(path) or "echelon")
def path(request):
    return request.param


@pytest.fixture
def help_text(path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main.run([*path, "--help"]) == 0
    return capsys.readouterr().out


def test_every_command_has_one_example_in_a_line_of_its_own(path, help_text):
    found = EXAMPLE.findall(help_text)
    assert len(found) == 1
    before, after = help_text.split(f"  Example: {found[0]}\n")
    assert before.endswith("\n\n")
    assert not after.split("\n")[0]


def test_the_example_is_a_right_call_of_that_command(path, help_text):
    line = EXAMPLE.findall(help_text)[0].split(" > ")[0]
    line = line.removeprefix('eval "$(').removesuffix(')"')
    program, *words = shlex.split(line)
    assert program == "echelon"
    assert tuple(words[: len(path)]) == path
    while (command := ALL[path]) and hasattr(command, "commands"):  # a group's is one of its own
        path = (*path, words[len(path)])
    with command.make_context(" ".join(path), words[len(path) :]) as context:
        assert context.params


def test_no_summary_of_a_command_is_cut(help_text):
    listed = help_text.partition("\nCommands:\n")[2]
    assert not [line for line in listed.splitlines() if line.endswith(("...", "…"))]


def test_summaries_of_commands_are_sentences(path):
    first = (ALL[path].help or "").split("\n\n")[0]
    assert first.endswith(".")
    assert first[:1].isupper()
