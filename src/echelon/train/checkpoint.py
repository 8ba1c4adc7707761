"""Checkpoints that are whole or not there, and cost the training loop one copy in memory.

`save` copies the state into buffers that are kept from the last time, and the loop goes on; a
thread writes. Each rank writes its part, with its checksum; rank 0 completes the checkpoint with a
manifest and one rename, so one without a manifest does not exist. Ranks meet in the folder, not in
collectives, which belong to the training loop. docs/checkpoints.md has the format.
"""

import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from echelon.core.rundir import sync_folder, write_atomic
from echelon.errors import EchelonError, NotFoundError, NotPermittedError, UnavailableError
from echelon.train.state import assign_shards, dumps, flatten, unflatten

FORMAT = "echelon checkpoint"
VERSION = 1
GATHER_S = 600.0
"""How long rank 0 waits for the other ranks' parts before it gives a checkpoint up."""
_NAME = re.compile(r"step-(\d{9,})")


class CheckpointError(EchelonError):
    """A checkpoint that is not whole, or not ours."""

    exit_code = 66


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One that was loaded, and verified."""

    step: int
    state: Any
    own: Any
    """This rank's own state; None when it was saved by another number of ranks."""
    metrics: Mapping[str, float]
    path: Path


class Checkpointer:
    """Saves and loads the checkpoints of one folder. All ranks make one, and call it alike."""

    def __init__(
        self,
        folder: Path,
        *,
        rank: int = 0,
        world_size: int = 1,
        keep: int = 3,
        best: str = "",
        larger_is_better: bool = False,
    ) -> None:
        """Prepare the folder.

        Args:
            folder: where checkpoints are; all ranks share it.
            rank: this rank.
            world_size: how many there are.
            keep: how many of the newest stay; the best one stays besides.
            best: the metric that decides which is best; none when empty.
            larger_is_better: whether more of it is better, as with accuracy.

        Raises:
            NotPermittedError: nothing can be written there.
        """
        self.folder, self._rank, self._size = folder, rank, world_size
        self._keep, self._best, self._larger = max(1, keep), best, larger_is_better
        self._buffers: dict[str, torch.Tensor] = {}
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self.last_stall_s = 0.0
        """How long the last `save` kept the loop waiting."""
        self._token = _agree_on_token(world_size)
        self._prepare()

    def _prepare(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            probe = self.folder / f".probe-{os.getpid()}-{self._rank}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise NotPermittedError(
                f"no checkpoint can be written to {self.folder}: {error.strerror}",
                hint="make the folder writable, or name another",
            ) from error
        if self._rank == 0:  # what an earlier generation was writing when it was killed
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
        self.wait()
        skeleton, tensors = flatten(state, "state")
        own_skeleton, own_tensors = flatten(own, "own")
        sizes = {name: t.numel() * t.element_size() for name, t in tensors.items()}
        mine = assign_shards(sizes, self._size)[self._rank]
        part = self._copy({**{name: tensors[name] for name in mine}, **own_tensors})
        manifest = {"step": step, "state": skeleton, "metrics": dict(metrics or {})}
        job = _Write(
            folder=self.folder,
            temporary=self.folder / f".step-{step:09}-{self._token}",
            rank=self._rank,
            world_size=self._size,
            tensors=part,
            own=own_skeleton,
            manifest=manifest,
        )
        self._thread = threading.Thread(
            target=self._write, args=(job,), name="checkpoint", daemon=True
        )
        self._thread.start()
        self.last_stall_s = time.monotonic() - began
        if wait:
            self.wait()

    def _copy(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copy into buffers kept from the last time: the page faults are paid once."""
        if not tensors:
            return {}
        kept = {}
        for name, tensor in tensors.items():
            buffer = self._buffers.get(name)
            if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            kept[name] = buffer
        self._buffers = kept
        sources = [tensor.detach() for tensor in tensors.values()]
        torch._foreach_copy_(list(kept.values()), sources, non_blocking=True)
        if any(tensor.is_cuda for tensor in sources):
            torch.cuda.current_stream().synchronize()
        return kept

    def _write(self, job: "_Write") -> None:
        try:
            job.write_part()
            if self._rank == 0:
                path = job.complete()
                self._retire(path)
        except Exception as error:  # noqa: BLE001  it is told where the loop hears it
            self._error = error
            if self._rank == 0:
                shutil.rmtree(job.temporary, ignore_errors=True)

    def wait(self) -> None:
        """Wait until nothing is being written; warn when it could not be."""
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

    def _retire(self, newest: Path) -> None:
        """Keep the newest and the best, and let go of the rest."""
        if self._best:
            self._note_best(newest)
        best = self.best_step()
        for step in self.steps()[: -self._keep]:
            if step != best:
                path = checkpoint_path(self.folder, step)
                doomed = path.with_name(f".{path.name}-doomed-{self._token}")
                # Gone by name at once: nobody finds one that is half deleted.
                with contextlib.suppress(OSError):
                    path.rename(doomed)
                    shutil.rmtree(doomed, ignore_errors=True)

    def _note_best(self, path: Path) -> None:
        metrics = _read_manifest(path)["metrics"]
        if self._best not in metrics:
            return
        value, pointer = float(metrics[self._best]), self.folder / "best.json"
        try:
            known = float(json.loads(pointer.read_text())["value"])
        except (OSError, ValueError, KeyError, TypeError):
            known = float("-inf") if self._larger else float("inf")
        if value > known if self._larger else value < known:
            record = {"step": _step_of(path), "metric": self._best, "value": value}
            write_atomic(pointer, dumps(record) + "\n")

    # --- loading --------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """Return the steps of which there are checkpoints, the oldest first."""
        if not self.folder.is_dir():
            return []
        found = [_step_of(path) for path in self.folder.iterdir() if _NAME.fullmatch(path.name)]
        return sorted(found)

    def best_step(self) -> int | None:
        try:
            return int(json.loads((self.folder / "best.json").read_text())["step"])
        except (OSError, ValueError, KeyError, TypeError):
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
        while True:
            found = self._newest_whole()
            agreed = _agree_on_least(-1 if found is None else found.step, self._size)
            if agreed < 0:
                return None
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


# --- one checkpoint's files -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Write:
    """One rank's part in writing one checkpoint."""

    folder: Path
    temporary: Path
    rank: int
    world_size: int
    tensors: Mapping[str, torch.Tensor]
    own: Any
    manifest: Mapping[str, Any]

    def write_part(self) -> None:
        """Write this rank's tensors, then, with one rename, the record that they are whole."""
        self.temporary.mkdir(exist_ok=True, mode=0o700)
        name = f"shard-{self.rank:05}.safetensors"
        path = self.temporary / name
        save_file(dict(self.tensors), path)
        digest = _checksum(path, sync=True)
        record = {"file": name, "sha256": digest, "bytes": path.stat().st_size, "own": self.own}
        write_atomic(self.temporary / f"shard-{self.rank:05}.json", dumps(record))

    def complete(self) -> Path:
        """Wait for all parts, write the manifest, and give the checkpoint its name."""
        records = [self.temporary / f"shard-{rank:05}.json" for rank in range(self.world_size)]
        deadline = time.monotonic() + GATHER_S
        while not all(record.exists() for record in records):
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"not all ranks wrote their part within {GATHER_S:g} s",
                    hint="see the logs of the others",
                )
            time.sleep(0.01)
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            **self.manifest,
            "world_size": self.world_size,
            "shards": [json.loads(record.read_text()) for record in records],
        }
        write_atomic(self.temporary / "manifest.json", dumps(manifest) + "\n")
        final = checkpoint_path(self.folder, int(self.manifest["step"]))
        if final.exists():  # written before, by a generation that got further than its successor
            shutil.rmtree(final)
        self.temporary.rename(final)
        sync_folder(self.folder)
        return final


def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:09}"


def _step_of(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None, path
    return int(match[1])


def load_checkpoint(path: Path, *, rank: int = 0, world_size: int = 1) -> Checkpoint:
    """Load one checkpoint, and verify every byte of it first.

    Raises:
        CheckpointError: it is damaged, or of a format that we do not know.
    """
    manifest = _read_manifest(path)
    tensors: dict[str, torch.Tensor] = {}
    for shard in manifest["shards"]:
        file = path / Path(str(shard["file"])).name
        try:
            size, digest = file.stat().st_size, _checksum(file)
        except OSError as error:
            raise _damaged(path, f"{file.name}: {error.strerror}") from error
        if (size, digest) != (shard["bytes"], shard["sha256"]):
            raise _damaged(path, f"{file.name} is not what was written")
        tensors |= {n: tensor for n, tensor in load_file(file).items() if n.startswith("state")}
    own = None
    if manifest["world_size"] == world_size:
        shard = manifest["shards"][rank]
        own = unflatten(shard["own"], load_file(path / Path(str(shard["file"])).name))
    return Checkpoint(
        step=int(manifest["step"]),
        state=unflatten(manifest["state"], tensors),
        own=own,
        metrics=manifest["metrics"],
        path=path,
    )


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        known = (manifest["format"], manifest["version"]) == (FORMAT, VERSION)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, f"its manifest cannot be read ({error})") from error
    if not known:
        raise CheckpointError(
            f"the checkpoint {path} is of format {manifest['format']} {manifest['version']}, and "
            f"this is version {VERSION}",
            hint="load it with the Echelon that wrote it",
        )
    return dict(manifest)


def _damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint {path} is damaged: {why}", hint="remove it, or restore it from a copy"
    )


def _checksum(path: Path, *, sync: bool = False) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if sync:
            os.fsync(file.fileno())
    return digest


def export_weights(path: Path, target: Path, *, key: str = "model") -> None:
    """Write the model of a checkpoint as one safetensors file, for others to load.

    Raises:
        CheckpointError: the checkpoint is damaged, or has nothing of that name.
    """
    state = load_checkpoint(path).state
    if not isinstance(state, Mapping) or key not in state:
        raise CheckpointError(
            f"the checkpoint {path} has no '{key}'",
            hint=f"there are: {', '.join(state) if isinstance(state, Mapping) else 'none'}",
        )
    _, tensors = flatten(state[key], "")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    save_file({name.removeprefix("/"): t for name, t in tensors.items()}, temporary)
    temporary.rename(target)


def load_foreign(path: Path) -> Any:
    """Load a file of `torch.save`, by others: data alone, and nothing that could run.

    Raises:
        CheckpointError: it is none, or holds more than data.
    """
    warnings.warn(
        f"{path} was written by torch.save: it is not verified, and only its data are loaded",
        RuntimeWarning,
        stacklevel=2,
    )
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"{path} cannot be loaded as data: {error}",
            hint="save a state_dict() of tensors and plain values",
        ) from error


# --- what ranks have to agree on --------------------------------------------------------------


def _agree_on_token(world_size: int) -> str:
    """Return a text that is one generation's own, and the same on all its ranks."""
    number = torch.tensor([random.SystemRandom().getrandbits(62)])
    if world_size > 1 and dist.is_initialized():
        number = number.to(_collective_device())
        dist.broadcast(number, src=0)
    return f"{int(number.item()):x}"


def _agree_on_least(value: int, world_size: int) -> int:
    number = torch.tensor([value])
    if world_size > 1 and dist.is_initialized():
        number = number.to(_collective_device())
        dist.all_reduce(number, op=dist.ReduceOp.MIN)
    return int(number.item())


def _collective_device() -> str:
    return "cuda" if dist.get_backend() == "nccl" else "cpu"
