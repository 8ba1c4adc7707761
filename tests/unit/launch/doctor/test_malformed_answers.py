"""Malformed answers of nodes: what cannot be parsed stays unknown; the rest is judged and shown."""

import json
import math
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.clusters.slurm.allocating import parse_held
from echelon.core.codec import decode
from echelon.core.records import render_json
from echelon.launch.doctor.all_reduce import merge_answers
from echelon.launch.doctor.findings import judge
from echelon.launch.doctor.first_look import parse_look
from echelon.launch.doctor.gpus import parse_gpus
from echelon.launch.doctor.preflight import find_unfit
from echelon.launch.doctor.report import render_findings, render_table, to_record
from echelon.launch.doctor.results import (
    Examined,
    Facts,
    Finding,
    Look,
    Node,
    read_torch,
)
from echelon.run.events import NodesExamined

HUGE = "9" * 5000
"""Python reads no decimal number of more than 4,300 digits."""
NAMES = (
    *("host", "files", "processes", "locked", "shm", "at", "folder", "type"),
    *("python", "version", "prefix", "code", "other"),
)
ODD = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["x", "", "-1", "nan", "inf", "1e999", "٣", "²", HUGE, "0x" + HUGE, "\x1b[2J"]),
)
LOOKS = st.lists(st.tuples(st.sampled_from(NAMES), ODD), max_size=20).map(
    lambda pairs: "\n".join(f"{name}={value}" for name, value in pairs)
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ODD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ODD, inner, max_size=3),
    max_leaves=6,
)


def show(*nodes):
    """Judge nodes and render them; assert what holds for every result."""
    examined = Examined(nodes=nodes)
    names = [node.name for node in nodes]
    found = judge(examined, folder="/shared", python="/env/python")
    examined = replace(examined, findings=found)
    for one in found:
        assert one.node in ("", *names)
        assert one.severity in ("error", "warning")
        assert one.check
        assert one.message
    headings, rows = render_table(examined)
    assert [row[0] for row in rows] == names
    assert all(len(row) == len(headings) and all(row) for row in rows)
    shown = render_findings(found)
    assert all(f"[{one.check}]" in shown for one in found)
    assert "\x1b" not in shown
    # JSON has no NaN.
    record = json.loads(json.dumps(to_record(examined), allow_nan=False))
    assert record["findings"] == [asdict(one) for one in found]
    return found


@pytest.mark.parametrize("value", ["x", "", "-3", HUGE, "٣x", "1.5"])
def test_a_malformed_number_is_unknown_and_the_rest_is_read(value):
    said = f"host=n\nfolder=seen\nshm={value}\nfiles={value}\nversion={value}.1\nat=\n"
    found = parse_look(said)
    assert (found.error, found.folder, found.shm_mib) == ("", "seen", -1)
    assert found.limits == {"files": -1}
    show(Node(name="n", look=found))


def test_a_complete_look_is_read_as_it_is():
    found = parse_look(
        "host=n\nfolder=seen\ntype=nfs\nshm=4096\nfiles=1024\nlocked=65536\n"
        "python=/p\nversion=3.11.7\nprefix=/q\ncode=0\nat=\n"
    )
    assert found == Look(
        hostname="n",
        folder="seen",
        folder_type="nfs",
        python="/p",
        python_version="3.11.7",
        python_prefix="/q",
        limits={"files": 1024, "locked_kib": 64},
        shm_mib=4,
    )


@given(LOOKS)
def test_any_look_is_judged_and_shown(said):
    found = parse_look(said)
    assert -1 <= found.shm_mib < 10**18
    assert all(-1 <= value < 10**18 for value in found.limits.values())
    assert found.error or found.hostname in said
    show(Node(name="n", look=found), Node(name="m", look=parse_look("")))


@given(st.text(max_size=200))
def test_text_that_is_not_a_look_makes_the_node_an_error(said):
    found = parse_look(said)
    assert found.error
    assert "error" in {one.severity for one in show(Node(name="n", look=found))}


def test_control_characters_of_a_node_are_not_shown():
    show(Node(name="n", look=parse_look("host=n\ncode=1\n\x1b[2J cannot run\nat=\n")))


@given(st.lists(st.lists(ODD, max_size=7).map(", ".join), max_size=4).map("\n".join))
def test_what_is_parsed_from_any_output_of_nvidia_smi_is_in_it(said):
    driver, gpus = parse_gpus(said)
    assert driver in said
    assert len(gpus) <= len(said.splitlines())
    for gpu in gpus:
        assert str(gpu.index) in said
        assert gpu.name in said
        assert gpu.uuid in said
        assert 0 <= gpu.memory_mib < 10**18
        assert 0 <= gpu.ecc_errors < 10**18


WORDS = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=10)


@given(st.text(max_size=100), st.dictionaries(WORDS.filter(lambda word: "=" not in word), WORDS))
def test_an_allocations_variables_are_found_among_any_other_output(noise, variables):
    wanted = {f"SLURM_{name}": value for name, value in variables.items()}
    others = [line for line in noise.splitlines() if not line.startswith("SLURM")]
    lines = [*others, *(f"{name}={value}" for name, value in wanted.items()), "SLURM"]
    assert parse_held("\n".join(lines)) == wanted


def test_numbers_of_nvidia_smi_that_are_too_long_are_unknown():
    assert parse_gpus(f"{HUGE}, A, GPU-1, 1, 550, 0\n") == ("", [])
    (gpu,) = parse_gpus(f"0, A, GPU-1, {HUGE}, 550, {HUGE}\n")[1]
    assert (gpu.memory_mib, gpu.ecc_errors) == (0, 0)


FACTS = ("interface", "mtu", "gpus", "unnamed", "driver", "rdma", "more", "gpu_error")
TORCH = ("error", "import_s", "version", "devices", "uuids", "nccl", "more")
GPUS = st.lists(st.dictionaries(st.sampled_from(["index", "name", "ecc_errors"]), JSON), max_size=3)


@given(
    st.dictionaries(st.sampled_from(FACTS), JSON | GPUS),
    st.dictionaries(st.sampled_from(TORCH), JSON),
)
def test_values_of_the_wrong_type_in_an_answer_are_ignored(facts, torch):
    known, found = decode(Facts, facts), read_torch(torch)
    for record, told in ((known, facts), (found, torch)):
        for name, default in asdict(type(record)()).items():
            value = getattr(record, name)
            if type(default) in (str, bool, int):
                assert type(value) is type(default)
                assert name == "error" or value in (default, told.get(name))
    assert all(type(gpu.index) is int and gpu.index >= 0 for gpu in known.gpus)
    assert all(type(gpu.name) is str and type(gpu.ecc_errors) is int for gpu in known.gpus)
    assert math.isfinite(found.import_s)
    assert found.version or found.error
    show(Node(name="n", facts=known, torch=found), Node(name="m"))


def test_a_complete_answer_of_a_probe_is_taken_as_it_is():
    gpu = {"index": 1, "name": "H200", "ecc_errors": 2, "throttle": ["power brake"]}
    known = decode(Facts, {"mtu": 1500, "gpus": [gpu]})
    assert known.mtu == 1500
    assert asdict(known.gpus[0])["throttle"] == ("power brake",)
    torch = read_torch({"version": "2.6.0", "import_s": 3, "devices": 2})
    assert (torch.version, torch.import_s, torch.devices) == ("2.6.0", 3.0, 2)


@given(st.dictionaries(st.sampled_from(["ranks", "error"]), JSON))
def test_an_error_of_one_node_is_the_groups_error_whatever_the_other_answers(found):
    group = merge_answers(("a", "b"), [found, {"error": "e"}], backend="gloo")
    assert group.error == "b: e" or group.error.startswith("a: ")
    assert (group.nodes, group.backend, group.bandwidth) == (("a", "b"), "gloo", 0.0)


@pytest.mark.parametrize("found", [{}, {"ranks": [{}]}, {"ranks": [{"bandwidth": "x"}]}])
def test_ranks_without_figures_have_failed(found):
    assert merge_answers(("a", "b"), [found] * 2, backend="gloo").error


@given(st.dictionaries(st.sampled_from(["severity", "node", "check", "message"]), JSON))
def test_any_finding_of_a_preflight_is_read(record):
    finding = decode(Finding, record)
    assert finding.severity in ("error", "warning")
    assert all(type(value) is str for value in asdict(finding).values())


FINDINGS = st.builds(
    Finding,
    severity=st.sampled_from(["error", "warning"]),
    node=st.sampled_from(["", "node1", "node2", "elsewhere"]),
    **dict.fromkeys(("check", "message", "fix"), ODD),
)


@given(st.floats(0, 1e6), st.lists(FINDINGS, max_size=4))
def test_the_findings_of_a_preflight_are_read_as_they_were_written(seconds, findings):
    record = to_record(Examined(nodes=[Node(name="n")], seconds=seconds, findings=findings))
    read = decode(NodesExamined, json.loads(render_json(record)))
    assert read.seconds == seconds
    assert [decode(Finding, one) for one in read.findings] == findings
    broken = {one.node for one in findings if one.severity == "error"} & {"node1", "node2"}
    assert {hello.name for hello in find_unfit(findings, ["node1", "node2"])} == broken
