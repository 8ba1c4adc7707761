"""No module imports itself through others, whether for types or inside a function."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"


def read_modules(src):
    """Return the text of every module below a folder, by its name."""
    modules = {}
    for path in src.rglob("*.py"):
        parts = path.relative_to(src).with_suffix("").parts
        modules[".".join(parts).removesuffix(".__init__")] = path.read_text()
    return modules


def find_imports(name, modules):
    """Return the modules that one imports anywhere: at its top, for types, in functions."""
    found = set()
    for node in ast.walk(ast.parse(modules[name])):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name} has a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in modules else node.module)
    return (found & modules.keys()) - {name}


def find_circle(modules):
    """Return the modules of one circle, the first again at its end; none if there is no circle."""
    try:
        TopologicalSorter({name: find_imports(name, modules) for name in modules}).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_imports_form_a_circle():
    modules = read_modules(SRC)
    assert len(modules) > 100
    assert find_circle(modules) == []


@pytest.mark.parametrize(
    "back",
    [
        "import p.a",
        "from p import a",
        "from p.a import thing",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import Thing",
        "def late():\n    from p.a import thing",
    ],
)
def test_a_circle_is_found_however_it_is_written(back):
    modules = {"p": "", "p.a": "from p.b import x", "p.b": "import p.c", "p.c": back}
    assert set(find_circle(modules)) == {"p.a", "p.b", "p.c"}
