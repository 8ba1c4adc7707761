"""What a rule finds beyond its example, and what looks similar but is right."""

import pytest

from echelon.lint.rendezvous import FREE_PORT as PROBE
from unit.lint.fakes import JOB, codes

TWO = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n"
GPUS = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=2\n"
TASKS = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=4\n"
ARRAY = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=8\n#SBATCH --array=0-7\n"
PARSER = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
args = parser.parse_args()
"""
LIGHTNING = "import lightning\nlightning.Trainer(devices=4).fit(model)\n"
BESIDE = {
    "train": PARSER,
    "lightning": LIGHTNING,
    "scripts/env_sh": "set -euo pipefail\n",
    "scripts/run_sh": "hostname\n",
}

FOUND = [
    ("E101", "error", "", "# job\n#!/bin/bash\n#SBATCH --nodes=1\n"),
    ("E102", "error", "", "#!/bin/bash\n#SBACTH --nodes=1\n#SBATCH -t 9\n"),
    ("E106", "error", "", "#!/bin/bash\n#SBATCH --chdir=~/a\n"),
    ("E116", "advice", "source /path/to/venv/bin/activate\n", JOB),
    ("E202", "error", "srun torchrun --nproc_per_node=4 train.py\n", TWO),
    ("E207", "warning", "python train.py --epochs 3\n", JOB),
    ("E208", "error", "srun python train.py \\\n    # --lr 1 \\\n    data/train\n", JOB),
    ("E208", "error", "srun python train.py\n    --lr 1\n", JOB),
    ("E208", "error", "srun python train.py \\ \n    --lr 1\n", JOB),
    ("E211", "warning", 'cd "$(dirname "$0")"\necho "${SLURM_JOB_ID:-local}"\n', JOB),
    ("E301", "warning", "torchrun --nproc_per_node=8 --master_port=29500 train.py\n", ARRAY),
    ("E301", "warning", "torchrun --nproc_per_node=2 train.py\n", GPUS),
    ("E308", "error", "export RANK=$SLURM_PROCID\nsrun python a.py\n", TWO),
    ("E314", "warning", "python a.py --workers $SLURM_CPUS_PER_TASK\n", JOB),
    ("E317", "warning", "export A=1\nsrun --export=B=2 python a.py\n", JOB),
    ("E406", "warning", "wandb login 0123456789abcdef0123456789abcdef01234567\n", JOB),
    ("E411", "warning", "export GLOO_SOCKET_IFNAME=^lo\nsrun python a.py\n", TWO),
    ("E411", "warning", "\nexport CUDA_LAUNCH_BLOCKING=1\nsrun python a.py\n", TWO),
    ("E106", "error", "", "#!/bin/bash\n#SBATCH --output=/scratch/$USER/%j.out\n"),
    ("E116", "advice", "", "#!/bin/bash\n#SBATCH --account=project_xxxxxxxxx\n"),
    ("E201", "warning", "python lightning.py\n", TASKS),
    ("E207", "warning", "python -m torch.distributed.launch train.py --lr 1\n", JOB),
    ("E215", "error", "cd ../$SLURM_SUBMIT_DIR\n", JOB),
    ("E215", "error", "srun scripts/run.sh\n", JOB),
    ("E216", "error", "while read -r a; do\n    srun python a.py $a\ndone < list\n", JOB),
    (
        "E411",
        "advice",
        "# hangs\nexport CUDA_LAUNCH_BLOCKING=1\nsrun python a.py\n",
        TWO,
    ),
    ("E507", "warning", "python a.py | tee log\n", JOB),
    ("E507", "warning", "srun bash -c 'python a.py; echo done'\n", JOB),
    ("E507", "warning", "singularity exec a python a.py &\np=$!\nwait $p\necho end\n", JOB),
    ("E507", "warning", "perun monitor train.py\nexit 0\n", JOB),
    ("E507", "warning", 'CMD="python a.py"\neval $CMD\necho end\n', JOB),
    ("E507", "advice", "set -e\nbash clean.sh || true\npython a.py\n", JOB),
    ("E507", "advice", "source $CODE/options\npython a.py\necho end\n", JOB),
    ("E513", "warning", 'python a.py\necho "$(date) $?"\n', JOB),
    ("E507", "warning", 'python a.py\necho "$(date): $?"\n', JOB),
    ("E507", "warning", "python a.py || true\n", JOB),
    ("E507", "warning", "python a.py\nexit 0\n", JOB),
    ("E507", "warning", "time { python a.py; }\necho end\n", JOB),
    ("E507", "warning", "time -p for i in 1 2; do python a.py $i; done\necho end\n", JOB),
    ("E507", "warning", "set -e\npython a.py &\nwait\n", JOB),
    ("E507", "error", "python a.py &\n", JOB),
    ("E507", "warning", "for i in 1 2; do\n    python a.py $i\ndone\n", JOB),
    ("E507", "warning", "python a.py\npython b.py\n", JOB),
    ("E507", "warning", "run() {\n    python a.py\n}\nrun\necho done\n", JOB),
    ("E507", "warning", "if [ -f a ]; then\n    python a.py\nfi\necho done\n", JOB),
]

RIGHT = [
    ("E102", "", "#!/bin/bash\n#SBATCH --nodes=1\n# see sbatch --help\n"),
    ("E104", "", "#!/bin/bash\n#SBATCH --some-plugin=1\n#SBATCH -t 9\n"),
    ("E107", "", "#!/bin/bash\n#SBATCH --mail-type=END\n#SBATCH --mail-type=FAIL\n"),
    ("E116", 'echo "usage: job.sh /path/to/data"\n', JOB),
    ("E116", "DATA=${X:-/path}\npython a.py $DATA\n", JOB),
    ("E201", "srun hostname\ntorchrun a.py\n", TWO),
    ("E207", "python train.py --lr 0.1\n", JOB),
    ("E208", "srun python train.py \\\n    --lr 1\n# --epochs 3\n", JOB),
    ("E203", "# one GPU is for vLLM\nsrun torchrun --nproc_per_node=1 a.py\n", GPUS),
    ("E208", "srun python train.py \\\n    # --lr 1 \\\n    # --epochs 3\n", JOB),
    ("E211", 'cd "$SLURM_SUBMIT_DIR"\necho "$(dirname "$0")"\n', JOB),
    ("E301", ": ${MASTER_PORT:=12356}\nexport MASTER_PORT\ntorchrun --standalone a.py\n", GPUS),
    ("E301", f"{PROBE}\ntorchrun --master_port=$MASTER_PORT a.py\n", GPUS),
    ("E308", "export RANK=$SLURM_PROCID\nsrun bash -c 'RANK=$SLURM_PROCID python a.py'\n", TWO),
    ("E314", ": ${MASTER_PORT:=12356}\npython a.py $MASTER_PORT\n", JOB),
    ("E314", "python a.py ${SLURM_CPUS_PER_TASK:-4}\n", JOB),
    ("E317", "export A=1\nsrun --export=ALL,B=2 python a.py\n", JOB),
    ("E401", "srun python a.py\n", "#!/bin/bash\n#SBATCH --cpus-per-task=8\n"),
    ("E406", 'export WANDB_API_KEY="$(cat key)"\npython a.py\n', JOB),
    ("E408", "source conda.sh\nconda activate a\npython a.py\n", JOB),
    ("E501", "", "#!/bin/bash\n#SBATCH --output=logs/%j.out\n"),
    ("E502", "", "#!/bin/bash\n#SBATCH --array=0-3\n#SBATCH --output=%A_%a.out\n"),
    ("E507", "python a.py\nRC=$?\necho done\nexit $RC\n", JOB),
    ("E507", "set -eo pipefail\npython a.py | tee log\necho done\n", JOB),
    ("E507", "python a.py || exit 1\necho done\n", JOB),
    ("E507", "if ! python a.py; then\n    exit 1\nfi\necho done\n", JOB),
    ("E507", "python a.py &\nwait $!\n", JOB),
    ("E507", "python a.py && echo done\n", JOB),
    ("E507", "python a.py\nexit\n", JOB),
    ("E507", "set -e\ntime { python a.py; }\necho end\n", JOB),
    ("E216", "while read -r a; do\n    srun python a.py $a < /dev/null\ndone < list\n", JOB),
    ("E216", "while read -r a; do\n    srun python a.py $a &\ndone < list\n", JOB),
    ("E216", "while read -u 3 -r a; do\n    srun python a.py $a\ndone 3< list\n", JOB),
    ("E301", "export MASTER_PORT=29511\n# srun python train.py\n", GPUS),
    ("E507", "source scripts/env.sh\npython a.py\necho done\n", JOB),
    (
        "E507",
        "if a; then\n    srun a.py\nelif b; then\n    echo b\nelse\n    echo c\nfi\n",
        JOB,
    ),
    ("E507", "srun bash -ec 'python a.py; echo done'\n", JOB),
    ("E513", "set -e\nset +e\npython a.py\nstatus=$?\nexit $status\n", JOB),
    ("E513", "set -e\nstatus=0\npython a.py || status=$?\nexit $status\n", JOB),
    ("E513", 'python a.py\necho "$? $(date)"\n', JOB),
    ("E507", "trap 'exit 1' ERR\npython a.py\necho done\n", JOB),
]


@pytest.mark.parametrize(("code", "severity", "body", "head"), FOUND)
def test_it_is_found(code, severity, body, head):
    assert (code, severity) in codes(body, head, **BESIDE)


@pytest.mark.parametrize(("code", "body", "head"), RIGHT)
def test_it_is_right(code, body, head):
    assert code not in {found for found, _ in codes(body, head, **BESIDE)}


def test_a_path_that_the_repository_lacks_is_a_warning():
    assert ("E215", "warning") in codes("python trian.py\n", repository=True, train="")


def test_a_template_has_no_more_than_advice():
    head = "#!/bin/bash\n# This is a template: copy it.\n#SBATCH --mem=16Go\n"
    assert {severity for _, severity in codes("python a.py\nexit 0\n", head)} == {"advice"}


@pytest.mark.parametrize(
    ("version", "found"),
    [(None, False), ("21.08.8", False), ("22.05.8", True), ("23.02.7", True), ("23.11.1", False)],
)
def test_a_rule_about_versions_asks_for_the_version(version, found):
    head = "#!/bin/bash\n#SBATCH --cpus-per-task=8\n#SBATCH --nodes=1\n"
    assert (("E401", "warning") in codes("srun python a.py\n", head, version=version)) is found
