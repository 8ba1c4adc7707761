"""Atomic checkpoints that block the training loop only for one copy in memory.

`save` copies the state into a reused buffer and returns; a thread writes it to disk. Each rank
writes its part and an index with checksums. Rank 0 then adds a manifest and renames the folder, so
a checkpoint without a manifest does not exist. Ranks coordinate through the folder, because
collectives belong to the training loop. docs/checkpoints.md describes the format.
"""

import contextlib
import hashlib
import os
import random
import shutil
import threading
import time
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from echelon.core.atomic_file import write_atomic
from echelon.core.records import find_record, read_record, to_count
from echelon.errors import EchelonError, NotFoundError, NotPermittedError
from echelon.launch.protocol.rank_shm import find_rank_shm
from echelon.run.background_writer import persist
from echelon.train.agreement import least_over_ranks, number_of_rank_0
from echelon.train.checkpoint_files import Checkpoint, Part, load_checkpoint
from echelon.train.checkpoints.manifest import (
    STORAGE_S,
    CheckpointError,
    Manifest,
    checkpoint_path,
    dumps,
    list_steps,
)
from echelon.train.pending_save import PendingSave
from echelon.train.sharding import Plan, check_own, plan_save
from echelon.train.state import flatten
from echelon.train.tensor_block import TensorBlock


class Checkpointer:
    """Saves and loads the checkpoints of one folder.

    Every rank creates one and makes the same calls on it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        keep: int = 3,
        best: str = "",
        larger_is_better: bool = False,
        token: str = "",
    ) -> None:
        """Prepare the folder.

        Args:
            folder: folder of the checkpoints, shared by all ranks.
            rank: this rank; None takes it from the process group.
            world_size: number of ranks; None takes it from the process group.
            keep: number of recent checkpoints to keep, in addition to the best one.
            best: metric that decides which checkpoint is the best; empty for none.
            larger_is_better: whether a larger value of that metric is better, as for accuracy.
            token: identifies unfinished files of ranks that save together. Ranks in a process group
                agree on one. Without a group, pass the same value to all ranks, and a new one on
                each start.

        Raises:
            NotPermittedError: the folder is not writable.
        """
        grouped = dist.is_initialized()
        self.folder = folder
        self._rank = (dist.get_rank() if grouped else 0) if rank is None else rank
        self._size = (dist.get_world_size() if grouped else 1) if world_size is None else world_size
        self._keep, self._best, self._larger = max(1, keep), best, larger_is_better
        self._plan: Plan | None = None
        self._block: TensorBlock | None = None
        self._pending: PendingSave | None = None
        self._touching: threading.Thread | None = None
        """Provides the memory for the first save."""
        self._cleared = False
        self._saves = 0
        self.last_stall_s = 0.0
        """How long the last `save` blocked the loop."""
        self._beacon = find_rank_shm(os.environ)
        self._token = token or f"{number_of_rank_0(random.SystemRandom().getrandbits(62)):x}"
        self._prepare()

    def _prepare(self) -> None:
        try:
            persist(self._probe, within_s=STORAGE_S)
        except OSError as error:
            raise NotPermittedError(
                f"no checkpoint can be written to {self.folder}: {error.strerror}",
                hint="make the folder writable, or name another",
            ) from error

    def _probe(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        probe = self.folder / f".probe-{os.getpid()}-{self._rank}"
        probe.touch()
        probe.unlink()

    def _clear(self) -> None:
        """Remove unfinished files of an earlier generation that was killed.

        Called on the first save only: a process that only reads must not delete files that another
        one is writing.
        """
        for path in self.folder.glob(".step-*"):
            if not path.name.endswith(self._token):
                shutil.rmtree(path, ignore_errors=True)

    # --- saving ---------------------------------------------------------------------------------

    def save(
        self,
        state: Any,
        *,
        step: int,
        own: Any = None,
        metrics: Mapping[str, float] | None = None,
        wait: bool = False,
    ) -> None:
        """Save the state shared by all ranks, and the state specific to this rank.

        Returns as soon as everything is copied, or with `wait` once it is written. If writing
        fails, the next call of `save` warns about it: a full disk must not end a training that
        could continue. `wait` raises an error: without the last checkpoint, work is lost. A script
        that ends without `wait` waits at its exit, and fails in the same way.

        Raises:
            UsageError: the state contains a value that is neither a tensor nor plain data.
            CheckpointError: with `wait`, it could not be written.
        """
        began = time.monotonic()
        self._settle()
        self._saves += 1
        skeleton, tensors = flatten(state, "state")
        own_skeleton, own_tensors = flatten(own, "own")
        plan = self._plan_for(tensors)
        block = self._copy({**plan.pick(tensors), **check_own(own_tensors)})
        job = Part(
            folder=self.folder,
            # All ranks save equally often, so they agree on this number. It distinguishes two saves
            # of the same step.
            temporary=self.folder / f".step-{step:09}-{self._saves}-{self._token}",
            rank=self._rank,
            block=block,
            offsets=plan.offsets,
            own=own_skeleton,
            manifest=Manifest(
                step=step,
                world_size=self._size,
                metrics=dict(metrics or {}),
                state=skeleton,
                tensors=plan.tensors,
            ),
        )
        self._pending = PendingSave(partial(self._write, job, began))
        self.last_stall_s = time.monotonic() - began
        self._tell_stall(began)
        if wait:
            self.wait()

    def reserve(self, state: Any, *, own: Any = None) -> None:
        """Allocate the memory for saves of such a state now, so that the first one is quick too.

        Call it after the first step, because an optimizer has no state before it.

        Raises:
            UsageError: the state contains a value that is neither a tensor nor plain data.
        """
        self._settle()
        _, tensors = flatten(state, "state")
        _, own_tensors = flatten(own, "own")
        needed = {**self._plan_for(tensors).pick(tensors), **check_own(own_tensors)}
        if self._block is None or not self._block.fits(needed):
            self._block = None  # free it before the new one is allocated
            self._block = TensorBlock(needed)
            self._touching = threading.Thread(
                target=self._block.touch, name="checkpoint", daemon=True
            )
            self._touching.start()

    def _plan_for(self, tensors: Mapping[str, torch.Tensor]) -> Plan:
        """Return the plan of the previous save if it still fits: the loop waits for it."""
        if self._plan is None or not self._plan.fits(tensors):
            self._plan = plan_save(tensors, rank=self._rank, world_size=self._size)
        return self._plan

    def _copy(self, tensors: Mapping[str, torch.Tensor]) -> TensorBlock:
        """Copy into the previous buffer if the tensors fit, which avoids new page faults."""
        if self._block is None or not self._block.fits(tensors):
            self._block = None  # free it before the new one is allocated
            self._block = TensorBlock(tensors)
        self._block.fill(tensors)
        return self._block

    def _write(self, job: Part, began: float) -> CheckpointError | None:
        """Write a checkpoint; return why it could not be written."""
        try:
            if self._rank == 0 and not self._cleared:
                self._clear()
                self._cleared = True
            job.write_part()
            path = job.complete() if self._rank == 0 else None
            self._tell_saved(job.manifest.step, began)
            if path is not None:
                self._retire(job.manifest)
        except Exception as error:  # noqa: BLE001  reported in the loop's thread
            # Without names of temporary files: a failure that repeats must have the same message.
            why = f"[Errno {error.errno}] {error.strerror}" if isinstance(error, OSError) else error
            failed = CheckpointError(
                f"the checkpoint of step {job.manifest.step} could not be written to "
                f"{self.folder}: {why}",
                hint="the complete checkpoints before it are still there",
            )
            if not isinstance(error, (OSError, EchelonError)):
                failed.__cause__ = error  # a bug, perhaps: its traceback is needed
            job.give_up()
            return failed
        return None

    def wait(self) -> None:
        """Wait until the last save is written.

        Raises:
            CheckpointError: it could not be written.
        """
        began = time.monotonic()
        failed = self._join()
        self._tell_stall(began)
        if failed:
            raise failed

    def _settle(self) -> None:
        if failed := self._join():
            warnings.warn(f"{failed.message}; {failed.hint}", RuntimeWarning, stacklevel=3)

    def _join(self) -> CheckpointError | None:
        if self._touching is not None:
            self._touching.join()
            self._touching = None
        pending, self._pending = self._pending, None
        return pending.join() if pending else None

    def _tell_stall(self, began: float) -> None:
        """Report to the agent how long a checkpoint blocked the loop."""
        if self._beacon is not None:
            stall_us = int((time.monotonic() - began) * 1e6)
            self._beacon.stall_us = max(0, self._beacon.stall_us) + stall_us

    def _tell_saved(self, step: int, began: float) -> None:
        if self._beacon is not None:
            self._beacon.save_us = int((time.monotonic() - began) * 1e6)
            self._beacon.saved = step

    def _retire(self, newest: Manifest) -> None:
        """Delete all checkpoints except the newest ones and the best one."""
        if self._best in newest.metrics:
            self._note_best(newest.step, float(newest.metrics[self._best]))
        best, now = self.best_step(), newest.step
        # Later steps are left over from before a fallback, for example because they are damaged.
        later = [step for step in self.steps() if step > now]
        older = [step for step in self.steps() if step <= now][: -self._keep]
        for step in (*older, *later):
            if step != best or step > now:
                path = checkpoint_path(self.folder, step)
                doomed = path.with_name(f".{path.name}-doomed-{self._token}")
                # Rename first, so that a half-deleted checkpoint is never found.
                with contextlib.suppress(OSError):
                    path.rename(doomed)
                    shutil.rmtree(doomed, ignore_errors=True)

    def _note_best(self, step: int, value: float) -> None:
        pointer = self.folder / "best.json"
        try:
            known = float(read_record(pointer)["value"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            known = float("-inf") if self._larger else float("inf")
        if value > known if self._larger else value < known:
            record = {"step": step, "metric": self._best, "value": value}
            write_atomic(pointer, dumps(record) + "\n")

    # --- loading --------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, in ascending order."""
        return list_steps(self.folder)

    def best_step(self) -> int | None:
        """Return the step of the best checkpoint; None if none is recorded."""
        return to_count(find_record(self.folder / "best.json").get("step"))

    def load(self, *, step: int | None = None, like: Any = None) -> Checkpoint | None:
        """Return the newest intact checkpoint, or that of `step`; None if there is none.

        All ranks load the same one. Damaged checkpoints are skipped with a warning.

        Args:
            step: the step whose checkpoint to load; None loads the newest.
            like: the model and the optimizer by their keys in the state, such as
                `{"model": model, "optimizer": optimizer}`. Where these have DTensors, each rank
                loads only its own part, on any mesh. All else is loaded whole on every rank.

        Raises:
            CheckpointError: the checkpoint of `step` is damaged.
            NotFoundError: there is no checkpoint of `step`.
            UsageError: the checkpoint does not match `like`; the message lists what differs.
        """
        if step is not None:
            return self._load_step(step, like)
        newest = None
        while True:
            found = self._newest_whole(like, newest)
            number = -1 if found is None else found.step
            agreed = least_over_ranks(number)
            if agreed == -least_over_ranks(-number):
                break
            # Another rank could not read this one: fall back to the newest that all ranks can read.
            newest = agreed
        if found is not None and self._beacon is not None:
            self._beacon.saved = agreed
        return found

    def _load_step(self, step: int, like: Any) -> Checkpoint:
        path = checkpoint_path(self.folder, step)
        if not path.is_dir():
            known = ", ".join(map(str, self.steps())) or "none"
            raise NotFoundError(
                f"there is no checkpoint of step {step} in {self.folder}",
                hint=f"there are: {known}",
            )
        found, damage = None, None
        try:
            found = load_checkpoint(path, rank=self._rank, world_size=self._size, like=like)
        except CheckpointError as error:
            damage = error
        if least_over_ranks(int(damage is None)) and found is not None:
            return found
        raise damage or CheckpointError(
            f"another rank cannot read the checkpoint {path}", hint="see the logs of the others"
        )

    def _newest_whole(self, like: Any, newest: int | None) -> Checkpoint | None:
        for step in reversed(self.steps()):
            if newest is not None and step > newest:
                continue
            path = checkpoint_path(self.folder, step)
            try:
                return load_checkpoint(path, rank=self._rank, world_size=self._size, like=like)
            except CheckpointError as error:
                warnings.warn(f"{error}; the one before it is tried", RuntimeWarning, stacklevel=3)
        return None


def open_in_run(environ: Mapping[str, str]) -> Checkpointer:
    """Return the Checkpointer of a rank's run; ranks need no process group for it."""
    # All ranks of a generation have the same values, and the next generation has others.
    names = ("MASTER_ADDR", "MASTER_PORT", "ECHELON_GENERATION", "SLURM_JOB_ID")
    start = "|".join(environ.get(name, "") for name in names)
    return Checkpointer(
        Path(environ["ECHELON_RUN_DIR"], "checkpoints"),
        rank=int(environ["RANK"]),
        world_size=int(environ["WORLD_SIZE"]),
        token=hashlib.sha256(start.encode()).hexdigest()[:12],
    )
