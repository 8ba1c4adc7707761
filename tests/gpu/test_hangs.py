"""Hangs of ranks with NCCL between them: who is blamed, and for what. Run by hand."""

import pytest
import torch

from gpu.nccl_hangs import HANGS, try_hang

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.timeout(300),
]


@pytest.mark.parametrize("hang", HANGS, ids=lambda hang: hang.name)
def test_the_verdict_names_the_rank_and_its_collective(hang, tmp_path):
    wrong, _ = try_hang(hang, tmp_path)
    assert not wrong
