"""Training speed of a GPT-2-small class model on one GPU: a plain loop and Echelon, in one run.

    PYTHONPATH=src python benchmarks/gpt.py

124 million parameters, sequences of 1,024 tokens, batches of 16, bf16, AdamW. Each way trains on
the same random tokens, which are on the GPU before it begins; the losses at the end are compared.
Writes benchmarks/results/gpt.json.
"""

import time
import warnings
from pathlib import Path

import measuring
import torch
from torch import nn
from torch.utils.data import TensorDataset

import echelon

GPU = torch.device("cuda", 0)
TOKENS, VOCABULARY = 1024, 50304
WIDTH, HEADS, LAYERS = 768, 12, 12
BATCH, STEPS, EPOCHS = 16, 40, 4


class Block(nn.Module):
    """Causal attention, then two linear layers, each on top of what came in."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.mix, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        count, length, _ = x.shape
        heads = self.mix(self.norms[0](x)).view(count, length, 3, HEADS, -1).transpose(1, 3)
        seen = nn.functional.scaled_dot_product_attention(*heads.unbind(2), is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(count, length, WIDTH))
        return x + self.narrow(nn.functional.gelu(self.widen(self.norms[1](x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        for weight in self.parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.places(places))))


def judge(outputs, targets):
    return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def make_optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=3e-4, weight_decay=0.1, fused=True)


def make_model():
    torch.manual_seed(1)
    return Gpt()


def make_data():
    draw = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, VOCABULARY, (BATCH * STEPS, TOKENS + 1), generator=draw)
    return TensorDataset(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


class Clock:
    """Times epochs, including the device's work; the first ones include compilation."""

    def __init__(self):
        self.ends_s = []
        self.end()

    def end(self):
        torch.cuda.synchronize()
        self.ends_s.append(time.perf_counter())

    def epoch_ended(self, _trainer, _metrics):
        self.end()

    def describe(self, loss):
        spent_s = [b - a for a, b in zip(self.ends_s, self.ends_s[1:], strict=False)]
        return {
            "tokens_per_second": round(BATCH * STEPS * TOKENS / min(spent_s)),
            "first_epoch_s": round(spent_s[0], 1),
            "loss": round(loss, 4),
        }


def train_raw(data, *, compiled):
    model = make_model().to(GPU)
    optimizer = make_optimizer(model.parameters())
    run = torch.compile(model) if compiled else model
    inputs, targets = (tensor.to(GPU) for tensor in data.tensors)
    clock = Clock()
    for _ in range(EPOCHS):
        total = torch.zeros((), device=GPU)
        for rows in torch.randperm(len(inputs), device=GPU).split(BATCH):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = judge(run(inputs[rows]), targets[rows])
            loss.backward()
            optimizer.step()
            total += loss.detach()
        clock.end()
    return clock.describe(float(total) / STEPS)


def train_echelon(data, *, compiled):
    clock = Clock()
    trainer = echelon.Trainer(
        echelon.Group(device=GPU, backend=""),
        make_model(),
        loss=judge,
        optimizer=make_optimizer,
        global_batch=BATCH,
        epochs=EPOCHS,
        compiled=compiled,
        log_every=STEPS,
        quiet=True,
        callbacks=[clock],
    )
    return clock.describe(trainer.fit(data).metrics["loss"])


WAYS = {
    "plain loop": (train_raw, False),
    "plain loop, torch.compile": (train_raw, True),
    "Echelon": (train_echelon, False),
    "Echelon, compiled": (train_echelon, True),
}


def main():
    warnings.simplefilter("ignore")
    rows, data = {}, make_data()
    for name, (train, compiled) in WAYS.items():
        rows[name] = train(data, compiled=compiled)
        print(f"{name}: {rows[name]}", flush=True)
        torch.cuda.empty_cache()
    ours, theirs = rows["Echelon, compiled"], rows["plain loop, torch.compile"]
    gain = round(ours["tokens_per_second"] / theirs["tokens_per_second"], 3)
    slower = {"compiled, plain loop / Echelon": (round(1 / gain, 3), round(1 / 1.2, 3))}
    measuring.write_results(Path(__file__).stem, rows, slower, gpu=torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
