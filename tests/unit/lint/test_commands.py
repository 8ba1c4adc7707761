"""Spellings of one mistake: all are told, and what looks like it is not."""

import pytest

from echelon.lint.linting import lint
from unit.lint.fakes import TextFiles

HEAD = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n#SBATCH --exclusive\n"
FIRST = HEAD.count("\n") + 1


def found(body, code, **beside):
    files = TextFiles({name.replace("_", "."): text for name, text in beside.items()})
    findings = lint(HEAD + body, path="job.sh", files=files)
    return [(f.line - FIRST + 1, f.fix) for f in findings if f.code == code]


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("srun python a.py \\ \n    --lr 1\n", 1),
        ("srun python a.py\\ \n    --lr 1\n", 1),
        ("srun python a.py \\\t\n    -v\n", 1),
        ("srun python a.py \\  # fast\n    --lr 1\n", 1),
        ("srun python a.py \\\n    # fast\n    --lr 1\n", 1),
        ("srun python a.py \\\n\n    --lr 1\n", 1),
        ("srun python a.py \\\n    --lr 1\n    --epochs 2\n", 2),
        ("srun python a.py\n    --lr 1 \\\n    --epochs 2\n", 1),
        ("srun \\ \n    python a.py\n", 1),
        ("srun bash -c '\n    python a.py \\ \n        --lr 1\n'\n", 2),
    ],
)
def test_a_command_that_is_cut_in_two(body, line):
    assert [place for place, _ in found(body, "E208")] == [line]


@pytest.mark.parametrize(
    "body",
    [
        "srun python a.py \\\n    --lr 1 \\\n    --epochs 2\n",
        "options=(\n    --lr 1\n    --epochs 2\n)\nsrun python a.py ${options[@]}\n",
        "case $1 in\n    -h|--help) echo;;\n    --fast) echo;;\nesac\n",
        "cat <<E\n    one \\ \n    --two\nE\n",
        "# one \\ \npython a.py\n",
        "echo 'one \\ \n    --two'\n",
        "srun python a.py \\\n    --lr 1 \\\n\necho done\n",
        "srun python a.py --sep ' ' \\\n    --lr 1 # slow\n",
    ],
)
def test_a_command_of_several_lines(body):
    assert found(body, "E208") == []


@pytest.mark.parametrize(
    ("body", "fix"),
    [
        ("MASTER_ADDR = $(hostname)\n", "MASTER_ADDR=$(hostname)"),
        ("MASTER_PORT =29500\n", "MASTER_PORT=29500"),
        ("MASTER_PORT= 29500\n", "MASTER_PORT=29500"),
        ("MASTER_ADDR= $(hostname)\n", "MASTER_ADDR=$(hostname)"),
        ("export MASTER_PORT = 29500  # fixed\n", "export MASTER_PORT=29500"),
        ("lr = 0.1\n", "lr=0.1"),
    ],
)
def test_blanks_around_an_equals_sign(body, fix):
    assert found(body, "E209") == [(1, fix)]


@pytest.mark.parametrize(
    "body",
    [
        "IFS= read -r line\n",
        "LD_PRELOAD= $(which python) a.py\n",
        "[ a = b ] && test a = b\n",
        "expr 1 = 1\n",
        "[[ $a == b ]]\n",
        "let 'x = 5'; (( x = 5 ))\n",
        "python - <<E\nlr = 0.1\nE\n",
        "awk '{ n = $1 }' file\n",
        "CUDA_VISIBLE_DEVICES= python a.py\n",
    ],
)
def test_an_equals_sign_that_assigns_nothing(body):
    assert found(body, "E209") == []


@pytest.mark.parametrize(
    ("options", "count"),
    [("-np 4", 1), ("-n four", 1), ("--ntasks=all", 1), ("-n 4", 0), ("-n $N", 0), ("-N 1-2", 0)],
)
def test_a_step_whose_count_is_no_number(options, count):
    assert len(found(f"srun {options} python a.py\n", "E113")) == count


@pytest.mark.parametrize(
    "value",
    [
        "$(scontrol show hostnames $SLURM_JOB_NODELIST)",
        '"$(scontrol show hostname "$SLURM_NODELIST")"',
        "`scontrol show hostnames`",
        "$SLURM_JOB_NODELIST",
        '"${SLURM_NODELIST}"',
        "$SLURM_SUBMIT_HOST",
    ],
)
def test_a_list_of_hosts_is_no_host(value):
    assert found(f"export MASTER_ADDR={value}\nsrun python a.py\n", "E307")
    torchrun = "srun --ntasks-per-node=1 torchrun --nnodes=2 --rdzv_backend=c10d"
    given = value.strip('"')
    assert found(f"{torchrun} --rdzv_endpoint={given}:29500 a.py\n", "E307")
    assert found(f"head={value}\n{torchrun} --rdzv_endpoint=$head:29500 a.py\n", "E307")


@pytest.mark.parametrize(
    "lines",
    [
        "export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)",
        "export MASTER_ADDR=$(scontrol show hostnames | sed -n 1p)",
        "export MASTER_ADDR=${SLURM_JOB_NODELIST%%,*}",
        "nodes=($(scontrol show hostnames)); export MASTER_ADDR=${nodes[0]}",
        "nodes=($(scontrol show hostnames)); export MASTER_ADDR=$nodes",
        'nodes=$(scontrol show hostnames); export MASTER_ADDR=$(echo "$nodes" | head -n 1)',
        "nodes=$(scontrol show hostnames); set -- $nodes; export MASTER_ADDR=$1",
        "NODES=$SLURM_JOB_NODELIST; export MASTER_ADDR=$(scontrol show hostnames $NODES | head -1)",
        "export MASTER_ADDR=$SLURM_LAUNCH_NODE_IPADDR",
    ],
)
def test_the_first_of_a_list_is_a_host(lines):
    assert found(f"{lines}\nsrun python a.py\n", "E307") == []
    torchrun = "srun --ntasks-per-node=1 torchrun --nnodes=2 --rdzv_endpoint=$MASTER_ADDR:29500"
    assert found(f"{lines}\n{torchrun} a.py\n", "E307") == []


def test_a_host_that_is_handed_on_is_blamed_once():
    torchrun = "srun --ntasks-per-node=1 torchrun --nnodes=2 --rdzv_endpoint=$there:29500 a.py\n"
    assert [line for line, _ in found(f"host=localhost\nthere=$host\n{torchrun}", "E307")] == [1]
