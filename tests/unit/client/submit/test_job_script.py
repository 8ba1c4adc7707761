"""The commands of a job script for `--from`: the launch is used, the others are listed."""

import pytest

from echelon.client.submit.requests import read_request

HEAD = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=2\n"
LAUNCH = "srun python train.py --lr 0.1\n"


@pytest.fixture
def read(tmp_path, monkeypatch, capsys):
    """Return a request and the printed notes for the commands of a job script."""
    monkeypatch.chdir(tmp_path)

    def read(commands, **flags):
        (tmp_path / "job.sh").write_text(HEAD + commands)
        flags = {"source": tmp_path / "job.sh", **flags}
        spec = read_request(flags, tmp_path, {"HOME": str(tmp_path / "home")}).spec
        notes = capsys.readouterr().err.replace(f"{tmp_path}/", "")
        return spec, [line.strip() for line in notes.splitlines()]

    return read


@pytest.mark.parametrize(
    ("line", "flags"),
    [
        ("module load cuda/12.2 gcc", "--load cuda/12.2 --load gcc"),
        ("ml cuda/12.2", "--load cuda/12.2"),
        ("source ~/envs/torch/bin/activate", "--venv ~/envs/torch"),
        ("source $STORE/torch/bin/activate", '--venv "${STORE}/torch"'),
        ("conda activate torch", "--conda torch"),
        ("source /opt/conda/bin/activate torch", "--conda torch"),
        ("export DATA_DIR=/data A='x y'", "--env DATA_DIR=/data --env A='x y'"),
        ("export OUT=$SCRATCH/out", "--prologue 'export OUT=$SCRATCH/out'"),
        ("cd /data/project", "--chdir /data/project"),
        ("cd -- /data/project", "--chdir /data/project"),
        ("ulimit -n 65536", "--prologue 'ulimit -n 65536'"),
        ("tar xf data.tar \\", "--prologue 'tar xf data.tar …'"),
    ],
)
def test_a_line_of_a_job_script_is_listed_with_the_flag_that_replaces_it(read, line, flags):
    more = "  -C /data\n" if line.endswith("\\") else "\n"
    _, notes = read(f"{line}\n{more}{LAUNCH}")
    assert notes == [
        "job.sh:6: running train.py --lr 0.1",
        "warning: job.sh: these lines are not executed; add the flags that replace them:",
        f"job.sh:4: {line}",
        flags,
    ]


@pytest.mark.parametrize(
    "line",
    [
        "echo start; date; hostname; set -euo pipefail",
        "cd $SLURM_SUBMIT_DIR",
        'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "export MASTER_PORT=29500 WORLD_SIZE=4",
        "nodes=($(scontrol show hostnames))",
        'eval "$(conda shell.bash hook)"',
        "source ~/anaconda3/etc/profile.d/conda.sh",
    ],
)
def test_a_line_of_a_job_script_without_effect_is_not_listed(read, line):
    assert read(f"{line}\n{LAUNCH}")[1] == ["job.sh:5: running train.py --lr 0.1"]


def test_given_flags_are_not_suggested_again(read):
    lines = "module load cuda\nsource env/bin/activate\nexport A=1\nulimit -n 9\ncd /x\n"
    given = {
        "modules": ["cuda"],
        "venv": "env",
        "env": {"A": "2"},
        "prologue": ["ulimit -n 9"],
        "chdir": "/x",
    }
    assert len(read(lines + LAUNCH)[1]) == 12
    assert read(lines + LAUNCH, **given)[1] == ["job.sh:9: running train.py --lr 0.1"]


def test_modules_after_a_purge_become_prologue_lines(read):
    _, notes = read(f"module purge\nmodule load cuda\n{LAUNCH}")
    assert notes[-3:] == [
        "--prologue 'module purge'",
        "job.sh:5: module load cuda",
        "--prologue 'module load cuda'",
    ]


def test_a_command_after_the_training_becomes_notify(read):
    assert read(f"{LAUNCH}cp -r out /archive\n")[1][-1] == "--notify 'cp -r out /archive'"


def test_a_conditional_command_is_listed_with_its_condition(read):
    _, notes = read(f"if [ ! -d data ]; then\n  tar xf data.tar\nfi\n{LAUNCH}")
    assert notes[-1] == "--prologue 'tar xf data.tar' (with its condition)"


@pytest.mark.parametrize(
    ("launch", "script", "args", "module"),
    [
        ("srun python -u train.py --lr 0.1", "train.py", ("--lr", "0.1"), False),
        ("LR=0.2\nsrun python train.py --lr $LR 'a b'", "train.py", ("--lr", "0.2", "a b"), False),
        ("torchrun --nproc_per_node 2 train.py \\\n  --x 1", "train.py", ("--x", "1"), False),
        ("accelerate launch --config_file a.yaml train.py", "train.py", (), False),
        ("python -m torch.distributed.run train.py", "train.py", (), False),
        ("srun python -m package.train --lr 1", "package.train", ("--lr", "1"), True),
        ('srun python train.py "$@"', "train.py", (), False),
        ("for n in 1 2; do\n  srun -w node$n python train.py &\ndone", "train.py", (), False),
    ],
)
def test_script_and_arguments_are_taken_from_the_launch(read, launch, script, args, module):
    spec, notes = read(f"{launch}\n")
    assert (spec.script, spec.args, spec.module) == (script, args, module)
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("launch", "line"),
    [
        ("srun python train.py --rank $SLURM_PROCID", "train.py --rank …"),
        ("srun python train.py --url $(hostname)", "train.py --url …"),
        ("srun python train.py *.tar", "train.py …"),
        ("python a.py\nsrun python train.py", "train.py"),
        ("srun -n 4 ./program --lr 3", "./program --lr 3"),
    ],
)
def test_an_uncertain_launch_is_not_used(read, launch, line):
    spec, lines = read(f"{launch}\n")
    assert (spec.script, spec.args) == ("", ())
    assert lines[-1] == line


def test_a_script_on_the_command_line_replaces_the_launch(read):
    spec, notes = read(f"{LAUNCH}", script="other.py")
    assert (spec.script, spec.args, notes) == ("other.py", (), [])


def test_arguments_of_the_launch_are_listed_if_only_the_script_is_given(read):
    assert read(LAUNCH, script="train.py")[1][-1] == "train.py --lr 0.1"
    assert read(LAUNCH, script="train.py", args=["--lr", "1"])[1] == []


def test_ranks_and_variables_of_the_launch_are_listed(read):
    launch = "A=1 torchrun --nproc_per_node=4 train.py\n"
    assert read(launch)[1][-1] == "--env A=1 --procs 4"
    assert read("srun apptainer exec x.sif python train.py\n")[1][-1] == "--image x.sif"
