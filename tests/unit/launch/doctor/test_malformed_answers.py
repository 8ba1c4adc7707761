"""Malformed answers of nodes: what cannot be parsed stays unknown; the rest is judged and shown."""

import json
import math
from dataclasses import asdict, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.clusters.slurm.allocating import parse_held
from echelon.launch.doctor.all_reduce import merge_answers
from echelon.launch.doctor.findings import judge
from echelon.launch.doctor.first_look import parse_look
from echelon.launch.doctor.gpus import parse_gpus, parse_parts, parse_reasons
from echelon.launch.doctor.preflight import find_unfit, parse_record
from echelon.launch.doctor.probe_client import ProbeAnswer
from echelon.launch.doctor.report import render_findings, render_table, to_record
from echelon.launch.doctor.results import (
    Examined,
    Finding,
    Look,
    Node,
    read_facts,
    read_figure,
    read_torch,
)

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
    """Judge nodes and render them; assert what holds for every result."""
    examined = Examined(nodes=nodes)
    names = [node.name for node in nodes]
    found = judge(examined, folder="/shared", python="/env/python")
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
    record = json.loads(json.dumps(to_record(examined, found), allow_nan=False))
    assert record["findings"] == [asdict(one) for one in found]
    return found


@pytest.mark.parametrize("value", ["x", "", "-3", HUGE, "٣x", "1.5"])
def test_a_malformed_number_is_unknown_and_the_rest_is_read(value):
    said = f"host=n\nfolder=seen\nlate={value}\nshm=tmpfs {value} 0 0 0% /dev/shm\n"
    found = look(f"{said}limit=Max open files {value} 1 files\nversion={value}.1\nat=\n")
    assert (found.error, found.folder, found.folder_late_s, found.shm_mib) == ("", "seen", 0, -1)
    # Without the value, the next word of the line is in its place.
    assert found.limits == {"files": -1 if value else 1}
    show(Node(name="n", look=found))


def test_a_complete_look_is_read_as_it_is():
    found = look(
        "host=n\nclock=1000.5\nfolder=seen\nlate=2\ntype=nfs\nshm=tmpfs 4096 0 4096 0% /dev/shm\n"
        "limit=Max open files 1024 4096 files\npython=/p\nversion=3.11.7\nprefix=/q\ncode=0\nat=\n"
    )
    assert found == Look(
        hostname="n",
        skew_low_s=-0.5,
        skew_high_s=0.5,
        folder="seen",
        folder_late_s=2,
        folder_type="nfs",
        python="/p",
        python_version="3.11.7",
        python_prefix="/q",
        limits={"files": 1024},
        shm_mib=4,
    )


@pytest.mark.parametrize("clock", ["nan", "inf", "-inf", "1e999", "1_0"])
def test_a_malformed_clock_is_unknown(clock):
    found = look(f"host=n\nclock={clock}\nat=\n")
    assert (found.skew_low_s, found.skew_high_s) == (0.0, 0.0)


@given(LOOKS)
def test_any_look_is_judged_and_shown(said):
    found = look(said)
    assert math.isfinite(found.skew_low_s)
    assert math.isfinite(found.skew_high_s)
    assert found.skew_low_s <= found.skew_high_s
    assert 0 <= found.folder_late_s < 10**18
    assert -1 <= found.shm_mib < 10**18
    assert all(-1 <= value < 10**18 for value in found.limits.values())
    assert found.error or found.hostname in said
    show(Node(name="n", look=found), Node(name="m", look=look("")))


@given(st.text(max_size=200))
def test_text_that_is_not_a_look_makes_the_node_an_error(said):
    found = look(said)
    assert found.error
    assert "error" in {one.severity for one in show(Node(name="n", look=found))}


def test_control_characters_of_a_node_are_not_shown():
    show(Node(name="n", look=look("host=n\ncode=1\n\x1b[2J cannot run\nat=\n")))


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
    assert all(index >= 0 and reasons for index, reasons in parse_reasons(said).items())


@given(
    st.text(max_size=100),
    st.dictionaries(
        st.from_regex(r"[A-Z0-9-]{1,8}", fullmatch=True), st.integers(0, 3), max_size=4
    ),
)
def test_mig_instances_belong_to_the_gpu_above_them(noise, gpu_of):
    lines = [line for line in noise.splitlines() if "UUID" not in line]
    for gpu in range(4):
        lines.append(f"GPU {gpu}: NVIDIA A100 (UUID: GPU-{gpu})")
        parts = (part for part, above in gpu_of.items() if above == gpu)
        lines += [f"  MIG 3g.20gb  Device  0: (UUID: MIG-{part})" for part in parts]
    assert parse_parts("\n".join(lines)) == {
        f"MIG-{part}": f"GPU-{gpu}" for part, gpu in gpu_of.items()
    }


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
    assert parse_reasons(f"{HUGE}, 0x8\n") == {}


FACTS = ("interface", "mtu", "gpus", "unnamed", "driver", "rdma", "more", "gpu_error", "ours")
TORCH = ("error", "import_s", "version", "devices", "nccl", "more")
GPUS = st.lists(st.dictionaries(st.sampled_from(["index", "name", "ecc_errors"]), JSON), max_size=3)


@given(
    st.dictionaries(st.sampled_from(FACTS), JSON | GPUS),
    st.dictionaries(st.sampled_from(TORCH), JSON),
)
def test_of_any_answer_of_a_probe_only_values_of_the_right_type_are_taken(facts, torch):
    known, found = read_facts(facts, granted=1, skew_s=0.0, folder_late_s=0.0), read_torch(torch)
    assert (known.granted, known.skew_s, known.folder_late_s) == (1, 0.0, 0.0)
    for record, told in ((known, facts), (found, torch)):
        for name, default in asdict(type(record)()).items():
            value = getattr(record, name)
            if type(default) in (str, bool, int):
                assert type(value) is type(default)
                assert name in ("granted", "error") or value in (default, told.get(name))
    assert all(type(gpu.index) is int and gpu.index >= 0 for gpu in known.gpus)
    assert all(type(gpu.name) is str and type(gpu.ecc_errors) is int for gpu in known.gpus)
    assert math.isfinite(found.import_s)
    assert found.version or found.error
    show(Node(name="n", facts=known, torch=found), Node(name="m"))


def test_a_complete_answer_of_a_probe_is_taken_as_it_is():
    gpu = {"index": 1, "name": "H200", "ecc_errors": 2, "throttle": ["power brake"]}
    known = read_facts({"mtu": 1500, "gpus": [gpu]}, granted=1, skew_s=0.5, folder_late_s=0.1)
    assert (known.mtu, known.granted, known.skew_s, known.folder_late_s) == (1500, 1, 0.5, 0.1)
    assert asdict(known.gpus[0])["throttle"] == ("power brake",)
    torch = read_torch({"version": "2.6.0", "import_s": 3, "devices": 2})
    assert (torch.version, torch.import_s, torch.devices) == ("2.6.0", 3.0, 2)


@given(st.dictionaries(st.sampled_from(["ranks", "error"]), JSON))
def test_an_error_of_one_node_is_the_groups_whatever_the_other_answers(found):
    group = merge_answers(
        ("a", "b"), [ProbeAnswer(found=found), ProbeAnswer(error="e")], backend="gloo"
    )
    assert group.error == "b: e" or group.error.startswith("a: ")
    assert (group.nodes, group.backend, group.bandwidth) == (("a", "b"), "gloo", 0.0)


@pytest.mark.parametrize("found", [{}, {"ranks": [{}]}, {"ranks": [{"bandwidth": "x"}]}])
def test_ranks_that_give_no_figure_have_failed(found):
    assert merge_answers(("a", "b"), [ProbeAnswer(found=found)] * 2, backend="gloo").error


@pytest.mark.parametrize("value", [None, "x", [], math.nan, True])
def test_a_malformed_figure_is_none(value):
    assert read_figure({"late_s": value}, "late_s") is None
    assert read_figure({}, "late_s") is None
    assert read_figure({"late_s": 2}, "late_s") == 2.0


COMPLETE = st.fixed_dictionaries({field.name: JSON for field in fields(Finding)})


@given(
    JSON
    | st.fixed_dictionaries(
        {"seconds": JSON | st.floats(0, 99), "findings": JSON | st.lists(COMPLETE, max_size=2)}
    )
)
def test_any_record_of_a_preflight_is_refused_or_has_complete_findings(record):
    try:
        seconds, findings = parse_record(json.dumps(record))
    except ValueError:
        return
    assert seconds == record["seconds"] or seconds != seconds  # noqa: PLR0124 - NaN
    assert len(findings) == len(record["findings"])
    for one in findings:
        assert one.keys() == {field.name for field in fields(Finding)}
        assert all(type(value) is str for value in one.values())
    assert find_unfit(findings, ["node1"]) == []


FINDINGS = st.builds(
    Finding,
    severity=st.sampled_from(["error", "warning"]),
    node=st.sampled_from(["", "node1", "node2", "elsewhere"]),
    **dict.fromkeys(("check", "message", "fix"), ODD),
)


@given(st.floats(0, 1e6), st.lists(FINDINGS, max_size=4))
def test_a_valid_record_of_a_preflight_is_read_as_it_was_written(seconds, findings):
    written = [asdict(one) for one in findings]
    assert parse_record(json.dumps({"seconds": seconds, "findings": written})) == (seconds, written)
    unfit = find_unfit(written, ["node1", "node2"])
    broken = {one.node for one in findings if one.severity == "error"} & {"node1", "node2"}
    assert {hello.name for hello in unfit} == broken
