import errno
import json
import os
import pkgutil
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from echelon.errors import NotFoundError, NotPermittedError, UsageError
from echelon.launch.protocol.rank_shm import VARIABLE, RankShm
from echelon.train.checkpoint import Checkpointer
from echelon.train.checkpoint_files import Part, load_checkpoint, load_foreign
from echelon.train.checkpoints.manifest import CheckpointError, checkpoint_path, part_path
from echelon.train.state import flatten, unflatten
from echelon.train.tensor_block import TensorBlock
from requirements import do_without

SAME = "same"
"""A token, as ranks with a process group agree on one."""


def state(step=1):
    torch.manual_seed(step)
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(3, 8)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}


def same(one, other):
    skeletons = [flatten(each) for each in (one, other)]
    assert skeletons[0][0] == skeletons[1][0]
    pairs = zip(skeletons[0][1].items(), skeletons[1][1].items(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


plain = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text()
names = st.text().filter(lambda name: not name.startswith("$"))
nested = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(names, inner, max_size=3)
        | st.dictionaries(st.integers(0, 9), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
)


@given(nested)
def test_plain_data_come_back_as_they_were(value):
    skeleton, tensors = flatten(value)
    back = unflatten(json.loads(json.dumps(skeleton)), tensors)
    assert repr(back) == repr(value)  # NaN is not equal to itself


def test_what_is_no_data_is_refused_with_its_place():
    with pytest.raises(UsageError, match="object at '/optimizer/0/hook'"):
        flatten({"optimizer": [{"hook": object()}]})
    with pytest.raises(UsageError, match="keys"):
        flatten({("a", "b"): 1})


def test_a_state_comes_back_whole(tmp_path):
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(state(), step=7, own={"rng": torch.arange(3)}, metrics={"loss": 0.5})
    checkpointer.wait()
    found = Checkpointer(tmp_path).load()
    assert (found.step, found.metrics) == (7, {"loss": 0.5})
    assert same(found.state, state())
    assert torch.equal(found.own["rng"], torch.arange(3))


def test_the_loop_may_change_its_tensors_at_once(tmp_path):
    weights = torch.zeros(1000, 1000)
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save({"w": weights}, step=1)
    weights += 1
    checkpointer.wait()
    assert checkpointer.load().state["w"].sum() == 0


def test_ranks_write_their_parts_and_any_number_of_ranks_reads_them(tmp_path):
    ranks = [Checkpointer(tmp_path, rank=rank, world_size=3, token=SAME) for rank in range(3)]
    for rank, checkpointer in enumerate(ranks):
        checkpointer.save(state(), step=1, own={"rank": rank})
    for checkpointer in ranks:
        checkpointer.wait()
    shards = sorted(path.name for path in checkpoint_path(tmp_path, 1).glob("*.safetensors"))
    assert shards == [f"shard-{rank:05}.safetensors" for rank in range(3)]
    for rank in range(3):
        found = load_checkpoint(checkpoint_path(tmp_path, 1), rank=rank, world_size=3)
        assert found.own == {"rank": rank}
        assert same(found.state, state())
    alone = load_checkpoint(checkpoint_path(tmp_path, 1))
    assert alone.own is None
    assert same(alone.state, state())


def saved(folder, *steps):
    checkpointer = Checkpointer(folder, keep=9)
    for step in steps:
        checkpointer.save(state(step), step=step, wait=True)
    return checkpointer


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip_a_bit(path, position=-1):
    """Change one bit: of the last tensor's values, unless told otherwise."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def flip_a_bit_of_the_header(path):
    flip_a_bit(path, position=20)


@pytest.mark.parametrize(
    ("harm", "file"),
    [
        (truncate, "shard-00000.safetensors"),
        (flip_a_bit, "shard-00000.safetensors"),
        (flip_a_bit_of_the_header, "shard-00000.safetensors"),
        (lambda path: path.unlink(), "shard-00000.safetensors"),
        (lambda path: path.unlink(), "manifest.json"),
        (truncate, "manifest.json"),
        (lambda path: path.write_text("{}"), "manifest.json"),
    ],
)
def test_a_damaged_one_is_never_loaded_and_the_one_before_it_is(tmp_path, harm, file):
    checkpointer = saved(tmp_path, 1, 2)
    content = (checkpoint_path(tmp_path, 2) / file).read_bytes()
    harm(checkpoint_path(tmp_path, 2) / file)
    if file == "manifest.json" and harm is truncate:  # only its line end was lost
        (checkpoint_path(tmp_path, 2) / file).write_bytes(content[:-3])
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert checkpointer.load().step == 1
    with pytest.raises(CheckpointError, match="damaged"):
        checkpointer.load(step=2)


def test_a_newer_format_is_not_guessed_at(tmp_path):
    checkpointer = saved(tmp_path, 1)
    manifest = checkpoint_path(tmp_path, 1) / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": 99}))
    with pytest.raises(CheckpointError, match="version 99"):
        checkpointer.load(step=1)


def test_the_newest_and_the_best_are_kept(tmp_path):
    checkpointer = Checkpointer(tmp_path, keep=2, best="accuracy", larger_is_better=True)
    for step, accuracy in enumerate([0.1, 0.9, 0.5, 0.6, 0.7], start=1):
        checkpointer.save({"w": torch.zeros(1)}, step=step, metrics={"accuracy": accuracy})
    checkpointer.wait()
    assert checkpointer.steps() == [2, 4, 5]
    assert checkpointer.best_step() == 2
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_what_is_not_there_is_told(tmp_path):
    assert Checkpointer(tmp_path).load() is None
    with pytest.raises(NotFoundError, match="no checkpoint of step 3"):
        saved(tmp_path, 1).load(step=3)


def test_a_folder_that_cannot_be_written_to_is_told_at_once(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotPermittedError, match="no checkpoint can be written"):
        Checkpointer(tmp_path / "file" / "checkpoints")


def test_a_full_disk_is_told_and_the_last_one_stays(tmp_path, full_disk):
    checkpointer = Checkpointer(full_disk)
    checkpointer.save({"w": torch.zeros(1000)}, step=1, wait=True)
    for step in (2, 3):
        checkpointer.save({"w": torch.zeros(4_000_000)}, step=2)
        with pytest.warns(RuntimeWarning, match="could not be written.*still there"):
            checkpointer.save({"w": torch.zeros(4_000_000)}, step=step + 1)
        with pytest.raises(CheckpointError, match=f"step {step + 1} could not.*No space"):
            checkpointer.wait()
        checkpointer.wait()  # it is told once
    assert checkpointer.steps() == [1]
    assert checkpointer.load().step == 1
    assert [path.name for path in full_disk.iterdir() if path.name.startswith(".")] == []


@pytest.fixture
def full_disk(tmp_path):
    """A file system of two megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        do_without("needs root, to mount a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize(
    ("ranks", "sharded", "kills"),
    [
        *((ranks, False, 25) for ranks in (1, 2)),
        (2, True, 25),
        *(pytest.param(ranks, False, 500, marks=pytest.mark.full) for ranks in (1, 2)),
        pytest.param(3, True, 1000, marks=pytest.mark.full),
    ],
)
@pytest.mark.timeout(3600)
def test_writers_killed_at_any_moment_leave_a_whole_one(tmp_path, ranks, sharded, kills):
    """Writers are forked from one process, so that none has to import torch again."""
    if sharded:  # what a DTensor imports: once here, instead of in every writer
        import torch._dynamo
        import torch.distributed.tensor
        import torch.testing._internal.distributed.fake_pg  # noqa: F401

    folder = tmp_path / "checkpoints"
    began_s = time.monotonic()
    for newest in (1, 2, 3):
        Checkpointer(folder, keep=2).save(numbered(newest), step=newest, wait=True)
    span_s = time.monotonic() - began_s  # so that a kill may come in a first, second or third one
    moments = random.Random(7)  # noqa: S311
    for number in range(kills):
        writers = [
            _fork_writer(folder, newest, rank, ranks, f"t{number}", sharded=sharded)
            for rank in range(ranks)
        ]
        time.sleep(moments.random() * span_s)  # the moment of a kill is what is tried here
        moments.shuffle(writers)
        for pid in writers:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        found = Checkpointer(folder, keep=2).load()
        assert found.step >= newest
        assert same(found.state, numbered(found.step))
        newest = found.step
    assert newest > 3


def numbered(step):
    """A state; each of two ranks writes one half of it."""
    return {"a": torch.full((25_000,), float(step)), "b": torch.full((25_000,), float(step))}


def _sharded(state, mesh):
    """The same state, of whose first tensor each rank has a part."""
    from torch.distributed.tensor import DTensor, Shard

    whole = state["a"]
    part = whole.chunk(mesh.size())[mesh.get_rank()]
    layout = {"shape": whole.shape, "stride": whole.stride(), "run_check": False}
    return {**state, "a": DTensor.from_local(part, mesh, [Shard(0)], **layout)}


def _make_mesh(rank, ranks):
    """A mesh of ranks that never communicate."""
    from torch.distributed import init_device_mesh, init_process_group
    from torch.testing._internal.distributed.fake_pg import FakeStore

    init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    return init_device_mesh("cpu", (ranks,))


def _fork_writer(folder, step, rank, ranks, token, *, sharded):
    """Start a rank that saves one step after another; return its pid once it has begun."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(1)
            checkpointer = Checkpointer(folder, keep=2, rank=rank, world_size=ranks, token=token)
            mesh = _make_mesh(rank, ranks) if sharded else None
            os.write(write_end, b"!")
            while True:
                step += 1
                state = _sharded(numbered(step), mesh) if sharded else numbered(step)
                checkpointer.save(state, step=step, wait=True)
        finally:
            os._exit(1)
    os.close(write_end)
    os.read(read_end, 1)
    os.close(read_end)
    return pid


def test_a_foreign_file_is_loaded_as_data_alone(tmp_path):
    torch.save({"w": torch.ones(2)}, tmp_path / "theirs.pt")
    with pytest.warns(RuntimeWarning, match="not verified"):
        assert torch.equal(load_foreign(tmp_path / "theirs.pt")["w"], torch.ones(2))
    torch.save({"f": subprocess.Popen}, tmp_path / "evil.pt")
    with (
        pytest.warns(RuntimeWarning, match="not verified"),
        pytest.raises(CheckpointError, match="as data"),
    ):
        load_foreign(tmp_path / "evil.pt")


def test_who_only_reads_takes_nothing_away_from_one_that_writes(tmp_path):
    writes = Checkpointer(tmp_path, token=SAME)
    writes.save({"w": torch.zeros(1)}, step=1, wait=True)
    unfinished = tmp_path / f".step-000000002-{SAME}"
    unfinished.mkdir()
    left = tmp_path / ".step-000000001-of-one-that-was-killed"
    left.mkdir()
    assert Checkpointer(tmp_path).load().step == 1
    assert unfinished.exists()
    writes.save({"w": torch.zeros(1)}, step=3, wait=True)
    assert left.exists()  # it has cleared before its first
    Checkpointer(tmp_path).save({"w": torch.zeros(1)}, step=4, wait=True)
    assert not left.exists()


def test_a_folder_that_rank_0_renames_at_once_is_no_failure(tmp_path, monkeypatch):
    rename = Path.replace

    def rename_both(path, target):
        rename(path, target)
        if target.name == "shard-00001.json":
            target.parent.rename(checkpoint_path(tmp_path, 1))

    monkeypatch.setattr(Path, "replace", rename_both)
    other = Checkpointer(tmp_path, rank=1, world_size=2, token=SAME)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other.save({"w": torch.zeros(9)}, step=1, wait=True)
    assert part_path(checkpoint_path(tmp_path, 1), 1).exists()


def test_a_checkpoint_that_rank_0_has_given_up_is_named(tmp_path, monkeypatch):
    def give_up(_block, path):
        shutil.rmtree(path.parent)
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(TensorBlock, "write", give_up)
    other = Checkpointer(tmp_path, rank=1, world_size=2, token=SAME)
    with pytest.raises(CheckpointError, match="rank 0 has given it up"):
        other.save({"w": torch.zeros(9)}, step=1, wait=True)


def test_a_rank_that_cannot_write_does_not_keep_the_others(tmp_path, monkeypatch):
    ranks = [Checkpointer(tmp_path, rank=rank, world_size=2, token=SAME) for rank in range(2)]
    write = TensorBlock.write

    def fail(block, path):
        if path == part_path(path.parent, 1):
            raise OSError(28, "No space left on device")
        return write(block, path)

    monkeypatch.setattr(TensorBlock, "write", fail)
    for rank in ranks:
        rank.save({"w": torch.zeros(9)}, step=1)
    with pytest.raises(CheckpointError, match="No space left"):
        ranks[1].wait()
    with pytest.raises(CheckpointError, match="rank 1 could not write"):
        ranks[0].wait()
    assert ranks[0].steps() == []


def test_a_damaged_one_of_a_later_step_does_not_cost_new_ones(tmp_path):
    checkpointer = saved(tmp_path, 20)
    flip_a_bit(checkpoint_path(tmp_path, 20) / "shard-00000.safetensors")
    checkpointer = Checkpointer(tmp_path, keep=1)
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert checkpointer.load() is None
    for step in (5, 10):
        checkpointer.save(state(step), step=step, wait=True)
    assert checkpointer.steps() == [10]
    assert Checkpointer(tmp_path).load().step == 10


# --- what the agent is told -------------------------------------------------------------------


@pytest.fixture
def beacon(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "beacon"))
    return RankShm.create(tmp_path / "beacon")


def test_the_agent_is_told_what_is_safe_and_what_it_cost(tmp_path, beacon):
    checkpointer = Checkpointer(tmp_path / "checkpoints")
    assert checkpointer.load() is None
    assert (beacon.saved, beacon.save_us, beacon.stall_us) == (-1, -1, -1)
    began = time.monotonic()
    checkpointer.save({"w": torch.zeros(1000)}, step=7)
    checkpointer.wait()
    assert beacon.saved == 7
    held_up = beacon.stall_us
    assert checkpointer.last_stall_s * 1e6 <= held_up + 1
    assert 0 < max(beacon.save_us, held_up) <= (time.monotonic() - began) * 1e6
    checkpointer.save({"w": torch.zeros(1000)}, step=8, wait=True)
    assert beacon.saved == 8
    assert beacon.stall_us >= held_up + checkpointer.last_stall_s * 1e6 - 1
    beacon.saved = -1
    assert Checkpointer(tmp_path / "checkpoints").load().step == 8
    assert beacon.saved == 8  # it is there to go back to


def test_what_could_not_be_written_is_not_safe(full_disk, beacon):
    checkpointer = Checkpointer(full_disk)
    checkpointer.save({"w": torch.zeros(1000)}, step=1, wait=True)
    checkpointer.save({"w": torch.zeros(4_000_000)}, step=2)
    with pytest.raises(CheckpointError, match="could not be written"):
        checkpointer.wait()
    assert beacon.saved == 1


def test_a_part_is_safe_when_it_is_written_and_the_whole_when_all_are(
    tmp_path, beacon, monkeypatch
):
    first, second = (
        Checkpointer(tmp_path / "c", rank=rank, world_size=2, token=SAME) for rank in (0, 1)
    )
    second.save({"w": torch.zeros(10)}, step=3, wait=True)
    assert beacon.saved == 3
    beacon.saved, complete, before = -1, Part.complete, []

    def noted(part):
        before.append(beacon.saved)
        return complete(part)

    monkeypatch.setattr(Part, "complete", noted)
    first.save({"w": torch.zeros(10)}, step=3, wait=True)
    assert (before, beacon.saved, first.steps()) == ([-1], 3, [3])


@pytest.mark.parametrize("read", ["reading.open_regular", "manifest.read_record"])
def test_storage_that_is_away_for_a_moment_is_no_damage(tmp_path, monkeypatch, read):
    """Else an older one is loaded, and newer ones are removed: of a time that was gone back on."""
    checkpointer = saved(tmp_path, 10, 20)
    fail_once(monkeypatch, f"echelon.train.checkpoints.{read}")
    assert checkpointer.load().step == 20


def test_a_start_waits_for_storage(tmp_path, monkeypatch):
    fail_once(monkeypatch, "echelon.train.checkpoint.Path.touch")
    assert Checkpointer(tmp_path).steps() == []


@pytest.mark.parametrize("write", ["Path.glob", "Part.write_part", "Part.complete"])
def test_a_write_that_fails_is_told_once_and_the_next_one_works(tmp_path, monkeypatch, write):
    checkpointer = Checkpointer(tmp_path)
    fail_once(monkeypatch, f"echelon.train.checkpoint.{write}")
    with pytest.raises(CheckpointError, match=r"could not be written .* Input/output error"):
        checkpointer.save(state(1), step=1, wait=True)
    checkpointer.save(state(2), step=2, wait=True)  # a warning would be an error here
    assert checkpointer.steps() == [2]


def fail_once(monkeypatch, name):
    """Have a function fail as storage does that is away, the first time."""
    place, _, name = name.rpartition(".")
    owner = pkgutil.resolve_name(place)
    real, errors = getattr(owner, name), [OSError(errno.EIO, "Input/output error")]

    def fail(*args, **kwargs):
        if errors:
            raise errors.pop()
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, fail)


# --- a script that ends without waiting -------------------------------------------------------

ENDS = """
import sys, torch
from pathlib import Path
from echelon import Checkpointer

def train(folder, **options):
    checkpoints = Checkpointer(folder, **options)
    if "fail" in sys.argv:
        folder.rmdir()
        folder.touch()
    checkpoints.save({"w": torch.zeros(1 << 22)}, step=1)

if "raise" in sys.argv:
    train(Path("saved"), rank=0, world_size=2)  # rank 1 never writes its part
    raise KeyError("of the script")
train(Path("saved"))
"""


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 0, ""),
        (["fail"], 1, "CheckpointError: the checkpoint of step 1 could not be written to saved"),
        (["raise"], 1, "KeyError: 'of the script'"),
    ],
    ids=["finished", "failed", "after-an-exception"],
)
def test_a_script_that_ends_without_wait_finishes_its_last_checkpoint(tmp_path, words, code, says):
    done = subprocess.run(
        [sys.executable, "-c", ENDS, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == code
    last_line = done.stderr.strip().rpartition("\n")[2]
    assert (says in last_line) if says else not last_line
    assert (tmp_path / "saved/step-000000001").exists() == (not words)
