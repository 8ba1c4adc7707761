"""Every error says what to do: in its hint, without exception that is not listed here."""

import ast
from pathlib import Path

import pytest

import echelon

SOURCE = Path(echelon.__file__).parent
ROOT = "EchelonError"
OWN_HINT = {
    "StalledError": "says where to look, whatever stopped a copy",
    "MissingProgramError": "says how to get any program, where nobody knows better",
    "CommandError": "shows the command, to be tried by hand",
}
NO_HINT = {
    "WireError": "is between our own processes, on the nodes; whoever meets it logs it and goes on",
}


@pytest.fixture(scope="module")
def found():
    return {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


def family(found):
    """The names of all classes below the root, wherever they are defined."""
    bases = {
        node.name: {getattr(base, "id", getattr(base, "attr", "")) for base in node.bases}
        for tree in found.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    names = {ROOT}
    while more := {name for name, above in bases.items() if above & names} - names:
        names |= more
    return names


def makes(tree, names):
    """Each place where such an error is made: its class, its line and its hint, if it has one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in names:
            hints = [word.value for word in node.keywords if word.arg == "hint"]
            yield node.func.id, node.lineno, hints[0] if hints else None


def is_empty(hint):
    return hint is None or (isinstance(hint, ast.Constant) and not str(hint.value).strip())


def test_every_error_that_is_raised_has_a_hint(found):
    names = family(found)
    assert names >= {"UsageError", "CommandError", "WireError"}
    made = [
        (f"{path.relative_to(SOURCE)}:{line}", name, hint)
        for path, tree in found.items()
        for name, line, hint in makes(tree, names)
    ]
    assert len(made) > 150
    excused = OWN_HINT.keys() | NO_HINT.keys()
    silent = [place for place, name, hint in made if is_empty(hint) and name not in excused]
    assert silent == []


def test_who_is_excused_is_still_there(found):
    names = family(found)
    bare = {
        name for tree in found.values() for name, _, hint in makes(tree, names) if is_empty(hint)
    }
    # CommandError is made with its caller's hint, which may be empty.
    assert bare == {"MissingProgramError", "StalledError", "WireError"}


def test_those_with_a_hint_of_their_own_have_one():
    from echelon.errors import CommandError, MissingProgramError

    assert "install it" in MissingProgramError("x").hint
    assert "x -y" in CommandError(["x", "-y"], 1, "").hint
