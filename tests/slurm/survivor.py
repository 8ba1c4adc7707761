"""A training that is interrupted in many ways: `survivor.py STEPS PACE`.

Every rank writes down where it is, and which samples it consumed in which step, by job and
generation; the first one leaves what the weights were in the end.
"""

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import torch
from torch import nn

import echelon

BATCH = 12


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", type=int)
    parser.add_argument("pace_s", type=float)
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--shard", default="none", help="also leave the weights, without dropout")
    return parser.parse_args()


class Points(torch.utils.data.Dataset):
    def __init__(self, samples):
        draw = torch.Generator().manual_seed(5)
        self.x = torch.randn(samples, 8, generator=draw)
        self.y = torch.randint(3, (samples,), generator=draw)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return self.x[index], self.y[index]

    def batch(self, indices):
        wanted = torch.tensor(indices)
        return self.x[wanted], self.y[wanted]


class Consumption:
    """Writes down the samples of each step, before a checkpoint of that step is written."""

    def __init__(self, path, turn, pace_s):
        self.path, self.turn, self.pace_s = path, turn, pace_s

    def step_ended(self, trainer):
        with self.path.open("a") as file:
            print(json.dumps([time.time(), self.turn, trainer.step, trainer.indices]), file=file)
        time.sleep(self.pace_s)


def main():
    asked = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dropout = nn.Dropout(0.2 if asked.shard == "none" else 0.0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), dropout, nn.Linear(32, 3))
    with echelon.init() as world:
        turn = f"{os.environ.get('SLURM_JOB_ID', '')}.{os.environ['TORCHELASTIC_RESTART_COUNT']}"
        trainer = echelon.Trainer(
            world,
            model,
            loss=nn.functional.cross_entropy,
            optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
            global_batch=BATCH,
            epochs=-(-asked.steps * BATCH // asked.samples),
            max_steps=asked.steps,
            save_every=asked.save_every,
            shard=asked.shard,
            callbacks=[Consumption(Path(f"consumed-{world.rank}"), turn, asked.pace_s)],
        )
        where = {"turn": turn, "host": os.uname().nodename, "pid": os.getpid()}
        Path(f"where-{world.rank}").write_text(json.dumps(where))
        trainer.fit(Points(asked.samples))
        if asked.shard != "none":
            values = [p.full_tensor().flatten().tolist() for p in model.parameters()]
            if world.is_main:
                Path("values").write_text(json.dumps(values))
        elif world.is_main:
            weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
            Path("weights").write_text(hashlib.sha256(weights).hexdigest())


if __name__ == "__main__":
    main()
