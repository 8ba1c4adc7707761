"""Results are read only where nobody else could have written them, and from others as data."""

import datetime as dt
import os
import pickle
from collections import OrderedDict

import numpy as np
import pytest

from echelon.api.results import read_results
from echelon.errors import NotFoundError, NotPermittedError, UnavailableError
from echelon.run.directory import RunDir

PLAIN = {
    "loss": [0.1, 2, None, True],
    "name": "é",
    "raw": b"\0",
    "set": {1, 2},
    "tuple": (1, (2,)),
    "complex": 1 + 2j,
    "ordered": OrderedDict(a=1),
    "when": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
}


@pytest.fixture
def run(tmp_path):
    made = RunDir.create(tmp_path, "train-abcd")
    (made.path / "results").mkdir(mode=0o700)
    return made


def write(run, rank, value, size=2):
    content = value if isinstance(value, bytes) else pickle.dumps(value)
    head = f'{{"rank": {rank}, "world_size": {size}}}\n'.encode()
    path = run.path / "results" / f"rank-{rank:05}.pkl"
    path.write_bytes(head + content)
    path.chmod(0o600)
    return path


def test_the_first_or_all_in_order(run):
    write(run, 0, "a")
    write(run, 1, "b")
    write(run, 2, "of an earlier generation, which had more ranks")
    assert read_results(run, every=False) == ["a"]
    assert read_results(run, every=True) == ["a", "b"]


def test_a_missing_or_damaged_one_is_told(run):
    with pytest.raises(NotFoundError, match="no result of rank 0"):
        read_results(run, every=False)
    write(run, 0, b"\x80\x05 no pickle")
    with pytest.raises(UnavailableError, match="rank 0 cannot be read"):
        read_results(run, every=False)
    (run.path / "results/rank-00000.pkl").write_bytes(b"")
    with pytest.raises(UnavailableError, match="rank 0 cannot be read"):
        read_results(run, every=False)


def test_a_file_that_others_can_write_is_not_read(run):
    write(run, 0, "a").chmod(0o666)
    with pytest.raises(NotPermittedError, match="can write to"):
        read_results(run, every=False)


def test_plain_data_of_another_host_is_read(run):
    write(run, 0, PLAIN)
    assert read_results(run, every=False, plain=True) == [PLAIN]
    for array in (
        np.arange(6.0).reshape(2, 3),
        np.arange(12, dtype=">i2").reshape(3, 4)[::2, ::3],  # not contiguous
        np.asfortranarray(np.ones((2, 3))),
        np.zeros((0, 3), dtype=bool),
        np.float32(1.5),
        np.int64(3),
        np.array(["a", "bc"]),
        np.array([b"a", b"bc"]),
    ):
        write(run, 0, array)
        (found,) = read_results(run, every=False, plain=True)
        assert np.array_equal(found, array)


def _typed(code, state):
    """A pickle of an array type with a state of its own, and an array of it."""

    class Kind:
        def __reduce__(self):
            return np.dtype, (code, False, True), state

    class Array:
        def __reduce__(self):
            made = np.zeros(0).__reduce__()[0]
            return made, (np.ndarray, (0,), b"b"), (1, (1,), Kind(), False, b"\1" * 8)

    return pickle.dumps(Array())


OBJECT = np.dtype("O")


class _Hostile:
    def __reduce__(self):
        return os.system, ("touch hacked",)


@pytest.mark.parametrize(
    "value",
    [
        _Hostile(),
        [_Hostile()],
        np.array([_Hostile()], dtype=object),
        b"cbuiltins\neval\n(V1\ntR.",
        b"cos\nsystem\n(Vtouch hacked\ntR.",
        b"c_codecs\nencode\n(Va\nVrot13\ntR.",
        _typed("O8", (3, "|", None, None, None, -1, -1, 63)),
        _typed("V8", (3, "|", None, ("a",), {"a": (OBJECT, 0)}, 8, 1, 0)),
        _typed("f8", (3, "<", None, None, None, 800, 8, 0)),
        _typed("f8", (3, "<", None, None, None, -1, -1, 63)),
        _typed("f8", (3, "<", (OBJECT, (1,)), None, None, -1, -1, 0)),
    ],
)
def test_what_could_execute_code_of_another_host_is_refused(run, value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(run, 0, value)
    with pytest.raises(NotPermittedError, match="could execute code") as told:
        read_results(run, every=False, plain=True)
    assert "trust" in told.value.hint
    assert not (tmp_path / "hacked").exists()
