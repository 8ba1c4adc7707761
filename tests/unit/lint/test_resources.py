"""Resources that a job does not request, and Python scripts that do not share their work."""

import pytest

from echelon.lint.linting import lint
from unit.lint.fakes import JOB, SlurmOf, TextFiles, codes

HEAD = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --mem=64G\n"
ONE, TWO = f"{HEAD}#SBATCH --gpus-per-node=1\n", f"{HEAD}#SBATCH --gpus-per-node=2\n"
LEARNS = "loss = model(x)\nloss.backward()\n"


def found(code, body, head, **beside):
    """Tell whether lint reports a code, and that it is advice."""
    severities = [severity for name, severity in codes(body, head, **beside) if name == code]
    assert set(severities) <= {"advice"}
    return bool(severities)


@pytest.mark.parametrize(
    ("head", "command", "told"),
    [
        (ONE, "python train.py", True),
        (ONE, "uv run our-train --steps=3", True),
        (ONE, "srun python train.py", True),
        (TWO, "python main.py", True),
        ("#!/bin/bash\n#SBATCH --gres=gpu:2\n", "python main.py", True),
        (f"{ONE}#SBATCH --ntasks=1\n", "python train.py", True),
        (f"{ONE}#SBATCH --ntasks=8\n", "python train.py", False),
        (f"{ONE}#SBATCH --cpus-per-task=1\n", "python train.py", False),
        (f"{ONE}#SBATCH --cpus-per-gpu=4\n", "python train.py", False),
        (f"{ONE}#SBATCH --exclusive\n", "python train.py", False),
        (f"{ONE}#SBATCH --mincpus=4\n", "python train.py", False),
        (f"{ONE}#SBATCH --mem=0\n", "python train.py", False),
        (f"{ONE}#SBATCH --constraint=gpu\n", "python train.py", False),
        (ONE, "srun -c 8 python train.py", False),
        (ONE, "python main.py", False),
        (ONE, "python infer_train.py", False),
        (ONE, "python train_test_split.py", False),
        (ONE, "cp our-train old", False),
        (HEAD, "python train.py", False),
        ("#!/bin/bash\n#SBATCH --gpus-per-node=4\n", "python train.py", False),
        ("#!/bin/bash\n#SBATCH --gpus-per-node=1\n", "python train.py", False),
    ],
)
def test_a_training_with_one_cpu(head, command, told):
    assert found("E403", f"{command}\n", head) == told


def test_a_training_is_known_by_its_text():
    assert found("E403", "python main.py\n", ONE, main=LEARNS)
    assert not found("E403", "python main.py\n", ONE, main="print(1)\n")


@pytest.mark.parametrize(
    ("head", "command", "told"),
    [
        (TWO, "torchrun --standalone --nproc_per_node=2 a.py", True),
        (f"{TWO}#SBATCH --ntasks=2\n", "torchrun --standalone --nproc_per_node=2 a.py", False),
        (
            f"{TWO}#SBATCH --cpus-per-gpu=2\n",
            "torchrun --standalone --nproc_per_node=2 a.py",
            False,
        ),
    ],
)
def test_ranks_with_one_cpu(head, command, told):
    assert found("E403", f"{command}\n", head) == told


@pytest.mark.parametrize(
    ("head", "command", "told"),
    [
        (ONE, "python a.py --num_workers 8", True),
        (HEAD, "python a.py --n_workers=8", True),
        (ONE, "python a.py data.num_workers=8", True),
        (ONE, "python a.py --num_workers 1", False),
        (ONE, "python a.py --num_workers 0", False),
        (f"{ONE}#SBATCH --ntasks=8\n", "python a.py --num_workers 8", False),
        (f"{ONE}#SBATCH --ntasks=8\n", "srun python a.py --num_workers 8", True),
        (f"{ONE}#SBATCH --cpus-per-gpu=8\n", "python a.py --num_workers 8", False),
        ("#!/bin/bash\n", "python a.py --num_workers 8", False),
    ],
)
def test_workers_with_one_cpu(head, command, told):
    assert found("E402", f"{command}\n", head) == told
    assert not (told and found("E403", f"{command}\n", head))


def test_workers_of_a_loader():
    loader = "from torch.utils.data import DataLoader\nDataLoader(data, num_workers={})\n"
    assert found("E402", "python a.py\n", ONE, a=loader.format(4))
    assert not found("E402", "python a.py\n", ONE, a=loader.format(0))


CUDA = "model.cuda()\nloss.backward()\n"
MAYBE = "model.to('cuda' if torch.cuda.is_available() else 'cpu')\nloss.backward()\n"


@pytest.mark.parametrize(
    ("head", "command", "script", "told"),
    [
        (HEAD, "python a.py", CUDA, True),
        (HEAD, "python a.py", "model.to('cuda')\n", True),
        (HEAD, "python a.py", MAYBE, False),
        (HEAD, "python a.py", "if args.gpu:\n    model.cuda()\n", False),
        (HEAD, "python a.py", "def f():\n    model.cuda()\n", False),
        (HEAD, "srun apptainer exec --nv a.sif python a.py", MAYBE, True),
        (HEAD, "singularity exec --nv a.sif python a.py", MAYBE, True),
        (HEAD, "docker run --gpus all image python a.py", MAYBE, True),
        (HEAD, "docker run --gpus=all image python a.py", MAYBE, True),
        (HEAD, "apptainer exec a.sif python a.py", MAYBE, False),
        (HEAD, "apptainer exec --nv a.sif python a.py", "import os\n", False),
        (HEAD, "apptainer exec --nv a.sif python elsewhere.py", MAYBE, False),
        (f"{HEAD}#SBATCH --gres=gpu:0\n", "nvidia-smi\npython a.py", "import os\n", True),
        (HEAD, "nvidia-smi\npython a.py", "import os\n", False),
        (HEAD, "torchrun --nproc_per_node=$SLURM_GPUS_ON_NODE a.py", "import os\n", True),
        (HEAD, "torchrun --nproc_per_node=${SLURM_GPUS_ON_NODE:-1} a.py", "import os\n", False),
        (HEAD, "srun --gpus-per-task=1 python a.py", CUDA, False),
        (f"{HEAD}#SBATCH --exclusive\n", "python a.py", CUDA, False),
        (f"{HEAD}#SBATCH --constraint=a100\n", "python a.py", CUDA, False),
        (f"{HEAD}#SBATCH --partition=accelerated\n", "python a.py", CUDA, False),
        (f"{HEAD}#SBATCH --qos=gpu\n", "python a.py", CUDA, False),
        (f"{HEAD}#SBATCH --partition=general\n", "python a.py", CUDA, True),
        (ONE, "python a.py", CUDA, False),
    ],
)
def test_gpus_that_a_job_uses_and_does_not_request(head, command, script, told):
    assert found("E118", f"{command}\n", head, a=script) == told


def test_gpus_that_a_job_gets_when_it_is_submitted():
    job = f"{HEAD}nvidia-smi\npython a.py --device cuda\n"
    kinds = []
    for readme in ("sbatch job.sh\n", "sbatch --gres=gpu:2 job.sh\n", "sbatch -G 1 job.sh\n"):
        files = TextFiles({"job.sh": job, "README.md": readme}, repository=True)
        findings = lint(job, path="job.sh", files=files, programs=SlurmOf())
        kinds.append("E118" in [finding.code for finding in findings])
    assert kinds == [True, False, False]


def test_a_job_for_cpus_by_its_name():
    job = HEAD + "apptainer exec --nv a.sif python a.py\n"
    files = TextFiles({"a.py": MAYBE})
    reported = [
        path
        for path in ("train.sh", "train_cpu.sh", "cpu-train.sh")
        if any(f.code == "E118" for f in lint(job, path=path, files=files, programs=SlurmOf()))
    ]
    assert reported == ["train.sh"]


GROUP = "import os\nimport torch\ntorch.distributed.init_process_group('gloo')\n"
STEPS = "rank = os.environ['RANK']\nloss.backward()\noptimizer.step()\n"
TORCHRUN = "torchrun --standalone --nproc_per_node=2 a.py\n"


@pytest.mark.parametrize(
    ("command", "script", "told"),
    [
        (TORCHRUN, GROUP + STEPS, True),
        (TORCHRUN, f"import os\n{STEPS}", True),
        (TORCHRUN, f"{GROUP}# DDP(model) is for later\n{STEPS}", True),
        ("srun --ntasks=2 python a.py\n", GROUP + STEPS, True),
        ("srun --ntasks=2 python a.py\n", f"import os\n{STEPS}", False),
        ("python a.py\n", GROUP + STEPS, False),
        ("torchrun --standalone --nproc_per_node=1 a.py\n", GROUP + STEPS, False),
        ("mpirun -n 2 python a.py\n", GROUP + STEPS, False),
        (TORCHRUN, f"{GROUP}model = DDP(model)\n{STEPS}", False),
        (TORCHRUN, f"{GROUP}torch.distributed.all_reduce(x)\n{STEPS}", False),
        (TORCHRUN, f"{GROUP}from deepspeed import zero\n{STEPS}", False),
        (TORCHRUN, f"{GROUP}model = accelerator.prepare(model)\n{STEPS}", False),
        (TORCHRUN, f"{GROUP}sync_gradients(model)\n{STEPS}", False),
        (TORCHRUN, f"{GROUP}from near import x\n{STEPS}", True),
        (TORCHRUN, f"{GROUP}from .near import x\n{STEPS}", True),
        (TORCHRUN, f"{GROUP}from . import near\n{STEPS}", True),
        (TORCHRUN, f"{GROUP}import numpy as np\n{STEPS}", True),
        (TORCHRUN, f"{GROUP}from wraps import x\n{STEPS}", False),
        (TORCHRUN, f"{GROUP}from .lost import x\n{STEPS}", False),
        (TORCHRUN, f"{GROUP}if rank == 0:\n    loss.backward()\n    optimizer.step()\n", False),
        (TORCHRUN, f"{GROUP}optimizer.step()\n", False),
    ],
)
def test_gradients_of_ranks(command, script, told):
    beside = {"near": "x = 1\n", "wraps": "x = FullyShardedDataParallel\n"}
    assert found("E608", command, TWO, a=script, **beside) == told


def test_gradients_in_a_module_that_lint_does_not_find():
    texts = {"a.py": f"{GROUP}from deep.inner import x\n{STEPS}", "src/deep/inner.py": "x = 1\n"}
    files = TextFiles(texts, repository=True)
    reported = lint(TWO + TORCHRUN, path="job.sh", files=files, programs=SlurmOf())
    assert "E608" not in {f.code for f in reported}


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("srun", True),
        ("time srun", True),
        ("srun --ntasks=4 -c 2", True),
        ("srun hostname", False),
        ("srun --version", False),
        ("srun -V", False),
        ("srun --help", False),
        ("srun $COMMAND", False),
        ("srun $OPTIONS", False),
        ("echo srun", False),
        ("srun --multi-prog tasks.conf", False),
    ],
)
def test_srun_without_a_command(command, told):
    assert found("E208", f"{command}\nhostname\n", HEAD) == told


def test_srun_that_a_broken_line_cuts_off():
    reported = codes("srun --ntasks=1 \\\n # a comment\n  --label python a.py\n", HEAD)
    assert [severity for code, severity in reported if code == "E208"] == ["error"]


def resources(body, head, **texts):
    """Return code, severity, file and line of the findings about idle GPUs and CPUs."""
    scripts = {f"{name}.py": text for name, text in texts.items()}
    files = TextFiles({**scripts, "job.sh": ""}, repository=True)
    told = lint(f"{head}{body}\n", path="job.sh", files=files, programs=SlurmOf())
    return [(f.code, str(f.severity), f.path, f.line) for f in told if f.code in ("E203", "E410")]


TWO_GPUS = f"{JOB}#SBATCH --gpus-per-node=2\n"
HIDES = 'import os, torch\nos.environ["CUDA_VISIBLE_DEVICES"] = "0"\ntorch.ones(1).cuda()\n'
HIDDEN = [("E203", "warning", "a.py", 2)]
MAYBE_IDLE = [("E203", "advice", "job.sh", 4)]


@pytest.mark.parametrize(
    ("body", "head", "script", "told"),
    [
        ("python a.py", TWO_GPUS, HIDES, HIDDEN),
        ("srun --ntasks=1 python a.py", TWO_GPUS, HIDES, HIDDEN),
        ("hostname\nconda activate x\npython -u a.py --b=1", TWO_GPUS, HIDES, HIDDEN),
        ("python a.py", TWO_GPUS, HIDES.replace('"0"', '"1, 0"'), MAYBE_IDLE),
        ("python a.py", f"{JOB}#SBATCH --gpus-per-node=1\n", HIDES, []),
        ("python a.py", TWO_GPUS, HIDES.replace("os.env", "if test: os.env"), MAYBE_IDLE),
        ("python a.py", TWO_GPUS, HIDES.replace("os.env", "def f(): os.env"), MAYBE_IDLE),
        ("python a.py", TWO_GPUS, HIDES.replace('"0"', "gpu"), MAYBE_IDLE),
        ("python a.py", TWO_GPUS, HIDES + 'print("CUDA_VISIBLE_DEVICES")\n', MAYBE_IDLE),
        ("python a.py", TWO_GPUS, HIDES.replace(", torch", ", torch.cuda"), MAYBE_IDLE),
        ("python a.py", TWO_GPUS, HIDES + "os.system('b')\n", MAYBE_IDLE),
        ("python a.py\n./server", TWO_GPUS, HIDES, MAYBE_IDLE),
        ("python a.py &\npython b.py", TWO_GPUS, HIDES, []),
        ("torchrun --nproc_per_node=2 a.py", TWO_GPUS, HIDES, []),
    ],
)
def test_gpus_that_a_script_hides_from_itself(body, head, script, told):
    assert resources(body, head, a=script) == told


ONE_GPU = f"{JOB}#SBATCH --gres=gpu:1\n"
ON_CPU = [("E203", "advice", "job.sh", 3)]
CHECK = "import torch; print(torch.cuda.is_available())"
MODEL = "import numpy as np\nfrom lib.data import load\nnp.mean(load())\n"
DATA = "import pandas as pd\ndef load():\n    return pd.read_csv('a.csv')\n"


@pytest.mark.parametrize(
    ("body", "script", "data", "told"),
    [
        ("python a.py", MODEL, DATA, ON_CPU),
        ("python a.py\npython a.py --more", MODEL, DATA, ON_CPU),
        ("srun python a.py", MODEL, DATA, ON_CPU),
        (
            f'python -c "{CHECK}"\npython a.py',
            MODEL,
            DATA,
            ON_CPU,
        ),
        ("log() { echo $1; }\nlog start\npython a.py", MODEL, DATA, ON_CPU),
        ("python a.py", f"import torch\n{MODEL}", DATA, []),
        ("python a.py", MODEL, f"{DATA}    import torch\n", []),
        ("python a.py", MODEL, f"{DATA}    import cupy\n", []),
        ("python a.py", f"import subprocess\n{MODEL}", DATA, []),
        ("python a.py", f"import pickle\n{MODEL}", DATA, []),
        ("python a.py", f"{MODEL}use('gpu')\n", DATA, []),
        ("python a.py", f"from . import other\n{MODEL}", DATA, []),
        ("python a.py", f"from lib import missing\n{MODEL}", DATA, ON_CPU),
        ("python a.py", f"import lib.missing\n{MODEL}", DATA, []),
        ("python a.py --device=cuda", MODEL, DATA, []),
        ("python a.py\n./simulate", MODEL, DATA, []),
        ("conda run ./simulate\npython a.py", MODEL, DATA, []),
        ("python -c 'import torch; torch.ones(1).cuda()'\npython a.py", MODEL, DATA, []),
        (f'python -c "{CHECK}; torch.rand(9)"\npython a.py', MODEL, DATA, []),
        ("python a.py\npython other.py", MODEL, DATA, []),
        ("source ./setup.sh\npython a.py", MODEL, DATA, []),
        ("torchrun a.py", MODEL, DATA, []),
    ],
)
def test_gpus_of_scripts_that_use_none(body, script, data, told):
    texts = {"a": script, "lib/data": data, "lib/__init__": ""}
    assert resources(body, ONE_GPU, **texts) == told


def test_scripts_without_gpus_in_jobs_without_gpus():
    assert resources("python a.py", JOB, a="print(1)\n") == []


MANY = f"{JOB}#SBATCH --cpus-per-task=16\n#SBATCH --gres=gpu:1\n#SBATCH --mem=64G\n"
LOADER = (
    "import torch\nfrom torch.utils.data import DataLoader\nfor x in DataLoader([]{}): x.cuda()\n"
)
IDLE = [("E410", "advice", "job.sh", 3)]
OPTION = (
    "import argparse\nparser = argparse.ArgumentParser()\n"
    "parser.add_argument('--workers', type=int, default=2)\nargs = parser.parse_args()\n"
)


@pytest.mark.parametrize(
    ("body", "head", "script", "told"),
    [
        ("python a.py", MANY, LOADER.format(""), IDLE),
        ("python a.py", MANY, LOADER.format(", num_workers=7"), IDLE),
        ("python a.py", MANY, LOADER.format(", num_workers=8"), []),
        ("python a.py", MANY, LOADER.format("") + LOADER.format(", num_workers=8"), []),
        ("python a.py", MANY, f"N = 2\n{LOADER.format(', num_workers=N')}", IDLE),
        ("python a.py", MANY, LOADER.format(", num_workers=f()"), []),
        ("python a.py", MANY, LOADER.format(", **options"), []),
        ("python a.py", MANY, OPTION + LOADER.format(", num_workers=args.workers"), IDLE),
        (
            "python a.py --workers=3",
            MANY,
            OPTION + LOADER.format(", num_workers=args.workers"),
            IDLE,
        ),
        ("python a.py --workers=9", MANY, OPTION + LOADER.format(", num_workers=args.workers"), []),
        (
            "python a.py --workers=$N",
            MANY,
            OPTION + LOADER.format(", num_workers=args.workers"),
            [],
        ),
        ("srun python a.py", MANY, LOADER.format(""), IDLE),
        ("srun --cpus-per-task=2 python a.py", MANY, LOADER.format(""), []),
        ("python a.py &\npython a.py &\nwait", MANY, LOADER.format(""), []),
        ("torchrun --nproc_per_node=1 a.py", MANY, LOADER.format(""), []),
        ("export OMP_NUM_THREADS=16\npython a.py", MANY, LOADER.format(""), []),
        ("make -j 16\npython a.py", MANY, LOADER.format(""), []),
        ("python a.py", MANY, f"import joblib\n{LOADER.format('')}", []),
        ("python a.py", MANY, f"from sklearn.svm import SVC\n{LOADER.format('')}", []),
        ("python a.py", MANY, f"from sklearn.metrics import f1_score\n{LOADER.format('')}", IDLE),
        ("python a.py", MANY, f"import b\n{LOADER.format('')}", []),
        ("python a.py", MANY, "import torch\ntorch.ones(1).cuda()\n", []),
        ("python a.py", MANY.replace("=16", "=7"), LOADER.format(""), []),
        ("python a.py", MANY.replace("gpu:1", "tmp:1"), LOADER.format(""), []),
        ("python a.py", MANY.replace("--mem=", "--mem-per-cpu="), LOADER.format(""), []),
        ("python a.py", MANY.replace("#SBATCH --mem=64G", "#"), LOADER.format(""), []),
        ("srun python a.py", f"{MANY}#SBATCH --ntasks-per-node=2\n", LOADER.format(""), []),
    ],
)
def test_idle_cpus(body, head, script, told):
    b = "from torch.utils.data import DataLoader\nDataLoader([], num_workers=15)\n"
    found = resources(body, head, a=script, b=b)
    assert [one for one in found if one[0] == "E410"] == told


def test_data_loaders_of_modules_that_pythonpath_adds():
    texts = {"scripts/a": f"import lib.b\n{LOADER.format('')}", "lib/b": LOADER.format("")}
    assert resources("PYTHONPATH=. python scripts/a.py", MANY, **texts) == []
    texts["lib/b"] = "import torch\n"
    assert resources("PYTHONPATH=. python scripts/a.py", MANY, **texts) == IDLE


def idle(body, head=TWO, **beside):
    return found("E203", f"{body}\n", head, **beside)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("set -e\npip install numpy  # not with -e here", True),
        ("conda create -n a python=3.12 numpy", True),
        ("conda create -n a python=3.12 pytorch", False),
        ("conda env create -f environment.yml", False),
        ("pip install -r requirements.txt", False),
        ("git pull\nsleep infinity", False),
        ("git pull\nwandb agent team/project/id", False),
        ("git pull\nfind . -name run.py -exec python {} \\;", False),
        ("module load CUDA\npython -m venv v\nsource v/bin/activate\npip install torch", True),
        ("wget https://a.b/c.tar.gz && tar xf c.tar.gz", True),
        ("hf download org/model --local-dir models", True),
        ("apptainer build a.sif docker://a", True),
        ("pip install flash-attn", False),
        ("pip install -e .", False),
        ("pip install torch\nnvidia-smi", False),
        ("pip install torch\nmake", False),
        ("pip install torch\npython train.py", False),
        ("pip install torch\nconda run -n a python train.py", False),
        ("pip install torch\nsource run.sh", False),
        ("echo start; sleep 100", False),
    ],
)
def test_a_job_that_only_installs_or_copies(body, told):
    assert idle(body, ONE) == told


@pytest.mark.parametrize(
    ("command", "packages", "told"),
    [
        ("pip install -r requirements.txt", "numpy\ntorch\n", True),
        ("pip install -r requirements.txt", "torch\nflash-attn==2.5\n", False),
        ("uv pip install --requirement requirements.txt", "git+https://a.b/c\n", False),
        ("conda env create --file environment.yml", "dependencies: [numpy]\n", True),
        ("mamba env create --file environment.yml", "dependencies: [pytorch]\n", False),
        ("conda env create -n a", "dependencies: [python=3.12]\n", True),
        ("conda env create -n a", "dependencies: [cupy]\n", False),
    ],
)
def test_a_job_that_installs_a_list_of_packages(command, packages, told):
    files = TextFiles({"requirements.txt": packages, "environment.yml": packages})
    findings = lint(f"{ONE}{command}\n", path="a.sh", files=files, programs=SlurmOf())
    assert ("E203" in [finding.code for finding in findings]) == told


ALONE = "import torch\ndevice = 'cuda:0'\n"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("cd /data/ddp_course\npython one.py", True),
        ("echo GPUs: $CUDA_VISIBLE_DEVICES\npython one.py", True),
        ("python one.py --single-gpu", True),
        ("python one.py --gpus 2", False),
        ("GPUS=2\npython one.py", False),
        ("server --port=1 &\npython one.py", False),
        ("export CUDA_VISIBLE_DEVICES=1,0\npython one.py", False),
    ],
)
def test_one_process_with_several_gpus(body, told):
    assert idle(body, one=ALONE) == told


def test_a_script_without_gpus_after_the_choice_of_devices():
    assert idle("export CUDA_VISIBLE_DEVICES=0,1\npython one.py", one="import h5py\n")


INSTEAD = "#SBATCH --gpus-per-node=1  # or "


@pytest.mark.parametrize(
    ("body", "fix"),
    [
        ("torchrun --nproc_per_node=1 one.py", f"{INSTEAD}--nproc_per_node=2"),
        ("accelerate launch --num_processes 1 one.py", f"{INSTEAD}--num_processes=2"),
        (
            "CUDA_VISIBLE_DEVICES=$(a) torchrun --nproc_per_node=1 one.py",
            f"{INSTEAD}--nproc_per_node=2",
        ),
        ("export CUDA_VISIBLE_DEVICES=0\nvllm serve a &\ntorchrun --nproc_per_node=1 one.py", ""),
    ],
)
def test_fewer_ranks_than_gpus(body, fix):
    findings = lint(f"{TWO}{body}\n", path="a.sh", files=TextFiles({}), programs=SlurmOf())
    assert [f.fix for f in findings if f.code == "E203"] == [fix] * bool(fix)


@pytest.mark.parametrize(
    ("command", "kinds"),
    [
        ("accelerate launch --multi_gpu --num_processes 1 a.py", ["error"]),
        ("N=1; accelerate launch --multi_gpu --num_processes=$N a.py", ["error"]),
        ("accelerate launch --multi_gpu --use_deepspeed a.py", ["error"]),
        ("if true; then accelerate launch --cpu --multi_gpu a.py; fi", ["warning"]),
        ("accelerate launch --multi_gpu --num_processes 2 a.py", []),
        ("accelerate launch --multi_gpu --num_processes $N a.py", []),
        ("accelerate launch --num_processes 1 a.py --multi_gpu", []),
        ("accelerate launch --use_fsdp --num_processes 1 a.py", []),
    ],
)
def test_options_that_accelerate_refuses(command, kinds):
    reported = codes(f"{command}\n", ONE)
    assert [severity for code, severity in reported if code == "E207"] == kinds


@pytest.mark.parametrize("option", ["use_fsdp", "use_deepspeed"])
def test_which_option_of_accelerate_to_remove(option):
    text = f"{ONE}accelerate launch --{option} --multi_gpu a.py\n"
    findings = lint(text, path="a.sh", files=TextFiles({}), programs=SlurmOf())
    assert [f.fix for f in findings if f.code == "E207"] == ["remove `--multi_gpu`"]


def test_a_missing_argument_of_a_script_by_its_full_path():
    parser = "import argparse\np = argparse.ArgumentParser()\n"
    text = f"{parser}p.add_argument('--mode', required=True)\nargs = p.parse_args()\n"
    files = TextFiles({"src/a.py": text, "jobs/job.sh": ""}, repository=True)
    job = f"{HEAD}python /home/me/own/src/a.py\n"
    findings = lint(job, path="jobs/job.sh", files=files, programs=SlurmOf())
    assert [f.what for f in findings if f.code == "E207"] == [
        "src/a.py requires `--mode`, which the command does not give."
    ]


@pytest.mark.parametrize(
    ("options", "body", "told"),
    [
        ("--partition=gpu_shared", "module load cuDNN/8.9-CUDA-12.2", True),
        ("-p GPU", "ml gcc cuda/12", True),
        ("--partition=gpu; --exclusive", "module load cuda", False),
        ("--partition=gpu; --gres=gpu:1", "module load cuda", False),
        ("--partition=gpu", "module load cuda\nsrun --gres=gpu:1 hostname", False),
        ("--partition=gpu", "module load gcc", False),
        ("--partition=short,gpu", "module load cuda", False),
        ("--partition=normal", "module load cuda", False),
        ("--partition=nogpu", "module load cuda", False),
        ("--partition=cpu_gpu", "module load cuda", False),
        ("--partition=gpu", "module load cuda\n# sbatch --gres=gpu:2 job.sh", False),
    ],
)
def test_a_job_without_gpus_on_a_partition_of_gpus(options, body, told):
    head = HEAD + "".join(f"#SBATCH {option}\n" for option in options.split("; "))
    assert found("E118", f"{body}\npython a.py\n", head) == told


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("CUDA_VISIBLE_DEVICES=0 python a.py\nCUDA_VISIBLE_DEVICES=1 python b.py", True),
        ("srun accelerate launch --gpu_ids 0 a.py\nsrun accelerate launch --gpu_ids 1 b.py", True),
        ("CUDA_VISIBLE_DEVICES=0 python a.py &\nCUDA_VISIBLE_DEVICES=1 python b.py", False),
        ("CUDA_VISIBLE_DEVICES=0 python a.py\nCUDA_VISIBLE_DEVICES=0 python b.py", False),
        ("CUDA_VISIBLE_DEVICES=0,1 python a.py\nCUDA_VISIBLE_DEVICES=2 python b.py", False),
        ("CUDA_VISIBLE_DEVICES=$A python a.py\nCUDA_VISIBLE_DEVICES=$B python b.py", False),
        ("CUDA_VISIBLE_DEVICES= python a.py\nCUDA_VISIBLE_DEVICES=1 python b.py", False),
        *(
            (f"CUDA_VISIBLE_DEVICES=0 {start} a.sh\nCUDA_VISIBLE_DEVICES=1 {start} b.sh", False)
            for start in ("screen -dmS a", "tmux new -d", "docker run -d", "ray start", "nohup")
        ),
        *(
            (f"CUDA_VISIBLE_DEVICES=0 python {first}\nCUDA_VISIBLE_DEVICES=1 python {then}", told)
            for first, then, told in (
                ("a.py --out runs/a", "b.py --from runs/a/last.pt", False),
                ("a.py --out=./runs/a/", "b.py runs/a", False),
                ("a.py --output-dir runs", "b.py --output-dir runs", False),
                ("a.py --data data/x --out runs/a", "a.py --data data/x --out runs/b", True),
                ("a.py --seed 1", "a.py --seed 2", True),
                ("a.py --seed 1 --epochs 3", "a.py --seed 3 --epochs 5", True),
                ("a.py --fast --seed 1", "b.py --new --seed 2", True),
            )
        ),
    ],
)
def test_programs_on_different_gpus_in_sequence(body, told):
    files = TextFiles({})
    findings = lint(f"{TWO}{body}\n", path="a.sh", files=files, programs=SlurmOf())
    assert [f.line for f in findings if f.code == "E203"] == [5] * told


def test_text_about_programs_on_different_gpus_in_sequence():
    head = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=4\n"
    body = "CUDA_VISIBLE_DEVICES=0,1 python a.py\nCUDA_VISIBLE_DEVICES=2 python b.py\n"
    findings = lint(f"{head}{body}", path="a.sh", files=TextFiles({}), programs=SlurmOf())
    [what] = [f.what for f in findings if f.code == "E203"]
    assert what == (
        "This program uses GPUs 0 and 1, and the one in line 5, for GPU 2, starts only after it "
        "has ended."
    )


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        ("--nodes=1; --gpus=4", "--gpus=1"),
        ("--nodes=1; --gpus=a100:4", "--gpus=a100:1"),
        ("--nodes=1; --gpus-per-node=4", "--gpus-per-node=1"),
        ("--nodes=1; --gres=gpu:a100:4", "--gres=gpu:a100:1"),
    ],
)
def test_the_request_of_one_gpu_has_the_option_of_the_job(options, fix):
    head = "".join(f"#SBATCH {option}\n" for option in options.split("; "))
    job = f"#!/bin/bash\n{head}srun torchrun --nproc_per_node=1 one.py\n"
    findings = lint(job, path="a.sh", files=TextFiles({}), programs=SlurmOf())
    [found] = [f.fix for f in findings if f.code == "E203"]
    assert found.partition("  #")[0] == f"#SBATCH {fix}"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("python a.py", True),
        ("echo Job $SLURM_JOB_ID\npython a.py", True),
        ("python a.py | tee logs/a-${SLURM_JOB_ID}.log", True),
        ('LOG="logs/$SLURM_JOBID.txt"\npython a.py > $LOG', True),
        ("python a.py --out=$SLURM_JOB_ID", False),
        ("OUT=out/$SLURM_JOB_ID\npython a.py $OUT", False),
        ("echo Task $SLURM_ARRAY_TASK_ID\npython a.py", False),
        ("LOGS=runs/$SLURM_JOB_ID\nmkdir -p $LOGS\n./simulate > $LOGS/a.txt", True),
        ("LOGS=runs/$SLURM_JOB_ID\nmkdir -p $LOGS\n./simulate --out $LOGS", False),
        ("export LOGS=runs/$SLURM_JOB_ID\n./simulate", False),
        ("LOGS=runs/$SLURM_JOB_ID ./simulate", False),
        ("echo $SLURM_JOB_ID | tee id.txt\n./simulate", True),
        ("echo $SLURM_JOB_ID | xargs -I{} ./simulate --seed {}", False),
    ],
)
def test_tasks_that_differ_in_their_logs_alone(body, told):
    assert found("E202", f"{body}\n", f"{HEAD}#SBATCH --array=1-4\n") == told
