"""The page of benchmarks is what the results of now would make, with what was missed."""

import json
import runpy

import pytest

from docs.catalogue import ROOT


@pytest.fixture
def figures():
    """What tools/figures.py defines."""
    return runpy.run_path(str(ROOT / "tools" / "figures.py"))


def test_the_page_is_up_to_date(figures):
    assert not figures["out_of_date"](), "run `make docs`"


def results(folder, figures, **changed):
    for path in figures["RESULTS"].glob("*.json"):
        (folder / path.name).write_text(path.read_text())
    for name, result in changed.items():
        (folder / f"{name}.json").write_text(json.dumps(result))
    # runpy has finished with the module: its functions look for names in what they were made with.
    figures["render"].__globals__["RESULTS"] = folder


def test_a_goal_that_is_missed_is_said_to_be_with_or_without_a_reason(figures, tmp_path):
    launch = json.loads((figures["RESULTS"] / "launch.json").read_text())
    launch["goals"] = {"something new": {"value": 1.5, "limit": 1.0, "met": False}}
    results(tmp_path, figures, launch=launch)
    text = figures["render"]()
    assert "| launch | something new | ≤ 1 | 1.5 | **no** |" in text
    assert "| launch | something new | not investigated yet |" in text


def test_another_figure_makes_another_page(figures, tmp_path):
    restart = json.loads((figures["RESULTS"] / "restart.json").read_text())
    restart["rows"]["torchrun"]["trials"] = 12345
    results(tmp_path, figures, restart=restart)
    assert figures["out_of_date"]()
    assert "12,345" in figures["render"]()


def test_a_file_without_a_section_is_an_error(figures, tmp_path):
    results(tmp_path, figures, other={"rows": {}})
    with pytest.raises(ValueError, match="other"):
        figures["render"]()


def test_rows_of_which_other_things_were_measured_stand_apart(figures):
    text = figures["_rows"](
        {"a": {"median_s": 1.0, "trials": 2}, "b": {"p95_ms": 3, "trials": 4}, "c": {"median_s": 2}}
    )
    assert text == (
        "|  | median, s | trials |\n| --- | --- | --- |\n| a | 1 | 2 |\n| c | 2 |  |\n\n"
        "|  | p95, ms | trials |\n| --- | --- | --- |\n| b | 3 | 4 |"
    )
