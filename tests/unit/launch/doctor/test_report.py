"""What people and programs get to see of an examination."""

import json
from dataclasses import replace

import pytest

from echelon.launch.doctor.report import (
    exclude_option,
    exit_code,
    render_conclusion,
    render_findings,
    render_gpus,
    render_overall,
    render_table,
    to_record,
)
from echelon.launch.doctor.results import (
    Examined,
    Facts,
    Finding,
    Gpu,
    Group,
    Look,
    Node,
    Torch,
)

LOOK = Look(hostname="n1", folder="seen", python_version="3.11.7", shm_mib=12026)
WELL = Node(
    name="node1",
    look=LOOK,
    facts=Facts(skew_s=0.0012, interface="eth0", mtu=1500),
    torch=Torch(import_s=3.21, version="2.13.0+cpu"),
)
PAIR = Group(nodes=("node1", "node2"), ranks=2, backend="gloo", bandwidth=1.25e9, latency_s=2e-4)
EXAMINED = Examined(
    nodes=[WELL, Node(name="node2", look=Look(error="no route"))],
    pairs=[PAIR],
    overall=PAIR,
    seconds=8.6,
)


def finding(node, severity="error", **more):
    return Finding(
        **{
            "severity": severity,
            "node": node,
            "check": "c",
            "message": "it is slow",
            "fix": "mend it",
            **more,
        }
    )


@pytest.mark.parametrize(
    ("findings", "code"),
    [
        ([], 0),
        ([finding("a", "warning")], 1),
        ([finding("a", "warning"), finding("")], 3),
    ],
)
def test_the_most_severe_finding_determines_the_exit_code(findings, code):
    assert exit_code(findings) == code


def test_the_table_leaves_out_empty_columns():
    headings, rows = render_table(EXAMINED)
    assert headings == ["node", "python", "torch", "import", "clock", "link", "shm", "pair"]
    assert rows == [
        ["node1", "3.11.7", "2.13.0", "3.2s", "+1ms", "eth0 1500", "13 GB", "1.2 GB/s"],
        ["node2", "-", "-", "-", "-", "-", "-", "1.2 GB/s"],
    ]


def test_gpus_of_other_jobs_are_not_counted_as_ours():
    gpus = [Gpu(index=number, uuid=f"GPU-{number}") for number in range(8)]
    facts = Facts(gpus=gpus, in_job=True, granted=2)
    for uuids, shown in (["GPU-2", "GPU-3"], "2 of 8"), (["", ""], "8"):
        node = replace(WELL, facts=facts, torch=replace(WELL.torch, devices=2, uuids=uuids))
        headings, (row,) = render_table(Examined(nodes=[node]))
        assert row[headings.index("GPUs")] == shown


def test_the_all_reduce_over_all_nodes_is_rendered():
    assert render_overall(EXAMINED) == "all-reduce over 2 nodes, 2 ranks, gloo: 1.2 GB/s, 0.20 ms"
    assert render_overall(Examined(nodes=[])) == ""


def test_only_measured_gpus_are_rendered():
    gpus = [Gpu(index=0, tflops=612.4, memory_gbs=3901.0), Gpu(index=1)]
    examined = Examined(nodes=[Node(name="a", facts=Facts(gpus=gpus))])
    assert render_gpus(examined) == ["a GPU 0: 612 TFLOP/s, 3901 GB/s"]


def test_equal_findings_share_an_entry():
    found = [finding("node2"), finding("node3"), finding("", message="x " * 60 + "/a-long-path")]
    lines = render_findings(found).splitlines()
    assert lines[:2] == ["error  node[2-3]: it is slow [c]", "    fix: mend it"]
    assert max(map(len, lines)) < 80
    assert any("/a-long-path" in line for line in lines)


def test_long_messages_are_cut_in_text_but_not_in_json():
    long = finding("node2", message=f"it does not answer: {'no ' * 300}end")
    told = " ".join(render_findings([long]).split())
    assert "no n … [c] fix: mend it" in told
    assert len(told) < 260
    assert to_record(replace(EXAMINED, findings=[long]))["findings"][0]["message"].endswith(
        "no end"
    )
    short = finding("node2", message="x" * 200)
    assert "…" not in render_findings([short])


def test_the_conclusion_excludes_nodes_with_errors():
    assert render_conclusion(EXAMINED) == "no problems found on 2 nodes (9 s)"
    bad, odd = finding("node2"), finding("node2", "warning")
    assert render_conclusion(replace(EXAMINED, findings=[bad])).endswith(" --exclude=node2")
    assert render_conclusion(replace(EXAMINED, findings=[odd])) == ""
    assert render_conclusion(Examined(nodes=[WELL])) == "no problems found on node1 (0 s)"


def test_the_exclude_option_names_bad_nodes_unless_all_are():
    names = ["n1", "n2", "n3", "n10"]
    examined = Examined(nodes=[Node(name=name) for name in names])

    def excluded(*findings):
        return exclude_option(replace(examined, findings=findings))

    assert excluded(finding("n2"), finding("n3"), finding("n2")) == "--exclude=n[2-3]"
    assert excluded(finding("n1", "warning"), finding("")) == ""
    assert excluded(*(finding(name) for name in names)) == ""  # then none would be left


def test_the_record_is_json_with_all_results():
    record = json.loads(json.dumps(to_record(replace(EXAMINED, findings=[finding("node2")]))))
    assert record["nodes"][0]["facts"]["mtu"] == 1500
    assert record["findings"][0]["node"] == "node2"
    assert record["exclude"] == "--exclude=node2"
