import pytest

from echelon.errors import UsageError
from echelon.readers import NodeCount
from echelon.spec import KEYS, JobSpec, Layer, merge, show_value


def spec(**values):
    return merge([Layer(source="test", values=values)]).spec


def test_later_layers_win_and_are_remembered():
    merged = merge(
        [
            Layer(
                source="profile",
                values={"partition": "gpu", "nodes": 1, "env": {"A": "1", "B": "1"}},
            ),
            Layer(source="echelon.toml", values={"nodes": "2:4", "style": "torchrun"}),
            Layer(source="flags", values={"gpus": "4", "env": {"B": "2"}}),
        ]
    )
    assert merged.spec.nodes == NodeCount(2, 4)
    assert merged.spec.gpus == 4
    assert merged.spec.env == {"A": "1", "B": "2"}
    assert merged.origins["partition"] == "profile"
    assert merged.origins["nodes"] == "echelon.toml"
    assert merged.origins["gpus"] == "flags"
    assert merged.origins["qos"] == "default"


def test_every_problem_is_told_at_once_with_where_it_stands():
    with pytest.raises(UsageError) as caught:
        merge(
            [
                Layer(source="echelon.toml", values={"partitoin": "gpu", "mem": "16Go"}),
                Layer(source="flags", values={"style": "trochrun", "nodes": "0"}),
            ]
        )
    message, hint = caught.value.message, caught.value.hint
    assert "echelon.toml: unknown key 'partitoin'" in message
    assert "echelon.toml: mem: '16Go' is not a memory size" in message
    assert "flags: style: 'trochrun' is not one of" in message
    assert "flags: nodes: '0' is not a number of nodes" in message
    assert "did you mean 'partition'?" in hint
    assert "did you mean 'torchrun'?" in hint


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"mem": "1G", "mem_per_cpu": "1G"}, "mem and mem_per_cpu exclude each other"),
        ({"gpus": 1, "cpus_per_task": 1, "cpus_per_gpu": 1}, "exclude each other"),
        ({"gpu_type": "a100"}, "gpu_type needs gpus"),
        ({"gpus": 2, "procs": 4}, "procs is 4, but a node has only 2 GPUs"),
        ({"nodes": "2:4", "style": "srun"}, "style 'srun' needs a fixed number of nodes"),
        ({"gpus": 3, "procs": 2, "gpu_option": "gpus-per-task"}, "cannot be shared evenly"),
        ({"env": {"RANK": "1"}}, "the variable RANK is the job's own"),
        ({"slurm.extra": {"nodes": "2"}}, "--slurm nodes is a key of the request"),
        ({"mem": "0"}, "0 means all of a node's memory"),
        ({"style": "torchrun", "signal_lead": 60}, "does not hand a signal on"),
        ({"time": "1m", "signal_lead": 60}, "a time of 00:01:00 leaves none to work"),
        ({"time": "1m", "grace": 50, "hand_over": "always"}, "its end is told 60 s before"),
        ({"env": {"A B": "1"}}, "'A B' cannot be the name of a variable"),
        ({"slurm.extra": {"a b": "1"}}, "'a b' is not an sbatch option"),
        ({"mail_type": "END,NEVER"}, "'NEVER' is not one of"),
        ({"mail": "me@example.org", "mail_user": "you"}, "mail and mail_user exclude each other"),
        ({"mail": "me@example.org", "mail_type": "ALL"}, "mail and mail_type exclude each other"),
        ({"mail": "me"}, "'me' is not an address"),
        ({"mail": "me@example.org,you@example.org"}, "is not an address"),
        ({"mail": "me@a b"}, "is not an address"),
        ({"mail": "-oQ/tmp@example.org"}, "is not an address"),
        ({"mail": "me@example.org\n#SBATCH --x"}, "is not an address"),
        ({"mail": ["me@example.org"]}, "is not an address"),
        ({"signal_lead": "UNLIMITED"}, "cannot be unlimited"),
        ({"wait_all_nodes": "maybe"}, "neither true nor false"),
        ({"nodelist": "n[1-"}, "at character 5"),
        ({"gpus": -1}, "not a whole number"),
        ({"gpus": True}, "not a whole number"),
        ({"partition": ["a"]}, "not a text"),
        ({"env": "A=1"}, "not a table"),
    ],
)
def test_what_cannot_be_is_refused(values, problem):
    with pytest.raises(UsageError) as caught:
        spec(**values)
    assert problem in caught.value.message


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
def test_what_follows_is_never_typed_twice(values, derived):
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
        ({"script": "x.py", "name": "mine"}, "mine"),
        ({}, "echelon"),
    ],
)
def test_a_job_is_named_after_its_script(values, name):
    assert spec(**values).job_name == name


USUAL = ("", "1", "3", "30", "300", "auto", "echelon", "gres", "report", "torch", "false", "true")


def test_values_are_shown_as_they_are_written():
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
    shown = {key: show_value(key, s) for key in values}
    assert shown == {
        "mem": "64G",
        "nodes": "2:4",
        "style": "torchrun",
        "time": "01:30:00",
        "modules": "a,b",
        "env": "A=1",
        "wait_all_nodes": "true",
    }
    assert all(show_value(key, JobSpec()) in USUAL for key in KEYS)


def test_a_hang_is_counted_in_seconds_and_the_hint_says_so():
    with pytest.raises(UsageError) as caught:
        merge([Layer(source="flags", values={"hang_timeout": "x"})])
    assert "90 (seconds)" in f"{caught.value.message} {caught.value.hint}"
    assert merge([Layer(source="flags", values={"hang_timeout": "90"})]).spec.hang_timeout_s == 90
