"""Checkpoints that are whole or not there, and cost the training loop one copy in memory.

`save` copies the state into memory that is kept from the last time, and the loop goes on; a thread
writes. Each rank writes its part, with its checksum; rank 0 completes the checkpoint with a
manifest and one rename, so one without a manifest does not exist. Ranks meet in the folder, not in
collectives, which belong to the training loop. docs/checkpoints.md has the format.
"""

import contextlib
import os
import random
import shutil
import threading
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from echelon.core.atomic_file import write_atomic
from echelon.core.records import read_record, to_count
from echelon.errors import NotFoundError, NotPermittedError
from echelon.launch.protocol.rank_shm import find_rank_shm
from echelon.run.background_writer import persist
from echelon.train.agreement import least_over_ranks, number_of_rank_0
from echelon.train.checkpoint_files import (
    STORAGE_S,
    Checkpoint,
    CheckpointError,
    Part,
    checkpoint_path,
    load_checkpoint,
    read_manifest,
    step_of,
)
from echelon.train.state import assign_shards, dumps, flatten
from echelon.train.tensor_block import TensorBlock


class Checkpointer:
    """Saves and loads the checkpoints of one folder. All ranks make one, and call it alike."""

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
            folder: where checkpoints are; all ranks share it.
            rank: this rank; the process group's when None.
            world_size: how many there are; likewise.
            keep: how many of the newest stay; the best one stays besides.
            best: the metric that decides which is best; none when empty.
            larger_is_better: whether more of it is better, as with accuracy.
            token: marks unfinished files of ranks that save together. Ranks with a process group
                agree on one; without a group, give all ranks the same, and each start another.

        Raises:
            NotPermittedError: nothing can be written there.
        """
        grouped = dist.is_initialized()
        self.folder = folder
        self._rank = (dist.get_rank() if grouped else 0) if rank is None else rank
        self._size = (dist.get_world_size() if grouped else 1) if world_size is None else world_size
        self._keep, self._best, self._larger = max(1, keep), best, larger_is_better
        self._block: TensorBlock | None = None
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._cleared = False
        self._saves = 0
        self.last_stall_s = 0.0
        """How long the last `save` kept the loop waiting."""
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
        """Remove what an earlier generation was writing when it was killed.

        Not before the first save: who only reads takes nothing away from one that writes.
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
        """Save a state that is the same on all ranks, and what is a rank's own.

        Returns as soon as everything is copied; a failure to write is told by the next call, and
        by `wait`, as a warning: a full disk must not end a training that could go on.

        Raises:
            UsageError: the state holds something that is no data.
        """
        began = time.monotonic()
        self._settle()
        self._saves += 1
        skeleton, tensors = flatten(state, "state")
        own_skeleton, own_tensors = flatten(own, "own")
        sizes = {name: t.numel() * t.element_size() for name, t in tensors.items()}
        mine = assign_shards(sizes, self._size)[self._rank]
        block = self._copy({**{name: tensors[name] for name in mine}, **own_tensors})
        manifest = {"step": step, "state": skeleton, "metrics": dict(metrics or {})}
        job = Part(
            folder=self.folder,
            # All ranks save equally often, so they agree on the number; two of one step are two.
            temporary=self.folder / f".step-{step:09}-{self._saves}-{self._token}",
            rank=self._rank,
            world_size=self._size,
            block=block,
            own=own_skeleton,
            manifest=manifest,
        )
        self._thread = threading.Thread(
            target=self._write, args=(job, began), name="checkpoint", daemon=True
        )
        self._thread.start()
        self.last_stall_s = time.monotonic() - began
        self._tell_stall(began)
        if wait:
            self.wait()

    def _copy(self, tensors: Mapping[str, torch.Tensor]) -> TensorBlock:
        """Copy into the memory of the last time, if it fits: its page faults are paid once."""
        if self._block is None or not self._block.fits(tensors):
            self._block = None  # not both at once
            self._block = TensorBlock(tensors)
        self._block.fill(tensors)
        return self._block

    def _write(self, job: Part, began: float) -> None:
        try:
            if self._rank == 0 and not self._cleared:
                self._clear()
                self._cleared = True
            job.write_part()
            path = job.complete() if self._rank == 0 else None
            self._tell_saved(int(job.manifest["step"]), began)
            if path is not None:
                self._retire(path)
        except Exception as error:  # noqa: BLE001  it is told where the loop hears it
            self._error = error
            job.give_up()

    def wait(self) -> None:
        """Wait until nothing is being written; warn when it could not be."""
        began = time.monotonic()
        self._settle()
        self._tell_stall(began)

    def _settle(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            warnings.warn(
                f"a checkpoint could not be written to {self.folder}: {error}; the one before it "
                "is still there",
                RuntimeWarning,
                stacklevel=3,
            )

    def _tell_stall(self, began: float) -> None:
        """Tell the agent for how long a checkpoint has held up the loop."""
        if self._beacon is not None:
            stall_us = int((time.monotonic() - began) * 1e6)
            self._beacon.stall_us = max(0, self._beacon.stall_us) + stall_us

    def _tell_saved(self, step: int, began: float) -> None:
        if self._beacon is not None:
            self._beacon.save_us = int((time.monotonic() - began) * 1e6)
            self._beacon.saved = step

    def _retire(self, newest: Path) -> None:
        """Keep the newest and the best, and let go of the rest."""
        if self._best:
            self._note_best(newest)
        best, now = self.best_step(), step_of(newest)
        assert now is not None
        # Later ones are of a time that was gone back on, because they were damaged perhaps.
        later = [step for step in self.steps() if step > now]
        older = [step for step in self.steps() if step <= now][: -self._keep]
        for step in (*older, *later):
            if step != best or step > now:
                path = checkpoint_path(self.folder, step)
                doomed = path.with_name(f".{path.name}-doomed-{self._token}")
                # Gone by name at once: nobody finds one that is half deleted.
                with contextlib.suppress(OSError):
                    path.rename(doomed)
                    shutil.rmtree(doomed, ignore_errors=True)

    def _note_best(self, path: Path) -> None:
        metrics = read_manifest(path)["metrics"]
        if self._best not in metrics:
            return
        value, pointer = float(metrics[self._best]), self.folder / "best.json"
        try:
            known = float(read_record(pointer)["value"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            known = float("-inf") if self._larger else float("inf")
        if value > known if self._larger else value < known:
            record = {"step": step_of(path), "metric": self._best, "value": value}
            write_atomic(pointer, dumps(record) + "\n")

    # --- loading --------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """Return the steps of which there are checkpoints, the oldest first."""
        if not self.folder.is_dir():
            return []
        found = [step_of(path) for path in self.folder.iterdir()]
        return sorted(step for step in found if step is not None)

    def best_step(self) -> int | None:
        try:
            return to_count(read_record(self.folder / "best.json").get("step"))
        except (OSError, ValueError):
            return None

    def load(self, *, step: int | None = None) -> Checkpoint | None:
        """Return the newest checkpoint that is whole, or that of a step; None when there is none.

        All ranks load the same. What is damaged is passed over with a warning, never loaded.

        Raises:
            CheckpointError: the one that was asked for is damaged.
            NotFoundError: it is not there.
        """
        if step is not None:
            path = checkpoint_path(self.folder, step)
            if not path.is_dir():
                known = ", ".join(map(str, self.steps())) or "none"
                raise NotFoundError(
                    f"there is no checkpoint of step {step} in {self.folder}",
                    hint=f"there are: {known}",
                )
            return load_checkpoint(path, rank=self._rank, world_size=self._size)
        found = self._newest_whole()
        agreed = least_over_ranks(-1 if found is None else found.step)
        if agreed < 0:
            return None
        if self._beacon is not None:
            self._beacon.saved = agreed
        if found is not None and found.step == agreed:
            return found
        # Another rank could not read ours: all fall back to what all have.
        path = checkpoint_path(self.folder, agreed)
        return load_checkpoint(path, rank=self._rank, world_size=self._size)

    def _newest_whole(self) -> Checkpoint | None:
        for step in reversed(self.steps()):
            path = checkpoint_path(self.folder, step)
            try:
                return load_checkpoint(path, rank=self._rank, world_size=self._size)
            except CheckpointError as error:
                warnings.warn(f"{error}; the one before it is tried", RuntimeWarning, stacklevel=3)
        return None
