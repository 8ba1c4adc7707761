"""Help texts: each command has an example that can be pasted."""

import re
import shlex

import pytest
import typer.main

from echelon.cli import app, main
from echelon.cli.help import CHECK, CONFIGURATION, LOOK, PREPARE, START
from echelon.spec.job_spec import KEYS
from echelon.spec.keys import SECTIONS

EXAMPLE = re.compile(r"^  Example: (.+)$", re.MULTILINE)


def commands(command, path=()):
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


ALL = dict(commands(typer.main.get_command(app.app)))


@pytest.fixture(params=list(ALL), ids=lambda path: " ".join(path) or "echelon")
def path(request):
    return request.param


@pytest.fixture
def help_text(path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main.run([*path, "--help"]) == 0
    return capsys.readouterr().out


def test_the_help_of_every_command_has_one_example(path, help_text):
    found = EXAMPLE.findall(help_text)
    assert len(found) == 1
    before, after = help_text.split(f"  Example: {found[0]}\n")
    assert before.endswith("\n\n")
    assert not after.split("\n")[0]


def test_the_example_in_the_help_is_a_valid_call(path, help_text):
    line = EXAMPLE.findall(help_text)[0].split(" > ")[0]
    line = line.removeprefix('eval "$(').removesuffix(')"')
    program, *words = shlex.split(line)
    assert program == "echelon"
    assert tuple(words[: len(path)]) == path
    # A group's is one of its own, unless it is a command itself.
    while set(words[len(path) :][:1]) & set(getattr(ALL[path], "commands", ())):
        path = (*path, words[len(path)])
    command = ALL[path]
    with command.make_context(" ".join(path), words[len(path) :]) as context:
        assert context.params


def test_command_summaries_fit_in_the_list(path, help_text):
    listed = help_text.partition("\nOptions:\n")[2]
    assert not [line for line in listed.splitlines() if line.endswith(("...", "…"))]


def headings(text):
    return re.findall(r"^([A-Z].*):$", text, re.MULTILINE)


def section(text, heading):
    return text.partition(f"\n{heading}:\n")[2].partition("\n\n")[0]


@pytest.mark.parametrize("path", [()])
def test_the_help_lists_commands_by_purpose(help_text):
    assert headings(help_text) == ["Options", START, LOOK, CHECK, PREPARE]
    assert re.findall(r"^  (\w+) ", section(help_text, START), re.MULTILINE) == [
        *("submit", "run", "stop", "cancel", "resume", "rerun", "sweep")
    ]
    assert " ps " in section(help_text, LOOK)
    assert " lint " in section(help_text, CHECK)
    assert " sandbox " in section(help_text, PREPARE)


@pytest.mark.parametrize("path", [("submit",), ("run",)])
def test_the_help_lists_everyday_flags_first(help_text):
    assert headings(help_text) == ["Arguments", *SECTIONS, CONFIGURATION]
    everyday = re.findall(r"^  .*?(--[\w-]+)", section(help_text, "Options"), re.MULTILINE)
    assert everyday[:3] == ["--nodes", "--gpus", "--procs"]
    assert len(everyday) <= 16


@pytest.mark.parametrize("path", [("submit",)])
@pytest.mark.parametrize("key", KEYS.values(), ids=list(KEYS))
def test_the_help_has_every_key_in_its_section(key, help_text):
    if key.is_argument:
        assert f"  {key.metavar} " in section(help_text, "Arguments")
        return
    shown = section(help_text, key.section)
    names = [name for spelling in key.spellings for name in spelling.split("/")]
    assert all(re.search(rf"(?m)^ .*{name}\b", shown) for name in names)
    assert not key.metavar or f"{key.option} {key.metavar}" in shown


def test_command_summaries_are_sentences(path):
    first = (ALL[path].help or "").split("\n\n")[0]
    assert first.endswith(".")
    assert first[:1].isupper()
