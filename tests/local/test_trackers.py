"""One run is one run of a tracker, however often its ranks are started."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from echelon.core.waiting import wait_until
from local.liverun import live_run
from requirements import do_without

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

BIN = Path(__file__).parents[2] / ".venv-peers" / "bin"
WANDB = """\
import os, sys
import wandb

if os.environ["RANK"] == "0":
    run = wandb.init(project="p", mode="offline", dir=os.environ["ECHELON_RUN_DIR"])
    run.log({"loss": 1.0})
    run.finish()
else:
    assert "WANDB_RUN_ID" not in os.environ
sys.exit(3 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 0)
"""
# Each of the others ends its first start at step 15, after a checkpoint at step 10, once MLflow has
# the metrics of that step.
MODEL = """\
import os, time
from pathlib import Path
import torch
from torch import nn
import echelon

run = Path(os.environ["ECHELON_RUN_DIR"])


def arrived():
    import mlflow

    history = mlflow.MlflowClient().get_metric_history((run / "mlflow").read_text().strip(), METRIC)
    return 10 in [metric.step for metric in history]


def interrupt(step):
    if step == 15 and os.environ["ECHELON_GENERATION"] == "0":
        while not (run / "mlflow").exists() or not arrived():
            time.sleep(0.1)
        os._exit(3)


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, index):
        x = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return x, x.sum()[None]


"""
TRAINER = """\
class Interruption:
    def step_ended(self, trainer):
        if trainer.step == 15:
            trainer.checkpointer.wait()
        interrupt(trainer.step)


echelon.Trainer(
    echelon.init(),
    nn.Linear(8, 1),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    loss=nn.functional.mse_loss,
    global_batch=4,
    save_every=10,
    log_every=1,
    loggers=["wandb", "mlflow", "tensorboard"],
    callbacks=[Interruption()],
).fit(Data())
"""
ACCELERATE = """\
from accelerate import Accelerator

accelerator = Accelerator(cpu=True, log_with="mlflow")
accelerator.init_trackers("Default")
model = nn.Linear(8, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
with echelon.loop(30, save_every=10) as loop:
    if loop.checkpoint:
        accelerator.load_state(loop.checkpoint)
    for step in loop:
        interrupt(step)
        loss = model(torch.ones(4, 8)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        loop.log(loss=loss.item())
        accelerator.log({"train/loss": loss.item()}, step=step + 1)
        if loop.save_here:
            accelerator.save_state(loop.path)
accelerator.end_training()
"""
HUGGINGFACE = """\
from transformers import Trainer, TrainerCallback, TrainingArguments
from echelon.integrations.huggingface import EchelonCallback


class Net(nn.Linear):
    def forward(self, x, labels=None):
        return {"loss": nn.functional.mse_loss(super().forward(x), labels)}


class Named(Data):
    def __getitem__(self, index):
        x, labels = super().__getitem__(index)
        return {"x": x, "labels": labels}


class Interruption(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        interrupt(state.global_step)


arguments = TrainingArguments(
    output_dir="out", max_steps=30, per_device_train_batch_size=4, save_steps=10, logging_steps=1,
    report_to=["mlflow"], use_cpu=True, disable_tqdm=True,
)
Trainer(
    model=Net(8, 1), args=arguments, train_dataset=Named(),
    callbacks=[EchelonCallback(), Interruption()],
).train(resume_from_checkpoint=echelon.last_saved())
"""
LIGHTNING = """\
import lightning
from lightning.pytorch.loggers import MLFlowLogger
from echelon.integrations.lightning import EchelonCallback


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def training_step(self, batch, _):
        interrupt(self.global_step)
        loss = nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


trainer = lightning.Trainer(
    max_steps=30, accelerator="cpu", devices=1, log_every_n_steps=1, enable_progress_bar=False,
    callbacks=[EchelonCallback(every_n_steps=10)],
    logger=MLFlowLogger(
        experiment_name="Default",
        tracking_uri=os.environ["MLFLOW_TRACKING_URI"],
        run_id=os.environ.get("MLFLOW_RUN_ID"),
    ),
)
loader = torch.utils.data.DataLoader(Data(), batch_size=4)
trainer.fit(Net(), loader, ckpt_path=echelon.last_saved(), weights_only=True)
"""


@pytest.fixture(autouse=True)
def peers():
    if not BIN.exists():
        do_without("needs .venv-peers: run `make peers`")


class Server:
    """A server of MLflow on loopback, with SQLite."""

    def __init__(self, folder):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.place = free.getsockname()
        self.address = f"http://127.0.0.1:{self.place[1]}"
        store = f"--backend-store-uri=sqlite:///{folder}/mlflow.db"
        where = ["--host=127.0.0.1", f"--port={self.place[1]}", "--workers=1"]
        self.log = folder / "mlflow.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [BIN / "python", "-m", "mlflow", "server", store, *where],
                cwd=folder,
                # Without its job runner, a dozen processes that no test needs.
                env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def answers(self):
        try:
            return self._send("/health", timeout_s=5)[0] == 200
        except OSError:
            return False

    def _send(self, path, body=None, timeout_s=30):
        with closing(http.client.HTTPConnection(*self.place, timeout=timeout_s)) as connection:
            kind = {"Content-Type": "application/json"}
            connection.request("POST" if body else "GET", path, body, kind)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def ask(self, path, **request):
        body = json.dumps(request).encode() if request else None
        return json.loads(self._send(f"/api/2.0/mlflow/{path}", body)[1])

    def runs(self):
        return self.ask("runs/search", experiment_ids=["0"]).get("runs", [])

    def steps(self, run_id, metric):
        query = f"metrics/get-history?run_id={run_id}&metric_key={metric}"
        return [int(one["step"]) for one in self.ask(query).get("metrics", [])]


@pytest.fixture
def mlflow(tmp_path):
    server = Server(tmp_path)
    try:
        assert wait_until(server.answers, timeout_s=240, interval_s=0.2), server.log.read_text()
        yield server
    finally:
        os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()


def wandb_ids(run):
    names = [path.name for path in (run.path / "wandb").glob("offline-run-*")]
    return [re.fullmatch(r"offline-run-[0-9_]+-(.*)", name)[1] for name in names]


def test_all_parts_of_a_run_have_one_id_in_wandb(tmp_path):
    with live_run(tmp_path, WANDB, ["--nodes=1", f"--python={BIN / 'python'}"]) as run:
        assert run.wait(timeout_s=300) == 0, run.output
        assert wandb_ids(run) == [(run.path / "tracker").read_text().strip()] * 2


SCRIPTS = {
    "trainer": TRAINER,
    "accelerate": ACCELERATE,
    "huggingface": HUGGINGFACE,
    "lightning": LIGHTNING,
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_all_parts_of_a_run_are_one_run_of_mlflow(tmp_path, mlflow, name):
    variables = [f"MLFLOW_TRACKING_URI={mlflow.address}", "WANDB_MODE=offline"]
    options = [f"--env={one}" for one in variables]
    options += ["--nodes=1", "--procs=1", f"--python={BIN / 'python'}"]
    metric = "loss" if name == "huggingface" else "train/loss"
    with live_run(tmp_path, f"METRIC = {metric!r}\n{MODEL}{SCRIPTS[name]}", options) as run:
        assert run.wait(timeout_s=300) == 0, run.output
        (found,) = mlflow.runs()
        assert found["info"]["run_id"] == (run.path / "mlflow").read_text().strip()
        assert found["info"]["status"] == "FINISHED"
        steps = mlflow.steps(found["info"]["run_id"], metric)
        assert {5, 25} <= set(steps)  # of both parts
        assert steps.count(5) == 1
        if name == "trainer":
            assert wandb_ids(run) == [(run.path / "tracker").read_text().strip()] * 2
            assert list((run.path / "tensorboard").iterdir())
