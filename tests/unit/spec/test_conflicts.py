"""Conflicting values of one request are refused."""

import pytest

from echelon.errors import UsageError
from echelon.spec.conflicts import find_unused
from echelon.spec.merging import Layer, merge


def spec(**values):
    return merge([Layer(source="test", values=values)]).spec


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"mem": "1G", "mem_per_cpu": "1G"}, "mem and mem_per_cpu are mutually exclusive"),
        ({"gpus": 1, "cpus_per_task": 1, "cpus_per_gpu": 1}, "are mutually exclusive"),
        ({"gpu_type": "a100"}, "gpu_type requires gpus"),
        ({"gpus": 2, "procs": 4}, "procs is 4, but a node has only 2 GPUs"),
        ({"nodes": "2:4", "style": "srun"}, "style 'srun' requires a fixed number of nodes"),
        ({"gpus": 3, "procs": 2, "gpu_option": "gpus-per-task"}, "cannot be divided evenly"),
        ({"env": {"RANK": "1"}}, "the job sets the variable RANK itself"),
        ({"slurm.extra": {"nodes": "2"}}, "--slurm nodes has its own flag: use --nodes"),
        ({"slurm.extra": {"job-name": "a"}}, "--slurm job-name has its own flag: use --name"),
        ({"module": True, "script": "cuda/12.1"}, "use --load cuda/12.1"),
        ({"style": "torchrun", "signal_lead": 60}, "does not forward signals"),
        ({"time": "1m", "signal_lead": 60}, "a time limit of 00:01:00 leaves too little"),
        ({"time": "1m", "hand_over": "always", "grace": 30}, "40 s before it"),
        ({"time": "1m", "slurm.extra": {"signal": "B:TERM@60"}}, "leaves too little time to train"),
        ({"time": "1m", "grace": 50, "hand_over": "always"}, "told to stop 60 s before"),
        ({"image": "x", "venv": "v"}, "image and venv are mutually exclusive"),
        ({"image": "x", "conda": "c"}, "image and conda are mutually exclusive"),
        ({"image": "x", "image_runtime": "pyxis"}, "pyxis only starts tasks of srun"),
        ({"image": "x", "style": "srun"}, "needs to know the image_runtime"),
        ({"image": "x", "style": "ray", "image_runtime": "podman"}, "does not support image"),
        ({"image": "x", "preflight": True}, "preflight examines the nodes' own Python"),
        ({"image_python": "x"}, "image_python requires image"),
        ({"image": "x", "image_env": {"A B": "1"}}, "'A B' is not a valid variable name in image"),
        ({"env": {"A B": "1"}}, "'A B' is not a valid variable name"),
        ({"slurm.extra": {"a b": "1"}}, "'a b' is not an sbatch option"),
        (
            {"mail": "me@example.org", "mail_user": "you"},
            "mail_user are mutually exclusive",
        ),
        (
            {"mail": "me@example.org", "mail_type": "ALL"},
            "mail_type are mutually exclusive",
        ),
    ],
)
def test_conflicting_values_are_refused(values, problem):
    with pytest.raises(UsageError) as caught:
        spec(**values)
    assert problem in caught.value.message


@pytest.mark.parametrize("source", ["flags", "--set"])
def test_a_flag_that_the_style_does_not_support_is_refused(source):
    values = {"style": "torchrun", "restarts": 3, "preload": "x", "nodes": 2}
    with pytest.raises(UsageError, match=r"'torchrun' does not support restarts \(3\), preload"):
        merge([Layer(source=source, values=values)])
    merged = merge([Layer(source="echelon.toml", values=values)])
    assert find_unused(merged.spec, "style") == ["restarts", "preload"]


def test_turning_off_what_the_style_does_not_support_is_accepted():
    values = {"style": "torchrun", "restarts": 0, "hang_timeout": 0}
    merge([Layer(source="flags", values=values)])


@pytest.mark.parametrize("name", ["mem", "wait-all-nodes"])
def test_a_key_whose_0_has_a_meaning_may_be_in_slurm_extra(name):
    assert spec(**{"slurm.extra": {name: "0"}}).slurm_extra == {name: "0"}


@pytest.mark.parametrize("key", ["procs", "cpus_per_task", "cpus_per_gpu"])
def test_zero_ranks_or_cpus_are_refused(key):
    with pytest.raises(UsageError, match=f"{key}: 0 is too few"):
        spec(**{key: 0, "gpus": 1})
