"""The files of one checkpoint: write its parts, complete it, load it.

docs/checkpoints.md describes the format. This module is independent of other checkpoints and of the
training loop.
"""

import contextlib
import hashlib
import shutil
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from echelon.core.atomic_file import sync_folder, write_atomic
from echelon.core.frozen import frozen
from echelon.errors import UnavailableError, UsageError
from echelon.train.checkpoints.manifest import (
    MANIFEST,
    CheckpointError,
    Manifest,
    PartIndex,
    checkpoint_path,
    damaged,
    dumps,
    part_path,
)
from echelon.train.checkpoints.reading import Reader
from echelon.train.checkpoints.safetensors_file import TensorType
from echelon.train.sharding import find_targets
from echelon.train.state import unflatten
from echelon.train.tensor_block import DTYPES, TensorBlock

GATHER_S = 600.0
"""How long rank 0 waits for the other ranks' parts before it abandons a checkpoint."""
_THREADS = 4
"""Threads of a rank that read and verify."""


@frozen
class Checkpoint:
    """A checkpoint that was loaded and verified."""

    step: int
    state: Any
    own: Any
    """This rank's own state; None if it was saved with a different number of ranks."""
    metrics: Mapping[str, float]
    path: Path
    bytes_read: int = 0
    """How many bytes of tensors this rank read."""


@frozen
class Part:
    """One rank's part in writing one checkpoint."""

    folder: Path
    temporary: Path
    rank: int
    block: TensorBlock
    offsets: Mapping[str, tuple[int, ...]]
    own: Any
    manifest: Manifest

    def write_part(self) -> None:
        """Write this rank's tensors, then atomically the index that says that they are complete."""
        try:
            self._write_files()
        except FileNotFoundError as error:
            if not self.rank or self.temporary.exists():
                raise
            hint = "see the log of rank 0"
            raise UnavailableError("rank 0 has given it up", hint=hint) from error

    def _write_files(self) -> None:
        self.temporary.mkdir(exist_ok=True, mode=0o700)
        (self.temporary / f"state-{self._digest_state()}").touch()
        path = part_path(self.temporary, self.rank)
        stored, size, header = self.block.write(path)
        index = PartIndex(
            rank=self.rank,
            world_size=self.manifest.world_size,
            bytes=size,
            header=header,
            tensors=stored,
            offsets=self.offsets,
            own=self.own,
        )
        # Nothing after it: as soon as rank 0 sees the last index, it syncs and renames the folder.
        write_atomic(path.with_suffix(".json"), index.render(), sync=False)

    def _digest_state(self) -> str:
        """Return a digest of all names, shapes and placements, which all ranks have in common."""
        told = {
            name: (one.type.dtype, one.type.shape, one.layout.mesh, one.layout.placements)
            for name, one in self.manifest.tensors.items()
        }
        return hashlib.sha256(dumps(told).encode()).hexdigest()[:16]

    def complete(self) -> Path:
        """Wait for all parts, write the manifest, and rename the folder to its final name."""
        self._wait_for_parts()
        write_atomic(self.temporary / MANIFEST, self.manifest.render())
        final = checkpoint_path(self.folder, self.manifest.step)
        # An earlier generation reached this step too. Rename its checkpoint before deleting it, so
        # that it is never seen half deleted.
        doomed = self.temporary.with_name(f"{self.temporary.name}-doomed")
        if final.exists():
            final.rename(doomed)
        self.temporary.rename(final)
        sync_folder(self.folder)
        shutil.rmtree(doomed, ignore_errors=True)
        return final

    def _wait_for_parts(self) -> None:
        """Look at names only: no rank reads what all the others have written."""
        ranks = range(self.manifest.world_size)
        expected = {part_path(self.temporary, rank).with_suffix(".json").name for rank in ranks}
        deadline = time.monotonic() + GATHER_S
        while True:
            began = time.monotonic()
            names = [path.name for path in self.temporary.iterdir()]
            if failed := [name for name in names if name.endswith(".failed")]:
                raise UnavailableError(
                    f"rank {int(failed[0][6:-7])} could not write its part", hint="see its log"
                )
            states = [name for name in names if name.startswith("state-")]
            if len(states) > 1:
                raise UsageError(
                    "the ranks save different states: names, shapes or placements of tensors "
                    "differ",
                    hint="save the same state on every rank, and what belongs to one in own=",
                )
            if expected <= set(names):
                break
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"not all ranks wrote their part within {GATHER_S:g} s",
                    hint="see the logs of the others",
                )
            # Listing thousands of files takes a while: do little else than waiting.
            time.sleep(max(0.01, 10 * (time.monotonic() - began)))
        for name in states:
            (self.temporary / name).unlink()

    def give_up(self) -> None:
        """Remove what was written; rank 0 notices immediately and stops waiting."""
        if self.rank == 0:
            shutil.rmtree(self.temporary, ignore_errors=True)
            return
        path = part_path(self.temporary, self.rank)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            path.with_suffix(".failed").touch()


def load_checkpoint(
    path: Path, *, rank: int = 0, world_size: int = 1, like: Any = None
) -> Checkpoint:
    """Load a checkpoint, or of DTensors in `like` this rank's part, and verify what is read.

    Raises:
        CheckpointError: it is damaged or has an unknown format.
        UsageError: names or shapes in `like` differ from it.
    """
    reader = Reader(path, threads=min(_THREADS, torch.get_num_threads()))
    manifest = reader.manifest
    targets = find_targets(path, manifest, like, rank=rank)
    tensors, wanted = {}, {}
    for name, target in targets.items():
        kind = TensorType(manifest.tensors[name].type.dtype, target.box.shape)
        tensors[name], memory = _allocate(kind)
        wanted[name] = target.box, memory
    reader.read(wanted)
    own = None
    if manifest.world_size == world_size:
        own = _load_own(reader, rank)
    finished = {
        name: targets[name].finish(tensor, manifest.tensors[name].type.shape)
        for name, tensor in tensors.items()
    }
    return Checkpoint(
        step=manifest.step,
        state=_restore(path, manifest.state, finished),
        own=own,
        metrics=manifest.metrics,
        path=path,
        bytes_read=reader.bytes_read,
    )


def _load_own(reader: Reader, rank: int) -> Any:
    part = reader.part(rank)
    tensors, wanted = {}, {}
    for name, stored in part.tensors.items():
        if name not in part.offsets:
            tensors[name], wanted[name] = _allocate(stored.type)
    reader.read_own(rank, wanted)
    return _restore(reader.path, part.own, tensors)


def _allocate(kind: TensorType) -> tuple[torch.Tensor, memoryview]:
    """Return a tensor that is not filled yet, and its memory."""
    memory = torch.empty(kind.nbytes, dtype=torch.uint8)
    return memory.view(DTYPES[kind.dtype]).view(kind.shape), memory.numpy().data


def _restore(path: Path, skeleton: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    try:
        return unflatten(skeleton, tensors)
    except KeyError as error:
        raise damaged(path, f"no shard has the tensor {error}") from error
    except (TypeError, ValueError) as error:
        raise damaged(path, f"its state cannot be put together ({error})") from error


def load_foreign(path: Path) -> Any:
    """Load a file that another program wrote with `torch.save`; never runs code from it.

    Raises:
        CheckpointError: it is not such a file, or contains more than data.
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
