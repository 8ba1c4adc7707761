"""What scripts set, ask for or test without effect, and what looks like it but is fine."""

import pytest

from echelon.lint.linting import lint
from unit.lint.fakes import JOB, SlurmOf, TextFiles, codes


def _found(code, body, head=JOB, **beside):
    return dict(codes(body, head, **beside)).get(code)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("NUM_STEPS=20\npython a.py\n", "advice"),
        ("NUM_STEPS=20\nWARMUP_STEPS=5\npython a.py --lr 1\n", "advice"),
        ('eval "$(conda shell.bash hook)"\nNUM_STEPS=20\npython a.py\n', "advice"),
        ("NUM_STEPS=20\npython a.py --steps $NUM_STEPS\n", None),
        ("NUM_STEPS=20\nexport NUM_STEPS\npython a.py\n", None),
        ("set -a\nNUM_STEPS=20\npython a.py\n", None),
        ("NUM_STEPS=20 python a.py\n", None),
        ("NUM_STEPS=20\nsource settings.sh\npython a.py\n", None),
        ("NUM_STEPS=20\nbash -c 'source settings.sh; python a.py'\n", "advice"),
        ("NUM_STEPS=20\npython a.py --steps ${!name}\n", None),
        ("server=$!\npython a.py\n", None),
        ("TMPDIR=/scratch\npython a.py\n", None),
        ("one_model=a\ntwo_model=b\nthree_model=c\nfour_model=d\npython a.py\n", None),
    ],
)
def test_variables_that_nothing_reads(body, found):
    assert _found("E312", body) == found


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("NCCL_TIMEOUT", "advice"),
        ("TORCH_NCCL_TIMEOUT", "advice"),
        ("TORCH_CPP_LG_LEVEL", "advice"),
        ("NCCL_IB_TIMEOUT", None),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", None),
        ("TORCH_CPP_LOG_LEVEL", None),
        ("MY_TIMEOUT", None),
    ],
)
def test_variables_that_nccl_and_pytorch_do_not_read(name, found):
    assert _found("E312", f"export {name}=1800\npython a.py\n") == found
    default = f"export {name}=${{{name}:-1800}}\npython a.py\n"
    assert _found("E312", default) == found
    assert _found("E312", f"{default}echo ${name}\n") is None
    own = f"import os\nprint(os.environ['{name}'])\n"
    assert _found("E312", f"export {name}=1800\npython a.py\n", a=own) is None


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("base_dir=/data\nout=base_dir/results\npython a.py $out\n", "advice"),
        ('base_dir=/data\nout="base_dir/results"\npython a.py $out\n', "advice"),
        ("base_dir=/data\nout=$base_dir/results\npython a.py $out\n", None),
        ("data=/data\nout=data/results\npython a.py $out\n", None),
        ('if [ -z "1" ]; then exit 1; fi\npython a.py\n', "advice"),
        ("[ -n NAME ] && python a.py\n", "advice"),
        ('if [ -z "$1" ]; then exit 1; fi\npython a.py\n', None),
        ("if [ -f a.py ]; then python a.py; fi\n", None),
    ],
)
def test_names_in_the_place_of_values(body, found):
    assert _found("E313", body) == found


@pytest.mark.parametrize(
    ("directives", "found"),
    [
        ("#SBATCH --mail-user=me@example.com\n", "advice"),
        ("#SBATCH --mail-user=me@example.com\n#SBATCH --mail-type=NONE\n", "advice"),
        ("#SBATCH --mail-user=me@example.com\n#SBATCH --mail-type=END\n", None),
        ("#SBATCH --mail-type=END\n", None),
    ],
)
def test_an_address_without_events(directives, found):
    assert _found("E120", "python a.py\n", f"#!/bin/bash\n{directives}") == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("", "advice"),
        ("# python a.py\n", "warning"),
        ("module load cuda\n# srun python a.py\n", "advice"),
        ("module load cuda\nnvidia-smi\n# python a.py\n", None),
        ("source run_all.sh\n# python a.py\n", None),
        ("python a.py\n# python b.py\n", None),
        ("hostname\n", None),
        ("{% for x in y %}\n# python a.py\n", None),
    ],
)
def test_jobs_without_work(body, found):
    assert _found("E512", body) == found


@pytest.mark.parametrize(
    ("first", "line", "found"),
    [
        ("#!/bin/sh", "source env.sh", "advice"),
        ("#!/bin/sh", "names=(a b)", "advice"),
        ("#!/bin/sh", "if [[ -n $A ]]; then python b.py; fi", "advice"),
        ("#!/bin/sh", ". ./env.sh", None),
        ("#!/bin/sh", "names=$(ls)", None),
        ("#!/bin/bash", "source env.sh", None),
    ],
)
def test_bash_in_a_script_for_sh(first, line, found):
    head = f"{first}\n#SBATCH --nodes=1\n"
    assert _found("E210", f"{line}\npython a.py\n", head) == found


@pytest.mark.parametrize(
    ("argument", "found"),
    [
        ("checkpoint=...best.pt", "advice"),
        ("--data /scratch/.../images", "advice"),
        ("./...", None),
        ("--progress=...", None),
        ("'to be continued...'", None),
    ],
)
def test_a_path_whose_part_was_left_out(argument, found):
    assert _found("E116", f"python a.py {argument}\n") == found


@pytest.mark.parametrize(
    ("value", "found"),
    [("<account-name>", "advice"), ("a run of <b>", None), ("first run", None)],
)
def test_a_placeholder_in_a_comment(value, found):
    head = f'#!/bin/bash\n#SBATCH --comment="{value}"\n'
    assert _found("E116", "python a.py\n", head) == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("trap cleanup EXIT\ncleanup() { rm -f x; }\npython a.py\necho done\n", "warning"),
        ("trap 'exit $?' EXIT\npython a.py\necho done\n", "warning"),
        ("trap cleanup EXIT\ncleanup() { exit 1; }\npython a.py\necho done\n", None),
        ("trap 'echo failed' ERR\npython a.py\necho done\n", "warning"),
    ],
)
def test_a_trap_keeps_the_status_unless_it_exits(body, found):
    assert _found("E507", body, a="print(1)\n") == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("for s in 1 2; do\nif [ ! -d $s ]; then\npython a.py $s\nfi\ndone\n", "advice"),
        ('if [ "$1" = x ]; then\npython a.py\nfi\npython b.py\n', "advice"),
        ('if [ "$1" = x ]; then\npython a.py\nelse\npython b.py\nfi\n', None),
        ("for s in 1 2; do\npython a.py $s || exit 1\ndone\n", None),
    ],
)
def test_failures_in_branches_and_loops(body, found):
    assert _found("E507", body) == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("python a.py\npid=$!\nwait $pid\n", "advice"),
        ("python a.py &\npid=$!\nwait $pid\n", None),
        ("(sleep 9; kill $$) & python a.py\nwait $!\n", None),
        ("# pid=$!\npython a.py\n", None),
    ],
)
def test_the_last_process_in_the_background(body, found):
    assert _found("E314", body) == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ('run="python a.py --lr 1"\neval $run\necho done\n', "warning"),
        ('run="python a.py --lr 1"\neval "$run"\necho done\n', "warning"),
        ('if [ -n "$1" ]; then run="python a.py $1"; fi\neval $run\necho done\n', "advice"),
        ('eval "$(conda shell.bash hook)"\npython a.py\n', None),
        ('set -e\nrun="python a.py"\neval "$run" || echo failed\n', "advice"),
        ("set -e\nversion=$(python -V || echo none)\npython a.py\n", None),
        ("python a.py\necho built\npython b.py\ncode=$?\nexit $code\n", "advice"),
        ("python a.py || exit 1\npython b.py\ncode=$?\nexit $code\n", None),
        ("python a.py\n[ $? = 0 ] || exit 1\npython b.py\ncode=$?\nexit $code\n", None),
        ("for x in 1 2; do\n$RUN a.py $x || echo failed\ndone\n", "advice"),
    ],
)
def test_failures_of_what_eval_runs_and_of_earlier_steps(body, found):
    assert _found("E507", body, a="print(1)\n", b="print(2)\n") == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("export NCCL_P2P_DISABLE=1\nexport NCCL_P2P_LEVEL=NVL\n", "advice"),
        ("export NCCL_IB_DISABLE=1\nexport NCCL_IB_HCA=mlx5\n", "advice"),
        ("export NCCL_P2P_DISABLE=0\nexport NCCL_P2P_LEVEL=NVL\n", None),
        ("[ $1 ] && export NCCL_IB_DISABLE=1\nexport NCCL_IB_HCA=mlx5\n", None),
        ("export NCCL_P2P_DISABLE=1\nexport NCCL_IB_HCA=mlx5\n", None),
    ],
)
def test_variables_of_nccl_that_another_switches_off(body, found):
    assert _found("E312", f"{body}python a.py\n") == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("export WANDB_API_KEY=", "advice"),
        ('export HF_TOKEN=""  # yours', "advice"),
        ("export HF_TOKEN=$TOKEN", None),
        ("export WANDB_MODE=", None),
    ],
)
def test_a_key_without_a_value(line, found):
    assert _found("E116", f"{line}\npython a.py\n") == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("Help() { echo usage; }\ncase $1 in -h) Help. ;; esac\npython a.py\n", "advice"),
        ("Help() { echo usage; }\ncase $1 in -h) Help ;; esac\npython a.py\n", None),
        ('local_dir=$1\necho "missing `local_dir`"\npython a.py\n', "advice"),
        ("local_dir=$1\necho 'missing `local_dir`'\npython a.py\n", None),
        ('date=$1\necho "now $(hostname)"\npython a.py\n', None),
    ],
)
def test_names_that_are_no_commands(body, found):
    assert _found("E212", body) == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("out=/data/${FACTOR}/x\nFACTOR=2\npython a.py $out $FACTOR\n", "advice"),
        ("python a.py $factor\nfactor=2\npython b.py $factor\n", "advice"),
        ("FACTOR=2\nout=/data/${FACTOR}/x\npython a.py $out\n", None),
        ("out=/data/${FACTOR:-1}/x\nFACTOR=2\npython a.py $out $FACTOR\n", None),
        ("python a.py $factor\nread factor\nfactor=2\n", None),
        ("run() { python a.py $factor; }\nfactor=2\nrun\n", None),
        ("for i in 1 2; do\npython a.py $last\nlast=$i\ndone\n", None),
    ],
)
def test_variables_that_are_set_later(body, found):
    assert _found("E314", body) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [("echo SLURM_NTASKS", "advice"), ("echo $SLURM_NTASKS", None), ("echo SLURM_DONE", None)],
)
def test_the_name_of_a_variable_that_is_printed(line, found):
    assert _found("E313", f"{line}\npython a.py\n") == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ('python a.py\necho "failed"\nexit $?\n', "advice"),
        ("if ! python a.py; then\necho failed\nexit $?\nfi\n", "advice"),
        ("python a.py\nexit $?\n", None),
        ("python a.py\ncode=$?\necho failed\nexit $code\n", None),
    ],
)
def test_the_status_of_a_message(body, found):
    text = "`$?` is the status of echo, which is 0."
    files = TextFiles({"a.py": "print(1)\n"})
    told = [f.what for f in lint(JOB + body, path="job.sh", files=files, programs=SlurmOf())]
    assert (text in told) == (found is not None)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("ssh $node\nmkdir /tmp/x\npython a.py\n", "advice"),
        ("ssh $node 'mkdir /tmp/x'\npython a.py\n", None),
        ("ssh $node <<END\nmkdir /tmp/x\nEND\npython a.py\n", None),
    ],
)
def test_ssh_without_a_command(body, found):
    assert _found("E208", body) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("apptainer exec image.sif python a.py", "advice"),
        ("srun singularity run image.sif python a.py", "advice"),
        ("apptainer exec --nv image.sif python a.py", None),
        ("singularity exec --rocm image.sif python a.py", None),
        ("export APPTAINER_NV=1\napptainer exec image.sif python a.py", None),
        ("apptainer exec $OPTIONS image.sif python a.py", None),
        ("apptainer exec image.sif date\npython a.py", None),
    ],
)
def test_containers_without_gpus(line, found):
    head = f"{JOB}#SBATCH --gpus-per-node=1\n#SBATCH --cpus-per-gpu=8\n"
    assert _found("E203", f"{line}\n", head) == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("module load cuda\ncd backend\n", "advice"),
        ("module load cuda\nconda run python a.py\n", None),
        ("conda env create -f a.yml\n", None),
        ("cd backend\npython a.py\n", None),
    ],
)
def test_scripts_that_only_prepare(body, found):
    assert _found("E512", body) == found


@pytest.mark.parametrize(
    ("directive", "found"),
    [
        ("--account=youraccount", "warning"),
        ("--mail-user=<name>@example.com", "advice"),
        ("--account=yours", None),
        ("-N {1. number of nodes}", "warning"),
    ],
)
def test_more_placeholders(directive, found):
    head = f"#!/bin/bash\n#SBATCH {directive}\n#SBATCH --mail-type=END\n"
    assert _found("E116", "python a.py\n", head) == found
    assert _found("E105", "python a.py\n", head) is None


def test_a_placeholder_in_the_place_of_a_script():
    assert _found("E116", "torchrun --standalone your_script.py\n") == "warning"
    assert _found("E116", "torchrun --standalone our_script.py\n") is None


def test_a_directive_without_its_hash():
    head = "#!/bin/bash\n#SBATCH --nodes=1\nSBATCH --time=1:00:00\n"
    assert _found("E103", "python a.py\n", head) == "error"


@pytest.mark.parametrize(
    ("line", "severity"),
    [("#SBATCH --gpus=8", "error"), ("#SBATCH --gpus=8 for other machines", "warning")],
)
def test_a_late_directive_and_a_note(line, severity):
    assert _found("E102", f"date\n{line}\npython a.py\n") == severity


@pytest.mark.parametrize("name", ["OPM_NUM_THREADS", "PYTHON_PATH"])
def test_misspelt_variables(name):
    assert _found("E312", f"export {name}=1\npython a.py\n") == "advice"


def test_misspelt_programs():
    assert _found("E212", "mkdit results\npython a.py\n") == "warning"
    assert _found("E212", "python9 a.py\n") is None
