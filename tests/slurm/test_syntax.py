"""What our parsers take and refuse is what Slurm itself takes and refuses."""

import random
import re

import pytest

from echelon.clusters.slurm.options import SBATCH
from echelon.clusters.slurm.sbatch import parse_directives
from echelon.core.nodes import compress, expand
from echelon.core.units import format_duration, parse_duration, parse_memory
from echelon.errors import UsageError


@pytest.mark.parametrize(
    "text",
    [
        *("rack[1-2]n[01-16],gpu7", "n[08-11]", "n[8-11]", "n[1,01]", "n[3,1]", "b2,a1"),
        *("gpu7", "n[1-3,7,9-10]", "a-b_c.d[1-2]", "n[001-3]"),
    ],
)
def test_host_lists_mean_what_slurm_means(cluster, text):
    assert expand(text) == cluster.exec("scontrol", "show", "hostnames", text).split()


def test_what_we_compress_slurm_expands(cluster):
    chance = random.Random(0)  # noqa: S311  not for secrets
    for _ in range(40):
        prefix, width = chance.choice(["n", "rack1-", "r2n"]), chance.choice([1, 2, 3])
        numbers = [chance.randrange(12) for _ in range(chance.randrange(1, 20))]
        hosts = [f"{prefix}{number:0{width}}{chance.choice(['', '-ib'])}" for number in numbers]
        assert cluster.exec("scontrol", "show", "hostnames", compress(hosts)).split() == hosts


@pytest.mark.parametrize(
    "text",
    ["1G", "1g", "1GB", "1gb", "512", "512M", "2048K", "1T", "1Go", "1.5G", "1GiB", "-1G", "x"],
)
def test_memory_is_taken_or_refused_as_slurm_does(cluster, text):
    done = cluster.box.run(["sbatch", "--test-only", f"--mem={text}", "--wrap=true"])
    # A terabyte is well written, but no node has it.
    well_formed = done.code == 0 or "node configuration is not available" in done.stderr
    try:
        parse_memory(text)
    except UsageError:
        assert not well_formed
    else:
        assert well_formed


@pytest.mark.parametrize(
    "text",
    ["90", "90:30", "01:30:00", "2-12", "2-12:30", "2-12:30:15", "72:00:00", "UNLIMITED", "soon"],
)
def test_time_limits_are_what_slurm_makes_of_them(cluster, text):
    """Slurm counts whole minutes, upwards."""
    argv = ["sbatch", "--parsable", "--hold", "--output=/dev/null", f"--time={text}", "--wrap=true"]
    done = cluster.box.run(argv)
    try:
        seconds = parse_duration(text)
    except UsageError:
        assert done.code != 0
        return
    shown = cluster.exec("scontrol", "show", "job", done.check().stdout.strip())
    minutes = None if seconds is None else -(-seconds // 60) * 60
    assert re.search(r"TimeLimit=(\S+)", shown)[1] == format_duration(minutes)


@pytest.mark.parametrize(
    "option",
    [
        *("part=low", "tas=1", "hol", "exclusiv=user", "mem-per-c=1G", "quie", "nod=1", "n=1"),
        *("mem-per=1G", "re", "ntasks=1", "ntasks-p=1"),
    ],
)
def test_abbreviations_are_taken_or_refused_as_slurm_does(cluster, option):
    done = cluster.box.run(["sbatch", "--test-only", f"--{option}", "--wrap=true"])
    try:
        parse_directives(f"#SBATCH --{option}")
    except UsageError as error:
        meant = set(re.findall(r"'--([a-z-]+)'", done.stderr.partition("possibilities:")[2]))
        ours = set(re.findall(r"--([a-z-]+)", str(error).partition("is ambiguous:")[2]))
        assert ours <= meant <= SBATCH.known  # options of newer versions are not taken into account
    else:
        assert done.code == 0


@pytest.mark.parametrize(
    "options",
    [
        "--gpus=4 --gpus-per-node=2 --ntasks=2 --tasks-per-node=1",
        "--ntasks=8 --ntasks-per-node=4",
        "--gpus=4 --gpus-per-node=2",
        "--gpus=8 --gres=gpu:4 --ntasks=8",
    ],
)
def test_totals_and_shares_make_as_many_nodes_as_slurm_grants(cluster, tmp_path, options):
    job = cluster.sbatch(tmp_path, "#!/bin/bash\ntrue\n", *options.split())
    granted = cluster.await_job(job, "COMPLETED")["NumNodes"]
    assert parse_directives(f"#SBATCH {options}\n")["nodes"] == granted == "2"
