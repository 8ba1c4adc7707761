"""A training that is interrupted in many ways: `survivor.py STEPS PACE`.

Every rank writes down which samples it consumed in which step, by job and generation; the first one
leaves what the weights were in the end.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

import echelon

SAMPLES, BATCH = 60, 12
STEPS, PACE_S = int(sys.argv[1]), float(sys.argv[2])


class Points(torch.utils.data.Dataset):
    def __init__(self):
        draw = torch.Generator().manual_seed(5)
        self.x = torch.randn(SAMPLES, 8, generator=draw)
        self.y = torch.randint(3, (SAMPLES,), generator=draw)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
    with echelon.init() as world:
        trainer = echelon.Trainer(
            world,
            model,
            loss=nn.functional.cross_entropy,
            optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
            global_batch=BATCH,
            epochs=-(-STEPS * BATCH // SAMPLES),
            max_steps=STEPS,
        )
        take = trainer._learner._step.take
        turn = f"{os.environ.get('SLURM_JOB_ID', '')}.{os.environ['TORCHELASTIC_RESTART_COUNT']}"
        with Path(f"consumed-{world.rank}").open("a", buffering=1) as consumed:

            def noted(portion, tally):
                record = [time.time(), turn, trainer.step + 1, portion.indices[: portion.size]]
                print(json.dumps(record), file=consumed)
                take(portion, tally)
                time.sleep(PACE_S)

            trainer._learner._step.take = noted
            trainer.fit(Points())
        if world.is_main:
            weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
            Path("weights").write_text(hashlib.sha256(weights).hexdigest())


if __name__ == "__main__":
    main()
