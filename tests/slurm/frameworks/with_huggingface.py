"""Trains with Hugging Face's Trainer: with_huggingface.py STEPS PACE_S."""

import sys
import time
from pathlib import Path

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

import echelon
from echelon.integrations.huggingface import EchelonCallback

STEPS, PACE_S = int(sys.argv[1]), float(sys.argv[2])


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 240

    def __getitem__(self, index):
        x = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return {"x": x, "labels": x.sum()[None]}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 1))

    def forward(self, x, labels=None):
        time.sleep(PACE_S)
        guess = self.layers(x)
        return {"loss": nn.functional.mse_loss(guess, labels), "logits": guess}


arguments = TrainingArguments(
    output_dir="out",
    max_steps=STEPS,
    per_device_train_batch_size=4,
    learning_rate=0.01,
    save_steps=20,
    save_total_limit=2,
    logging_steps=5,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
trainer = Trainer(model=Net(), args=arguments, train_dataset=Data(), callbacks=[EchelonCallback()])
trainer.train(resume_from_checkpoint=echelon.last_saved())
if trainer.is_world_process_zero():
    torch.save(trainer.model.state_dict(), "weights.pt")
    Path("trained").write_text(str(trainer.state.global_step))
