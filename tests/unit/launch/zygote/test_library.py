"""A rank gets modules that its zygote has imported when it would import the same, and only then."""

import importlib
import os
import sys
from pathlib import Path

import pytest

from echelon.launch.zygote.library import import_library, own_modules

INIT = """\
import importlib
__all__ = ["Trainer", "init"]
def __getattr__(name):
    if name not in __all__:
        raise AttributeError(name)
    return getattr(importlib.import_module("echelon.part"), name)
"""
PART = "Trainer, init, word = object(), object(), 'first'\n"


def write_library(folder, part=PART):
    package = folder / "echelon"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(INIT)
    (package / "part.py").write_text(part)
    return str(folder)


@pytest.fixture
def folder(tmp_path):
    return write_library(tmp_path / "own")


@pytest.fixture
def enter_rank(monkeypatch):
    """Have no module of the library, as a rank that has begun, and look for it in a folder."""
    before = {name: sys.modules[name] for name in own_modules()}
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def enter(library, *folders):
        for name in own_modules():
            del sys.modules[name]
        sys.path[:1] = folders
        library.offer()

    yield enter
    for name in own_modules():
        del sys.modules[name]
    sys.modules.update(before)


def word():
    return importlib.import_module("echelon.part").word


def test_the_launchers_own_modules_stay_as_they_were(folder):
    before, path = {name: sys.modules[name] for name in own_modules()}, list(sys.path)
    library = import_library({"Trainer"}, folder)
    assert set(library.modules) == {"echelon", "echelon.part"}
    assert {name: sys.modules[name] for name in own_modules()} == before
    assert sys.path == path


def test_only_what_a_program_names_is_imported(folder):
    assert set(import_library({"echelon", "unknown"}, folder).modules) == {"echelon"}


def test_a_rank_that_finds_the_same_gets_it(folder, enter_rank):
    library = import_library({"Trainer"}, folder)
    finders = list(sys.meta_path)
    enter_rank(library, folder)
    import echelon

    assert echelon is library.modules["echelon"]
    assert sys.modules["echelon.part"] is library.modules["echelon.part"]
    assert echelon.Trainer is library.modules["echelon.part"].Trainer
    assert type(echelon.__spec__.loader).__name__ == "SourceFileLoader"
    assert sys.meta_path == finders


def test_to_look_whether_it_is_there_takes_nothing_away(folder, enter_rank):
    library = import_library({"Trainer"}, folder)
    enter_rank(library, folder)
    assert importlib.util.find_spec("echelon") is not None
    assert importlib.import_module("echelon") is library.modules["echelon"]


def test_a_file_that_was_changed_is_read_anew(folder, enter_rank):
    library = import_library({"Trainer"}, folder)
    path = Path(library.modules["echelon.part"].__file__)
    path.write_text(PART.replace("first", "other"))
    os.utime(path, ns=(1, 1))  # of the same length, and as if at another time
    enter_rank(library, folder)
    assert word() == "other"
    assert sys.modules["echelon"] is not library.modules["echelon"]


def test_a_file_that_is_gone_is_not_there(folder, enter_rank):
    library = import_library({"Trainer"}, folder)
    Path(library.modules["echelon.part"].__file__).unlink()
    enter_rank(library, folder)
    with pytest.raises(ModuleNotFoundError):
        word()


def test_another_copy_that_comes_first_is_taken(folder, enter_rank, tmp_path):
    library = import_library({"Trainer"}, folder)
    other = write_library(tmp_path / "other", PART.replace("first", "other"))
    enter_rank(library, other, folder)
    assert word() == "other"


def test_who_imports_it_anew_gets_a_new_one(folder, enter_rank):
    library = import_library({"Trainer"}, folder)
    enter_rank(library, folder)
    assert importlib.import_module("echelon") is library.modules["echelon"]
    for name in own_modules():
        del sys.modules[name]
    assert importlib.import_module("echelon") is not library.modules["echelon"]


@pytest.mark.parametrize("part", ["raise ValueError", "import no_such_module", "1 +", "word = 1"])
def test_one_that_is_broken_is_the_ranks_to_meet(tmp_path, part):
    before = {name: sys.modules[name] for name in own_modules()}
    assert import_library({"Trainer"}, write_library(tmp_path, part)) is None
    assert {name: sys.modules[name] for name in own_modules()} == before
