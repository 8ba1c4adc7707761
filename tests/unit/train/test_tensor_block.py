import hashlib
import json
import zlib

import pytest
import torch
from safetensors.torch import load_file

from echelon.errors import UsageError
from echelon.train import tensor_block
from echelon.train.checkpoint import Checkpointer
from echelon.train.checkpoints import safetensors_file
from echelon.train.tensor_block import TensorBlock

VALUES = torch.arange(12).reshape(3, 4)
KINDS = sorted(tensor_block._KINDS, key=str)
ODD = {
    "scalar": torch.tensor(7.5),
    "nothing": torch.empty(0, 3),
    "turned": VALUES.T,
    "every other": VALUES[:, ::2],
    "broadcast": torch.tensor([1.0]).expand(5),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "bits": torch.tensor([True, False, True]),
    "conjugate": torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "negative": torch._neg_view(torch.tensor([1.0, 2.0])),
    "a name with a space, ü and /": torch.zeros(1, dtype=torch.int8),
}


def write(tensors, path):
    block = TensorBlock(tensors)
    block.fill(tensors)
    return block.write(path)


def equal(one, other):
    plain = [tensor.resolve_conj().resolve_neg() for tensor in (one, other)]
    as_bytes = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in plain]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*as_bytes)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_kind_of_number_comes_back(tmp_path, kind):
    tensors = {"w": VALUES.to(kind), "last": torch.ones(1, dtype=torch.uint8)}
    write(tensors, tmp_path / "file")
    found = load_file(tmp_path / "file")
    assert all(equal(found[name], tensors[name]) for name in tensors)


def test_so_do_all_kinds_and_forms_together(tmp_path):
    tensors = {str(kind): VALUES.to(kind) for kind in KINDS} | ODD
    write(tensors, tmp_path / "file")
    found = load_file(tmp_path / "file")
    assert found.keys() == tensors.keys()
    assert all(equal(found[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_several_threads_copy_parts_of_tensors(tmp_path, monkeypatch, threads):
    monkeypatch.setattr(tensor_block, "_MOVE", 1000)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    tensors = {str(size): torch.randn(size) for size in (0, 1, 249, 250, 251, 10_007)} | ODD
    write(tensors, tmp_path / "file")
    found = load_file(tmp_path / "file")
    assert all(equal(found[name], tensors[name]) for name in tensors)


def test_each_tensor_begins_where_its_type_may(tmp_path):
    tensors = {f"{n}": VALUES[0, :n].to(kind) for n, kind in enumerate(KINDS)}
    write(tensors, tmp_path / "file")
    content = (tmp_path / "file").read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0
    for name, entry in json.loads(content[8 : 8 + length]).items():
        assert entry["data_offsets"][0] % tensors[name].element_size() == 0


def test_no_tensor_at_all_is_a_file_too(tmp_path):
    write({}, tmp_path / "file")
    assert load_file(tmp_path / "file") == {}


@pytest.mark.parametrize("block", [1, 7, 1000, 1 << 20])
def test_checksums_are_those_of_the_bytes_in_the_file(tmp_path, monkeypatch, block):
    monkeypatch.setattr(safetensors_file, "_LEAST_BLOCK", block)
    stored, size, header = write({"w": torch.randn(100), "n": torch.ones(3)}, tmp_path / "file")
    content = (tmp_path / "file").read_bytes()
    length = 8 + int.from_bytes(content[:8], "little")
    assert (size, header) == (len(content), hashlib.sha256(content[:length]).hexdigest())
    for one in stored.values():
        whole = content[one.begin : one.begin + one.type.nbytes]
        pieces = [whole[n : n + one.block] for n in range(0, len(whole), one.block)]
        assert one.checksums == tuple(map(zlib.crc32, pieces))
    assert len(stored["w"].checksums) == -(-400 // max(block, 13))  # at most 32


def test_the_same_memory_serves_again(tmp_path):
    block = TensorBlock({"w": torch.zeros(3), "n": torch.tensor(1)})
    again = {"n": torch.tensor(2), "w": torch.ones(3)}
    assert block.fits(again)
    block.fill(again)
    block.write(tmp_path / "file")
    assert load_file(tmp_path / "file")["w"].tolist() == [1, 1, 1]
    for other in ({"w": torch.ones(3)}, {**again, "w": torch.ones(4)}, {**again, "w": VALUES[0]}):
        assert not block.fits(other)


@pytest.mark.parametrize(
    "odd", [torch.zeros(2, dtype=torch.complex128), torch.eye(2).to_sparse()], ids=["kind", "form"]
)
def test_what_such_a_file_cannot_hold_is_refused_with_its_place(odd):
    with pytest.raises(UsageError, match="'here'"):
        TensorBlock({"here": odd})


def test_tied_weights_are_saved_and_still_the_same(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(model.state_dict(), step=1, wait=True)
    found = checkpointer.load().state
    assert torch.equal(found["0.weight"], model[0].weight)
    assert torch.equal(found["1.weight"], model[0].weight)


def test_a_state_may_change_its_form_between_saves(tmp_path):
    checkpointer = Checkpointer(tmp_path)
    for step in (1, 2, 3):
        checkpointer.save({"w": torch.full((step % 3, 2), float(step))}, step=step, wait=True)
        assert torch.equal(checkpointer.load().state["w"], torch.full((step % 3, 2), float(step)))
