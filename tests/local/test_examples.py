"""The examples on this machine: how they begin, how they go on, and what they say when they cannot.

tests/slurm/test_examples.py has every way of starting them.
"""

import importlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mnist_files import write_digits
from started_programs import clean_environment

EXAMPLES = Path(__file__).parents[2] / "examples"
RESUME = (str(EXAMPLES / "resume" / "main.py"), "-a=linear", "-j0", "-b32", "-p4")
MNIST = str(EXAMPLES / "mnist" / "train.py")
GPT = str(EXAMPLES / "gpt" / "train.py")
PLAIN = str(EXAMPLES / "plain_loop" / "train.py")


def run(folder, *words, code=0):
    """Run `python WORDS` in a folder."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=clean_environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return f"--data-dir={write_digits(tmp_path_factory.mktemp('digits'), train=254)}"


# --- resume -------------------------------------------------------------------------------------


def _rest(*values):
    return pytest.param(*values, marks=pytest.mark.full)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, data):
    """A training of one epoch, on two ranks that the script has spawned itself."""
    folder = tmp_path_factory.mktemp("trained")
    done = run(folder, *RESUME, data, "--epochs=1", "--multiprocessing-distributed")
    return folder, done.stdout


@pytest.mark.full
def test_resume_spawns_its_ranks_and_shows_its_meters(trained):
    folder, said = trained
    number = r" *\d+\.\d{3} \( *\d+\.\d{3}\)"
    names = ("Time", "Data", "Loss", "Acc@1", "Acc@5")
    meters = "".join(f"  {name}{number}" for name in names)
    lines = said.splitlines()
    assert lines[0] == "ranks: 2, nodes: 1, device: cpu"
    assert re.fullmatch(rf"Epoch: \[0\]\[  4/8\]{meters}", lines[1])
    assert re.fullmatch(rf"Epoch: \[0\]\[  8/8\]{meters}", lines[2])
    assert re.fullmatch(r" \* Acc@1 \d+\.\d{3} Acc@5 \d+\.\d{3}", lines[3])
    assert lines[4] == "best: checkpoints/step-000000008"
    manifest = json.loads((folder / "checkpoints/step-000000008/manifest.json").read_text())
    assert (manifest["world_size"], manifest["state"]["source"]["cursor"]) == (2, 0)
    best = json.loads((folder / "checkpoints/best.json").read_text())
    assert (best["step"], best["metric"]) == (8, "accuracy")


@pytest.mark.full
def test_resume_measures_what_it_has_trained(trained, data):
    folder, said = trained
    measured = run(folder, *RESUME, data, "-e").stdout.splitlines()
    assert measured == ["ranks: 1, nodes: 1, device: cpu", said.splitlines()[3]]


def test_resume_begins_where_another_training_was_and_then_goes_on_by_itself(
    trained, data, tmp_path
):
    folder, _ = trained
    argv = [*RESUME, data, "--resume", str(folder / "checkpoints")]
    first = run(tmp_path, *argv, "--epochs=2")
    assert "resumed at step 8, in epoch 2" in first.stderr
    assert re.findall(r"Epoch: \[(\d)\]\[ +(\d)/8\]", first.stdout) == [("1", "4"), ("1", "8")]
    # What it was told to begin with is older than what it has itself.
    second = run(tmp_path, *argv, "--epochs=3")
    assert "resumed at step 16, in epoch 3" in second.stderr
    assert "resuming from the newest" in second.stdout
    assert not (folder / "checkpoints/step-000000016").exists()


def test_resume_begins_with_a_file_of_torch_save(data, tmp_path):
    import torch
    from torch import nn

    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    weights = {f"module.{name}": value for name, value in net.state_dict().items()}
    torch.save(
        {"epoch": 30, "arch": "linear", "state_dict": weights, "optimizer": optimizer.state_dict()},
        tmp_path / "checkpoint.pth.tar",
    )
    argv = [*RESUME, data, "--resume", "checkpoint.pth.tar", "--epochs=31", "--lr=0.1"]
    done = run(tmp_path, *argv)
    assert "checkpoint.pth.tar was written by torch.save" in done.stderr
    assert re.findall(r"Epoch: \[(\d+)\]\[", done.stdout) == ["30", "30"]
    manifest = json.loads((tmp_path / "checkpoints/step-000000008/manifest.json").read_text())
    assert manifest["state"]["optimizer"]["param_groups"][0]["lr"] == 0.01
    assert manifest["state"]["scheduler"]["last_epoch"] == 31


@pytest.mark.parametrize(
    ("flags", "code", "told"),
    [
        _rest(["--resume=nowhere"], 2, "there is no checkpoint nowhere; name a folder"),
        _rest(["-a=mlp", "-e"], 2, "step-000000008 does not fit -a mlp"),
        (["-a=mlp"], 2, "step-000000008 does not match the model"),
    ],
)
def test_resume_says_in_one_line_why_it_cannot(trained, data, flags, code, told):
    folder, _ = trained
    said = run(folder, *RESUME, data, *flags, code=code).stderr
    assert said.count("error:") == 1
    assert told in said
    assert "Traceback" not in said


@pytest.mark.full
def test_resume_joins_ranks_that_are_started_by_hand(data, tmp_path):
    argv = [sys.executable, *RESUME, data, "--epochs=1", "--world-size=2", "--dist-file=meet"]
    ranks = [
        subprocess.Popen(
            [*argv, f"--rank={rank}"],
            cwd=tmp_path,
            env=clean_environment(OMP_NUM_THREADS="1"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
            rank.stdout.close()
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert said[0].splitlines()[0] == "ranks: 2, nodes: 1, device: cpu"
    assert "best: checkpoints/step-000000008" in said[0]


@pytest.fixture(scope="module")
def resume():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("resume_main", RESUME[0])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


STEP = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}


REFUSED = [
    (["--resume=7"], {}, "there is no checkpoint checkpoints/step-000000007"),
    (["--rank=1"], {}, "--rank needs --world-size, and"),
    (["--rank=1", "--world-size=2"], {}, "--rank needs --world-size, and"),
    (["--world-size=2"], {}, "--world-size needs --rank or"),
    (["--dist-url=udp://here"], {}, "use tcp://HOST:PORT"),
    (["--multiprocessing-distributed", "--gpu=1"], {}, "leave out --rank and --gpu"),
    (["--multiprocessing-distributed"], {"RANK": "0", "WORLD_SIZE": "2"}, "has started this rank"),
    (["--multiprocessing-distributed"], STEP, "one of 2 tasks, and they have nowhere to meet"),
    (["-p=0"], {}, "-p 0: use 1 or more"),
]


@pytest.mark.parametrize("refused", REFUSED, ids=[told for *_, told in REFUSED])
def test_flags_that_make_no_sense_are_refused(resume, monkeypatch, capsys, refused):
    flags, variables, told = refused
    monkeypatch.setattr(sys, "argv", ["main.py", *flags])
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="2"):
        resume.parse_arguments()
    assert told in capsys.readouterr().err


def test_a_file_to_meet_in_is_a_new_one_for_every_start(resume, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["main.py", "--dist-file=/shared/meet"])
    wanted = resume.parse_arguments()

    def file(**environ):
        return resume.tell_ranks(wanted, environ).get("ECHELON_INIT_METHOD")

    job = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    assert file(**job) == "file:///shared/meet.7.0"
    assert file(**job, SLURM_RESTART_COUNT="1") == "file:///shared/meet.7.0.1"
    assert file(ECHELON_INIT_METHOD="file:///shared/meet", **job) is None


# --- plain_loop ---------------------------------------------------------------------------------


def loop(folder, *words):
    """Run the loop, by whatever starts it; return its weights at the end, and what was said."""
    from echelon.train.checkpoint_files import load_checkpoint

    done = run(folder, *words, "--save-every=2")
    found = load_checkpoint(next(folder.rglob("checkpoints/step-000000016")))
    return found.state["model"], done.stdout + done.stderr


THREE = ("-m", "echelon", "run", "--procs=3", PLAIN, "--batch-size=12")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, data):
    return loop(tmp_path_factory.mktemp("undisturbed"), *THREE, data)


@pytest.mark.parametrize(
    "form",
    [[], pytest.param(["--plain-sampler"], marks=pytest.mark.full)],
    ids=["batches", "plain"],
)
def test_a_loop_by_hand_survives_a_kill_and_ends_bit_for_bit_the_same(
    undisturbed, data, tmp_path, form
):
    import torch

    whole, _ = undisturbed
    broken, said = loop(tmp_path, *THREE, data, "--crash-at=5", *form)
    assert "killed by SIGKILL" in said
    assert re.search(r"0: resumed at step [24], at sample (72|144) of its epoch", said)
    assert "0: epoch 2: test accuracy 100.00% after 16 steps" in said
    assert whole.keys() == broken.keys()
    for name, value in whole.items():
        assert torch.equal(value, broken[name]), name


@pytest.mark.full
def test_a_loop_by_hand_learns_the_same_on_one_rank_and_on_three(data, tmp_path):
    """With both samplers. An epoch's last batch has two samples: one rank's must not count."""
    import torch

    for name in ("one", "three"):
        (tmp_path / name).mkdir()
    one, _ = loop(tmp_path / "one", PLAIN, "--batch-size=36", data, "--dropout=0")
    three, _ = loop(tmp_path / "three", *THREE, data, "--dropout=0", "--plain-sampler")
    torch.testing.assert_close(dict(one), dict(three))


# --- allreduce ----------------------------------------------------------------------------------


def test_an_all_reduce_is_verified_on_every_rank(tmp_path):
    script = str(EXAMPLES / "allreduce" / "main.py")
    argv = ["-m", "echelon", "run", "--procs=3", script, "--size=1000", "--repeat=3"]
    said = run(tmp_path, *argv).stdout
    ranks = re.findall(r"(\d): rank (\d) of 3 on \S+, cpu: the sum is verified, .* (\S+)", said)
    assert sorted((log, rank) for log, rank, _ in ranks) == [(n, n) for n in "012"]
    assert len({first for *_, first in ranks}) == 1
    assert re.search(r"0: 0.004 MB per rank in .* ms: .* GB/s, bus .* GB/s \(gloo\)", said)


# --- mnist --------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_dry_run_of_mnist_claims_no_accuracy(tmp_path, data):
    done = run(tmp_path, MNIST, data, "--dry-run", "--no-cuda", "--batch-size=32")
    assert "trained to step 1" in done.stderr
    assert "accuracy" not in done.stdout + done.stderr


# --- gpt ----------------------------------------------------------------------------------------


@pytest.fixture
def text(tmp_path):
    """Some text that is easy to learn, in two files, and one that is no text."""
    folder = tmp_path / "text"
    (folder / "deeper").mkdir(parents=True)
    (folder / "a.py").write_text("print('hello world')\n" * 250)
    (folder / "deeper" / "b.txt").write_text("print('hello moon')\n" * 250)
    (folder / "c.bin").write_bytes(bytes(10_000))
    return folder


def test_a_gpt_learns_the_same_on_one_rank_and_sharded_over_two(tmp_path, text):
    tiny = ("--size=tiny", "--steps=24", "--batch-size=8", "--lr=0.02", "--warm-up=5", "--sample=9")
    argv = [GPT, *tiny, f"--text={text}", "--begin=print('hel"]
    losses = []
    for name, launcher, flags in [
        ("one", [], ["--recompute"]),
        ("two", ["-m", "echelon", "run", "--procs=2"], ["--shard=fsdp", "--accumulate=2"]),
    ]:
        (tmp_path / name).mkdir()
        said = run(tmp_path / name, *launcher, *argv, *flags).stdout
        found = re.search(
            r"0\.04 million parameters, .* validation loss (\S+) after 24 steps", said
        )
        losses.append(float(found[1]))
        assert re.search(r"^(0: )?print\('hel.", said, re.MULTILINE)
        assert (tmp_path / name / "text.packed").stat().st_size == sum(
            path.stat().st_size + 1 for path in (text / "a.py", text / "deeper" / "b.txt")
        )
    assert losses[0] < 3.5  # 5.5 at first
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_a_gpt_packs_its_text_once_and_has_124_million_parameters(tmp_path, text, monkeypatch):
    import torch

    monkeypatch.syspath_prepend(str(EXAMPLES / "gpt"))
    model, reader = (importlib.import_module(name) for name in ("model", "text"))
    with torch.device("meta"):
        net = model.Gpt(model.SIZES["124m"])
    assert round(sum(one.numel() for one in net.parameters()) / 1e6) == 124
    packed = tmp_path / "packed"
    with pytest.raises(SystemExit, match="nowhere is not a folder"):
        reader.pack_text(tmp_path / "nowhere", packed)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match="has no files ending in"):
        reader.pack_text(tmp_path / "empty", packed)
    assert not list(tmp_path.glob("*packed*"))
    reader.pack_text(text, packed)
    content = packed.read_bytes()
    (text / "a.py").unlink()
    reader.pack_text(text, packed)
    assert packed.read_bytes() == content
    parts = [reader.Windows(packed, 64, train=train, limit=None) for train in (True, False)]
    assert sum(map(len, parts)) == (len(content) - 1) // 64
    inputs, targets = parts[1].batch([0, 1])
    assert bytes(inputs[1].tolist()) == content[20 * 64 : 21 * 64]
    assert bytes(targets[1].tolist()) == content[20 * 64 + 1 : 21 * 64 + 1]
