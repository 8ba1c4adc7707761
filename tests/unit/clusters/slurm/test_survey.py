from pathlib import Path

import pytest

from echelon.clusters.slurm.survey import (
    Membership,
    NodeKind,
    parse_gres,
    parse_membership,
    parse_sinfo,
    survey_cluster,
)
from echelon.core.shell import FakeShell, Result
from echelon.errors import EchelonError, UnavailableError

RECORDED = Path(__file__).parents[3] / "golden" / "slurm-22.05"
SINFO = (RECORDED / "sinfo.txt").read_text()
SACCTMGR = (RECORDED / "sacctmgr-user.txt").read_text()


def test_survey_lists_partitions_that_are_up_with_their_nodes():
    low, high, gpu, debug = parse_sinfo(SINFO)
    assert [one.name for one in (low, high, gpu, debug)] == ["low", "high", "gpu", "debug"]
    assert [one.default for one in (low, high, gpu, debug)] == [True, False, False, False]
    assert low.kinds == (
        NodeKind(count=1, cpus=16, gpus=0, gpu_type="a100"),
        NodeKind(count=3, cpus=16, gpus=4, gpu_type="a100"),
    )
    assert (gpu.limit, gpu.usual) == ("2-00:00:00", "1:00:00")
    assert low.gpu_kind == low.kinds[1]
    assert debug.gpu_kind is None


@pytest.mark.parametrize("version", ["24.11", "26.05"])
def test_survey_reads_the_output_of_newer_slurm_versions(version):
    recorded = RECORDED.with_name(f"slurm-{version}")
    low, high = parse_sinfo((recorded / "sinfo.txt").read_text())
    assert (low.name, low.default, high.name, high.default) == ("low", True, "high", False)
    assert low.gpu_kind == NodeKind(count=4, cpus=16, gpus=4, gpu_type="a100")
    found = parse_membership((recorded / "sacctmgr-user.txt").read_text(), "")
    assert found == Membership(account="root", accounts=("root", "sandbox"), qos=("normal",))


@pytest.mark.parametrize(
    ("gres", "expected"),
    [
        ("(null)", (0, "")),
        ("gpu:4", (4, "")),
        ("gpu:a100:4", (4, "a100")),
        ("gpu:a100:8(S:0-1)", (8, "a100")),
        ("gpu:a100:8(S:0-1),nvme:1", (8, "a100")),
        ("gpu:a30:2,gpu:a100:6(IDX:0-5)", (6, "a100")),
        ("gpu:a100_3g.20gb:2", (2, "a100_3g.20gb")),
        ("mps:100,gpu:v100:4", (4, "v100")),
        ("gpu:v100:0", (0, "v100")),
        ("gpu:v'10:2", (2, "")),
    ],
)
def test_survey_reads_the_gpus_of_a_node(gres, expected):
    assert parse_gres(gres) == expected


@pytest.mark.parametrize("line", ["", "x", "a b|up|1:00|n/a|1|16|(null)", "a|up|1:00|n/a|1|16"])
def test_survey_ignores_invalid_lines(line):
    assert parse_sinfo(line) == ()


def test_survey_reads_accounts_and_qos_of_a_user():
    assert parse_membership(SACCTMGR, "big") == Membership(
        account="ml", accounts=("ml", "vision"), qos=("long", "normal", "debug")
    )
    assert parse_membership(SACCTMGR, "another") == Membership()
    assert parse_membership("", "big") == Membership()


def ask(**answers):
    known = {"scontrol show config": "ClusterName             = big\n", "sinfo": SINFO}
    shell = FakeShell(answers={**known, "sacctmgr": SACCTMGR, **answers})
    return survey_cluster(shell, {"SLURM_NNODES": "9"}, "me"), shell


def test_survey_makes_three_queries():
    found, shell = ask()
    assert (found.name, len(found.partitions), found.membership.account) == ("big", 4, "ml")
    assert [call[0] for call in shell.calls] == ["sinfo", "scontrol", "sacctmgr"]


def test_survey_without_accounting_still_lists_partitions():
    done = Result(argv=("sacctmgr",), code=1, stderr="You are not running a supported accounting\n")
    found, _ = ask(sacctmgr=done)
    assert (len(found.partitions), found.membership) == (4, Membership())


@pytest.mark.parametrize(
    "sinfo",
    [
        Result(argv=("sinfo",), code=1, stderr="Unable to contact slurm controller\n"),
        "all|down|infinite|n/a|1|16|(null)\n",
    ],
)
def test_survey_of_a_slurm_without_partitions_is_an_error(sinfo):
    with pytest.raises(EchelonError) as raised:
        ask(sinfo=sinfo)
    assert raised.value.hint


def test_survey_does_not_wait_for_a_missing_configuration_file():
    shell = FakeShell()
    with pytest.raises(UnavailableError, match="SLURM_CONF does not exist"):
        survey_cluster(shell, {"SLURM_CONF": "/nonexistent"}, "me")
    assert not shell.calls
