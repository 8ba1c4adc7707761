"""One run is one run of a tracker, however often its ranks are started."""

import re
from pathlib import Path

import pytest

from local.liverun import live_run
from requirements import do_without

PYTHON = Path(__file__).parents[2] / ".venv-peers" / "bin" / "python"
WANDB = """\
import os, sys
import wandb

if os.environ["RANK"] == "0":
    run = wandb.init(project="p", mode="offline", dir=os.environ["ECHELON_RUN_DIR"])
    run.log({"loss": 1.0})
    run.finish()
else:
    assert "WANDB_RUN_ID" not in os.environ
sys.exit(3 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 0)
"""


@pytest.mark.full
def test_all_parts_of_a_run_have_one_id_in_wandb(tmp_path):
    if not PYTHON.exists():
        do_without("needs .venv-peers: run `make peers`")
    with live_run(tmp_path, WANDB, ["--nodes=1", f"--python={PYTHON}"]) as run:
        assert run.wait() == 0, run.output
        parts = [path.name for path in (run.path / "wandb").glob("offline-run-*")]
        found = [re.fullmatch(r"offline-run-[0-9_]+-(.*)", name)[1] for name in parts]
        assert found == [(run.path / "tracker").read_text().strip()] * 2
