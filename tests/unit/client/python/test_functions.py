"""Packing functions into files of a run's code."""

import json
import pickle
import sys
import threading

import pytest

from echelon.client.python.functions import (
    MOST_BYTES,
    find_checkpoint,
    find_libraries,
    pack_function,
)
from echelon.errors import UsageError
from echelon.launch.program import Program
from echelon.launch.program_text import may_import_torch, read_imports


def add(a, b=2):
    return a + b


def pack(function, *args, root, copied=True, **options):
    return pack_function(function, [(args, options)], root, copied=copied)


def unpack(packed):
    parts = pickle.loads(packed.files[".echelon/function.pkl"])
    args, options = pickle.loads(parts["calls"][0])
    return pickle.loads(parts["function"])(*args, **options)


def test_a_function_is_packed_with_everything_it_refers_to(tmp_path):
    factor = 3
    packed = pack(lambda x: x * factor, 4, root=tmp_path)
    assert unpack(packed) == 12
    assert packed.name == "lambda"
    assert {".echelon/call.py", ".echelon/function.json"} < packed.files.keys()
    assert ".echelon/lib/cloudpickle/cloudpickle.py" in packed.files


def test_a_module_that_ranks_could_not_import_is_pickled_by_value(tmp_path):
    # pytest imports this file under a name that other processes cannot import.
    packed = pack(add, 1, root=tmp_path)
    assert unpack(packed) == 3
    assert (
        __name__.encode()
        not in pickle.loads(packed.files[".echelon/function.pkl"])["function"][:200]
        or __name__.rpartition(".")[2] not in sys.path
    )


def test_a_module_of_the_project_is_imported_from_the_code(tmp_path, monkeypatch):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/theirs_to_import.py").write_text("def f():\n    return 'long ' * 50\n")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    import theirs_to_import

    try:
        packed = pack(theirs_to_import.f, root=tmp_path)
        assert len(pickle.loads(packed.files[".echelon/function.pkl"])["function"]) < 80
        about = json.loads(packed.files[".echelon/function.json"])
        assert about["paths"][0] == "lib"
        assert about["root"] == ""
    finally:
        del sys.modules["theirs_to_import"]


def test_without_a_copy_modules_come_from_the_project_itself(tmp_path):
    packed = pack(add, 1, root=tmp_path, copied=False)
    assert json.loads(packed.files[".echelon/function.json"])["root"] == str(tmp_path)


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        (add, (), "missing a required argument: 'a'"),
        (add, (1, 2, 3), "too many positional arguments"),
        (add, (threading.Lock(),), "an argument of add cannot be pickled"),
        (threading.Lock().acquire, (), "acquire cannot be pickled"),
        (add, (bytes(MOST_BYTES + 1),), "the limit is"),
    ],
)
def test_a_function_that_cannot_be_packed_is_an_error(tmp_path, function, args, message):
    with pytest.raises(UsageError, match=message) as caught:
        pack(function, *args, root=tmp_path)
    assert caught.value.hint


def test_the_checkpointer_parameter_is_found_by_its_annotation():
    class Checkpointer:
        """A class of another library."""

    def by_text(x, saver: "echelon.Checkpointer"):  # noqa: F821
        pass

    def others(checkpoint: Checkpointer):
        pass

    assert find_checkpoint(by_text) == "saver"
    assert find_checkpoint(others) == ""
    assert find_checkpoint(print) == ""


def test_the_argument_for_the_checkpointer_is_not_missing(tmp_path):
    def train(lr, checkpoint: "echelon.Checkpointer"):  # noqa: F821
        return lr

    packed = pack(train, 0.1, root=tmp_path)
    assert json.loads(packed.files[".echelon/function.json"])["checkpoint"] == "checkpoint"
    (tmp_path / "call.py").write_bytes(packed.files[".echelon/call.py"])
    program = Program(argv=(str(tmp_path / "call.py"),))
    assert {"torch", "echelon"} <= read_imports(program)


def test_torch_is_preloaded_only_for_a_function_that_uses_it(tmp_path):
    def plain():
        return 1

    def deep():
        import torch

        return torch.ones(1)

    for function, uses in ((plain, False), (deep, True)):
        packed = pack(function, root=tmp_path)
        (tmp_path / "call.py").write_bytes(packed.files[".echelon/call.py"])
        assert may_import_torch(Program(argv=(str(tmp_path / "call.py"),))) is uses


def test_a_path_with_the_name_of_a_library_is_not_that_library():
    assert find_libraries(pickle.dumps("/home/me/torch/x.py")) == set()
    assert find_libraries(pickle.dumps("torch.nn")) == {"torch"}


def test_text_annotations_of_a_checkpointer_are_resolved():
    """As `from __future__ import annotations` has them."""
    text = "def train(saver: {}): ..."
    for annotation, names, expected in [
        ("Checkpointer", {}, "saver"),  # imported for type checkers only
        ("Checkpointer", {"Checkpointer": int}, ""),
        ("echelon.Checkpointer", {"echelon": sys.modules["echelon"]}, "saver"),
        ("other.Checkpointer", {"other": json}, ""),
        ("Checkpoint", {}, ""),
    ]:
        exec(text.format(f'"{annotation}"'), names)  # noqa: S102
        assert find_checkpoint(names["train"]) == expected, annotation
