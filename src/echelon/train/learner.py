"""A model on its device, and all that moves it: what a checkpoint of a training is made of."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from textwrap import shorten
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from echelon.errors import UsageError
from echelon.train.agreement import is_alone
from echelon.train.batches import samples_in, to_device
from echelon.train.captured import CapturedStep
from echelon.train.checkpoint_files import Checkpoint
from echelon.train.exact_layers import make_exact
from echelon.train.loading import Portion, Rows
from echelon.train.metrics import Tally
from echelon.train.optimizers import load_optimizer
from echelon.train.process_group import Group
from echelon.train.randomness import (
    epoch_key,
    random_states,
    restore_random_states,
    sample_keys,
    seed_generators,
)
from echelon.train.step import EagerStep, Objective, Transform

CAPTURE = ("auto", "always", "never")
_RANKS = 1 << 40
"""Ranks' random numbers are keyed like those of epochs that never come."""
COMPILE_PAYS_S = 600.0
"""How long a training has to last for torch.compile, which takes a minute, to be worth it."""


class Learner:
    """Takes steps, and can be saved and loaded. The Trainer's docstring has the arguments."""

    def __init__(
        self,
        world: Group,
        model: nn.Module,
        objective: Objective,
        *,
        optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        scheduler: Callable[[torch.optim.Optimizer], Any] | None,
        schedule_steps: bool,
        transform: Transform | None,
        clip_norm: float | None,
        accumulate: int,
        precision: str,
        capture: str,
        compiled: bool | None,
        ddp: bool | None,
        exact_layers: bool,
        seed: int,
    ) -> None:
        if capture not in CAPTURE:
            raise UsageError(
                f"invalid value for capture: '{capture}'", hint=f"use one of: {', '.join(CAPTURE)}"
            )
        if capture == "always" and world.device.type != "cuda":
            raise UsageError(
                f"capture='always' needs a GPU; the device is {world.device}",
                hint="use capture='auto'",
            )
        self._world, self._seed = world, seed
        self._capture, self._compiled = capture, compiled
        self._seed_rank(seed)
        self.module = _place(model, world.device)
        self._current = make_exact(model, accumulate=accumulate) if exact_layers else None
        self._stream = _recording_stream(world.device) if capture == "always" else None
        self.model = self.module
        if not is_alone() if ddp is None else ddp:
            with torch.cuda.stream(self._stream):
                self.model = DistributedDataParallel(self.module)
        self.optimizer = optimizer(self.module.parameters())
        self.scheduler = scheduler(self.optimizer) if scheduler else None
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise UsageError(
                "ReduceLROnPlateau wants to be told a metric, and nobody tells it",
                hint="step it in a callback's epoch_ended, with the metric that you mean",
            )
        self._schedule_steps = schedule_steps
        self.transform = transform
        if isinstance(transform, nn.Module):
            transform.to(world.device)
        self._eager = EagerStep(
            self.model,
            self.optimizer,
            objective,
            world_size=world.world_size,
            device=world.device,
            clip_norm=clip_norm,
            accumulate=accumulate,
            precision=precision,
            transform=transform,
            current=self._current,
        )
        self._step: EagerStep | CapturedStep = self._eager
        self._settled = False
        self._lines = 0
        self.tally = Tally(world.device)
        self.steps = 0
        """Steps that were taken, over all epochs and interruptions."""

    @property
    def wants_samples(self) -> bool:
        """Whether it has to know which samples a batch is of."""
        return self._current is not None

    def _seed_rank(self, seed: int) -> None:
        """Give each rank its own random numbers: with the same, they would drop the same units."""
        key = epoch_key(seed, _RANKS + self._world.rank) % 2**63
        seed_generators(key)
        torch.manual_seed(key)  # the GPU's too

    # --- steps ----------------------------------------------------------------------------------

    def begin(self, tell: Callable[[str], None]) -> None:
        """Choose how steps are taken: the same way on every rank, and after every restart."""
        # With several ranks it is to be asked for: no machine with two GPUs has shown it yet.
        alone = self._capture == "auto" and is_alone() and self._world.device.type == "cuda"
        if alone or self._capture == "always":
            self._step = CapturedStep(
                self._eager,
                self._world.device,
                stream=self._stream or _recording_stream(self._world.device),
                begun=self.steps > 0,
                compiled=bool(self._compiled),
                tell=tell,
            )

    @property
    def draws_by_sample(self) -> bool:
        """Whether something draws random numbers by samples' keys."""
        return self._current is not None or self.transform is not None

    def make_ready(self, portion: Portion) -> Portion:
        """Bring a portion to the device, if it is not there, with its samples' keys."""
        device = self._world.device
        if isinstance(portion.batch, Rows):
            return portion
        keys = portion.keys
        if keys is None and self.draws_by_sample:
            # Samples of a loader of the user's are known by their step.
            numbers = torch.arange(samples_in(portion.batch)) + (self.steps << 24)
            keys = sample_keys(numbers, seed=self._seed, epoch=-1 - self._world.rank)
        if device.type != "cpu":
            batch, keys = to_device((portion.batch, keys), device)
            return replace(portion, batch=batch, keys=keys)
        return portion if keys is portion.keys else replace(portion, keys=keys)

    def take_step(self, portion: Portion) -> None:
        if not self._settled:
            self._eager.settle(portion)
            self._settled = True
        self._step.take(portion, self.tally)
        self.steps += 1
        if self.scheduler is not None and self._schedule_steps:
            self.scheduler.step()

    def peer_wait_s(self) -> float:
        """Return for how long steps have waited for other ranks, as far as the host sees it."""
        return self._eager.peer_wait.seconds if self._eager.peer_wait else 0.0

    def end_epoch(self) -> None:
        if self.scheduler is not None and not self._schedule_steps:
            self.scheduler.step()

    def consider_compiling(self, left_s: float) -> None:
        """Have what is captured compiled, if so much is left of the training that it pays."""
        if self._compiled is None and isinstance(self._step, CapturedStep) and is_alone():
            self._lines += 1  # the first of them was slow: it has recorded
            if self._lines == 2 and left_s > COMPILE_PAYS_S:
                self._step.compile()

    def autocast(self) -> AbstractContextManager[Any]:
        """Compute in the chosen precision."""
        return self._eager.autocast()

    def share_buffers(self) -> None:
        """Give all ranks rank 0's buffers, as DDP does before each forward pass.

        A rank's own BatchNorm has seen its part of the last batch alone.
        """
        if not is_alone():
            for value in self.module.buffers():
                dist.broadcast(value, src=0)

    # --- checkpoints ----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what is the same on all ranks."""
        self.share_buffers()
        return {
            "model": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict() if self.scheduler else None,
            "scaler": self._eager.scaler.state_dict(),
        }

    def own_state(self) -> dict[str, Any]:
        """Return what is this rank's own."""
        return {"random": random_states(self._world.device), "tally": self.tally.state_dict()}

    def restore(self, found: Checkpoint) -> None:
        """Go on where a checkpoint was made.

        Raises:
            UsageError: it is of another model or optimiser.
        """
        try:
            self.module.load_state_dict(found.state["model"])
            load_optimizer(self.optimizer, found.state["optimizer"])
        except (RuntimeError, ValueError) as error:
            raise UsageError(
                f"{found.path} is of another model or optimiser: {shorten(str(error), 200)}",
                hint="train what it was made with, or keep this training's in another folder",
            ) from error
        if self.scheduler is not None and found.state["scheduler"] is not None:
            self.scheduler.load_state_dict(found.state["scheduler"])
        self._eager.scaler.load_state_dict(found.state["scaler"])
        self.steps = found.step
        if found.own is not None:
            restore_random_states(found.own["random"], self._world.device)
            self.tally.load_state_dict(found.own["tally"])
        else:  # saved by another number of ranks: new numbers, not those of the beginning again
            self._seed_rank(self._seed + found.step)


def _recording_stream(device: torch.device) -> Any:
    """Return a stream to record steps on; DDP, if it is to be inside, has to be made on it."""
    # Steps that are not recorded run elsewhere, and torch would warn that they wait for DDP.
    quieten = getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", None)
    if quieten is not None:
        quieten(enabled=False)
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _place(model: nn.Module, device: torch.device) -> nn.Module:
    """Move a model to its device; convolutions are faster there with the channels last."""
    model = model.to(device)
    if device.type == "cuda" and any(isinstance(m, nn.Conv2d) for m in model.modules()):
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model
