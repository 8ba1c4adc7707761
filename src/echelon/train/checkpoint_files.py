"""The files of one checkpoint: write its parts, complete it, verify it, read it.

docs/checkpoints.md describes the format. This module is independent of other checkpoints and of the
training loop.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from echelon.core.atomic_file import sync_folder, write_atomic
from echelon.core.records import open_regular, read_record
from echelon.errors import EchelonError, UnavailableError
from echelon.run.background_writer import persist
from echelon.train.state import dumps, flatten, unflatten
from echelon.train.tensor_block import TensorBlock

FORMAT = "echelon checkpoint"
VERSION = 1
GATHER_S = 600.0
"""How long rank 0 waits for the other ranks' parts before it abandons a checkpoint."""
STORAGE_S = 30.0
"""How long to retry while storage is unavailable. That is not damage, so an older checkpoint must
not be used instead."""
_NAME = re.compile(r"step-([0-9]{9,18})")


class CheckpointError(EchelonError):
    """A checkpoint that is damaged or has an unknown format."""

    exit_code = 66


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint that was loaded and verified."""

    step: int
    state: Any
    own: Any
    """This rank's own state; None if it was saved with a different number of ranks."""
    metrics: Mapping[str, float]
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One rank's part in writing one checkpoint."""

    folder: Path
    temporary: Path
    rank: int
    world_size: int
    block: TensorBlock
    own: Any
    manifest: Mapping[str, Any]

    def write_part(self) -> None:
        """Write this rank's tensors, then atomically the record that they are complete."""
        self.temporary.mkdir(exist_ok=True, mode=0o700)
        name = f"shard-{self.rank:05}.safetensors"
        digest, size = self.block.write(self.temporary / name)
        record = {"file": name, "sha256": digest, "bytes": size, "own": self.own}
        write_atomic(self.temporary / f"shard-{self.rank:05}.json", dumps(record))

    def complete(self) -> Path:
        """Wait for all parts, write the manifest, and rename the folder to its final name."""
        records = [self.temporary / f"shard-{rank:05}.json" for rank in range(self.world_size)]
        deadline = time.monotonic() + GATHER_S
        while not all(record.exists() for record in records):
            if failed := list(self.temporary.glob("*.failed")):
                raise UnavailableError(
                    f"rank {int(failed[0].stem.removeprefix('shard-'))} could not write its part",
                    hint="see its log",
                )
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
        manifest["sha256"] = _digest(manifest)
        write_atomic(self.temporary / "manifest.json", dumps(manifest) + "\n")
        final = checkpoint_path(self.folder, int(self.manifest["step"]))
        # An earlier generation reached this step too. Rename its checkpoint before deleting it, so
        # that it is never seen half deleted.
        doomed = self.temporary.with_name(f"{self.temporary.name}-doomed")
        if final.exists():
            final.rename(doomed)
        self.temporary.rename(final)
        sync_folder(self.folder)
        shutil.rmtree(doomed, ignore_errors=True)
        return final

    def give_up(self) -> None:
        """Remove what was written; rank 0 notices immediately and stops waiting."""
        if self.rank == 0:
            shutil.rmtree(self.temporary, ignore_errors=True)
            return
        with contextlib.suppress(OSError):
            (self.temporary / f"shard-{self.rank:05}.safetensors").unlink(missing_ok=True)
            (self.temporary / f"shard-{self.rank:05}.failed").touch()


def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:09}"


def step_of(path: Path) -> int | None:
    """Return the step of a checkpoint's folder; None if it is not a checkpoint."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def load_checkpoint(path: Path, *, rank: int = 0, world_size: int = 1) -> Checkpoint:
    """Verify every byte of a checkpoint, then load it.

    Raises:
        CheckpointError: it is damaged or has an unknown format.
    """
    manifest = read_manifest(path)
    tensors: dict[str, torch.Tensor] = {}
    own = None
    for writer, shard in enumerate(manifest["shards"]):
        loaded = _load_shard(path, shard)
        tensors |= {name: tensor for name, tensor in loaded.items() if name.startswith("state")}
        if writer == rank and manifest["world_size"] == world_size:
            own = _restore(path, shard.get("own"), loaded)
    return Checkpoint(
        step=manifest["step"],
        state=_restore(path, manifest["state"], tensors),
        own=own,
        metrics=manifest["metrics"],
        path=path,
    )


def _load_shard(path: Path, shard: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    file = path / Path(str(shard.get("file"))).name
    try:
        whole = persist(partial(_is_whole, file, shard), within_s=STORAGE_S)
    except OSError as error:
        raise _damaged(path, f"{file.name}: {error.strerror}") from error
    if not whole:
        raise _damaged(path, f"{file.name} is not what was written")
    try:
        return load_file(file)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        raise _damaged(path, f"{file.name} is no safetensors file ({error})") from error


def _is_whole(file: Path, shard: Mapping[str, Any]) -> bool:
    with open_regular(file) as content:
        if os.fstat(content.fileno()).st_size != shard.get("bytes"):
            return False
        return hashlib.file_digest(content, "sha256").hexdigest() == shard.get("sha256")


def _restore(path: Path, skeleton: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    try:
        return unflatten(skeleton, tensors)
    except KeyError as error:
        raise _damaged(path, f"no shard has the tensor {error}") from error
    except (TypeError, ValueError) as error:
        raise _damaged(path, f"its state cannot be put together ({error})") from error


def read_manifest(path: Path) -> dict[str, Any]:
    """Return a checkpoint's manifest, which has the fields that a loader needs.

    Raises:
        CheckpointError: it is damaged or has an unknown format.
    """
    try:
        manifest = persist(partial(read_record, path / "manifest.json"), within_s=STORAGE_S)
    except (OSError, ValueError) as error:
        raise _damaged(path, f"its manifest cannot be read ({error})") from error
    form, version = manifest.get("format"), manifest.get("version")
    if form == FORMAT and isinstance(version, int) and version != VERSION:
        raise CheckpointError(
            f"the checkpoint {path} is of version {version}, and this is version {VERSION}",
            hint="load it with the Echelon that wrote it",
        )
    # Older checkpoints have no digest of the manifest itself.
    if (digest := manifest.pop("sha256", None)) is not None and digest != _digest(manifest):
        raise _damaged(path, "its manifest is not what was written")
    match manifest:
        case {"shards": [*shards], "metrics": dict(), "world_size": int(), "step": int(step)}:
            plain = "state" in manifest and all(isinstance(shard, dict) for shard in shards)
            if (form, version) == (FORMAT, VERSION) and plain and step == step_of(path):
                return manifest
    raise _damaged(path, "its manifest is not whole, or of another step")


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(dumps(manifest).encode()).hexdigest()


def _damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint {path} is damaged: {why}", hint="remove it, or restore it from a copy"
    )


def export_weights(path: Path, target: Path, *, key: str = "model") -> None:
    """Write the model of a checkpoint as one safetensors file, for other programs.

    Raises:
        CheckpointError: the checkpoint is damaged or has no entry `key`.
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
