"""What a program will do is read off its text, and nothing of it is imported for that."""

import sys

import pytest

from echelon.launch.program import Program
from echelon.launch.program_text import (
    OPTIMIZING,
    find_own_endpoint,
    find_words,
    foresee_modules,
    may_import_torch,
    may_optimize,
    read_imports,
    read_words,
)

TRAINS = "import torch.optim as o\n"


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nmake = lambda p: torch.optim.SGD(p, lr=0.1)",
        "from torch import optim",
        "from torch.optim import AdamW",
        "import torch.optim.lr_scheduler",
        "from torch.nn.parallel import DistributedDataParallel as DDP",
        "import echelon\nwith echelon.init() as world: echelon.Trainer(world, model, optimizer=f)",
    ],
)
def test_who_will_make_an_optimiser(text):
    assert foresee_modules(find_words(text.encode())) == OPTIMIZING


@pytest.mark.parametrize(
    "text",
    [
        "",
        "import torch, torch.distributed as dist\ndist.init_process_group('gloo')",
        "'''No optim here.'''\n# from torch import optim\nprint('optim')",
        "import echelon\nworld = echelon.init()",
    ],
)
def test_who_will_not(text):
    assert foresee_modules(find_words(text.encode())) == ()


@pytest.mark.parametrize(
    "text", [b"from torch import optim\nprint 'old'", b"\0", b"\xff", b"(" * 999]
)
def test_what_is_not_python_says_nothing(text):
    assert find_words(text) == frozenset()


def test_a_warning_about_the_text_is_the_ranks_to_show(recwarn):
    assert "optim" in find_words(b"from torch import optim\nprint('\\d', 1 is 1)\n")
    assert not recwarn


def test_a_script_is_read_where_it_lies(tmp_path):
    (tmp_path / "train.py").write_text(TRAINS)
    assert "optim" in read_words(Program(argv=(str(tmp_path / "train.py"), "--lr=1")))


@pytest.mark.parametrize("name", ["alone", "package", "package.inner", "package.deep"])
def test_a_module_is_found_without_importing_its_package(tmp_path, monkeypatch, name):
    (tmp_path / "package" / "deep").mkdir(parents=True)
    for path in ("alone.py", "package/__main__.py", "package/inner.py", "package/deep/__main__.py"):
        (tmp_path / path).write_text(TRAINS)
    for path in ("package/__init__.py", "package/deep/__init__.py"):
        (tmp_path / path).write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    assert "optim" in read_words(Program(argv=(name,), kind="module"))
    assert "package" not in sys.modules


@pytest.mark.parametrize(
    "program",
    [
        Program(argv=("no-such.py",)),
        Program(argv=("folder",)),
        Program(argv=("no_such",), kind="module"),
        Program(argv=("folder.inner.deeper",), kind="module"),
        Program(argv=("sys",), kind="module"),
        Program(argv=("..",), kind="module"),
    ],
)
def test_what_is_not_there_says_nothing(tmp_path, monkeypatch, program):
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert read_words(program) == frozenset()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"train.py": "import os, torch.nn as nn"}, {"os", "torch"}),
        ({"train.py": "def f():\n    from echelon.train import Trainer"}, {"echelon"}),
        ({"train.py": "import engine", "engine.py": "import echelon"}, {"echelon"}),
        ({"train.py": "from engine import run", "engine.py": "import echelon"}, {"echelon"}),
        ({"train.py": "from engine import *", "engine.py": "import echelon"}, {"echelon"}),
        (
            {
                "train.py": "from lib import engine",
                "lib/__init__.py": "",
                "lib/engine.py": "import a",
            },
            {"a"},
        ),
        ({"train.py": "import a", "a.py": "import b", "b.py": "import a, c"}, {"c"}),
        ({"train.py": "import ("}, set()),
        ({}, set()),
    ],
)
def test_imports_are_found_also_in_modules_beside_a_program(files, expected, tmp_path):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert read_imports(Program(argv=(str(tmp_path / "train.py"),))) == expected


@pytest.mark.parametrize(
    ("text", "torch", "optimizer"),
    [
        ("import os, sys", False, False),
        ("import json\nimport torch", True, False),
        ("import torch, numpy\nimport echelon", True, False),
        ("import torch, transformers", True, True),
        ("import helper", True, True),
        ("import runpy\nrunpy.run_path('train.py')", True, False),
        ("import os\n__import__(os.environ['X'])", True, False),
        ("print(1)", True, False),
        ("import (", True, False),
    ],
)
def test_what_ranks_may_import_later(text, torch, optimizer, tmp_path):
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "helper.py").write_text("import torch")
    program = Program(argv=(str(tmp_path / "train.py"),))
    assert (may_import_torch(program), may_optimize(program)) == (torch, optimizer)


def test_a_program_that_cannot_be_read_may_import_anything(tmp_path):
    program = Program(argv=(str(tmp_path / "train.py"),))
    assert may_import_torch(program)
    assert may_optimize(program)


def test_a_program_that_is_not_python_imports_nothing(tmp_path):
    (tmp_path / "train.sh").write_text("import torch\n")
    assert read_imports(Program(argv=(str(tmp_path / "train.sh"),), kind="binary")) == set()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("os.environ['MASTER_PORT'] = '1'", 1),
        ('os.environ["MASTER_ADDR"] = host', 1),
        ("os.environ.setdefault('MASTER_PORT', '1')", 0),
        ("port = os.environ['MASTER_PORT']", 0),
    ],
)
def test_a_program_that_sets_its_own_endpoint_is_seen(line, found, tmp_path):
    (tmp_path / "train.py").write_text(line)
    assert find_own_endpoint(Program(argv=(str(tmp_path / "train.py"),))) == found
