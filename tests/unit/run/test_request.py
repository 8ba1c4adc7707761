"""The frozen request, in short."""

import pytest

from echelon.run.directory import RunDir
from echelon.run.request import render_spec, summarise
from echelon.spec.job_spec import JobSpec
from echelon.spec.readers import NodeCount


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (JobSpec(script="t.py"), "1 node × 1 rank"),
        (
            JobSpec(script="t.py", gpus=8, time="01:00:00"),
            "1 node × 8 ranks, 8 GPUs per node, 60 min",
        ),
        (
            JobSpec(script="t.py", nodes=NodeCount(2, 4), gpus=4, gpu_type="a100", procs=1),
            "2:4 nodes × 1 rank, 4 a100 per node",
        ),
        (JobSpec(script="t.py", time="UNLIMITED"), "1 node × 1 rank, no time limit"),
    ],
)
def test_the_request_in_one_line(spec, text, tmp_path):
    run = RunDir.create(tmp_path, "r-1")
    run.spec.write_text(render_spec(spec))
    assert summarise(run).describe() == text


def test_of_a_damaged_request_nothing_is_known(tmp_path):
    run = RunDir.create(tmp_path, "r-1")
    for text in ("x = [", "args = 3\nnodes = []\ntime = 'soon'\n"):
        run.spec.write_text(text)
        assert summarise(run).limit_s is None
        assert isinstance(summarise(run).describe(), str)
