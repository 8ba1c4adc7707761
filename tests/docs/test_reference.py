"""The pages that are made from the code are those that it would make now, and leave nothing out."""

import re
import runpy
import sys
from pathlib import Path

import pytest

import echelon
from docs.catalogue import ROOT
from echelon.launch.protocol.messages import Start
from echelon.launch.protocol.rank_environment import (
    PRIVATE,
    common_environment,
    rank_environment,
    rank_files,
)

TOOLS = ROOT / "tools"
SOURCE = Path(echelon.__file__).parent


@pytest.fixture
def reference(monkeypatch):
    """What tools/reference.py defines."""
    monkeypatch.setattr(sys, "path", [str(TOOLS), *sys.path])
    return runpy.run_path(str(TOOLS / "reference.py"))


@pytest.fixture
def variables():
    return runpy.run_path(str(TOOLS / "variables.py"))


def test_pages_are_up_to_date(reference):
    assert reference["out_of_date"]() == [], "run `make docs`"


def test_a_page_that_is_not_is_found(reference, tmp_path):
    # runpy has finished with the module: its functions look for names in what they were made with.
    reference["out_of_date"].__globals__["FOLDER"] = tmp_path
    assert reference["out_of_date"]() == ["cli.md", "config.md", "events.md", "environment.md"]
    (tmp_path / "cli.md").write_text(reference["pages"]()["cli.md"])
    (tmp_path / "config.md").write_text("something else")
    assert reference["out_of_date"]() == ["config.md", "events.md", "environment.md"]


def test_every_command_has_an_example(reference):
    text = reference["pages"]()["cli.md"]
    sections = text.split("\n## ")[1:-1]
    assert [part.splitlines()[0] for part in sections if "$ " not in part] == [
        "echelon checkpoint",
        "echelon sandbox",
        "echelon image",
    ]


def names_in_source():
    found = set()
    for path in SOURCE.rglob("*.py"):
        found |= set(re.findall(r"\bECHELON_[A-Z_]*[A-Z]\b", path.read_text()))
    return found


def test_every_variable_of_ours_is_told_or_private(variables):
    tables = [variables[name] for name in ("USERS", "RANKS", "STYLES", "COMMANDS", "PRIVATE")]
    known = {name for table in tables for name in table if name.startswith("ECHELON_")}
    assert names_in_source() == known | set(PRIVATE)


def test_what_a_rank_sees_is_told_and_nothing_else(variables):
    start = Start(
        generation=0,
        node_rank=0,
        nodes=1,
        first_rank=0,
        count=1,
        world_size=1,
        address="10.0.0.1",
        port=1,
        served=True,
    )
    folder = Path("/run")
    job = {"SLURM_JOB_ID": "1"}
    common = common_environment(
        job, run_id="x", run_dir=folder, threads=1, cpus=1, restarts=3, tracker="x-ab12"
    )
    own = rank_environment(
        start,
        0,
        rank_files(folder / "rank.log", folder, 0),
        interface="eth0",
        environ=common,
        mlflow="f00d",
    )
    assert (common.keys() | own.keys()) - job.keys() == variables["RANKS"].keys()


def test_variables_that_users_set_are_read(variables):
    text = "".join(path.read_text() for path in SOURCE.rglob("*.py"))
    assert [name for name in variables["USERS"] if f'"{name}"' not in text] == []
