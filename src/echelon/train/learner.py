"""A model on its device, with its optimizer and schedule: the state that a checkpoint holds."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from textwrap import shorten
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from echelon.errors import UsageError
from echelon.train.agreement import is_alone, least_over_ranks
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
from echelon.train.sharded_model import (
    SHARD,
    change_layers,
    find_layers,
    shard_model,
    take_parts,
)
from echelon.train.step import EagerStep, Objective, Transform, choose_precision

CAPTURE = ("auto", "always", "never")
_RANKS = 1 << 40
"""Offset of the epoch numbers that key the ranks' random numbers; no training has that many."""
COMPILE_PAYS_S = 240.0
"""Remaining time above which torch.compile is worthwhile. In benchmarks/gpu.py and gpt.py it saved
more time than it took after 40 to 180 s."""


class Learner:
    """Takes steps, and can be saved and loaded. See the Trainer for the arguments."""

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
        shard: str,
        shard_size: int | None,
        shard_layers: Sequence[str | type] | None,
        recompute: bool,
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
        _check_shard(shard, ddp=ddp, precision=precision)
        self._world, self._seed = world, seed
        self._compiled = compiled
        self._seed_rank(seed)
        self._current = make_exact(model, accumulate=accumulate) if exact_layers else None
        self.sharded = shard != "none" and not is_alone()
        """Whether ranks hold parts of the model; all of them must take part in a forward pass."""
        layers: Sequence[nn.Module] = []
        if shard != "none" or recompute:
            layers = find_layers(model, shard_layers)
            compiles = self.sharded and bool(compiled)
            units = layers or ([model] if compiles else [])
            change_layers(units, recompute=recompute, compiled=compiles)
        if self.sharded:
            mesh = world.mesh(shard, shard_size=shard_size)
            dtype = choose_precision(precision, world.device)
            shard_model(model, layers, mesh, device=world.device, dtype=dtype)
        self.module = model if self.sharded else _place(model, world.device)
        self._by_default = capture == "auto"
        # gloo's operations cannot be captured.
        able = world.device.type == "cuda" and (is_alone() or world.backend == "nccl")
        self._why_eager = self._why_whole = ""
        if self.sharded and not layers:
            self._why_whole = "the model has no repeated layers; name them with shard_layers="
        captures = capture == "always" or (self._by_default and able)
        if captures and self.sharded:
            self._why_eager, captures = f"the model is sharded (shard='{shard}')", False
        self._stream = _recording_stream(world.device) if captures else None
        self.model = self.module
        if not self.sharded and (not is_alone() if ddp is None else ddp):
            with torch.cuda.stream(self._stream):
                self.model = DistributedDataParallel(self.module)
        self.optimizer = optimizer(self.module.parameters())
        self.scheduler = scheduler(self.optimizer) if scheduler else None
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise UsageError(
                "scheduler=ReduceLROnPlateau is not supported: it needs a metric in step()",
                hint="call its step(metric) in a callback's epoch_ended instead",
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
        """Number of steps taken, over all epochs and restarts."""

    @property
    def wants_samples(self) -> bool:
        """Whether it needs to know which samples a batch contains."""
        return self._current is not None

    def _seed_rank(self, seed: int) -> None:
        """Seed each rank differently; otherwise dropout would drop the same units on all ranks."""
        key = epoch_key(seed, _RANKS + self._world.rank) % 2**63
        seed_generators(key)
        torch.manual_seed(key)  # also seeds the GPU

    # --- steps ----------------------------------------------------------------------------------

    def begin(self, tell: Callable[[str], None]) -> None:
        """Choose how steps are taken: the same way on every rank and after every restart."""
        if self._why_whole:
            tell(f"the model is gathered as a whole in each step: {self._why_whole}")
        if self._why_eager:
            tell(f"steps are not captured as CUDA graphs: {self._why_eager}")
        if self._stream is not None:
            self._step = CapturedStep(
                self._eager,
                self._world.device,
                stream=self._stream,
                begun=self.steps > 0,
                compiled=bool(self._compiled),
                by_default=self._by_default,
                tell=tell,
            )

    @property
    def graphs(self) -> int:
        """Number of CUDA graphs in use; 0 without capture."""
        return self._step.graphs if isinstance(self._step, CapturedStep) else 0

    @property
    def why_not_captured(self) -> str:
        """Why steps are not captured although they should be, or ''."""
        return self._step.why_not if isinstance(self._step, CapturedStep) else self._why_eager

    @property
    def draws_by_sample(self) -> bool:
        """Whether anything uses random numbers keyed by sample."""
        return self._current is not None or self.transform is not None

    def make_ready(self, portion: Portion) -> Portion:
        """Move a portion to the device, if it is not there, with its samples' keys."""
        device = self._world.device
        if isinstance(portion.batch, Rows):
            return portion
        keys = portion.keys
        if keys is None and self.draws_by_sample:
            # Samples of a user's own loader are identified by their step.
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
        if self._eager.peer_wait is not None:
            self._eager.peer_wait.begin_step()
        self._step.take(portion, self.tally)
        self.steps += 1
        if self.scheduler is not None and self._schedule_steps:
            self.scheduler.step()

    def peer_wait_s(self) -> float:
        """Return how long steps have waited for other ranks."""
        return self._eager.peer_wait.seconds if self._eager.peer_wait else 0.0

    def end_epoch(self) -> None:
        if self.scheduler is not None and not self._schedule_steps:
            self.scheduler.step()

    def consider_compiling(self, left_s: float) -> None:
        """Compile the captured step, if the remaining training time makes it worthwhile."""
        if self._compiled is None and isinstance(self._step, CapturedStep):
            self._lines += 1  # the first one was slow, because it included the capture
            if self._lines == 2 and least_over_ranks(int(left_s > COMPILE_PAYS_S)):
                self._step.compile()

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context that computes in the chosen precision."""
        return self._eager.autocast()

    def share_buffers(self) -> None:
        """Copy rank 0's buffers to all ranks, as DDP does before each forward pass.

        A rank's own BatchNorm has only seen its part of the last batch.
        """
        if not is_alone():
            for value in self.module.buffers():
                dist.broadcast(value, src=0)

    # --- checkpoints ----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state that is the same on all ranks."""
        self.share_buffers()
        return {
            "model": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict() if self.scheduler else None,
            "scaler": self._eager.scaler.state_dict(),
        }

    def own_state(self) -> dict[str, Any]:
        """Return the state that is specific to this rank."""
        return {"random": random_states(self._world.device), "tally": self.tally.state_dict()}

    def restore(self, found: Checkpoint) -> None:
        """Restore the state from a checkpoint.

        Raises:
            UsageError: it belongs to another model or optimizer.
        """
        try:
            weights, moments = found.state["model"], found.state["optimizer"]
            if self.sharded:
                weights, moments = take_parts(weights, moments, self.module, self.optimizer)
            self.module.load_state_dict(weights)
            load_optimizer(self.optimizer, moments)
        except (RuntimeError, ValueError) as error:
            raise UsageError(
                f"{found.path} does not match the model or optimizer: {shorten(str(error), 200)}",
                hint="use the model and optimizer it was saved with, or another directory for "
                "checkpoints",
            ) from error
        if self.scheduler is not None and found.state["scheduler"] is not None:
            self.scheduler.load_state_dict(found.state["scheduler"])
        self._eager.scaler.load_state_dict(found.state["scaler"])
        self.steps = found.step
        if found.own is not None:
            restore_random_states(found.own["random"], self._world.device)
            self.tally.load_state_dict(found.own["tally"])
        else:  # saved with a different number of ranks: do not repeat the initial random numbers
            self._seed_rank(self._seed + found.step)


def _check_shard(shard: str, *, ddp: bool | None, precision: str) -> None:
    """Check the options of sharding, which need no model.

    Raises:
        UsageError: one is invalid, or two contradict each other.
    """
    if shard not in SHARD:
        raise UsageError(
            f"invalid value for shard: '{shard}'", hint=f"use one of: {', '.join(SHARD)}"
        )
    if shard != "none" and ddp:
        raise UsageError(
            f"shard='{shard}' and ddp=True: a model is either sharded or replicated",
            hint="omit one of them",
        )
    if shard != "none" and precision == "fp16":
        raise UsageError(
            f"precision='fp16' is not supported with shard='{shard}'", hint="use bf16 or fp32"
        )


def _recording_stream(device: torch.device) -> Any:
    """Return a stream for recording steps; DDP must be created on it to be recorded."""
    # Steps that are not recorded run on another stream, and torch would warn about the mismatch.
    quieten = getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", None)
    if quieten is not None:
        quieten(enabled=False)
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _place(model: nn.Module, device: torch.device) -> nn.Module:
    """Move a model to its device; on a GPU, convolutions are faster with channels last."""
    model = model.to(device)
    if device.type == "cuda" and any(isinstance(m, nn.Conv2d) for m in model.modules()):
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model
