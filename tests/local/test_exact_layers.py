"""BatchNorm over all ranks is that of one process over the whole batch, with its gradients."""

import os
import subprocess
import sys

SCRIPT = """\
import copy, json, sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch import nn
import echelon
from echelon.train.exact_layers import make_exact
from echelon.train.loading import Portion

SIZES = (4, 1, 0)
LAYERS = {
    "1d": (nn.BatchNorm1d(3), ()),
    "1d, longer": (nn.BatchNorm1d(3), (5,)),
    "2d": (nn.BatchNorm2d(3, eps=1e-3, momentum=0.3), (2, 4)),
    "3d": (nn.BatchNorm3d(3), (2, 3, 2)),
    "mean of all batches": (nn.BatchNorm2d(3, momentum=None), (2, 2)),
    "no weights": (nn.BatchNorm2d(3, affine=False), (2, 2)),
    "nothing kept": (nn.BatchNorm2d(3, track_running_stats=False), (2, 2)),
}

def compare(name, layer, shape, dtype):
    with torch.no_grad():
        for value in layer.parameters():
            value.uniform_(0.5, 2.0)
    layer = layer.to(dtype)
    plain, current = copy.deepcopy(layer), make_exact(layer)
    total, rank = sum(SIZES), dist.get_rank()
    start = sum(SIZES[:rank])
    for _ in range(3):
        whole = (torch.randn(total, 3, *shape, dtype=dtype) * 3 + 10).requires_grad_()
        weights = torch.randn_like(whole)
        mine = slice(start, start + SIZES[rank])
        counts = SIZES[rank] > 0
        own = (whole.detach()[mine] if counts else torch.full((1, 3, *shape), 1e6, dtype=dtype))
        own = own.clone().requires_grad_()
        with current.of(Portion(own, total, SIZES[rank]), None):
            out = layer(own)
            ((out * weights[mine]).sum() if counts else (out * 0).sum()).backward()
        expected = plain(whole)
        (expected * weights).sum().backward()
        if counts:
            torch.testing.assert_close(out, expected[mine])
            torch.testing.assert_close(own.grad, whole.grad[mine])
        else:
            assert not own.grad.any()
    for value in layer.parameters():
        dist.all_reduce(value.grad)
    for one, other in zip(layer.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    torch.testing.assert_close(dict(layer.named_buffers()), dict(plain.named_buffers()))
    torch.testing.assert_close(layer.eval()(whole), plain.eval()(whole))

with echelon.init() as world:
    torch.manual_seed(1)
    for name, (layer, shape) in LAYERS.items():
        compare(name, copy.deepcopy(layer), shape, torch.float64)
        compare(name, layer, shape, torch.float32)
    half = nn.BatchNorm1d(3)
    with make_exact(half).of(Portion(None, 6, 2), None):
        assert half(torch.randn(2, 3, dtype=torch.bfloat16)).dtype == torch.bfloat16
    single = nn.BatchNorm1d(3)
    with make_exact(single).of(Portion(None, 1, int(world.is_main)), None):
        try:
            single(torch.randn(1, 3))
        except ValueError as error:
            Path(f"done-{world.rank}").write_text(str(error))
"""


def test_batch_norm_over_ranks_is_that_of_the_whole_batch(tmp_path):
    (tmp_path / "compare.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "echelon", "run", "--procs=3", "--restarts=0", "compare.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(3):
        assert "more than 1 value per channel" in (tmp_path / f"done-{rank}").read_text()
