"""The records of a checkpoint: its manifest, and the index of each part.

Both are JSON with a SHA-256 of themselves. docs/checkpoints.md describes them.
"""

import hashlib
import json
import operator
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from echelon.core.frozen import frozen
from echelon.core.records import read_record, to_count
from echelon.errors import EchelonError
from echelon.run.background_writer import persist
from echelon.train.checkpoints.layout import Box, Layout
from echelon.train.checkpoints.safetensors_file import Stored, TensorType, to_type

FORMAT = "echelon checkpoint"
VERSION = 2
FIRST_VERSION = 1
STORAGE_S = 30.0
"""How long to retry while storage is unavailable. That is not damage, so an older checkpoint must
not be used instead."""
MANIFEST = "manifest.json"
_NAME = re.compile(r"step-([0-9]{9,18})")
_LONGEST = 1 << 30
"""Bytes of a record: a part may have a hundred thousand tensors."""


class CheckpointError(EchelonError):
    """A checkpoint that is damaged or has an unknown format."""

    exit_code = 66


def damaged(path: Path, why: str) -> CheckpointError:
    """Return the error for a checkpoint that cannot be used."""
    return CheckpointError(
        f"the checkpoint {path} is damaged: {why}", hint="remove it, or restore it from a copy"
    )


def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:09}"


def step_of(path: Path) -> int | None:
    """Return the step of a checkpoint's folder; None if it is not a checkpoint."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def list_steps(folder: Path) -> list[int]:
    """Return the steps that have a checkpoint, in ascending order."""
    if not folder.is_dir():
        return []
    found = [step_of(path) for path in folder.iterdir()]
    return sorted(step for step in found if step is not None)


def part_path(checkpoint: Path, rank: int) -> Path:
    """Return the file with a rank's tensors; its index has the suffix .json."""
    return checkpoint / f"shard-{rank:05}.safetensors"


def dumps(value: Any) -> str:
    """Return JSON that preserves NaN and infinity, which losses may be."""
    return json.dumps(value, allow_nan=True)


@frozen
class Laid:
    """A tensor of the state, and where it is."""

    type: TensorType
    layout: Layout
    copy: int
    """Which of the copies was written."""


@frozen
class Manifest:
    """What all parts of a checkpoint have in common."""

    step: int
    world_size: int
    metrics: Mapping[str, float]
    state: Any
    """The structure of the state, with names in place of tensors."""
    tensors: Mapping[str, Laid]

    def render(self) -> str:
        """Return the content of its file."""
        layouts = list(dict.fromkeys(laid.layout for laid in self.tensors.values()))
        number = {layout: place for place, layout in enumerate(layouts)}
        return _seal(
            {
                "format": FORMAT,
                "version": VERSION,
                "step": self.step,
                "metrics": dict(self.metrics),
                "world_size": self.world_size,
                "bytes": sum(laid.type.nbytes for laid in self.tensors.values()),
                "layouts": [
                    {"mesh": one.mesh, "ranks": one.ranks, "placements": one.placements}
                    for one in layouts
                ],
                "tensors": {
                    name: {
                        "dtype": laid.type.dtype,
                        "shape": laid.type.shape,
                        "layout": number[laid.layout],
                        "copy": laid.copy,
                    }
                    for name, laid in self.tensors.items()
                },
                "state": self.state,
            }
        )


@frozen
class PartIndex:
    """What one rank has written."""

    rank: int
    world_size: int
    bytes: int
    """Size of its file."""
    header: str
    """SHA-256 of the file's header."""
    tensors: Mapping[str, Stored]
    offsets: Mapping[str, tuple[int, ...]]
    """Where a part of a tensor begins in the whole; tensors of the rank's own state have none."""
    own: Any
    """The structure of the rank's own state."""

    def box(self, name: str) -> Box | None:
        """Return which part of a tensor it has; None if it has none."""
        known = name in self.offsets and name in self.tensors
        return Box(self.offsets[name], self.tensors[name].type.shape) if known else None

    def render(self) -> str:
        """Return the content of its file."""
        entries = {}
        for name, stored in self.tensors.items():
            where = {"offset": self.offsets[name]} if name in self.offsets else {}
            entries[name] = {
                "dtype": stored.type.dtype,
                "shape": stored.type.shape,
                **where,
                "begin": stored.begin,
                "block": stored.block,
                "crc32": stored.checksums,
            }
        return _seal(
            {
                "format": f"{FORMAT}, part",
                "version": VERSION,
                "rank": self.rank,
                "world_size": self.world_size,
                "bytes": self.bytes,
                "header_sha256": self.header,
                "own": self.own,
                "tensors": entries,
            }
        )


def _seal(record: dict[str, Any]) -> str:
    return dumps({**record, "sha256": _digest(record)}) + "\n"


def _digest(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(dumps(record).encode()).hexdigest()


def _read(path: Path) -> dict[str, Any]:
    # Reading allocates as much as it may read.
    return read_record(path, most=min(_LONGEST, path.stat().st_size))


def read_manifest(path: Path) -> Manifest | dict[str, Any]:
    """Return a checkpoint's manifest; that of version 1 as it is.

    Raises:
        CheckpointError: it is damaged or has an unknown format.
    """
    try:
        record = persist(partial(_read, path / MANIFEST), within_s=STORAGE_S)
    except (OSError, ValueError) as error:
        raise damaged(path, f"its manifest cannot be read ({error})") from error
    form, version = record.get("format"), record.get("version")
    known = version in (VERSION, FIRST_VERSION)
    if form == FORMAT and isinstance(version, int) and not known:
        raise CheckpointError(
            f"the checkpoint {path} is of version {version}, and this is version {VERSION}",
            hint="load it with the Echelon that wrote it",
        )
    # The first checkpoints of version 1 have no digest.
    digest = record.pop("sha256", None)
    if (version == VERSION or digest is not None) and digest != _digest(record):
        raise damaged(path, "its manifest is not what was written")
    match record:
        case {"metrics": dict(), "world_size": int(), "step": int(step), "state": _}:
            if form == FORMAT and known and step == step_of(path):
                return record if version == FIRST_VERSION else _to_manifest(path, record)
    raise damaged(path, "its manifest is not whole, or of another step")


def _to_manifest(path: Path, record: Mapping[str, Any]) -> Manifest:
    try:
        layouts = [
            Layout(tuple(one["mesh"]), tuple(one["ranks"]), tuple(one["placements"]))
            for one in record["layouts"]
        ]
        return Manifest(
            step=record["step"],
            world_size=record["world_size"],
            metrics=record["metrics"],
            state=record["state"],
            tensors={
                name: Laid(
                    type=to_type(entry["dtype"], entry["shape"]),
                    layout=layouts[entry["layout"]],
                    copy=operator.index(entry["copy"]),
                )
                for name, entry in record["tensors"].items()
            },
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise damaged(path, f"its manifest is not whole ({error})") from error


def read_index(checkpoint: Path, rank: int) -> PartIndex:
    """Return the index of a rank's part.

    Raises:
        CheckpointError: it is damaged.
    """
    path = part_path(checkpoint, rank).with_suffix(".json")
    try:
        record = persist(partial(_read, path), within_s=STORAGE_S)
        same = record.pop("sha256") == _digest(record)
        if not same or (record["version"], record["rank"]) != (VERSION, rank):
            raise damaged(checkpoint, f"{path.name} is not what was written")
        entries: dict[str, Any] = record["tensors"]
        return PartIndex(
            rank=rank,
            world_size=record["world_size"],
            bytes=record["bytes"],
            header=record["header_sha256"],
            own=record["own"],
            tensors={name: _to_stored(entry, record["bytes"]) for name, entry in entries.items()},
            offsets={
                name: tuple(entry["offset"]) for name, entry in entries.items() if "offset" in entry
            },
        )
    except OSError as error:
        raise damaged(checkpoint, f"{path.name}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(checkpoint, f"{path.name} is not what was written ({error})") from error


def _to_stored(entry: Mapping[str, Any], size: int) -> Stored:
    kind = to_type(entry["dtype"], entry["shape"])
    begin, block, checksums = to_count(entry["begin"]), to_count(entry["block"]), entry["crc32"]
    if begin is None or not block or begin + kind.nbytes > size:
        raise ValueError("a tensor beyond the file")
    if len(checksums) != -(-kind.nbytes // block):
        raise ValueError("another number of checksums")
    return Stored(kind, begin, block, tuple(checksums))
