"""Random numbers that are reproducible after a restart.

There are two kinds. Generators have a state, which is saved with a checkpoint. Keyed numbers have
none: they are a function of (seed, epoch, sample), so they are the same on any rank, in any worker,
after any interruption and on any device.
"""

import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
"""splitmix64's constants, as signed numbers."""


def mix(values: torch.Tensor) -> torch.Tensor:
    """Return a hash of each 64-bit number (splitmix64's finalizer)."""
    values = (values ^ _shift(values, 30)) * _MIX[0]
    values = (values ^ _shift(values, 27)) * _MIX[1]
    return values ^ _shift(values, 31)


def _wrapped(number: int) -> int:
    """Return a number as a signed 64-bit integer, as in a tensor."""
    return (number + 2**63) % 2**64 - 2**63


def _shift(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift to the right logically; torch's own shift is arithmetic."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def sample_keys(indices: torch.Tensor, *, seed: int, epoch: int) -> torch.Tensor:
    """Return one 64-bit key per sample of an epoch."""
    return keys_within(indices, epoch_key(seed, epoch))


def epoch_key(seed: int, epoch: int) -> int:
    """Return the signed 64-bit key from which the keys of an epoch's samples are derived."""
    return int(mix(mix(torch.tensor(seed)) + _wrapped(epoch * _GOLDEN)))


def keys_within(indices: torch.Tensor, epoch: int | torch.Tensor) -> torch.Tensor:
    """Return the samples' keys, given the epoch's key."""
    return mix(indices.long() * _GOLDEN + epoch)


def uniform(keys: torch.Tensor, draw: int) -> torch.Tensor:
    """Return for each key its random number `draw`, in [0, 1)."""
    return _shift(mix(keys + _wrapped((draw + 1) * _GOLDEN)), 40).float() / 2**24


def uniforms(keys: torch.Tensor, draw: int, count: int) -> torch.Tensor:
    """Return for each key a row of `count` random numbers, different for each `draw`."""
    own = mix(keys + _wrapped((draw + 1) * _GOLDEN)).unsqueeze(1)
    places = torch.arange(1, count + 1, device=keys.device) * _GOLDEN
    return _shift(mix(own + places), 40).float() / 2**24


# --- generators -------------------------------------------------------------------------------


def random_states(device: torch.device) -> dict[str, Any]:
    """Return the states of all generators that a training may use."""
    state: Any = np.random.get_state()  # noqa: NPY002  many transforms use it
    kind, words, position, has_gauss, gauss = state
    found = {
        "cpu": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": [kind, torch.from_numpy(words.astype(np.int64)), position, has_gauss, gauss],
    }
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    return found


def restore_random_states(states: Mapping[str, Any], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    kind, numbers, *rest = states["numpy"]
    np.random.set_state((kind, numbers.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


@contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """Restore the states of all generators after the block."""
    states = random_states(device)
    try:
        yield
    finally:
        restore_random_states(states, device)


def seed_generators(key: int) -> None:
    """Seed the generators that a data set's transforms may use."""
    random.seed(key)
    torch.default_generator.manual_seed(key)
    np.random.seed(key % 2**32)  # noqa: NPY002


def be_deterministic(device: torch.device) -> None:
    """Make torch use deterministic algorithms, on a GPU as well."""
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by torch
        torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(mode=True)
