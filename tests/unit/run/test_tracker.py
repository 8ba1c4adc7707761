import re

from echelon.run.directory import RunDir
from echelon.run.tracker import find_mlflow, find_tracker, keep_mlflow


def test_a_run_has_one_name_for_trackers_and_another_run_another(tmp_path):
    run = RunDir.create(tmp_path / "runs", "train-ab12")
    name = find_tracker(run)
    assert re.fullmatch(r"train-ab12-[0-9a-f]{8}", name)
    assert find_tracker(run) == name
    again = RunDir.create(tmp_path / "elsewhere", "train-ab12")
    assert find_tracker(again) != name


def test_where_it_cannot_be_kept_it_is_the_id_of_the_run(tmp_path):
    run = RunDir.create(tmp_path / "runs", "train-ab12")
    run.tracker.write_text("a/b c\n")
    assert find_tracker(run) == "train-ab12"
    assert find_tracker(RunDir(path=tmp_path / "gone" / "train-ab12")) == "train-ab12"


def test_the_id_of_mlflow_is_kept_for_later_ranks(tmp_path, monkeypatch):
    run = RunDir.create(tmp_path / "runs", "train-ab12")
    assert find_mlflow(run) == ""
    monkeypatch.setenv("ECHELON_RUN_DIR", str(run.path))
    keep_mlflow("f00d")
    assert find_mlflow(run) == "f00d"
    run.mlflow.write_text("../x y\n")
    assert find_mlflow(run) == ""
    monkeypatch.delenv("ECHELON_RUN_DIR")
    keep_mlflow("other")
    assert find_mlflow(run) == ""
