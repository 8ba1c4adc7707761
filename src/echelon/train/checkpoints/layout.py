"""Which rank holds which part of a tensor, computed by every rank alone. Pure.

A layout is written as torch's DTensor writes it: a mesh of ranks, and one placement for each of its
dimensions. `R` repeats the tensor, `S(0)` divides its dimension 0 into chunks, and `_S(0, 2)` does
so after the mesh's later dimensions have divided it.
"""

import heapq
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

_SHARD = re.compile(r"(_?)S\(([0-9]{1,3})(?:, [0-9]{1,9})?\)")


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangular part of a tensor."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def overlap(self, other: "Box") -> "Box | None":
        """Return what both have in common; None if that is nothing."""
        offset, shape = [], []
        for begin, length, begin_2, length_2 in zip(
            self.offset, self.shape, other.offset, other.shape, strict=True
        ):
            first, end = max(begin, begin_2), min(begin + length, begin_2 + length_2)
            if first >= end:
                return None
            offset.append(first)
            shape.append(end - first)
        return Box(tuple(offset), tuple(shape))


def whole(shape: Sequence[int]) -> Box:
    """Return the box of a whole tensor."""
    return Box((0,) * len(shape), tuple(shape))


@dataclass(frozen=True)
class Layout:
    """How a tensor is laid out on ranks."""

    mesh: tuple[int, ...]
    """Size of each dimension of the mesh."""
    ranks: tuple[int, ...]
    """The ranks of the mesh, the last dimension running fastest."""
    placements: tuple[str, ...]
    """One for each dimension of the mesh."""

    def __post_init__(self) -> None:
        """Refuse what is no layout.

        Raises:
            ValueError: it is none.
        """
        fits = len(self.mesh) == len(self.placements) and math.prod(self.mesh) == len(self.ranks)
        if not fits or not self.ranks or len(set(self.ranks)) != len(self.ranks):
            raise ValueError(f"a mesh of {self.mesh} with {len(self.ranks)} ranks")
        if odd := [one for one in self.placements if one != "R" and not _SHARD.fullmatch(one)]:
            raise ValueError(f"unknown placement {odd[0]}")

    @cached_property
    def _divisions(self) -> tuple[tuple[int, int], ...]:
        """Dimensions of mesh and tensor, in the order in which the tensor is divided."""
        plain: list[tuple[int, int]] = []
        strided: list[tuple[int, int]] = []
        for number, placement in enumerate(self.placements):
            if found := _SHARD.fullmatch(placement):
                (strided if found[1] else plain).append((number, int(found[2])))
        return (*plain, *reversed(strided))

    @cached_property
    def _repeats(self) -> tuple[int, ...]:
        """Dimensions of the mesh that repeat the tensor."""
        return tuple(n for n, placement in enumerate(self.placements) if placement == "R")

    @cached_property
    def copies(self) -> int:
        """How many ranks hold the same part."""
        return math.prod(self.mesh[number] for number in self._repeats)

    @cached_property
    def _places(self) -> dict[int, int]:
        return {rank: place for place, rank in enumerate(self.ranks)}

    def find_piece(self, shape: Sequence[int], rank: int) -> tuple[int, Box] | None:
        """Return the copy that a rank holds, and its part of the tensor; None if it has none."""
        if (place := self._places.get(rank)) is None:
            return None
        coordinate = [0] * len(self.mesh)
        for number in reversed(range(len(self.mesh))):
            place, coordinate[number] = divmod(place, self.mesh[number])
        copy = 0
        for number in self._repeats:
            copy = copy * self.mesh[number] + coordinate[number]
        offset, left = [0] * len(shape), list(shape)
        for number, dimension in self._divisions:
            first, left[dimension] = _chunk(left[dimension], self.mesh[number], coordinate[number])
            offset[dimension] += first
        return copy, Box(tuple(offset), tuple(left))

    def find_holders(
        self, shape: Sequence[int], wanted: Box, *, copy: int
    ) -> Iterator[tuple[int, Box]]:
        """Yield the ranks that hold what is wanted in one copy, with their parts of the tensor."""
        coordinate = [0] * len(self.mesh)
        for number in reversed(self._repeats):
            copy, coordinate[number] = divmod(copy, self.mesh[number])

        def descend(level: int, box: Box) -> Iterator[tuple[int, Box]]:
            if level == len(self._divisions):
                place = 0
                for size, one in zip(self.mesh, coordinate, strict=True):
                    place = place * size + one
                yield self.ranks[place], box
                return
            number, dimension = self._divisions[level]
            begin, length = box.offset[dimension], box.shape[dimension]
            chunk = max(1, -(-length // self.mesh[number]))
            low = max(wanted.offset[dimension] - begin, 0)
            high = min(wanted.offset[dimension] + wanted.shape[dimension] - begin, length)
            for one in range(low // chunk, -(-high // chunk)):
                coordinate[number] = one
                first, size = _chunk(length, self.mesh[number], one)
                yield from descend(
                    level + 1,
                    Box(
                        _replace(box.offset, dimension, begin + first),
                        _replace(box.shape, dimension, size),
                    ),
                )

        if wanted.size:
            yield from descend(0, whole(shape))


def _chunk(length: int, count: int, number: int) -> tuple[int, int]:
    """Return offset and length of a chunk, as torch.chunk divides: the last ones may be empty."""
    size = -(-length // count)
    begin = min(number * size, length)
    return begin, min(begin + size, length) - begin


def _replace(values: tuple[int, ...], place: int, value: int) -> tuple[int, ...]:
    return (*values[:place], value, *values[place + 1 :])


def replicated(world_size: int) -> Layout:
    """Return the layout of a plain tensor, which all ranks hold."""
    return Layout((world_size,), tuple(range(world_size)), ("R",))


def assign_copies(sizes: Mapping[str, int], copies: int) -> dict[str, int]:
    """Choose the copy that is written of each tensor: about as many bytes of every copy.

    Every rank that knows names and sizes chooses the same.
    """
    if copies == 1:
        return dict.fromkeys(sizes, 0)
    loads = [(0, copy) for copy in range(copies)]
    chosen = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        load, copy = loads[0]
        heapq.heapreplace(loads, (load + sizes[name], copy))
        chosen[name] = copy
    return chosen


def byte_runs(source: Box, target: Box, part: Box, width: int) -> Iterator[tuple[int, int, int]]:
    """Yield where bytes of `part` begin in source and in target, and how many follow.

    Both boxes are dense in memory, with the last dimension running fastest.
    """
    depth = len(part.shape)
    # The dimensions behind `split` are complete in both, so a run covers them.
    split = depth
    while split and (
        split == depth or part.shape[split] == source.shape[split] == target.shape[split]
    ):
        split -= 1
    run = width * math.prod(part.shape[split:])
    rows = math.prod(part.shape[:split])
    for row in range(rows):
        index = [0] * depth
        for number in reversed(range(split)):
            row, index[number] = divmod(row, part.shape[number])  # noqa: PLW2901
        begins = []
        for box in (source, target):
            place = 0
            for number in range(depth):
                place = place * box.shape[number] + (
                    part.offset[number] + index[number] - box.offset[number]
                )
            begins.append(place * width)
        yield begins[0], begins[1], run
