"""A script as cluster documentation prints it runs on the sandbox as it stands there."""

import json
import textwrap

import pytest

# torchrun once per node, rendezvous on the batch host's own name without a port, as documented at
# a large site; with a shebang, and with a memory suffix that Slurm takes.
SCRIPT = """\
#!/bin/bash
# Number of Nodes
#SBATCH --nodes=2

# Number of tasks. 2 (1 per node)
#SBATCH --ntasks=2

# Number of GPU per node
#SBATCH --gres=gpu:2
#SBATCH --gpus-per-node=2

# 8 CPUs per node
#SBATCH --cpus-per-gpu=4

# 16G per node
#SBATCH --mem=16G

# we need all nodes to be ready at the same time
#SBATCH --wait-all-nodes=1

# Setup our rendez-vous point
RDV_ADDR=$(hostname)
WORLD_SIZE=$SLURM_JOB_NUM_NODES
# -----

srun -l torchrun \\
    --nproc_per_node=$SLURM_GPUS_PER_NODE\\
    --nnodes=$WORLD_SIZE\\
    --rdzv_id=$SLURM_JOB_ID\\
    --rdzv_backend=c10d\\
    --rdzv_endpoint=$RDV_ADDR\\
    training_script.py
"""

TRAINING = """\
import json, os, pathlib, socket
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group(backend="gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
truth = torch.arange(8.0)
losses = []
for step in range(50):
    generator = torch.Generator().manual_seed(step * world + rank)  # every rank its own samples
    batch = torch.randn(32, 8, generator=generator)
    loss = torch.nn.functional.mse_loss(model(batch).squeeze(1), batch @ truth)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
total = torch.tensor([rank + 1.0])
dist.all_reduce(total)
pathlib.Path(f"rank-{rank}.json").write_text(json.dumps({
    "host": socket.gethostname(), "gpus": os.environ["CUDA_VISIBLE_DEVICES"], "sum": total.item(),
    "losses": [losses[0], losses[-1]], "weights": model.module.weight.tolist(),
}))
dist.destroy_process_group()
"""


@pytest.mark.full
def test_a_documented_torchrun_script_trains_across_two_nodes(full, tmp_path):
    (tmp_path / "training_script.py").write_text(textwrap.dedent(TRAINING))
    script = SCRIPT
    if full.box.state.slurm >= (26, 5):
        (tmp_path / "asked.sh").write_text(SCRIPT)
        refused = full.box.run(["sbatch", "--test-only", f"{tmp_path}/asked.sh"])
        assert "--gpus-per-node and --gres=gpu are mutually exclusive" in refused.stderr
        lines = SCRIPT.splitlines(keepends=True)
        script = "".join(line for line in lines if "--gpus-per-node" not in line)
    job = full.sbatch(tmp_path, script, f"--chdir={tmp_path}")
    state = full.await_job(job, "COMPLETED", "FAILED", "NODE_FAIL", timeout_s=120)
    assert state["JobState"] == "COMPLETED", (tmp_path / "out").read_text()
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(4)]
    assert sorted(rank["host"] for rank in ranks) == ["node1", "node1", "node2", "node2"]
    assert {rank["sum"] for rank in ranks} == {1 + 2 + 3 + 4}
    assert {rank["gpus"] for rank in ranks} == {"0,1"}
    assert all(rank["weights"] == ranks[0]["weights"] for rank in ranks)
    assert all(last < first / 100 for first, last in (rank["losses"] for rank in ranks))
