import pytest

from echelon.spec.job_spec import KEYS, JobSpec
from echelon.spec.merging import Layer, merge
from echelon.spec.readers import NodeCount


def spec(**values):
    return merge([Layer(source="test", values=values)]).spec


@pytest.mark.parametrize(
    ("values", "derived"),
    [
        ({}, (1, 1, 1, 0, 1, 0)),
        ({"nodes": 2, "gpus": 4, "cpus_per_task": 8}, (8, 4, 4, 8, 4, 4)),
        ({"nodes": 2, "gpus": 4, "cpus_per_gpu": 8}, (8, 4, 4, 8, 4, 4)),
        ({"nodes": 2, "gpus": 4, "cpus_per_task": 16, "style": "torchrun"}, (8, 4, 1, 16, 8, 8)),
        ({"nodes": 3, "procs": 2}, (6, 2, 2, 0, 1, 0)),
        ({"gpus": 1, "cpus_per_task": 1}, (1, 1, 1, 1, 1, 0)),
    ],
)
def test_derived_values_follow_from_the_request(values, derived):
    s = spec(**values)
    assert (
        s.max_world_size,
        s.procs_per_node,
        s.tasks_per_node,
        s.cpus_per_rank,
        s.omp_threads,
        s.loader_workers,
    ) == derived


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"script": "a/train.py"}, "train"),
        ({"script": "train"}, "train"),
        ({"script": "package.train", "module": True}, "train"),
        ({"script": "train", "module": True}, "train"),
        ({"script": "x.py", "name": "mine"}, "mine"),
        ({}, "echelon"),
    ],
)
def test_a_job_is_named_after_its_script(values, name):
    assert spec(**values).job_name == name


USUAL = (
    "",
    "1",
    "3",
    "30",
    "50G",
    "300",
    "604800",
    "auto",
    "info",
    "echelon",
    "gres",
    "report",
    "torch",
    "false",
    "true",
)


def test_values_are_shown_as_users_write_them():
    values = {
        "mem": "64G",
        "nodes": "2:4",
        "style": "torchrun",
        "time": "1h30m",
        "modules": ["a", "b"],
        "env": {"A": "1"},
        "wait_all_nodes": True,
    }
    s = spec(**values)
    shown = {key: KEYS[key].show(s) for key in values}
    assert shown == {
        "mem": "64G",
        "nodes": "2:4",
        "style": "torchrun",
        "time": "01:30:00",
        "modules": "a,b",
        "env": "A=1",
        "wait_all_nodes": "true",
    }
    assert all(key.show(JobSpec()) in USUAL for key in KEYS.values())


@pytest.mark.parametrize(
    ("values", "uses_library", "allowed"),
    [
        ({}, True, 3),
        ({}, False, None),
        ({"restarts": 0}, True, 0),
        ({"restarts": 5}, False, 5),
        ({"on_hang": "restart"}, False, 3),
        ({"hand_over": "always"}, False, 3),
        ({"nodes": NodeCount(2, 4)}, False, 3),
        ({"nodes": NodeCount(2, 2)}, False, None),
        ({"hand_over": "requeue", "restarts": 0}, False, 0),
        ({"hand_over": "never"}, False, None),
    ],
)
def test_default_restarts_require_a_script_that_resumes(values, uses_library, allowed):
    assert JobSpec(**values).allowed_restarts(uses_library=uses_library) == allowed
