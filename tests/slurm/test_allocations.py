"""`echelon run` inside an allocation uses all of it, whatever shape it has."""

import json
import sys

import pytest

# Which of Slurm's options, and the ranks and GPUs of each node that should come of them.
SHAPES = [
    pytest.param(
        ["--nodes=2", "--ntasks-per-node=1", "--gres=gpu:2"],
        [2, 2],
        id="task-per-node",
        marks=pytest.mark.full,
    ),
    pytest.param(["--nodes=2", "--ntasks-per-node=2", "--gpus-per-task=1"], [2, 2], id="per-task"),
    pytest.param(["--nodes=2", "--ntasks=4", "--gpus=4"], None, id="total", marks=pytest.mark.full),
    pytest.param(["--nodes=2", "--ntasks-per-node=2"], [2, 2], id="no-gpus"),
    pytest.param(
        ["--nodes=1", "--ntasks=3", "--cpus-per-task=2"],
        [3],
        id="uneven-cpus",
        marks=pytest.mark.full,
    ),
]
PROBE = """\
import json, os, pathlib
import torch, torch.distributed as dist
from echelon.world import detect
dist.init_process_group("gloo")
total = torch.tensor([2.0 ** dist.get_rank()])
dist.all_reduce(total)
world = detect(os.environ)
visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
pathlib.Path(f"rank-{world.rank}.json").write_text(json.dumps({
    "sum": total.item(), "size": world.world_size, "local": world.local_rank,
    "node": world.node_rank, "name": os.environ["SLURMD_NODENAME"], "gpu": world.gpu,
    "gpus": len(visible.split(",")) if visible else 0, "procid": os.environ["SLURM_PROCID"],
}))
dist.barrier()
dist.destroy_process_group()
"""


def run_inside(full, folder, options, *arguments):
    """Start `echelon run` in an allocation, and return what each rank said."""
    (folder / "probe.py").write_text(PROBE)
    command = [sys.executable, "-m", "echelon", "run", *arguments, "probe.py"]
    within = ["env", f"--chdir={folder}", *command]
    full("exec", "--", "salloc", "--quiet", *options, *within)
    paths = sorted(folder.glob("rank-*.json"), key=lambda path: int(path.stem.partition("-")[2]))
    return [json.loads(path.read_text()) for path in paths]


@pytest.mark.parametrize(("options", "counts"), SHAPES)
def test_all_of_an_allocation_is_used(full, tmp_path, options, counts):
    ranks = run_inside(full, tmp_path, options)
    size = len(ranks)
    assert [rank["sum"] for rank in ranks] == [2.0**size - 1] * size
    assert [int(rank["procid"]) for rank in ranks] == list(range(size))
    seen = {}
    for rank in ranks:
        seen.setdefault(rank["node"], []).append(rank)
    if counts is None:  # Slurm spreads a total as it likes: each GPU has its rank
        assert sum(here[0]["gpus"] for here in seen.values()) == size == 4
    else:
        assert [len(seen[node]) for node in sorted(seen)] == counts
    for here in seen.values():
        assert [rank["local"] for rank in here] == list(range(len(here)))
        if here[0]["gpus"]:
            assert [rank["gpu"] for rank in here] == list(range(here[0]["gpus"]))


def test_fewer_ranks_may_be_asked_for(full, tmp_path):
    ranks = run_inside(full, tmp_path, ["--nodes=2", "--gres=gpu:2"], "--procs=1")
    assert [(rank["node"], rank["size"]) for rank in ranks] == [(0, 2), (1, 2)]


def test_fewer_nodes_may_be_asked_for(full, tmp_path):
    ranks = run_inside(full, tmp_path, ["--nodes=2", "--ntasks-per-node=2"], "--nodes=1")
    assert [(rank["node"], rank["size"]) for rank in ranks] == [(0, 2), (0, 2)]


def test_more_nodes_than_there_are_is_an_error(full, tmp_path):
    (tmp_path / "probe.py").write_text(PROBE)
    command = [sys.executable, "-m", "echelon", "run", "--nodes=3", "probe.py"]
    within = ["env", f"--chdir={tmp_path}", *command]
    done = full("exec", "--", "salloc", "--quiet", "--nodes=2", *within, check=False)
    assert done.returncode == 2
    assert "the allocation has 2 nodes, not 3" in done.stderr
