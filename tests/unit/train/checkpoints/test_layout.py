import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

from echelon.train.checkpoints.layout import (
    Box,
    Layout,
    assign_copies,
    byte_runs,
    replicated,
    whole,
)

shapes = st.lists(st.integers(1, 9), min_size=2, max_size=3).map(tuple)


def make(mesh, placements):
    ranks = tuple(reversed(range(math.prod(mesh))))  # in any order
    return Layout(tuple(mesh), ranks, tuple(map(str, placements)))


@st.composite
def layouts(draw):
    mesh = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    kinds = [Replicate(), Shard(0), Shard(1)]
    placements = [draw(st.sampled_from(kinds)) for _ in mesh]
    for number, one in enumerate(placements[:-1]):
        if one == Shard(0) and Shard(0) in placements[number + 1 :] and draw(st.booleans()):
            after = [k for k, other in enumerate(placements) if k > number and other == Shard(0)]
            factor = math.prod(mesh[k] for k in after)
            placements[number] = _StridedShard(0, split_factor=factor)
            break
    return make(mesh, placements)


@given(layouts(), shapes)
def test_the_parts_of_each_copy_are_the_whole_tensor(layout, shape):
    for copy in range(layout.copies):
        seen = torch.zeros(shape, dtype=torch.int)
        for rank in layout.ranks:
            held = layout.find_piece(shape, rank)
            if held[0] == copy:
                seen[slices(held[1])] += 1
        assert (seen == 1).all()


@given(layouts(), shapes, st.data())
def test_who_holds_something_is_found_and_nobody_else(layout, shape, data):
    offset = tuple(data.draw(st.integers(0, size - 1)) for size in shape)
    box = Box(
        offset, tuple(data.draw(st.integers(0, n - o)) for n, o in zip(shape, offset, strict=True))
    )
    copy = data.draw(st.integers(0, layout.copies - 1))
    found = sorted(layout.find_holders(shape, box, copy=copy), key=str)
    pieces = [(rank, layout.find_piece(shape, rank)) for rank in layout.ranks]
    expected = [
        (rank, held) for rank, (of, held) in pieces if of == copy and held.overlap(box) is not None
    ]
    assert found == sorted(expected, key=str)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 9, 17])
@pytest.mark.parametrize(
    ("mesh", "placements"),
    [
        ((4,), (Shard(0),)),
        ((3,), (Shard(1),)),
        ((2, 2), (Replicate(), Shard(0))),
        ((2, 3), (Shard(0), Shard(1))),
        ((2, 2), (Shard(0), Shard(0))),
        ((2, 2), (_StridedShard(0, split_factor=2), Shard(0))),
        ((2, 2, 2), (Replicate(), _StridedShard(0, split_factor=2), Shard(0))),
    ],
    ids=str,
)
def test_parts_are_where_torch_has_them(rows, mesh, placements):
    shape, layout = (rows, 6), make(mesh, placements)
    for place, rank in enumerate(layout.ranks):
        coordinate = [int(one) for one in torch.unravel_index(torch.tensor(place), mesh)]
        expected = _compute_local_shape_and_global_offset(shape, mesh, coordinate, placements)
        _, held = layout.find_piece(shape, rank)
        assert held.shape == tuple(expected[0])
        if held.size:
            assert held.offset == tuple(expected[1])


@given(st.dictionaries(st.text(), st.integers(0, 100)), st.integers(1, 5))
def test_each_tensor_is_written_once_and_by_all_in_turn(sizes, copies):
    chosen = assign_copies(sizes, copies)
    assert chosen == assign_copies(dict(reversed(sizes.items())), copies)
    assert chosen.keys() == sizes.keys()
    loads = [sum(sizes[n] for n, one in chosen.items() if one == copy) for copy in range(copies)]
    assert max(loads) - min(loads) <= max(sizes.values(), default=0)


def test_a_plain_tensor_is_on_every_rank():
    layout = replicated(3)
    assert [layout.find_piece((5,), rank) for rank in range(3)] == [
        (copy, whole((5,))) for copy in range(3)
    ]
    assert layout.find_piece((5,), 3) is None


@pytest.mark.parametrize(
    ("mesh", "ranks", "placements"),
    [((2,), (0,), ("R",)), ((1,), (0,), ("P(sum)",)), ((2,), (0, 0), ("R",)), ((), (), ())],
)
def test_what_is_no_layout_is_refused(mesh, ranks, placements):
    with pytest.raises(ValueError):
        Layout(mesh, ranks, placements)


@given(shapes, st.data())
def test_runs_copy_what_two_boxes_have_in_common(shape, data):
    values = torch.arange(math.prod(shape)).reshape(shape)
    boxes = []
    for _ in range(2):
        offset = tuple(data.draw(st.integers(0, size - 1)) for size in shape)
        sizes = tuple(data.draw(st.integers(1, n - o)) for n, o in zip(shape, offset, strict=True))
        boxes.append(Box(offset, sizes))
    part = boxes[0].overlap(boxes[1])
    if part is None:
        return
    source = values[slices(boxes[0])].flatten().tolist()
    target = [-1] * boxes[1].size
    for begin, at, length in byte_runs(*boxes, part, 1):
        target[at : at + length] = source[begin : begin + length]
    expected = torch.full(shape, -1)
    expected[slices(part)] = values[slices(part)]
    assert target == expected[slices(boxes[1])].flatten().tolist()


def slices(box):
    return tuple(slice(begin, begin + n) for begin, n in zip(box.offset, box.shape, strict=True))
