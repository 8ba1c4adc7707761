"""What a rank says about its collectives, on its socket."""

import ctypes
import os
import socket
import sys
import threading
import types

import pytest

from echelon.launch.zygote.collective_trace import offer_trace

NO_WATCH = types.SimpleNamespace(pause_s=None)


@pytest.fixture
def torch(monkeypatch):
    """A torch that records one collective; without torch, tests of this rung start at once."""
    c10d = types.ModuleType("torch.distributed.distributed_c10d")
    c10d.init_process_group = lambda *args, **options: calls.append((args, options))
    native = types.ModuleType("torch._C._distributed_c10d")
    native._dump_fr_trace_json = lambda **_options: b'{"entries": []}'
    calls = c10d.calls = []
    distributed = types.ModuleType("torch.distributed")
    distributed.init_process_group = c10d.init_process_group
    for module in (c10d, native, distributed):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    c10d.distributed, c10d.native = distributed, native
    return c10d


def ask(path):
    with socket.socket(socket.AF_UNIX) as agent:
        agent.settimeout(10)
        agent.connect(str(path))
        return b"".join(iter(lambda: agent.recv(4096), b""))


def test_it_answers_again_and_again(torch, tmp_path):
    offer_trace(tmp_path / "trace", NO_WATCH)
    assert not (tmp_path / "trace").exists(), "before there is a group"
    torch.distributed.init_process_group("gloo", rank=3)
    assert torch.calls == [(("gloo",), {"rank": 3})]
    assert ask(tmp_path / "trace") == b'{"gloo":{"entries": []}}'


def test_it_looks_for_contexts_while_it_waits(torch, tmp_path):
    looked = threading.Event()

    def look():
        watch.pause_s = None
        looked.set()

    watch = types.SimpleNamespace(pause_s=0.01, look=look)
    offer_trace(tmp_path / "trace", watch)
    torch.init_process_group()
    assert looked.wait(10)
    assert ask(tmp_path / "trace") == b'{"gloo":{"entries": []}}'


def test_nccl_is_asked_only_where_captures_are_permitted(torch, tmp_path, monkeypatch):
    modes, loaded = [], []
    driver = types.SimpleNamespace(cuThreadExchangeStreamCaptureMode=modes.append)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: loaded.append(name) or driver)
    torch.native._dump_nccl_trace_json = lambda **_options: b"{}"
    offer_trace(tmp_path / "trace", NO_WATCH)
    torch.init_process_group()
    assert ask(tmp_path / "trace") == b'{"nccl":{},"gloo":{"entries": []}}'
    assert (loaded, len(modes)) == (["libcuda.so.1"], 1)

    def lack(_name):
        raise OSError("no such library")

    monkeypatch.setattr(ctypes, "CDLL", lack)
    assert ask(tmp_path / "trace") == b'{"gloo":{"entries": []}}'


def test_a_second_group_and_an_agent_that_gives_up_do_no_harm(torch, tmp_path):
    offer_trace(tmp_path / "trace", NO_WATCH)
    torch.init_process_group()
    torch.init_process_group()
    assert len(torch.calls) == 2
    with socket.socket(socket.AF_UNIX) as agent:
        agent.connect(str(tmp_path / "trace"))
    assert ask(tmp_path / "trace")


def test_what_a_rank_forks_does_not_answer_for_it(torch, tmp_path, monkeypatch):
    offer_trace(tmp_path / "trace", NO_WATCH)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    torch.init_process_group()
    assert torch.calls
    assert not (tmp_path / "trace").exists()


def test_a_folder_that_does_not_exist_does_no_harm(torch, tmp_path):
    offer_trace(tmp_path / "gone" / "trace", NO_WATCH)
    torch.init_process_group()
    assert torch.calls


def test_a_torch_that_cannot_record(torch, tmp_path):
    del torch.native._dump_fr_trace_json
    offer_trace(tmp_path / "trace", NO_WATCH)
    torch.init_process_group()
    assert ask(tmp_path / "trace") == b"{}"


def test_without_torch_nothing_is_offered(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "torch.distributed.distributed_c10d", raising=False)
    offer_trace(tmp_path / "trace", NO_WATCH)
