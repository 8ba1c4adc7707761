"""Our callbacks with the frameworks of a year ago (tools/setup.sh names the versions)."""

from pathlib import Path

import pytest

from local.liverun import live_run
from requirements import do_without

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".venv-peers"
SCRIPTS = ROOT / "tests" / "slurm" / "frameworks"
# The script, with a failure of its first start at step 25, after a checkpoint at step 20.
INTERRUPT = """\
import os, runpy, sys
from echelon.train.stopping import StopBarrier

reached = StopBarrier.reached


def interrupt(barrier, step):
    if step == 25 and os.environ["ECHELON_GENERATION"] == "0":
        os._exit(3)
    return reached(barrier, step)


StopBarrier.reached = interrupt
sys.argv = [{script!r}, "30", "0"]
runpy.run_path({script!r}, run_name="__main__")
"""


@pytest.mark.parametrize("framework", ["accelerate", "lightning", "huggingface"])
def test_a_training_that_failed_goes_on_from_its_checkpoint(tmp_path, framework):
    if not PEERS.exists():
        do_without("needs .venv-peers: run `make peers`")
    script = INTERRUPT.format(script=str(SCRIPTS / f"with_{framework}.py"))
    options = ["--nodes=1", "--procs=2", f"--python={PEERS / 'bin' / 'python'}"]
    options += [f"--env=PYTHONPATH={PEERS / 'year-old'}"]
    with live_run(tmp_path, script, options) as run:
        code = run.wait(timeout_s=300)
        if framework == "huggingface":
            # This version loads a checkpoint onto a device "cpu:0", which torch 2.13 refuses.
            assert "don't know how to restore data location" in run.output
            assert (tmp_path / "out" / "checkpoint-20").is_dir()
            return
        assert code == 0, run.output
        assert (tmp_path / "trained").read_text() == "30"
        assert "restart 1 of 3" in run.output
