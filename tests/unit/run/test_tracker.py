import re

from echelon.run.directory import RunDir
from echelon.run.tracker import find_tracker


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
