"""Read tensors of a checkpoint, or parts of them: only the bytes that are needed, all verified."""

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

from echelon.core.records import open_regular
from echelon.run.background_writer import persist
from echelon.train.checkpoints.layout import Box, byte_runs, replicated, whole
from echelon.train.checkpoints.manifest import (
    STORAGE_S,
    Laid,
    Manifest,
    PartIndex,
    damaged,
    part_path,
    read_index,
    read_manifest,
)
from echelon.train.checkpoints.safetensors_file import WIDTHS, Stored, read_header

T = TypeVar("T")
_TASK = 32 << 20
"""Bytes that one thread reads before it takes other ones."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Part of a tensor that is read from one file."""

    rank: int
    name: str
    stored: Stored
    runs: tuple[tuple[int, int, int], ...]
    """Where bytes begin in the stored tensor and in the target, and how many follow."""
    target: memoryview


class Reader:
    """Reads one checkpoint."""

    def __init__(self, path: Path, *, threads: int = 1) -> None:
        """Read the manifest.

        Args:
            path: folder of the checkpoint.
            threads: how many threads read and verify.

        Raises:
            CheckpointError: it is damaged or has an unknown format.
        """
        self.path = path
        self._threads = threads
        self._lock = threading.Lock()
        self._parts: dict[int, PartIndex] = {}
        self.bytes_read = 0
        """How many bytes of tensors were read from files."""
        found = read_manifest(path)
        self.manifest = found if isinstance(found, Manifest) else self._open_first_version(found)

    def part(self, rank: int) -> PartIndex:
        """Return the index of a rank's part, whose file is there.

        Raises:
            CheckpointError: it is damaged, or does not belong to this checkpoint.
        """
        if rank not in self._parts:
            index = read_index(self.path, rank)
            if index.world_size != self.manifest.world_size:
                raise damaged(self.path, f"the part of rank {rank} is of another checkpoint")
            self._with_file(rank, partial(self._check_header, index))
            self._parts[rank] = index
        return self._parts[rank]

    def read(self, wanted: Mapping[str, tuple[Box, memoryview]]) -> None:
        """Read parts of tensors of the state into memory of their size.

        Raises:
            CheckpointError: the checkpoint is damaged.
        """
        pieces = []
        for name, (box, target) in wanted.items():
            if (laid := self.manifest.tensors.get(name)) is None:
                raise damaged(self.path, f"no shard has the tensor '{name}'")
            for rank, held in laid.layout.find_holders(laid.type.shape, box, copy=laid.copy):
                part = held.overlap(box)
                assert part is not None
                runs = byte_runs(held, box, part, WIDTHS[laid.type.dtype])
                stored = self._find_stored(name, laid, rank, held)
                pieces.append(_Piece(rank, name, stored, tuple(runs), target))
        self._read_pieces(pieces)

    def read_own(self, rank: int, wanted: Mapping[str, memoryview]) -> None:
        """Read tensors of a rank's own state.

        Raises:
            CheckpointError: the checkpoint is damaged.
        """
        pieces = []
        for name, target in wanted.items():
            if (stored := self.part(rank).tensors.get(name)) is None:
                raise damaged(self.path, f"no shard has the tensor '{name}'")
            if stored.type.nbytes:
                runs = ((0, 0, stored.type.nbytes),)
                pieces.append(_Piece(rank, name, stored, runs, target))
        self._read_pieces(pieces)

    def verify(self) -> None:
        """Read every byte.

        Raises:
            CheckpointError: the checkpoint is damaged.
        """
        for name, laid in self.manifest.tensors.items():
            box = whole(laid.type.shape)
            for rank, held in laid.layout.find_holders(laid.type.shape, box, copy=laid.copy):
                self._find_stored(name, laid, rank, held)
        for rank in range(self.manifest.world_size):
            stored = self.part(rank).tensors
            # Not `block` alone, which no file bounds.
            largest = max((min(one.block, one.type.nbytes) for one in stored.values()), default=0)
            scratch = memoryview(bytearray(largest))
            self._read_pieces(
                [
                    _Piece(
                        rank,
                        name,
                        one,
                        ((begin, 0, min(one.block, one.type.nbytes - begin)),),
                        scratch,
                    )
                    for name, one in stored.items()
                    if one.checksums
                    for begin in range(0, one.type.nbytes, one.block)
                ],
                threads=1,
            )

    def _find_stored(self, name: str, laid: Laid, rank: int, held: Box) -> Stored:
        index = self.part(rank)
        stored = index.tensors.get(name)
        if stored is None or stored.type.dtype != laid.type.dtype or index.box(name) != held:
            raise damaged(self.path, f"the part of rank {rank} lacks '{name}'")
        return stored

    # --- files ----------------------------------------------------------------------------------

    def _read_pieces(self, pieces: Iterable[_Piece], threads: int | None = None) -> None:
        tasks = list(_divide(sorted(pieces, key=lambda one: (one.rank, one.stored.begin))))
        threads = min(threads or self._threads, len(tasks))
        if threads < 2:
            for task in tasks:
                self._read_task(task)
            return
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(self._read_task, tasks):
                pass

    def _read_task(self, task: list[_Piece]) -> None:
        def read(handle: int) -> int:
            done = 0
            for piece in task:
                count, same = _read_piece(handle, piece)
                if not same:
                    file = part_path(self.path, piece.rank).name
                    raise damaged(self.path, f"'{piece.name}' in {file} is not what was written")
                done += count
            return done

        done = self._with_file(task[0].rank, read)
        with self._lock:
            self.bytes_read += done

    def _check_header(self, index: PartIndex, handle: int) -> None:
        same = os.fstat(handle).st_size == index.bytes
        if same:
            length = int.from_bytes(os.pread(handle, 8, 0), "little")
            head = os.pread(handle, min(8 + length, index.bytes), 0)
            same = hashlib.sha256(head).hexdigest() == index.header
        if not same:
            file = part_path(self.path, index.rank).name
            raise damaged(self.path, f"{file} is not what was written")

    def _with_file(self, rank: int, task: Callable[[int], T]) -> T:
        """Open the file of a rank's part; retry while storage is unavailable."""
        path = part_path(self.path, rank)

        def open_and_do() -> T:
            with open_regular(path) as file:
                return task(file.fileno())

        try:
            return persist(open_and_do, within_s=STORAGE_S)
        except OSError as error:
            raise damaged(self.path, f"{path.name}: {error.strerror}") from error

    # --- version 1 ------------------------------------------------------------------------------

    def _open_first_version(self, record: Mapping[str, Any]) -> Manifest:
        """Verify all files, and describe them as this version does: whole tensors in each part."""
        shards = record.get("shards")
        if not isinstance(shards, list) or not all(isinstance(one, dict) for one in shards):
            raise damaged(self.path, "its manifest is not whole, or of another step")
        tensors: dict[str, Laid] = {}
        layout = replicated(max(1, len(shards)))
        for rank, shard in enumerate(shards):
            found = self._with_file(rank, partial(self._read_first_version, rank, shard))
            names = [name for name in found if name.startswith("state")]
            tensors |= {n: Laid(type=found[n].type, layout=layout, copy=rank) for n in names}
            self._parts[rank] = PartIndex(
                rank=rank,
                world_size=len(shards),
                bytes=shard["bytes"],
                header="",
                tensors=found,
                offsets={name: (0,) * len(found[name].type.shape) for name in names},
                own=shard.get("own"),
            )
        return Manifest(
            step=record["step"],
            world_size=record["world_size"],
            metrics=record["metrics"],
            state=record["state"],
            tensors=tensors,
        )

    def _read_first_version(
        self, rank: int, shard: Mapping[str, Any], handle: int
    ) -> dict[str, Stored]:
        name = part_path(self.path, rank).name
        with os.fdopen(os.dup(handle), "rb") as file:
            same = os.fstat(handle).st_size == shard.get("bytes")
            if not same or hashlib.file_digest(file, "sha256").hexdigest() != shard.get("sha256"):
                raise damaged(self.path, f"{name} is not what was written")
        try:
            return read_header(handle)[1]
        except ValueError as error:
            raise damaged(self.path, f"{name} is no safetensors file ({error})") from error


def _divide(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """Yield groups of pieces of one file each, of moderate size."""
    group: list[_Piece] = []
    size = 0
    for piece in pieces:
        if group and (size > _TASK or piece.rank != group[0].rank):
            yield group
            group, size = [], 0
        group.append(piece)
        size += sum(length for *_, length in piece.runs)
    if group:
        yield group


def _read_piece(handle: int, piece: _Piece) -> tuple[int, bool]:
    """Read and verify a piece; return how many bytes were read, and whether they are right.

    Blocks are read as a whole, because their checksums cover all of them. Those that are needed
    completely go directly to the target.
    """
    stored, runs = piece.stored, piece.runs
    nbytes, block = stored.type.nbytes, stored.block or 1
    first, last = runs[0][0], runs[-1][0] + runs[-1][2]
    begin, end = first - first % block, min(nbytes, last + -last % block)
    if len(runs) > 1:
        scratch = memoryview(bytearray(end - begin))
        same = _read_blocks(handle, stored, begin, scratch)
        for source, target, length in runs:
            piece.target[target : target + length] = scratch[source - begin :][:length]
        return end - begin, same
    target, same = runs[0][1], True
    # The first and the last block may contain more than what is needed.
    inner, outer = first + -first % block, last - last % block if last < nbytes else last
    if inner < outer:
        view = piece.target[target + inner - first : target + outer - first]
        same = _read_blocks(handle, stored, inner, view)
        edges = [(begin, inner), (outer, end)]
    else:
        edges = [(begin, end)]
    for low, high in edges:
        if low < high:
            scratch = memoryview(bytearray(high - low))
            same = same and _read_blocks(handle, stored, low, scratch)
            part = slice(max(first, low), min(last, high))
            piece.target[target + part.start - first : target + part.stop - first] = scratch[
                part.start - low : part.stop - low
            ]
    return end - begin, same


def _read_blocks(handle: int, stored: Stored, begin: int, target: memoryview) -> bool:
    """Fill the target with whole blocks of a stored tensor; tell whether they are right."""
    step = stored.block or len(target) or 1
    for place in range(0, len(target), step):
        view = target[place : place + step]
        at, done = stored.begin + begin + place, 0
        while done < len(view):
            if not (count := os.preadv(handle, [view[done:]], at + done)):
                return False
            done += count
        if stored.checksums and crc32(view) != stored.checksums[(begin + place) // stored.block]:
            return False
    return True
