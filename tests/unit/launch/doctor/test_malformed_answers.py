"""Malformed answers of nodes are parsed, judged and shown; none makes the doctor fail."""

import json
import math
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.clusters.slurm.allocating import parse_held
from echelon.doctor.report import render_findings, render_table, to_record
from echelon.launch.doctor.all_reduce import merge_answers
from echelon.launch.doctor.findings import judge
from echelon.launch.doctor.first_look import parse_look
from echelon.launch.doctor.gpus import parse_gpus, parse_parts, parse_reasons
from echelon.launch.doctor.preflight import find_unfit, parse_record
from echelon.launch.doctor.probe_client import ProbeAnswer
from echelon.launch.doctor.results import Examined, Node, read_facts, read_figure, read_torch

HUGE = "9" * 5000
"""Python reads no decimal number of more than 4,300 digits."""
NAMES = (
    *("host", "clock", "limit", "shm", "at", "folder", "late", "type"),
    *("python", "version", "prefix", "code", "other"),
)
ODD = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["x", "", "-1", "nan", "inf", "1e999", "٣", "²", HUGE, "0x" + HUGE, "\x1b[2J"]),
)
VALUES = st.one_of(
    ODD,
    ODD.map(lambda value: f"Max open files {value} 1 files"),
    ODD.map(lambda value: f"tmpfs {value} 0 {value} 0% /dev/shm"),
)
LOOKS = st.lists(st.tuples(st.sampled_from(NAMES), VALUES), max_size=20).map(
    lambda pairs: "\n".join(f"{name}={value}" for name, value in pairs)
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ODD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ODD, inner, max_size=3),
    max_leaves=6,
)


def look(text):
    return parse_look(text, asked_s=1000.0, answered_s=1001.0)


def show(*nodes):
    """Go through all that is made of nodes; JSON has no NaN."""
    examined = Examined(nodes=nodes)
    found = judge(examined, folder="/shared", python="/env/python")
    render_table(examined)
    render_findings(found)
    json.dumps(to_record(examined, found), allow_nan=False)
    return found


@pytest.mark.parametrize("value", ["x", "", "-3", HUGE, "٣x", "1.5"])
def test_a_number_that_is_none(value):
    said = f"host=n\nfolder=seen\nlate={value}\nshm=tmpfs {value} 0 0 0% /dev/shm\n"
    found = look(f"{said}limit=Max open files {value} 1 files\nversion={value}.1\nat=\n")
    assert (found.folder, found.folder_late_s) == ("seen", 0)
    show(Node(name="n", look=found))


@pytest.mark.parametrize("clock", ["nan", "inf", "-inf", "1e999", "1_0"])
def test_a_clock_that_is_none_is_not_known(clock):
    found = look(f"host=n\nclock={clock}\nat=\n")
    assert (found.skew_low_s, found.skew_high_s) == (0.0, 0.0)


@given(LOOKS)
def test_any_look_is_judged_and_shown(said):
    found = look(said)
    assert math.isfinite(found.skew_low_s)
    assert math.isfinite(found.skew_high_s)
    show(Node(name="n", look=found), Node(name="m", look=look("")))


@given(st.text(max_size=200))
def test_any_text_is_a_look(said):
    show(Node(name="n", look=look(said)))


@given(st.lists(st.lists(ODD, max_size=7).map(", ".join), max_size=4).map("\n".join))
def test_any_text_of_nvidia_smi(said):
    driver, gpus = parse_gpus(said)
    assert isinstance(driver, str)
    assert all(gpu.index >= 0 for gpu in gpus)
    parse_reasons(said)
    parse_parts(said)
    parse_held(said)


def test_numbers_too_long_of_nvidia_smi():
    assert parse_gpus(f"{HUGE}, A, GPU-1, 1, 550, 0\n") == ("", [])
    (gpu,) = parse_gpus(f"0, A, GPU-1, {HUGE}, 550, {HUGE}\n")[1]
    assert (gpu.memory_mib, gpu.ecc_errors) == (0, 0)
    assert parse_reasons(f"{HUGE}, 0x8\n") == {}


FACTS = ("interface", "mtu", "gpus", "unnamed", "driver", "rdma", "more", "gpu_error", "ours")
TORCH = ("error", "import_s", "version", "devices", "nccl", "more")
GPUS = st.lists(st.dictionaries(st.sampled_from(["index", "name", "ecc_errors"]), JSON), max_size=3)


@given(
    st.dictionaries(st.sampled_from(FACTS), JSON | GPUS),
    st.dictionaries(st.sampled_from(TORCH), JSON),
)
def test_any_answer_of_a_probe_is_read(facts, torch):
    known = read_facts(facts, granted=1, skew_s=0.0, folder_late_s=0.0)
    show(Node(name="n", facts=known, torch=read_torch(torch)), Node(name="m"))


def test_an_answer_that_is_whole_is_taken_as_it_is():
    gpu = {"index": 1, "name": "H200", "ecc_errors": 2, "throttle": ["power brake"]}
    known = read_facts({"mtu": 1500, "gpus": [gpu]}, granted=1, skew_s=0.5, folder_late_s=0.1)
    assert (known.mtu, known.granted, known.skew_s, known.folder_late_s) == (1500, 1, 0.5, 0.1)
    assert asdict(known.gpus[0])["throttle"] == ("power brake",)
    torch = read_torch({"version": "2.6.0", "import_s": 3, "devices": 2})
    assert (torch.version, torch.import_s, torch.devices) == ("2.6.0", 3.0, 2)


@given(st.dictionaries(st.sampled_from(["ranks", "error"]), JSON))
def test_any_answer_of_ranks(found):
    group = merge_answers(
        ("a", "b"), [ProbeAnswer(found=found), ProbeAnswer(error="e")], backend="gloo"
    )
    assert group.error


@pytest.mark.parametrize("found", [{}, {"ranks": [{}]}, {"ranks": [{"bandwidth": "x"}]}])
def test_ranks_that_give_no_figure_have_failed(found):
    assert merge_answers(("a", "b"), [ProbeAnswer(found=found)] * 2, backend="gloo").error


@pytest.mark.parametrize("value", [None, "x", [], math.nan, True])
def test_a_figure_that_is_none(value):
    assert read_figure({"late_s": value}, "late_s") is None
    assert read_figure({}, "late_s") is None
    assert read_figure({"late_s": 2}, "late_s") == 2.0


@given(JSON | st.fixed_dictionaries({"seconds": JSON, "findings": JSON}))
def test_any_record_of_a_preflight_is_one_or_none(record):
    try:
        _, findings = parse_record(json.dumps(record))
    except ValueError:
        return
    assert find_unfit(findings, ["node1"]) == {}
