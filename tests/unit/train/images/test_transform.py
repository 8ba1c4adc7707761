import torch

from echelon.train.images.transform import ImageTransform
from echelon.train.randomness import sample_keys

PLAIN = {"mean": (0.0,) * 3, "std": (1 / 255,) * 3}
"""So that a pixel stays the number it was."""


def images(count=64):
    draw = torch.Generator().manual_seed(1)
    return torch.randint(1, 256, (count, 3, 8, 6), dtype=torch.uint8, generator=draw)


def keys(count=64, epoch=0):
    return sample_keys(torch.arange(count), seed=0, epoch=epoch)


def test_pixels_are_scaled_to_mean_and_deviation():
    found, label = ImageTransform()((images(), "labels"), None)
    assert label == "labels"
    expected = (images().float() / 255 - torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)) / (
        torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)
    )
    torch.testing.assert_close(found, expected)


def test_flip_mirrors_about_half_of_the_images():
    found, _ = ImageTransform(**PLAIN, flip=True)((images(), 0), keys())
    before = images().float()
    mirrored = [torch.equal(a, b.flip(-1)) for a, b in zip(found, before, strict=True)]
    same = [torch.equal(a, b) for a, b in zip(found, before, strict=True)]
    assert all(m != s for m, s in zip(mirrored, same, strict=True))
    assert 16 < sum(mirrored) < 48


def test_images_are_shifted_by_whole_pixels_and_filled_with_the_mean():
    found, _ = ImageTransform(**PLAIN, shift=2)((images(), 0), keys())
    moves = set()
    for after, before in zip(found, images().float(), strict=True):
        padded = torch.nn.functional.pad(before, (2, 2, 2, 2))
        fits = [
            (y, x)
            for y in range(5)
            for x in range(5)
            if torch.equal(after, padded[:, y : y + 8, x : x + 6])
        ]
        assert len(fits) == 1
        moves |= set(fits)
    assert len(moves) > 15  # of 25


def test_a_sample_is_augmented_alike_wherever_it_is_and_anew_in_each_epoch():
    transform = ImageTransform(shift=2, flip=True)
    whole, _ = transform((images(), 0), keys())
    some, _ = transform((images()[10:20], 0), keys()[10:20])
    assert torch.equal(some, whole[10:20])
    again, _ = transform((images(), 0), keys(epoch=1))
    assert not torch.equal(again, whole)


def test_channels_last_images_stay_so():
    stored = images().permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    for chosen in (None, keys()):
        found, _ = ImageTransform(shift=1, flip=True)((stored, 0), chosen)
        assert found.is_contiguous(memory_format=torch.channels_last)
