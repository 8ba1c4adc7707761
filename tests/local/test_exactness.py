"""Interrupted and resumed, a training ends where one that was never interrupted ends."""

import json
import os
import random
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from echelon.train.process_group import Group
from echelon.train.sampler import epoch_order
from local.training import Plan, train, words

PRELOAD = "torch,torch._dynamo,torch.distributed.fsdp"
"""The others are what an optimizer and `fully_shard` import when first used, in seconds."""


def run(folder, ranks, plan, *options):
    """Train by the command, on so many ranks."""
    folder.mkdir(exist_ok=True)
    argv = [sys.executable, "-m", "echelon", "run", f"--procs={ranks}", f"--preload={PRELOAD}"]
    return subprocess.run(
        [*argv, *options, *words(plan)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def run_well(folder, ranks, plan):
    done = run(folder, ranks, plan)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("killed by SIGKILL") == len(plan.kills)
    return done


def train_here(folder, plan):
    """Train on one rank, in this process."""
    folder.mkdir()
    train(Group(device=torch.device("cpu"), backend=""), plan, folder)


def weights(folder):
    return torch.load(folder / "weights.pt")


def told(folder):
    """What was told of the training: of a step that was taken again the later record counts."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    own = ("rate", "data_wait")  # of the machine, not of the training
    return {
        (line["kind"], line["step"]): {k: v for k, v in line["metrics"].items() if k not in own}
        for line in lines
    }


def consumed(folder):
    """The samples of each step in its last taking, rank after rank."""
    found = defaultdict(dict)
    for path in folder.glob("consumed-*"):
        leg, generation, rank = map(int, path.name.split("-")[1:])
        for line in path.read_text().splitlines():
            step, indices = json.loads(line)
            found[step].setdefault((leg, generation), {})[rank] = indices
    last = {step: takings[max(takings)] for step, takings in sorted(found.items())}
    return {
        step: [i for _, own in sorted(shares.items()) for i in own] for step, shares in last.items()
    }


def assert_each_sample_once(folder, plan):
    """Hold a training to one order of samples, and to the same batches on any number of ranks."""
    batches = consumed(folder)
    assert list(batches) == list(range(1, plan.steps + 1))
    each = plan.steps // plan.epochs
    for epoch in range(plan.epochs):
        steps = range(epoch * each + 1, (epoch + 1) * each + 1)
        order = epoch_order(plan.samples, seed=3, epoch=epoch, shuffle=True).tolist()
        assert sorted(order) == list(range(plan.samples))
        expected = [order[n * plan.global_batch :][: plan.global_batch] for n in range(each)]
        assert [batches[step] for step in steps] == expected


# --- as many ranks as before ------------------------------------------------------------------

NOISY = Plan(model="noisy", log_every=4, save_every=3)
EXACT = replace(NOISY, exact_layers=True)
SHARDED = replace(NOISY, shard="fsdp")
HYBRID = replace(NOISY, shard="hsdp", shard_size=2)
LOADED = Plan(model="noisy", log_every=4, save_every=3, epochs=3, augment=True, workers=2)


def full(*values):
    return pytest.param(*values, marks=pytest.mark.full)


@pytest.mark.parametrize(
    ("ranks", "plan", "seed"),
    [
        (3, NOISY, 0),
        *(full(ranks, SHARDED, seed) for ranks in (2, 3, 4) for seed in (9, 10)),
        *(full(4, plan, 12) for plan in (HYBRID, replace(SHARDED, exact_layers=True))),
        full(2, LOADED, 1),
        *(full(ranks, NOISY, seed) for ranks in (2, 4) for seed in (2, 3, 4)),
        *(full(ranks, EXACT, seed) for ranks in (2, 3, 4) for seed in (5, 6)),
        *(full(ranks, LOADED, seed) for ranks in (3, 4) for seed in (7, 8)),
    ],
)
def test_a_training_that_was_killed_ends_bit_for_bit_as_one_that_was_not(
    tmp_path, ranks, plan, seed
):
    kills = sorted(random.Random(seed).sample(range(plan.save_every + 1, plan.steps), 2))  # noqa: S311
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run_well(whole, ranks, plan)
    done = run_well(broken, ranks, replace(plan, kills=kills))
    assert "resumed at step" in done.stderr + done.stdout
    assert weights(whole).keys() == weights(broken).keys()
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(broken)[name]), name
    assert told(whole) == told(broken)
    assert_each_sample_once(broken, plan)


# --- another number of ranks ------------------------------------------------------------------

UNEVEN = Plan(samples=45, global_batch=7, epochs=3)
"""No number of ranks divides it, and of the last three samples a fourth rank gets none."""
SCARCE = Plan(model="conv", exact_layers=True, samples=9, global_batch=2, epochs=3)
"""Not a sample for each rank, and in the end one for all of them."""


@pytest.mark.parametrize(
    ("legs", "plan"),
    [
        ((3, 2), replace(UNEVEN, augment=True)),
        full((4, 2, 3), replace(UNEVEN, augment=True)),
        full((4, 2, 3), replace(UNEVEN, model="noisy", exact_layers=True, double=True)),
        full((4, 3), replace(SCARCE, double=True)),
        full((4, 2, 3), replace(UNEVEN, model="noisy", exact_layers=True)),
        full((2, 3, 1), replace(UNEVEN, model="noisy", exact_layers=True, double=True)),
        full((1, 4, 2), replace(UNEVEN, augment=True, double=True, workers=2)),
        full((3, 4), SCARCE),
        full((3, 4), replace(SCARCE, model="plain", exact_layers=False, double=True)),
    ],
)
def test_on_other_numbers_of_ranks_only_float_noise_differs(tmp_path, legs, plan):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train_here(whole, replace(plan, workers=0))
    stops = [plan.steps * (leg + 1) // len(legs) for leg in range(len(legs) - 1)]
    for leg, (ranks, stop) in enumerate(zip(legs, [*stops, None], strict=True)):
        if leg == 0 and stop is not None:
            run_well(broken, ranks, replace(plan, leg=leg, stop=stop + stop % plan.save_every))
        elif stop is not None:
            done = run(broken, ranks, replace(plan, leg=leg, kills=(stop,)), "--restarts=0")
            assert "killed by SIGKILL" in done.stderr, done.stdout + done.stderr
        else:
            run_well(broken, ranks, replace(plan, leg=leg))
    assert_each_sample_once(broken, plan)
    noise = {"rtol": 1e-9, "atol": 1e-11} if plan.double else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(weights(broken), weights(whole), **noise)
    expected, found = told(whole), told(broken)
    assert expected.keys() == found.keys()
    for place, metrics in expected.items():
        torch.testing.assert_close(found[place], metrics, **noise)


# --- another mesh -----------------------------------------------------------------------------

LONG = Plan(samples=45, global_batch=7, epochs=29, log_every=10, save_every=10)
"""203 steps."""
DDP, FSDP, HSDP = (
    {"shard": "none"},
    {"shard": "fsdp"},
    {"shard": "hsdp", "shard_size": 2},
)
MESHES = [((2, FSDP), (3, FSDP), (4, HSDP), (2, DDP)), ((4, DDP), (4, HSDP), (3, FSDP), (1, DDP))]


@pytest.mark.full
@pytest.mark.parametrize("legs", MESHES, ids=["from FSDP", "from DDP"])
@pytest.mark.parametrize("double", [False, True], ids=["single", "double"])
def test_on_other_meshes_only_float_noise_differs_over_200_steps(tmp_path, legs, double):
    plan = replace(LONG, double=double)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run_well(whole, 2, replace(plan, shard="fsdp"))
    for leg, (ranks, mesh) in enumerate(legs):
        leg_plan = replace(plan, leg=leg, **mesh)
        if leg + 1 == len(legs):
            run_well(broken, ranks, leg_plan)
            continue
        kill = plan.steps * (leg + 1) // len(legs) + 3
        done = run(broken, ranks, replace(leg_plan, kills=(kill,)), "--restarts=0")
        assert "killed by SIGKILL" in done.stderr, done.stdout + done.stderr
    assert_each_sample_once(broken, plan)
    noise = {"rtol": 1e-9, "atol": 1e-11} if double else {"rtol": 1e-3, "atol": 1e-4}
    torch.testing.assert_close(weights(broken), weights(whole), **noise)
    expected, found = told(whole), told(broken)
    assert expected.keys() == found.keys()
    for place in expected:
        if (
            place[0] == "validation"
        ):  # on other ranks, the first line after a resume has fewer steps
            torch.testing.assert_close(found[place], expected[place], **noise)
