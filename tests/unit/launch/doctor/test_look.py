"""What a few lines of sh say of a node, whole or broken off."""

import os
import subprocess
import sys

import pytest

from echelon.launch.doctor.look import SCRIPT, parse_look

WHOLE = """\
host=node3
clock=1000.500000000
limit=Limit                     Soft Limit           Hard Limit           Units
limit=Max processes             128390               128390               processes
limit=Max open files            1024                 524288               files
limit=Max locked memory         8388608              8388608              bytes
shm=tmpfs              12315136         0  12315136       0% /dev/shm
at=the directory /shared
folder=seen
late=0
type=nfs
at=the Python /env/bin/python
python=/opt/python3.11
version=3.11.7
prefix=/env
code=0
at=
"""


def look(text, error="", asked_s=1000.0, answered_s=1001.0):
    return parse_look(text, asked_s=asked_s, answered_s=answered_s, error=error)


def test_a_whole_answer():
    found = look(WHOLE)
    assert (found.error, found.hostname, found.folder, found.folder_type) == (
        *("", "node3", "seen", "nfs"),
    )
    assert (found.python, found.python_version, found.python_prefix) == (
        *("/opt/python3.11", "3.11.7", "/env"),
    )
    assert found.limits == {"processes": 128390, "files": 1024, "locked_kib": 8192}
    assert found.shm_mib == 12026


@pytest.mark.parametrize(
    ("clock", "low", "high"),
    [
        ("1000.5", -0.5, 0.5),  # read somewhere between question and answer: nothing is sure
        ("1300.5", 299.5, 300.5),
        ("900.5", -100.5, -99.5),
        ("1000", -1.0, 1.0),  # a date without %N counts whole seconds
        ("1000.N", -1.0, 1.0),
        ("what", 0.0, 0.0),
    ],
)
def test_a_clock_is_known_as_well_as_question_and_answer_hold_it(clock, low, high):
    found = look(WHOLE.replace("1000.500000000", clock))
    assert (found.skew_low_s, found.skew_high_s) == (low, high)


def test_where_it_hangs_is_where_its_lines_end():
    found = look(WHOLE.partition("folder=")[0], error="no answer within 30 s")
    assert found.error == "no answer within 30 s while checking the directory /shared"
    assert found.hostname == "node3"


@pytest.mark.parametrize(
    ("said", "error", "told"),
    [
        ("", "", "no output"),
        ("", "Communication connection failure", "Communication connection failure"),
        ("sh: not found\n", "", "sh: not found"),
    ],
)
def test_one_that_says_nothing(said, error, told):
    assert look(said, error).error == told


def test_a_python_that_does_not_run():
    said = WHOLE.partition("python=")[0] + "sh: 23: /env/bin/python: not found\ncode=127\nat=\n"
    found = look(said)
    assert found.python_error == "sh: 23: /env/bin/python: not found"
    assert found.error == ""


@pytest.mark.parametrize("name", ["plain", "a folder", "quo'te"])
def test_the_script_itself(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "nonce").write_text("abc")
    argv = ["sh", "-c", SCRIPT, "sh", str(folder), "abc", sys.executable]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    found = look(done.stdout)
    assert (found.error, found.folder, found.python_error) == ("", "seen", "")
    assert found.python == os.path.realpath(sys.executable)
    assert found.python_prefix == sys.prefix
    assert found.limits["files"]


def test_the_script_where_things_are_missing(tmp_path):
    argv = ["sh", "-c", SCRIPT, "sh", str(tmp_path / "none"), "abc", "/no/such/python"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    found = look(done.stdout)
    assert (found.error, found.folder) == ("", "missing")
    assert "/no/such/python" in found.python_error


def test_a_folder_without_what_was_just_written_is_another_one(tmp_path):
    (tmp_path / "old").touch()
    argv = ["sh", "-c", SCRIPT, "sh", str(tmp_path), "abc", sys.executable]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    assert look(done.stdout).folder == "stale"
