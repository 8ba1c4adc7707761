import json
import subprocess
import sys
import textwrap

import pytest
import torch

from echelon.cli.main import run
from echelon.train.checkpoint import Checkpointer
from recorded_run import record_run

NAME = "train-abcd"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The checkpoints of a run, in the current folder's runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    folder = record_run(tmp_path / "runs", NAME).checkpoints
    checkpointer = Checkpointer(folder, rank=0, world_size=1, best="loss")
    for step in (10, 20):
        model = {"weight": torch.full((4, 2), float(step))}
        metrics = {"loss": step / 8}
        checkpointer.save({"model": model, "lr": 0.1}, step=step, metrics=metrics, wait=True)
    return folder


def run_command(capsys, *arguments, code=0):
    assert run(["checkpoint", *arguments]) == code
    return capsys.readouterr()


def harm(folder, step):
    path = folder / f"step-{step:09}" / "shard-00000.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_checkpoints_are_listed(capsys, folder):
    lines = run_command(capsys, "ls").out.splitlines()
    assert [line.split()[0] for line in lines] == ["step", "10", "20"]
    assert "(best)" in lines[1]
    assert lines[2].endswith("loss 2.5")
    facts = json.loads(run_command(capsys, "ls", NAME, "--json").out)
    assert [(one["step"], one["bytes"], one["ranks"], one["best"]) for one in facts] == [
        (10, 32, 1, True),
        (20, 32, 1, False),
    ]
    (folder / "step-000000020" / "manifest.json").write_text("{}")
    assert "is damaged" in run_command(capsys, "ls", str(folder)).out


def test_checkpoint_show_prints_tensors_and_values(capsys, folder):
    text = run_command(capsys, "show", "last").out
    assert "step 20, saved by 1 rank, 1 tensor" in text
    assert "model/weight" in text
    assert "4×2" in text
    fact = json.loads(run_command(capsys, "show", "--step", "10", "--json").out)
    assert fact["values"] == {"lr": 0.1}
    assert fact["tensors"][0] == {
        "name": "model/weight",
        "dtype": "F32",
        "shape": [4, 2],
        "bytes": 32,
        "placements": "R",
    }


def test_checkpoint_verify_finds_damage(capsys, folder):
    assert run_command(capsys, "verify").out.count("intact") == 2
    harm(folder, 10)
    run_command(capsys, "verify", "--step", "20")
    assert "'state/model/weight' in shard-00000" in run_command(capsys, "verify", code=66).out
    facts = json.loads(run_command(capsys, "verify", "--json", code=66).out)
    assert [bool(one["problem"]) for one in facts] == [True, False]


def test_checkpoint_convert_converts_one_step(capsys, folder, tmp_path):
    run_command(capsys, "convert", "last", "model.safetensors", "--step", "10")
    run_command(capsys, "convert", "model.safetensors", "others", "--to", "echelon", "--step", "3")
    assert (
        Checkpointer(tmp_path / "others").load().state["model"]["weight"].tolist() == [[10, 10]] * 4
    )
    assert (
        "already exists" in run_command(capsys, "convert", "last", "model.safetensors", code=73).err
    )


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["ls", "nothing"], 66, "no run 'nothing'"),
        (["ls", "."], 66, "there is no checkpoint in ."),
        (["show", "--step", "15"], 66, "there are: 10, 20"),
        (["convert", "last", "x"], 2, "cannot tell the format"),
    ],
)
def test_an_invalid_checkpoint_call_is_an_error(capsys, folder, arguments, code, text):
    assert text in run_command(capsys, *arguments, code=code).err


def test_checkpoint_commands_import_no_torch(folder):
    program = """\
        import sys
        from echelon.cli.main import run
        assert run(["checkpoint", "ls"]) == 0
        assert run(["checkpoint", "show"]) == 0
        assert run(["checkpoint", "verify"]) == 0
        assert run(["checkpoint", "convert", "last", "m.safetensors"]) == 0
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)
