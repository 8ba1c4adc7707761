"""What a program will import is there when its first ranks are forked, and no more than that."""

import pytest

from local.liverun import SOURCE
from started_programs import clean_environment, run_warm

LOOK = "print('dynamo' if 'torch._dynamo' in sys.modules else 'no dynamo')\n"
TRAINS = f"""\
import sys
{LOOK}
print("library" if any(name.startswith("echelon") for name in sys.modules) else "no library")
import echelon
print("trainer" if "echelon.train.trainer" in sys.modules else "no trainer")
print(echelon.__file__, echelon.Trainer.__module__)
import torch
def make(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""
MEETS = f"import sys, torch\n{LOOK}"


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()

    def run(text, *words):
        (folder / "train.py").write_text(text)
        ran = run_warm(folder, *words, env=clean_environment(PYTHONPATH=str(SOURCE)))
        assert ran.warm(), ran.told
        return ran.output.splitlines()

    return run


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["train.py"], id="script", marks=pytest.mark.full),
        pytest.param(["-m", "train"], id="module"),
    ],
)
def test_one_that_trains_with_the_library(run, words):
    found = ["dynamo", "no library", "trainer"]
    assert run(TRAINS, *words) == [*found, f"{SOURCE}/echelon/__init__.py echelon.train.trainer"]


def test_one_that_does_not_train(run):
    assert run(MEETS, "train.py") == ["no dynamo"]


@pytest.mark.parametrize(("more", "found"), [("", "no torch"), (", runpy", "torch")])
def test_one_that_may_not_need_torch(run, more, found):
    look = "print('torch' if 'torch' in sys.modules else 'no torch')\n"
    assert run(f"import sys{more}\n{look}", "train.py") == [found]


def test_one_whose_torch_is_to_be_imported_cold(run):
    found = ["no dynamo", "no library", "no trainer"]
    assert run(TRAINS, "--set=preload=", "train.py")[:3] == found
