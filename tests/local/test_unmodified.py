"""Scripts that know nothing of Echelon: nothing of theirs is lost, and what is seen is said."""

import pytest

from local.liverun import live_run

ONE_NODE = ("--nodes=1", "--procs=2")
APART = """\
import os, torch
torch.ones(1)
print("rank", os.environ["RANK"])
"""
TOGETHER = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
FAILS_ONCE = """\
import os, sys
from pathlib import Path

print("restarts:", os.environ["TORCHELASTIC_MAX_RESTARTS"])
checkpoint = Path("checkpoint")
if checkpoint.exists():
    checkpoint.write_text("step 10")  # from the beginning, over what was there
    sys.exit(0)
checkpoint.write_text("step 30")
sys.exit(3)
"""


@pytest.mark.parametrize("script", [APART, TOGETHER], ids=["apart", "together"])
def test_ranks_that_never_meet_are_told_of_and_others_are_not(script, tmp_path):
    with live_run(tmp_path, script, ONE_NODE) as run:
        assert run.wait() == 0, run.output
        told = "unless its 2 ranks meet elsewhere, they train separate models" in run.output
        assert told == (script is APART), run.output


def test_a_script_that_may_not_resume_is_not_restarted_unless_that_was_asked_for(tmp_path):
    with live_run(tmp_path, FAILS_ONCE, ["--nodes=1", "--procs=1"], restarts=None) as run:
        assert run.wait() == 3, run.output
        assert "the script does not use echelon" in run.output
        assert "allow restarts: --restarts N" in run.output
        assert "0: restarts: 0" in run.output
        assert (tmp_path / "checkpoint").read_text() == "step 30"


@pytest.mark.parametrize(
    ("first_line", "restarts"), [("import echelon\n", None), ("", 1)], ids=["library", "asked for"]
)
def test_one_that_uses_the_library_is_restarted_and_one_for_which_it_was_asked(
    first_line, restarts, tmp_path
):
    script = first_line + FAILS_ONCE
    with live_run(tmp_path, script, ["--nodes=1", "--procs=1"], restarts=restarts) as run:
        assert run.wait() == 0, run.output
        assert "restart 1 of" in run.output
        assert f"0: restarts: {restarts or 3}" in run.output
