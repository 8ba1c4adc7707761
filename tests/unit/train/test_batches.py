import pytest
import torch

from echelon.train.batches import divide, read_rows, samples_in, to_device


def test_batches_of_any_shape_are_moved_and_counted():
    from typing import NamedTuple

    class Pair(NamedTuple):
        x: torch.Tensor
        y: torch.Tensor

    batch = {"pair": Pair(torch.ones(3), torch.zeros(3)), "names": ["a", "b", "c"], "n": 3}
    moved = to_device(batch, torch.device("meta"))
    assert isinstance(moved["pair"], Pair)
    assert moved["pair"].y.device.type == "meta"
    assert (moved["names"], moved["n"]) == (["a", "b", "c"], 3)
    assert samples_in(batch) == 3


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_batches_of_any_shape_are_divided(parts):
    batch = {"x": torch.arange(10), "y": [torch.arange(10), torch.arange(10)]}
    divided = divide(batch, parts)
    assert len(divided) == parts
    assert torch.cat([part["x"] for part in divided]).tolist() == list(range(10))
    assert torch.cat([part["y"][1] for part in divided]).tolist() == list(range(10))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("last", [False, True])
def test_rows_keep_the_order_of_images_in_memory(channels, last):
    images = torch.rand(7, channels, 4, 5)
    if last:
        images = images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    (found,) = read_rows((images,), torch.tensor([5, 2]))
    assert torch.equal(found, images[[5, 2]])
    assert found.is_contiguous(memory_format=torch.channels_last) == (last or channels == 1)
    assert found.is_contiguous() == (not last or channels == 1)
    if channels == 1:
        assert found.stride() == (20, 20, 5, 1)
