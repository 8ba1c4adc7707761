"""What follows from what was found out: from plain values, with nothing run."""

from dataclasses import replace

import pytest

from echelon.launch.doctor.findings import find_odd, judge
from echelon.launch.doctor.results import (
    Examined,
    Facts,
    Gpu,
    Group,
    Look,
    Node,
    Torch,
)

LOOK = Look(
    hostname="n",
    folder="seen",
    folder_type="nfs",
    python="/env/python",
    python_version="3.11.7",
    python_prefix="/env",
    limits={"files": 65536, "processes": 65536, "locked_kib": -1},
    shm_mib=64000,
)
GPU = Gpu(index=0, name="H100", uuid="GPU-0", tflops=600.0, memory_gbs=3000.0)
GPU_1 = replace(GPU, index=1, uuid="GPU-1")
FACTS = Facts(
    interface="ib0",
    mtu=2044,
    in_job=True,
    granted=2,
    driver="550.1",
    gpus=[GPU, GPU_1],
)
TORCH = Torch(
    import_s=3.0,
    version="2.6.0",
    cuda="12.4",
    nccl="2.21.5",
    devices=2,
    uuids=["GPU-0", "GPU-1"],
)


def node(name, **changes):
    """A healthy node, but for what is said of it: `look__folder="missing"`."""
    parts = {"look": LOOK, "facts": FACTS, "torch": TORCH}
    own = {}
    for key, value in changes.items():
        part, _, field = key.partition("__")
        if field:
            parts[part] = replace(parts[part], **{field: value})
        else:
            own[part] = value
    return Node(name=name, **{**parts, **own})


def findings(*odd, others=3, **more):
    nodes = [*odd, *(node(f"good{number}") for number in range(others))]
    return judge(Examined(nodes=nodes, **more), folder="/shared", python="/env/python")


def test_healthy_equal_nodes_have_no_findings():
    assert findings() == []
    assert findings(others=1) == []


@pytest.mark.parametrize(
    ("changes", "severity", "check", "told"),
    [
        (
            {"look": Look(error="no route"), "facts": None, "torch": None},
            "error",
            "reach",
            "no rou",
        ),
        ({"look__folder": "missing"}, "error", "folder", "directory /shared does not exist"),
        ({"look__folder": "stale"}, "error", "folder", "does not appear"),
        ({"look__python_error": "not found"}, "error", "python", "/env/python does not run"),
        ({"look__python_version": "3.11.2"}, "error", "python", "on other nodes 3.11.7"),
        ({"look__python_prefix": "/usr"}, "error", "python", "3.11.7 in /usr"),
        ({"facts__skew_s": -60.0}, "warning", "clock", "60.0 s behind ours"),
        ({"facts__skew_s": 1.5}, "warning", "clock", "1.5 s ahead of ours"),
        ({"look__shm_mib": 64}, "warning", "shm", "only 64 MiB"),
        ({"facts__unresolved": ["node3"]}, "warning", "names", "node3"),
        ({"facts__unnamed": ["10.0.0.3"]}, "warning", "names", "10.0.0.3"),
        ({"facts__mtu": 1500}, "warning", "mtu", "the MTU is 1500, on other nodes 2044"),
        ({"facts__folder_late_s": 4.2}, "warning", "folder", "4.2 s late"),
        ({"facts__folder_late_s": -1.0}, "error", "folder", "does not appear"),
        (
            {"facts__granted": 3, "torch__devices": 3},
            "error",
            "gpus",
            "3 GPUs were granted, but only 2",
        ),
        ({"facts__driver": "535.2"}, "warning", "driver", "535.2, on other nodes 550.1"),
        ({"torch__error": "no module"}, "error", "torch", "cannot import torch: no module"),
        ({"torch__version": "2.5.0"}, "error", "torch", "2.5.0, on other nodes 2.6.0"),
        ({"torch__cuda": "11.8"}, "error", "cuda", "11.8"),
        ({"torch__nccl": "2.18"}, "error", "nccl", "2.18"),
        ({"torch__devices": 0}, "error", "cuda", "can use 0 of 2 GPUs (driver 550.1)"),
        ({"torch__import_s": 30.0}, "warning", "import", "30 s, on other nodes 3 s"),
        ({"torch__import_s": 90.0}, "warning", "import", "takes 90 s"),
        ({"lost": "it was killed"}, "error", "reach", "it was killed"),
        (
            {"facts__rdma": True, "look__limits": {**LOOK.limits, "locked_kib": 64}},
            *("warning", "limits", "locked memory is limited to 64 KiB"),
        ),
        (
            {"facts__gpus": [GPU, replace(GPU_1, ecc_errors=3)]},
            *("error", "ecc", "GPU 1 has 3"),
        ),
        (
            {"facts__gpus": [GPU, replace(GPU_1, throttle=("power brake",))]},
            *("warning", "throttle", "GPU 1 is throttled: power brake"),
        ),
        (
            {"facts__gpus": [GPU, replace(GPU_1, tflops=450.0)]},
            *("warning", "gpu speed", "450 TFLOP/s, on others 600"),
        ),
        (
            {"facts__gpus": [GPU, replace(GPU_1, memory_gbs=900.0)]},
            *("error", "gpu speed", "900 GB/s, on others 3000"),
        ),
        (
            {"facts__gpus": [], "facts__gpu_error": "there is no nvidia-smi", "torch__devices": 0},
            *("warning", "gpus", "2 GPUs were granted, but there is no nvidia-smi"),
        ),
        (
            {"facts__gpus": [], "facts__gpu_error": "nvidia-smi exited with code 9"},
            *("error", "gpus", "nvidia-smi exited with code 9"),
        ),
    ],
)
def test_each_fault_of_one_node_is_its_only_finding(changes, severity, check, told):
    (one,) = findings(node("odd", **changes))
    assert (one.node, one.severity, one.check) == ("odd", severity, check)
    assert told in one.message
    assert one.fix


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"files": 256, "processes": -1}, "open files is 256"),
        ({"processes": 100}, "processes per user is 100"),
    ],
)
def test_low_limits_are_warnings(limits, told):
    found = findings(node("odd", look__limits=limits))
    assert any(told in one.message for one in found)
    assert {(one.node, one.check) for one in found} == {("odd", "limits")}


def test_an_old_python_on_all_nodes_blames_none():
    old = [node(f"n{i}", look__python_version="3.9.1") for i in range(2)]
    (one,) = findings(*old, others=0)
    assert (one.node, one.check) == ("", "python")
    assert one.message == "on all nodes: /env/python is Python 3.9.1"


def test_missing_torch_on_all_nodes_blames_none():
    without = [node(f"n{i}", torch=Torch(error="no module")) for i in range(2)]
    for count in (1, 2):
        (one,) = findings(*without[:count], others=0)
        assert (one.node, one.message) == ("", "on all nodes: cannot import torch: no module")


def test_a_check_that_fails_on_all_nodes_is_one_finding_despite_different_messages():
    away = [
        node(
            f"n{i}",
            look=Look(error=f"Task launch for StepId=2.{i} failed on node n{i}"),
            facts=None,
            torch=None,
        )
        for i in range(4)
    ]
    (one,) = findings(*away, others=0)
    assert (one.node, one.check, one.severity) == ("", "reach", "error")
    assert one.message.startswith("on all nodes: n0: does not respond: Task launch for StepId=2.0")
    assert one.message.endswith("; and 2 more")
    assert {one.node for one in findings(*away, others=1)} == {"n0", "n1", "n2", "n3"}


def test_findings_of_different_severity_are_not_merged():
    late = [node(f"n{i}", facts__folder_late_s=3.0 + i) for i in range(3)]
    found = findings(*late[:2], node("n2", look__folder="missing"), others=0)
    assert {(one.node, one.severity) for one in found} == {
        *(("n0", "warning"), ("n1", "warning"), ("n2", "error"))
    }
    (one,) = findings(*late, others=0)
    assert one.node == ""


def test_hardware_faults_are_never_merged():
    broken = [GPU, replace(GPU_1, ecc_errors=3)]
    found = findings(*(node(name, facts__gpus=broken) for name in "ab"), others=0)
    assert [(one.node, one.check) for one in found] == [("a", "ecc"), ("b", "ecc")]


def test_a_finding_of_a_single_node_names_it():
    (one,) = findings(node("n", look__folder="missing"), others=0)
    assert one.node == "n"


def node_with_bad_gpu(**changes):
    """A node with a third GPU, which is not as it should be."""
    bad = replace(
        GPU,
        index=2,
        uuid="GPU-2",
        ecc_errors=3,
        throttle=("power brake",),
        tflops=0.0,
        memory_gbs=0.0,
    )
    return node("odd", facts__gpus=[*FACTS.gpus, bad], **changes)


def test_gpus_of_other_jobs_are_not_judged():
    assert findings(node_with_bad_gpu()) == []
    found = findings(node_with_bad_gpu(torch__uuids=["GPU-0", "GPU-2"]))
    assert [(one.check, one.severity) for one in found] == [
        ("ecc", "error"),
        ("throttle", "warning"),
    ]


def test_gpus_that_may_belong_to_other_jobs_are_warnings():
    found = findings(node_with_bad_gpu(torch__uuids=["", ""]))
    assert [(one.check, one.severity) for one in found] == [
        *(("ecc", "warning"), ("throttle", "warning"))
    ]
    assert all("it may belong to another job" in one.message for one in found)


def test_a_job_without_gpus_has_no_gpu_findings():
    alike = {"facts__granted": 0, "torch__uuids": [], "torch__devices": 0}
    hidden = [node_with_bad_gpu(**alike), node("b", **alike)]
    assert findings(*hidden, others=0) == []


def test_torch_must_see_all_gpus_outside_a_job():
    alone = {"facts__in_job": False, "facts__granted": 0}
    (one,) = findings(node("n", **alone, torch__devices=0), others=0)
    assert (one.check, one.severity) == ("cuda", "error")
    assert "can use 0 of 2 GPUs" in one.message
    assert findings(node("n", **alone), others=0) == []


def test_torch_must_see_one_of_several_mig_instances():
    parts = {"facts__parts": True, "facts__granted": 3, "facts__gpus": [GPU]}
    assert findings(node("a", **parts, torch__devices=1), others=0) == []
    (one,) = findings(node("a", **parts, torch__devices=0), others=0)
    assert "can use 0 of 1 GPUs" in one.message


def test_gpu_speeds_are_compared_within_a_type():
    other = [replace(GPU, index=number, name="H100", tflops=1800.0) for number in (0, 1)]
    found = findings(node("odd", facts__gpus=other))
    assert [one.check for one in found if one.check == "gpu speed"] == []


def test_a_difference_without_a_majority_names_no_node():
    (one,) = findings(node("a", torch__version="2.5.0"), others=1)
    assert one.node == ""
    assert "a 2.5.0; good0 2.6.0" in one.message


@pytest.mark.parametrize(
    ("values", "usual", "odd"),
    [
        ({}, "", {}),
        ({"a": "1", "b": "1"}, "1", {}),
        ({"a": "1", "b": "1", "c": "2"}, "1", {"c": "2"}),
        ({"a": "1", "b": "2"}, "", {"a": "1", "b": "2"}),
    ],
)
def test_odd_values_are_those_that_differ_from_the_majority(values, usual, odd):
    assert find_odd(values) == (usual, odd)


def test_all_reduce_findings_name_a_slow_node_or_a_failing_pair():
    def pair(one, two, rate, error=""):
        return Group(nodes=(one, two), bandwidth=rate, latency_s=1e-3, error=error)

    slow = [pair("a", "b", 1e9), pair("c", "d", 1e7), pair("a", "c", 1e9), pair("b", "d", 1e7)]
    nodes = [node(name) for name in "abcd"]
    (one,) = judge(Examined(nodes=nodes, pairs=slow), folder="/", python="p")
    assert (one.node, one.message) == ("d", "all-reduce reaches 10 MB/s, on other nodes 1.0 GB/s")
    failed = [pair("a", "b", 0.0, "b: time-out")]
    (one,) = judge(Examined(nodes=nodes[:2], pairs=failed), folder="/", python="p")
    assert (one.node, one.message) == ("", "all-reduce between a and b fails: b: time-out")
    overall = Group(nodes=("a", "b"), error="a: time-out")
    (one,) = judge(Examined(nodes=nodes[:2], overall=overall), folder="/", python="p")
    assert one.message == "all-reduce over 2 nodes fails: a: time-out"


def test_one_slow_measurement_is_no_finding_but_half_of_the_nodes_being_slow_is():
    def judged(*slow):
        pairs = [
            Group(nodes=both, bandwidth=1e8 if set(both) & set(slow) else 1e9, latency_s=1e-3)
            for both in (("a", "d"), ("b", "c"), ("a", "c"), ("d", "b"), ("a", "b"), ("c", "d"))
        ]
        return pairs, [node(name) for name in "abcd"]

    pairs, nodes = judged()
    once = [replace(pairs[0], bandwidth=1e8), *pairs[1:]]  # for a moment
    assert judge(Examined(nodes=nodes, pairs=once), folder="/", python="p") == []
    pairs, nodes = judged("c", "d")
    (one,) = judge(Examined(nodes=nodes, pairs=pairs), folder="/", python="p")
    assert (one.node, one.severity) == ("", "warning")
    assert "some nodes reach 1.0 GB/s, some 100 MB/s; half of them" in one.message
