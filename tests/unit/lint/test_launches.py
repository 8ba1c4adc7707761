"""What a script starts, through every wrapper on the way."""

import pytest

from echelon.core.shell import FakeShell
from echelon.lint.script import read_script
from unit.lint.fakes import TextFiles

HEAD = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=4\n"


def started(command, **files):
    texts = {name.replace("_", "."): text for name, text in files.items()}
    subject = read_script(
        HEAD + command + "\n", path="job.sh", files=TextFiles(texts), programs=FakeShell()
    )
    return [one.launch for one in subject.started]


@pytest.mark.parametrize(
    "command",
    [
        "srun python a.py",
        "srun -n 8 --label python3 -u a.py",
        "srun env X=1 /opt/bin/python3.11 a.py",
        "srun apptainer exec --nv image.sif python a.py",
        "srun numactl --cpunodebind=0 python a.py",
        "srun bash -c 'python a.py'",
        'srun bash -lc "exec python a.py"',
        "srun bash <<'E'\npython a.py\nE",
        "cat > w.sh <<E\npython a.py\nE\nsrun bash w.sh",
        "c='python a.py'; srun $c",
        'c=(python a.py); srun "${c[@]}"',
        'start() { srun "$python" a.py; }; python=python3; start',
        "srun $PYTHON a.py",
        "srun conda run -n x python a.py",
        "srun ./a.py",
        'env=${ENV:-/opt}; [ -d "$env" ] || env=/usr; py="${env}/bin/python"; srun "$py" a.py',
        'py=$ENV/bin/python3; srun "$py" a.py',
    ],
)
def test_the_python_script_is_found(command):
    (launch,) = started(command)
    assert launch.program.text.endswith("a.py")
    assert launch.srun is not None
    assert launch.amounts.tasks_per_node == 4


def test_a_wrapper_beside_the_script_is_read():
    (launch,) = started("srun ./w.sh --lr 1", w_sh='#!/bin/bash\nexec python a.py "$@"\n')
    assert (launch.path, launch.line) == ("w.sh", 2)
    assert [word.text for word in launch.arguments] == ["--lr", "1"]


@pytest.mark.parametrize(
    "launcher",
    [
        "torchrun --nproc_per_node=4",
        "torchrun --nproc-per-node 4",
        "python -m torch.distributed.run --nproc_per_node 4",
        "python -u -m torch.distributed.run --nproc_per=4",
    ],
)
def test_a_launcher_s_options_are_read(launcher):
    (launch,) = started(f"srun {launcher} --standalone a.py --nproc_per_node=9")
    assert launch.launcher.option("nproc-per-node").number == 4
    assert [word.text for word in launch.arguments] == ["--nproc_per_node=9"]


@pytest.mark.parametrize("options", ["", "$OPTIONS "])
def test_a_script_below_an_unknown_directory(options):
    (launch,) = started(f"torchrun {options}$CODE/train.py --size $SIZE 1")
    assert launch.program.text == "${CODE}/train.py"
    assert len(launch.arguments) == 3
    assert launch.launcher.complete is not bool(options)


def test_a_task_has_its_own_place_and_the_batch_script_is_the_first():
    (late,) = started("srun bash -c 'torchrun --node_rank=$SLURM_NODEID a.py'")
    (early,) = started("srun torchrun --node_rank=$SLURM_NODEID a.py")
    assert late.launcher.option("node-rank").text == "${SLURM_NODEID}"
    assert early.launcher.option("node-rank").text == "0"


@pytest.mark.parametrize("command", ["srun hostname", "python -c 'x'", "python --version", "srun"])
def test_what_starts_no_script_is_no_launch(command):
    assert started(command) == []
