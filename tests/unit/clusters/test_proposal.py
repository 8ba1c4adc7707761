import tomllib
from dataclasses import replace

import pytest

from echelon.clusters.proposal import (
    Environment,
    Facts,
    Machine,
    list_questions,
    looks_like_training,
    next_commands,
    propose,
    render_file,
)
from echelon.clusters.slurm.survey import Membership, NodeKind, Partition, Survey
from echelon.spec.merging import Layer, merge

HERE = Machine(cpus=12, gpus=2)
CPU = Partition(name="cpu", default=True, kinds=(NodeKind(count=90, cpus=64),))
GPU = Partition(
    name="gpu",
    limit="2-00:00:00",
    usual="1:00:00",
    kinds=(
        NodeKind(count=2, cpus=32, gpus=2, gpu_type="v100"),
        NodeKind(count=8, cpus=48, gpus=4, gpu_type="a100"),
    ),
)
BIG = Partition(name="big", kinds=(NodeKind(count=40, cpus=96, gpus=8),))


def on(*partitions, member=None, **more):
    survey = Survey(name="c", partitions=partitions, membership=member or Membership())
    return Facts(machine=HERE, survey=survey, **more)


def values(facts, answers=None):
    """Return the proposed keys, as read back from the TOML text."""
    if answers is None:
        answers = {one.key: one.default for one in list_questions(facts)}
    made = propose(facts, answers)
    found = tomllib.loads(render_file(made))
    merge([Layer(source="echelon.toml", values=found)])
    return found


def test_the_default_partition_is_not_written():
    facts = on(replace(GPU, default=True), BIG)
    assert list_questions(facts) == []
    assert values(facts) == {"gpus": 4, "cpus_per_task": 12, "time": "1-00:00:00"}


def test_a_partition_with_gpus_replaces_a_default_without():
    assert list_questions(on(CPU, GPU)) == []
    assert values(on(CPU, GPU))["partition"] == "gpu"
    assert "the default partition, cpu, has no GPUs" in render_file(propose(on(CPU, GPU), {}))


def test_the_question_about_partitions_lists_the_largest_first():
    facts = on(CPU, GPU, BIG)
    (question,) = list_questions(facts)
    assert (question.key, question.choices, question.default) == (
        "partition",
        ("big", "gpu"),
        "big",
    )
    assert values(facts) == {"partition": "big", "gpus": 8, "cpus_per_task": 12}
    assert values(facts, {"partition": "gpu"})["gpus"] == 4


def test_no_gpus_are_proposed_for_a_cluster_without_gpus():
    assert values(on(CPU)) == {}
    assert "a node has 64 CPUs" in render_file(propose(on(CPU), {}))


@pytest.mark.parametrize(
    ("limit", "usual", "expected"),
    [
        ("infinite", "n/a", None),
        ("30:00", "n/a", "00:30:00"),
        ("2-00:00:00", "n/a", "1-00:00:00"),
        ("infinite", "1:00:00", "1-00:00:00"),
        ("n/a", "n/a", None),
    ],
)
def test_the_proposed_time_is_the_partitions_limit_up_to_a_day(limit, usual, expected):
    facts = on(replace(GPU, default=True, limit=limit, usual=usual))
    assert values(facts).get("time") == expected


def test_the_account_is_a_question_only_without_a_default():
    two = Membership(accounts=("ml", "vision"))
    (question,) = list_questions(on(CPU, member=two))
    assert (question.key, question.choices) == ("account", ("ml", "vision"))
    assert values(on(CPU, member=two), {"account": "vision"}) == {"account": "vision"}
    known = replace(two, account="vision", qos=("long", "debug"))
    assert list_questions(on(CPU, member=known)) == []
    text = render_file(propose(on(CPU, member=known), {}))
    assert '# account = "vision"' in text
    assert "yours: ml, vision" in text
    assert "yours: long, debug" in text


def test_without_a_cluster_the_amounts_are_this_machines():
    assert values(Facts(machine=HERE)) == {"gpus": 2, "cpus_per_task": 6}
    assert values(Facts(machine=Machine(cpus=4))) == {}


def test_one_script_is_written_and_several_are_a_question():
    assert values(Facts(machine=Machine(cpus=4), scripts=("fit.py",))) == {"script": "fit.py"}
    several = Facts(machine=Machine(cpus=4), scripts=("evaluate.py", "main.py", "train_big.py"))
    (question,) = list_questions(several)
    assert question.choices == ("main.py", "train_big.py", "evaluate.py")
    text = render_file(propose(several, {"script": "train_big.py"}))
    assert 'script = "train_big.py"' in text
    assert "other candidates: evaluate.py, main.py" in text


def test_keys_of_the_users_own_settings_are_not_proposed():
    facts = on(
        CPU,
        GPU,
        BIG,
        scripts=("a.py", "b.py"),
        environment=Environment(key="venv", value=".venv", why="here"),
        decided={"partition": "gpu", "script": "a.py", "cpus_per_gpu": "8", "conda": "x"},
    )
    assert list_questions(facts) == []
    assert values(facts) == {"gpus": 4, "time": "1-00:00:00"}
    assert values(replace(facts, decided={"partition": "gpu,big"})) == {
        "script": "a.py",
        "venv": ".venv",
    }


@pytest.mark.parametrize("facts", [on(CPU, GPU, scripts=("train.py",)), Facts(machine=HERE)])
def test_every_example_is_a_valid_setting(facts):
    """Each example is tested without its comment sign, one at a time."""
    made = propose(facts, {})
    lines = render_file(made).splitlines()
    assert len(made.examples) > 5
    for number, line in enumerate(lines):
        if not any(line.startswith(f"# {one.key} = ") for one in made.examples):
            continue
        changed = [*lines[:number], line.removeprefix("# "), *lines[number + 1 :]]
        found = tomllib.loads("\n".join(changed))
        merged = merge([Layer(source="echelon.toml", values=found)])
        assert merged.origins[line.split()[1]] == "echelon.toml"


def test_every_line_has_a_reason_and_unprintable_names_are_replaced():
    odd = replace(GPU, name="gpu", limit="1:00\x1b[31m\nnodes = 9")
    text = render_file(propose(on(CPU, odd), {}))
    assert "\x1b" not in text
    assert "nodes" not in tomllib.loads(text)
    lines = [line for line in text.splitlines() if " = " in line]
    assert all("  # " in line for line in lines)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("train.py", "import torch", True),
        ("fit.py", "import torch\nif __name__ == '__main__': main()", True),
        ("model.py", "import torch", False),
        ("plot.py", "if __name__ == '__main__': plot()", False),
        ("test_train.py", "import torch\nif __name__ == '__main__': main()", False),
        ("setup.py", "import torch\nif __name__ == '__main__': main()", False),
        ("main.py", "import lightning as L", True),
    ],
)
def test_training_scripts_are_recognised(name, text, expected):
    assert looks_like_training(name, text) == expected


def test_the_next_commands_name_the_script_if_the_file_does_not():
    bare, named = Facts(machine=HERE), Facts(machine=HERE, scripts=("a.py",))
    assert next_commands(bare, propose(bare, {}))[0][0] == "echelon run SCRIPT.py"
    assert next_commands(named, propose(named, {}))[0][0] == "echelon run"
    there = on(CPU, scripts=("a.py",))
    commands = [command for command, _ in next_commands(there, propose(there, {}))]
    assert commands == ["echelon submit --dry-run", "echelon submit --follow"]
