"""A whole step as one CUDA graph, so that the GPU does not wait for the CPU to launch kernels.

A step is recorded once per shape of the batch, and then replayed. Recording needs warm-up steps
(workspaces chosen, memory allocated, DDP's buckets arranged); the state is restored afterwards.
Each replay has new random numbers: keyed ones come from the batch, and generators advance by
themselves. Learning rates are tensors that schedulers fill.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from echelon.train.agreement import is_alone, least_over_ranks
from echelon.train.batches import map_others, map_tensors
from echelon.train.loading import Portion, Rows
from echelon.train.metrics import Tally
from echelon.train.process_group import release_before_close
from echelon.train.randomness import undisturbed
from echelon.train.step import EagerStep

WARM_UPS = 3
DDP_WARM_UPS = 11
"""DDP arranges its buckets, and measures its own times, in its first ten steps."""


FORMS = 8
"""Maximum number of recorded batch shapes. With more shapes, as in variable-length text, each one
is rare."""


@dataclass(frozen=True, slots=True)
class _Recording:
    """A recorded step for one form of batches."""

    graph: torch.cuda.CUDAGraph
    static: Portion
    """The buffers from which it reads its input."""
    count: float
    """The number of samples that it counts."""


class CapturedStep:
    """Takes steps by replaying them; steps that cannot be recorded run operation by operation.

    The same steps are replayed on every rank and after every restart: all except the very first,
    which creates the optimizer's state.
    """

    def __init__(
        self,
        eager: EagerStep,
        device: torch.device,
        *,
        stream: Any,
        begun: bool,
        compiled: bool,
        by_default: bool = False,
        tell: Callable[[str], None],
    ) -> None:
        """Create the step.

        Args:
            eager: the step to record.
            device: the GPU.
            stream: the stream to record on; DDP must have been created on it.
            begun: whether steps were taken before, in this process or another.
            compiled: whether to use torch.compile for the step of full batches.
            by_default: whether the user did not ask for it.
            tell: reports why steps are not captured.
        """
        self._eager, self._device, self._begun = eager, device, begun
        self._compiled, self._tell = compiled, tell
        # Ranks record at the same step only if shapes change at the same step. That is certain of
        # rows of tensors, but not of batches that a user's code makes.
        self._wants_rows = by_default and not is_alone()
        self._graphs: dict[Any, _Recording] = {}
        self._side = stream
        self._pool: Any = None
        self._settings: list[dict[str, Any]] = []
        self._rates: list[torch.Tensor] = []
        self.why_not = ""
        """Why steps are not captured; empty if they are."""
        self._give_up(eager.why_not_captured())
        release_before_close(self)

    def release(self) -> None:
        """Forget the recorded steps; the next step is recorded anew."""
        torch.cuda.synchronize(self._device)
        for recording in self._graphs.values():
            recording.graph.reset()
        self._graphs.clear()
        self._pool = None

    @property
    def graphs(self) -> int:
        """Number of recorded steps: one for each form of batches."""
        return len(self._graphs)

    def _give_up(self, reason: str) -> None:
        # All ranks make the same decision: the collectives of a replay match only another replay.
        if least_over_ranks(int(not reason)):
            return
        self.why_not = reason or "the capture failed on another rank"
        self._tell(f"steps are not captured as CUDA graphs: {self.why_not}")

    def compile(self) -> None:
        """Record again, with compiled code."""
        self._graphs.clear()
        self._pool = None
        self._compiled = True

    def take(self, portion: Portion, tally: Tally) -> None:
        """Take one step, and add its sums to the tally."""
        if self._wants_rows and not self.why_not:
            rows = isinstance(portion.batch, Rows)
            self._give_up("" if rows else "batches may differ in shape between ranks")
        self._wants_rows = False
        form = _form_of(portion)
        room = form in self._graphs or len(self._graphs) < FORMS
        if self._begun and not self.why_not and room:
            self._keep_settings()
            if form not in self._graphs and not self.why_not:
                self._capture(form, portion, tally)
        self._begun = True
        recording = None if self.why_not else self._graphs.get(form)
        if recording is None:
            self._eager.take(portion, tally)
            return
        _copy_inputs(portion, recording.static)
        recording.graph.replay()
        tally.add({"count": recording.count})

    def _keep_settings(self) -> None:
        """Detect changed settings: a graph keeps the numbers that it was recorded with."""
        for group, rate in zip(self._eager.optimizer.param_groups, self._rates, strict=False):
            if group["lr"] is not rate:  # replaced, rather than filled as by a scheduler
                rate.fill_(group["lr"])
                group["lr"] = rate
        settings = [
            {name: value for name, value in group.items() if name not in ("params", "lr")}
            for group in self._eager.optimizer.param_groups
        ]
        if self._graphs and settings != self._settings:
            self._give_up("optimizer settings other than the learning rate change")
        self._settings = settings
        self._rates = [group["lr"] for group in self._eager.optimizer.param_groups]

    def _capture(self, form: Any, portion: Portion, tally: Tally) -> None:
        static = replace(
            portion,
            batch=_map_inputs(portion.batch, torch.clone),
            keys=None if portion.keys is None else portion.keys.clone(),
        )
        graph, failure, count = torch.cuda.CUDAGraph(), "", 0.0
        records = False
        # The first form is that of full batches; others are too rare to be worth compiling.
        way = self._eager.compiled() if self._compiled and not self._graphs else nullcontext()
        try:
            with way, undisturbed(self._device), self._put_back(tally):
                self._warm_up(static, tally)
                before, records = tally.samples, True
                with torch.cuda.graph(graph, pool=self._pool, stream=self._side):
                    self._eager.take(static, tally)
                count = tally.samples - before
        except Exception as error:
            if not records and not is_alone():
                raise  # other ranks are in the collectives of the warm-up
            failure = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            _end_recording(self._device)
        self._eager.optimizer.zero_grad(set_to_none=True)
        self._give_up(failure)
        if not self.why_not:
            self._pool = graph.pool()
            self._graphs[form] = _Recording(graph, static, count)

    def _warm_up(self, static: Portion, tally: Tally) -> None:
        ddp = isinstance(self._eager.model, DistributedDataParallel)
        self._side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._side):
            for _ in range(DDP_WARM_UPS if ddp else WARM_UPS):
                self._eager.take(static, tally)
        torch.cuda.current_stream(self._device).wait_stream(self._side)
        self._eager.optimizer.zero_grad(set_to_none=True)  # the graph allocates its own

    @contextmanager
    def _put_back(self, tally: Tally) -> Iterator[None]:
        """Restore what steps change: weights, buffers, the optimizer's state, the tally."""
        moving = [*self._eager.model.parameters(), *self._eager.model.buffers()]
        for state in self._eager.optimizer.state.values():
            moving += [value for value in state.values() if isinstance(value, torch.Tensor)]
        before = [tensor.detach().clone() for tensor in moving]
        with tally.put_back():
            try:
                yield
            finally:
                with torch.no_grad():
                    for tensor, value in zip(moving, before, strict=True):
                        tensor.copy_(value)


def _end_recording(device: torch.device) -> None:
    """Reset the generator, which stays in recording mode after a failed capture."""
    generator = torch.cuda.default_generators[device.index or 0]
    generator.graphsafe_set_state(generator.clone_state())


def _map_inputs(batch: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Apply a function to the inputs that change with each step; of Rows, only the indices."""
    if isinstance(batch, Rows):
        return replace(batch, indices=change(batch.indices))
    return map_tensors(batch, change)


def _inputs_of(portion: Portion) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    _map_inputs(portion.batch, found.append)
    return [*found, portion.keys] if portion.keys is not None else found


def _form_of(portion: Portion) -> Any:
    """Return everything that has to be equal for a replay to be valid."""
    shapes = tuple((tensor.shape, tensor.dtype) for tensor in _inputs_of(portion))
    rest: list[str] = []
    if not isinstance(portion.batch, Rows):
        map_others(portion.batch, rest.append)
    return portion.size, portion.total, shapes, *rest


def _copy_inputs(portion: Portion, static: Portion) -> None:
    for room, tensor in zip(_inputs_of(static), _inputs_of(portion), strict=True):
        room.copy_(tensor, non_blocking=True)
