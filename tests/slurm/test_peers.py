"""Scripts of other people's frameworks run unmodified, in the styles they were written for."""

import json
import os
from pathlib import Path

import pytest

from echelon.spec.merging import Layer, merge
from prepared import prepare_run

PYTHON = Path(__file__).parents[2] / ".venv-peers" / "bin" / "python"

LIGHTNING = """\
import json, pathlib, torch, lightning as L

class Line(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def training_step(self, batch, _):
        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

if __name__ == "__main__":
    L.seed_everything(0)
    inputs = torch.randn(64, 8)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    trainer = L.Trainer(accelerator="cpu", devices=2, num_nodes=2, strategy="ddp", max_epochs=2,
                        logger=False, enable_checkpointing=False, enable_progress_bar=False)
    model = Line()
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=4))
    pathlib.Path(f"rank-{trainer.global_rank}.json").write_text(json.dumps({
        "world": trainer.world_size, "weights": model.layer.weight.tolist()}))
"""

ACCELERATE = """\
import json, pathlib, torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(64, 8)
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
model, optimizer, loader = accelerator.prepare(
    model, optimizer, torch.utils.data.DataLoader(data, batch_size=4))
for x, y in loader:
    optimizer.zero_grad()
    accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
    optimizer.step()
weights = accelerator.unwrap_model(model).weight.tolist()
pathlib.Path(f"rank-{accelerator.process_index}.json").write_text(json.dumps({
    "world": accelerator.num_processes, "weights": weights}))
accelerator.end_training()
"""

TUTORIAL = """\
# The form of PyTorch's own DDP tutorials for torchrun.
import json, os, pathlib, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

def main():
    dist.init_process_group("gloo")
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(64, 8)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    pathlib.Path(f"rank-{rank}.json").write_text(json.dumps({
        "world": dist.get_world_size(), "weights": model.module.weight.tolist()}))
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""

SCRIPTS = {"lightning": LIGHTNING, "accelerate": ACCELERATE, "tutorial": TUTORIAL}


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("style", ["echelon", "srun", "static", "torchrun"])
@pytest.mark.parametrize("framework", SCRIPTS)
def test_scripts_of_other_frameworks_run_unmodified(full, tmp_path, framework, style):
    if not PYTHON.exists():
        if os.environ.get("CI") == "true":
            pytest.fail("needs .venv-peers (CI=true: nothing may be missing)", pytrace=False)
        pytest.skip("needs .venv-peers: run `make peers`")
    (tmp_path / "train.py").write_text(SCRIPTS[framework])
    values = {
        "script": "train.py",
        "style": style,
        "nodes": 2,
        "procs": 2,
        "python": str(PYTHON),
        "chdir": str(tmp_path),
        "output": f"{tmp_path}/out",
    }
    spec = merge([Layer(source="t", values=values)]).spec
    run = prepare_run(spec, tmp_path / "runs", tmp_path)
    job = full.exec("sbatch", "--parsable", str(run.script)).strip()
    state = full.await_job(job, "COMPLETED", "FAILED", "NODE_FAIL", timeout_s=600)
    assert state["JobState"] == "COMPLETED", (tmp_path / "out").read_text()
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(4)]
    assert {rank["world"] for rank in ranks} == {4}
    assert all(rank["weights"] == ranks[0]["weights"] for rank in ranks)
