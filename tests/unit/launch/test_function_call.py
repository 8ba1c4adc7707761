"""What the program of a function does on a rank."""

import json
import pickle

import pytest

from echelon.launch import function_call
from echelon.launch.function_call import check_python, keep_result


@pytest.fixture
def rank(tmp_path, monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "4", "ECHELON_RUN_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "results"


def test_a_result_is_for_its_owner_alone(rank):
    keep_result({"loss": 1.0}, "train", pickle.dump)
    path = rank / "rank-00001.pkl"
    head, _, content = path.read_bytes().partition(b"\n")
    assert head == b'{"rank": 1, "world_size": 4}'
    assert pickle.loads(content) == {"loss": 1.0}
    assert (path.stat().st_mode & 0o777, rank.stat().st_mode & 0o777) == (0o600, 0o700)


def test_the_result_of_an_earlier_generation_is_replaced(rank):
    keep_result(1, "train", pickle.dump)
    (rank / "rank-00001.tmp").write_text("from a rank that was killed")
    keep_result(2, "train", pickle.dump)
    assert {path.name for path in rank.iterdir()} == {"rank-00001.pkl", "rank-00001.data"}
    assert pickle.loads((rank / "rank-00001.pkl").read_bytes().partition(b"\n")[2]) == 2


def test_a_pickle_is_kept_if_the_data_would_be_too_large(rank, monkeypatch):
    monkeypatch.setattr(function_call, "MOST_TEXT", 100)
    keep_result("x" * 101, "train", pickle.dump)
    assert "refused" in json.loads((rank / "rank-00001.data").read_text())
    assert pickle.loads((rank / "rank-00001.pkl").read_bytes().partition(b"\n")[2]) == "x" * 101


def test_a_result_that_is_too_large_is_an_error_of_the_rank(rank, monkeypatch):
    monkeypatch.setattr(function_call, "MOST_BYTES", 1000)
    with pytest.raises(ValueError, match=r"train is larger than 1,000 bytes: .*ECHELON_RUN_DIR"):
        keep_result(bytes(2000), "train", pickle.dump)
    assert not (rank / "rank-00001.pkl").exists()


def test_a_result_that_cannot_be_pickled_is_an_error_of_the_rank(rank):
    with pytest.raises(TypeError, match="the result of train cannot be pickled"):
        keep_result(lambda: 1, "train", pickle.dump)
    assert not (rank / "rank-00001.pkl").exists()


def test_another_version_of_python_is_told():
    with pytest.raises(RuntimeError, match=r"from Python 2\.7, and the ranks have Python 3"):
        check_python({"python": "2.7", "name": "train"})
