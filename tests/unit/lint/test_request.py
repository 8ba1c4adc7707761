"""How much a script asks for, where that can be known."""

import pytest

from echelon.lint.reading import read_shell
from echelon.lint.request import (
    Amounts,
    is_slurm_time,
    read_directives,
    read_request,
    read_srun,
    read_step,
)


def ask(*lines):
    script = "#!/bin/bash\n" + "".join(f"#SBATCH {line}\n" for line in lines)
    return read_request(read_directives(script))


@pytest.mark.parametrize(
    ("lines", "nodes", "tasks", "gpus"),
    [
        (["--mem=1G"], 1, 1, 0),
        (["-N2"], 2, 1, 0),
        (["-N 2-4"], None, 1, 0),
        (["--nodes=2", "--ntasks=8"], 2, 4, 0),
        (["--nodes=3", "--ntasks=8"], 3, None, 0),
        (["--ntasks=8"], None, None, 0),
        (["-n 8", "--ntasks-per-node=4"], 2, 4, 0),
        (["--nodes=2", "--ntasks-per-node=4", "--ntasks=2"], 2, 1, 0),
        (["--gres=gpu:a100:4"], 1, 1, 4),
        (["--gres=gpu:4", "--ntasks-per-gpu=1"], 1, 4, 4),
        (["--gpus=4", "--ntasks-per-gpu=1"], None, None, None),
        (["--gres=gpu"], 1, 1, 1),
        (["--gres=shard:4"], 1, 1, None),
        (["--gres=gpu:a:1,gpu:b:1"], 1, 1, None),
        (["--gpus=4", "--gpus-per-node=2", "--ntasks=2", "--tasks-per-node=1"], 2, 1, 2),
        (["--nodes=2", "--gpus=4"], 2, 1, None),
        (["--nodes=1", "--ntasks=4", "--gpus-per-task=1"], 1, 4, 4),
    ],
)
def test_amounts(lines, nodes, tasks, gpus):
    amounts = ask(*lines)
    assert (amounts.nodes, amounts.tasks_per_node, amounts.gpus_per_node) == (nodes, tasks, gpus)


def test_a_job_of_several_parts_tells_nothing():
    script = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH hetjob\n#SBATCH --nodes=1\n"
    assert read_request(read_directives(script)) == Amounts()


@pytest.mark.parametrize(
    ("command", "tasks", "rest"),
    [
        ("srun -N2 -n4 prog -n 9", 2, "prog -n 9"),
        ("srun --ntasks 1 prog", 1, "prog"),
        ("srun -lu --ntasks-per-node=3 prog", 3, "prog"),
        ("srun -n $X prog", None, "prog"),
        ("srun -K1 --exclusive prog", 4, "prog"),
        ("srun --ntasks-per-gpu=2 prog", 8, "prog"),
        ("srun --ntasks-per-gpu=2 --gpus-per-node=1 prog", 2, "prog"),
        ("srun --ntasks-per-gpu=2 -n 2 prog", 1, "prog"),
        ("srun --mpi=pmix --label --overlap prog", 4, "prog"),
    ],
)
def test_a_step_takes_a_part(command, tasks, rest):
    from echelon.lint.bash import Where

    words = read_shell(command, path="x", where=Where.BATCH).commands[0].words[1:]
    options, left = read_srun(words)
    job = Amounts(nodes=2, fewest_nodes=2, tasks_per_node=4, gpus_per_node=4)
    assert read_step(job, options).tasks_per_node == tasks
    assert " ".join(word.text for word in left) == rest


@pytest.mark.parametrize(
    "text", ["90", "30:00", "01:00:00", "1-0", "1-", "-1", "1-12:30", "2-00:00:00", "infinite"]
)
def test_times_that_slurm_takes(text):
    assert is_slurm_time(text)


@pytest.mark.parametrize("text", ["2h", "1d", "", "1:2:3:4", "1-:", "ten"])
def test_times_that_slurm_refuses(text):
    assert not is_slurm_time(text)
