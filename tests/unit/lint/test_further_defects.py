"""Further defects that lint did not find in scripts, beside what looks like them."""

import struct

import pytest

from echelon.lint.files import DiskFiles, read_mode
from echelon.lint.linting import lint
from unit.lint.fakes import JOB, SlurmOf, TextFiles, codes


def whats(body, code, head=JOB, **beside):
    """Return what lint says in the findings with a code."""
    files = TextFiles({f"{name}.py": text for name, text in beside.items()})
    found = lint(head + body, path="job.sh", files=files, programs=SlurmOf())
    return [f.what for f in found if f.code == code]


# --- variables ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "line", "found"),
    [
        ("", 'echo "GPU: $CUDA_VISIBLE_DEVICES"', True),
        ("", "gpus=$CUDA_VISIBLE_DEVICES", True),
        ("#SBATCH --partition=long\n", "echo $CUDA_VISIBLE_DEVICES", True),
        ("#SBATCH --gres=gpu:1\n", "echo $CUDA_VISIBLE_DEVICES", False),
        ("#SBATCH --partition=gpu-long\n", "echo $CUDA_VISIBLE_DEVICES", False),
        ("# sbatch --gres=gpu:1 job.sh\n", "echo $CUDA_VISIBLE_DEVICES", False),
        ("", "echo ${CUDA_VISIBLE_DEVICES:-none}", False),
        ("", 'if [ -n "${GPU:-}" ]; then echo $CUDA_VISIBLE_DEVICES; fi', False),
        ("", "export CUDA_VISIBLE_DEVICES=0\necho $CUDA_VISIBLE_DEVICES", False),
        ("", "set +u\necho $CUDA_VISIBLE_DEVICES", False),
        ("", "set +o nounset\necho $CUDA_VISIBLE_DEVICES", False),
        ("", "set +u\nset -u\necho $CUDA_VISIBLE_DEVICES", True),
    ],
)
def test_the_gpus_of_a_job_without_any_stop_bash(head, line, found):
    said = whats(f"set -euo pipefail\n{line}\npython a.py\n", "E314", JOB + head)
    assert any("requests no GPUs" in what for what in said) == found


def test_without_set_u_the_gpus_of_a_job_without_any_are_empty():
    assert whats("echo $CUDA_VISIBLE_DEVICES\npython a.py\n", "E314") == []


def test_a_sourced_file_may_set_the_gpus():
    texts = {"job.sh": "", "env.sh": "export CUDA_VISIBLE_DEVICES=\n"}
    body = "set -u\nsource $ROOT/env.sh\necho $CUDA_VISIBLE_DEVICES\n"
    found = lint(JOB + body, path="job.sh", files=TextFiles(texts), programs=SlurmOf())
    assert "E314" not in [f.code for f in found]


@pytest.mark.parametrize(
    ("start", "what"),
    [
        ("set -u\n", ["With `set -u`, bash stops here unless sbatch gets `--array`"]),
        ("", []),
        ("set -u\nset +u\n", []),
    ],
)
def test_a_printed_index_without_a_job_array(start, what):
    said = whats(f'{start}echo "task $SLURM_ARRAY_TASK_ID"\npython a.py\n', "E407")
    assert [text.partition(",")[0] for text in said] == [text.partition(",")[0] for text in what]


@pytest.mark.parametrize(
    "body",
    [
        "python a.py --out=$folder",
        "python a.py folder=$folder",
        "python a.py \\\n    folder=$folder",
        "# select or read one\npython a.py $folder",
        'read -r other < file\npython a.py "$folder" $other',
        "declare -A table\npython a.py $folder",
        'eval "$(conda shell.bash hook)"\npython a.py $folder',
    ],
)
def test_a_name_in_lower_case_that_nothing_sets(body):
    assert codes(f"{body}\n").count(("E314", "advice")) == 1


@pytest.mark.parametrize(
    "body",
    [
        "read -r folder < file\npython a.py $folder",
        "for folder in a b; do python a.py $folder; done",
        "while read -r name folder; do python a.py $folder; done < list",
        'declare "$1=$2"\npython a.py $folder',
        "export $(grep -v '^#' .env | xargs)\npython a.py $folder",
        'eval "$(python settings.py)"\npython a.py $folder',
        'eval "$name=3"\npython a.py $folder',
        "(( folder = 3 ))\npython a.py $folder",
        "A=1 folder=b bash -c 'python a.py $folder'",
        "if true; then folder=b; fi\npython a.py $folder",
        "set -- a; trap 'folder=b' USR1\npython a.py $folder",
        "mapfile -t folder < list\npython a.py ${folder[0]}",
    ],
)
def test_a_name_in_lower_case_that_something_may_set(body):
    assert "E314" not in [code for code, _ in codes(f"{body}\n")]


# --- directives -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("--gres=gpu:1 --gres=shard:4", True),
        ("--mem=4G -N 1 --mem=8G", True),
        ("--gres=gpu:1,shard:4", False),
        ("--mem=4G --mem=4G", False),
        ("--mail-type=END --mail-type=FAIL", False),
    ],
)
def test_an_option_twice_in_a_line(line, found):
    said = whats("python a.py\n", "E107", f"#!/bin/bash\n#SBATCH {line}\n")
    assert any("earlier in this line" in what for what in said) == found


# --- secrets and environments ---------------------------------------------------------------

KEY = "a1b2c3d4e5f6a7b8c9d0e1f2"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (f'export WANDB_API_KEY="${{WANDB_API_KEY:-{KEY}}}"', True),
        (f': "${{WANDB_API_KEY:=wandb_v1_{KEY}}}"', True),
        (f"python a.py ${{HF_TOKEN-{KEY}}}", True),
        (f"# export WANDB_API_KEY=${{WANDB_API_KEY:-{KEY}}}", False),
        (f"export GIT_COMMIT=${{GIT_COMMIT:-{KEY}}}", False),
        (f"export WANDB_API_KEY=${{WANDB_API_KEY:-dummy{KEY}}}", False),
        ("export WANDB_API_KEY=${WANDB_API_KEY:-put_the_name_of_a_file}", False),
        ("export WANDB_API_KEY=${WANDB_API_KEY:-$OTHER}", False),
        ("export WANDB_API_KEY=${WANDB_API_KEY:-}", False),
    ],
)
def test_a_secret_as_the_default_of_a_variable(line, found):
    assert (("E406", "warning") in codes(f"{line}\npython a.py\n")) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("module use /opt/modulefiles", True),
        ("module use -a /opt/modulefiles; module load CUDA/11.2 cuDNN/8.1", True),
        ("module load slurm; module unload gcc", True),
        ("module use /opt/modulefiles; module load anaconda3", False),
        ("module load mine", False),
    ],
)
def test_modules_that_do_not_set_up_conda(line, found):
    body = f"{line}\nconda activate torch\npython a.py\n"
    assert (("E408", "warning") in codes(body)) == found


# --- paths ----------------------------------------------------------------------------------


def _index(**modes):
    """Return a git index of version 2."""
    entries = b""
    for name, mode in modes.items():
        entry = struct.pack(">6I", *[0] * 6) + struct.pack(">I", mode) + bytes(32)
        entry += struct.pack(">H", len(name)) + name.encode()
        entries += entry + bytes(8 - len(entry) % 8)
    return b"DIRC" + struct.pack(">II", 2, len(modes)) + entries


def test_modes_in_the_index_of_git():
    index = _index(plain=0o100644, other_plain=0o100755, link=0o120000)
    assert read_mode(index, "plain") == 0o100644
    assert read_mode(index, "other_plain") == 0o100755
    assert read_mode(index, "link") is None
    assert read_mode(index, "absent") is None
    assert read_mode(index, "lain") is None
    assert read_mode(b"DIRC\0\0\0\4" + index[8:], "plain") is None
    assert read_mode(b"", "plain") is None


@pytest.mark.parametrize(("mode", "executable"), [(0o100644, False), (0o100755, True)])
def test_the_index_tells_whether_a_file_is_executable(tmp_path, mode, executable):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "index").write_bytes(_index(run=mode))
    (tmp_path / "run").write_text("true\n")
    assert DiskFiles().is_executable(str(tmp_path / "run")) == executable


CONFIGS = {"conf/a.yaml": "", "train.py": "import torch\n"}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("apptainer exec a.sif python train.py --config conf/b.yaml", True),
        ("singularity exec --nv a.sif python train.py --config conf/b.yaml", True),
        ("apptainer exec a.sif python train.py --config conf/a.yaml", False),
        ("apptainer exec a.sif python train.py --config other/b.yaml", False),
        ("apptainer exec a.sif python train.py --config conf.d/a.yaml", False),
        ("apptainer exec --pwd /code a.sif python train.py --config conf/b.yaml", False),
        ("apptainer exec -C a.sif python train.py --config conf/b.yaml", False),
        ("docker run a python train.py --config conf/b.yaml", False),
        ("apptainer exec a.sif python conf/trian.py", True),
        ("apptainer exec a.sif python other/trian.py", False),
        ("apptainer exec --pwd /code a.sif python conf/trian.py", False),
        ("apptainer exec a.sif python trian.py", False),
    ],
)
def test_a_file_that_is_missing_in_a_container(line, found):
    files = TextFiles({"job.sh": "", **CONFIGS}, repository=True)
    findings = lint(f"{JOB}{line}\n", path="job.sh", files=files, programs=SlurmOf())
    assert [str(f.severity) for f in findings if f.code == "E215"] == ["advice"] * found


# --- resources ------------------------------------------------------------------------------


def head(*options):
    return "#!/bin/bash\n" + "".join(f"#SBATCH --{option}\n" for option in options)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("nodes=1", "ntasks=1", "cpus-per-task=1", "gres=gpu:4"), True),
        (("nodes=1", "ntasks-per-node=2", "cpus-per-task=1", "gres=gpu:4"), True),
        (("nodes=1", "ntasks-per-node=4", "cpus-per-task=1", "gres=gpu:4"), False),
        (("nodes=1", "cpus-per-task=4", "gres=gpu:4"), False),
        (("nodes=1", "cpus-per-task=1", "gres=gpu:1"), False),
        (("nodes=1", "cpus-per-task=1", "gres=gpu:4", "exclusive"), False),
    ],
)
def test_fewer_cpus_than_gpus(options, found):
    assert (("E403", "advice") in codes("python a.py\n", head(*options))) == found
    assert ("E403", "advice") not in codes("deepspeed --include localhost:0 a.py\n", head(*options))


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("python -m package.main | tee log", True),
        ("python -m package.main 2>&1", True),
        ("if $A; then python -m package.main; else python -m package.other; fi", False),
    ],
)
def test_one_cpu_for_a_program_whose_output_goes_into_a_pipe(body, found):
    options = head("nodes=1", "mem=100G", "gres=gpu:2")
    assert (("E403", "advice") in codes(f"{body}\n", options)) == found


LIGHTNING = "import lightning\ntrainer = lightning.Trainer({})\n"
ONE_TASK = ("nodes=1", "ntasks=1", "gres=gpu:2", "cpus-per-task=8")


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ("devices=2", True),
        ("devices='auto', strategy='ddp'", True),
        ("devices=-1", True),
        ("devices=1", False),
        ("", False),
        ("devices=2, strategy='ddp_spawn'", False),
        ("devices=2, strategy='dp'", False),
        ("devices=2, strategy='fsdp'", True),
        ("devices=2, strategy=chosen", False),
        ("devices='auto', accelerator='cpu'", False),
        ("devices=2, plugins=[LightningEnvironment()]", False),
    ],
)
def test_lightning_runs_once_in_a_job_of_one_task(arguments, found):
    said = codes("python a.py\n", head(*ONE_TASK), a=LIGHTNING.format(arguments))
    assert (("E214", "warning") in said) == found


@pytest.mark.parametrize(
    ("options", "body"),
    [
        (ONE_TASK, "srun python a.py\n"),
        (ONE_TASK, "unset SLURM_NTASKS\npython a.py\n"),
        (ONE_TASK, "torchrun --standalone --nproc_per_node=2 a.py\n"),
        ((*ONE_TASK, "job-name=interactive"), "python a.py\n"),
        (("nodes=1", "gres=gpu:2"), "python a.py\n"),
        (("nodes=1", "ntasks=1", "gres=gpu:1"), "python a.py\n"),
    ],
)
def test_lightning_starts_its_processes_or_needs_none(options, body):
    said = codes(body, head(*options), a=LIGHTNING.format("devices='auto'"))
    assert "E214" not in [code for code, _ in said]


# --- jobs that share a node or a folder -----------------------------------------------------

PART = head("nodes=1", "gres=gpu:1", "cpus-per-task=4")


@pytest.mark.parametrize(
    ("body", "port"),
    [
        ("vllm serve model --port 8123 &\npython a.py\n", "8123"),
        ("vllm serve model &\npython a.py\n", "8000"),
        ("python -m vllm.entrypoints.openai.api_server --port=8123 &\npython a.py\n", "8123"),
        ("P=8123\nvllm serve model --port $P &\npython a.py\n", "8123"),
        ("python -m http.server 8123 &\npython a.py\n", "8123"),
        ("ray start --head --port=6379 &\npython a.py\n", "6379"),
        ("tensorboard --logdir a --port 6006 &\npython a.py\n", "6006"),
        ("python server.py &\ncurl http://localhost:8123/health\npython a.py\n", "8123"),
        ("vllm serve model --port 8123\npython a.py\n", ""),
        ("vllm serve model --port 8123 &\nwait\n", ""),
        ("vllm serve model --port $((8000 + SLURM_JOB_ID % 999)) &\npython a.py\n", ""),
        ("vllm serve model --port $PORT &\npython a.py\n", ""),
        ("tensorboard --logdir a &\npython a.py\n", ""),
        ("python server.py &\npython a.py\n", ""),
        ("python train.py &\ncurl http://localhost:8123/health\npython a.py\n", ""),
    ],
)
def test_a_server_with_the_same_port_in_each_job(body, port):
    said = [what for what in whats(body, "E301", PART) if "The server has port" in what]
    assert [what.split()[4] for what in said] == ([port] if port else [])


@pytest.mark.parametrize("more", ["exclusive", "gres=gpu:8"])
def test_a_server_in_a_job_of_whole_nodes(more):
    options = f"{PART}#SBATCH --{more}\n"
    assert whats("vllm serve model --port 8123 &\npython a.py\n", "E301", options) == []


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ('HOSTS="hosts/$SLURM_JOB_ID.txt"\nhostname > $HOSTS\npython a.py\nrm hosts/*\n', True),
        ("hostname > hosts/list-${SLURM_JOB_ID}\npython a.py\nrm -f ./a hosts/*.txt\n", True),
        ("DIR=hosts\nhostname > $DIR/$SLURM_JOBID\npython a.py\nrm -f $DIR/*\n", True),
        ("hostname > hosts/list\npython a.py\nrm hosts/*\n", False),
        ("hostname > hosts/$SLURM_JOB_ID\npython a.py\nrm hosts/$SLURM_JOB_ID\n", False),
        ("hostname > other/$SLURM_JOB_ID\npython a.py\nrm hosts/*\n", False),
        ("hostname > a/hosts/$SLURM_JOB_ID\npython a.py\nrm hosts/*\n", False),
        ("D=t/$SLURM_JOB_ID\nhostname > ${D}/$SLURM_JOB_ID\npython a.py\nrm ${D}/*\n", False),
        ("hostname > ${DIR}/$SLURM_JOB_ID\npython a.py\nrm ${DIR}/*\n", True),
        ("hostname > $TMPDIR/$SLURM_JOB_ID\npython a.py\nrm $TMPDIR/*\n", False),
        ("# hosts/$SLURM_JOB_ID\npython a.py\nrm hosts/*\n", False),
    ],
)
def test_files_of_other_jobs_that_a_wildcard_removes(body, found):
    assert (("E510", "advice") in codes(body)) == found


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("python a.py --lr 0.1 --epochs 3 --lr=0.2", ["'0.2'", "'0.1'"]),
        ("torchrun a.py --lr=0.1 --lr 0.2", ["'0.2'", "'0.1'"]),
        ("python a.py --lr 0.1 --lr 0.1", []),
        ("python a.py --tags a --tags b", []),
        ("python a.py --lr 0.1 --lr $LR", []),
        ('ARGS="--lr 0.1"\npython a.py $ARGS --lr 0.2', []),  # the command replaces a default
        ('ARGS="--lr=0.1 --epochs=2"\npython a.py $ARGS --lr=0.2', []),
        ('ARGS=(--lr 0.1 --epochs 2)\npython a.py "${ARGS[@]}" --lr 0.2', []),
        ("python a.py --lr 0.1\npython a.py --lr 0.2", []),
        ("python a.py --epochs 3 -- --epochs 4", []),
        ("python other.py --lr 0.1 --lr 0.2", []),
    ],
)
def test_an_option_that_a_command_gives_twice(line, values):
    python = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float)\n"
    python += "p.add_argument('--epochs')\np.add_argument('--tags', action='append')\n"
    said = whats(line + "\n", "E107", a=f"{python}p.parse_args()\n")
    assert [word.strip(",.") for what in said for word in what.split() if "'" in word] == values


@pytest.mark.parametrize(
    ("name", "found"),
    [("exp_%a", True), ("%j-train", True), ("%3x", True), ("100%", False), ("50%accuracy", False)],
)
def test_a_pattern_of_file_names_in_the_name_of_a_job(name, found):
    head = f"{JOB}#SBATCH --job-name={name}\n"
    assert (("E106", "advice") in codes("python a.py\n", head)) == found


WHOLE = f"{JOB}#SBATCH --gres=gpu:1\n#SBATCH --exclusive\n"


@pytest.mark.parametrize(
    ("head", "found"),
    [
        (WHOLE, True),
        (WHOLE.replace("gpu:1", "gpu:4"), False),
        (WHOLE.replace("exclusive", "exclusive=user"), False),
        (WHOLE.replace("nodes=1", "nodes=2"), False),
        (WHOLE.replace("#SBATCH --gres=gpu:1\n", ""), False),
    ],
)
def test_one_gpu_of_a_whole_node(head, found):
    said = whats("srun python a.py\n", "E203", head)
    assert any("takes the whole node" in what for what in said) == found


TRAINER = "from transformers import Trainer\nTrainer(model=model).train()\n"


@pytest.mark.parametrize(
    ("line", "python", "found"),
    [
        ("python a.py", TRAINER, True),
        ("srun --ntasks=1 python a.py", TRAINER, True),
        ("srun --ntasks=2 python a.py", TRAINER, False),
        ("torchrun --nproc_per_node=4 a.py", TRAINER, False),
        ("CUDA_VISIBLE_DEVICES=0 python a.py", TRAINER, False),
        ("python a.py", f"{TRAINER}load(device_map='auto')\n", False),
        ("python a.py", "from lightning import Trainer\nTrainer().fit(model)\n", False),
        ("python a.py", f"import transformers\n{TRAINER.replace('transformers', 'own')}", False),
        ("python a.py", f"{TRAINER}notebook_launcher(main, num_processes=4)\n", False),
    ],
)
def test_the_trainer_of_transformers_in_one_process(line, python, found):
    said = whats(f"{line}\n", "E203", f"{JOB}#SBATCH --gres=gpu:4\n", a=python)
    assert any("torch.nn.DataParallel" in what for what in said) == found


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("python a.py > train.log", "train.log"),
        ("python a.py 2>&1 | tee logs/train.txt", "logs/train.txt"),
        ("D=logs\npython a.py > $D/a.out 2>&1", "logs/a.out"),
        ("python a.py >> train.log", ""),
        ("python a.py > train-$SLURM_JOB_ID.log", ""),
        ("python a.py > train-$1.log", ""),
        ("python a.py > results.csv", ""),
        ("cd $1\npython a.py > train.log", ""),
        ("python a.py > /tmp/train.log", ""),
        ("echo start > train.log", ""),
        ("python a.py  # writes > train.log", ""),
        ("python a.py --filter 'epoch > log_start'", ""),
        ("mv train.log train.old\npython a.py > train.log", ""),
        ("cd /tmp/here\npython a.py > train.log", ""),
        ("python a.py > catalog.csv", ""),
    ],
)
def test_a_log_that_the_next_job_overwrites(line, file):
    said = [what for what in whats(f"{line}\n", "E502") if "in the same directory" in what]
    assert [what.split()[7].rstrip(",") for what in said] == ([file] if file else [])


@pytest.mark.parametrize(
    ("option", "found"),
    [("time=1:00:00", True), ("dependency=singleton", False), ("chdir=/scratch/run-1", False)],
)
def test_a_log_of_jobs_that_may_run_side_by_side(option, found):
    said = whats("python a.py > train.log\n", "E502", f"{JOB}#SBATCH --{option}\n")
    assert any("in the same directory" in what for what in said) == found


RENDEZVOUS = "srun torchrun --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-endpoint="


@pytest.mark.parametrize(
    ("before", "endpoint", "found"),
    [
        ("", "worker-0.local:${PORT}", True),
        ("PORT=$((29500 + RANDOM % 100))\n", "worker-0.local:$PORT", True),
        ("", "$HOST:$PORT", False),
        ("", "localhost$N:$PORT", False),
    ],
)
def test_a_host_before_a_port_that_is_not_known(before, endpoint, found):
    head = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n"
    said = whats(f"{before}{RENDEZVOUS}{endpoint} a.py\n", "E307", head)
    assert any("other nodes than worker-0.local." in what for what in said) == found


def test_a_server_that_is_not_part_of_the_job():
    head = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n"
    body = "srun torchrun --nnodes=2 --rdzv-backend={} --rdzv-endpoint=server1.local:$PORT a.py\n"
    assert whats(body.format("c10d"), "E307", head)
    assert not whats(body.format("etcd-v2"), "E307", head)


def test_a_host_in_a_variable_is_reported_where_it_is_set():
    head = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n"
    body = f"export MASTER_ADDR=worker-0\n{RENDEZVOUS}$MASTER_ADDR:$PORT a.py\n"
    assert len(whats(body, "E307", head)) == 1


@pytest.mark.parametrize(
    ("head", "line", "found"),
    [
        ("", "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK", True),
        ("", 'export MKL_NUM_THREADS="${SLURM_CPUS_PER_TASK}"', True),
        ("", "export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}", False),
        ("", "export OMP_NUM_THREADS=$SLURM_CPUS_ON_NODE", False),
        ("", "SLURM_CPUS_PER_TASK=4\nexport OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK", False),
        ("# sbatch -c 4 job.sh\n", "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK", False),
        ("#SBATCH -c 4\n", "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK", False),
    ],
)
def test_a_number_of_threads_that_is_empty(head, line, found):
    said = whats(f"{line}\npython a.py\n", "E407", JOB + head)
    assert any("_NUM_THREADS is empty" in what for what in said) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("DDP_TIMEOUT=3600", True),
        ("export DDP_TIMEOUT=${DDP_TIMEOUT:-3600}", True),
        ("DDP_TIMEOUT=3600\nsrun --export=ALL,DDP_TIMEOUT python a.py", True),
        ("DDP_TIMEOUT=3600\ntimeout $((DDP_TIMEOUT)) python a.py", False),
        ("DDP_TIMEOUT=3600\n((DDP_TIMEOUT < 100)) && exit 1", False),
        ("DDP_TIMEOUT=3600\npython a.py DDP_TIMEOUT=${DDP_TIMEOUT}", False),
        ("DDP_TIMEOUT=3600\nif [ -v DDP_TIMEOUT ]; then echo set; fi", False),
    ],
)
def test_a_time_out_that_nothing_reads(line, found):
    said = whats(f"{line}\npython a.py\n", "E312")
    assert any("`DDP_TIMEOUT`" in what and "Neither NCCL" in what for what in said) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("python a.py\nif [ $? -ne 0 ]; then echo failed; fi\necho end", True),
        ("if python a.py; then echo yes; else echo 'It failed'; fi\necho end", True),
        ("if python a.py; then touch DONE; else echo 'not yet'; fi\necho end", False),
        ("python a.py\nif [ $? -eq 124 ]; then scontrol requeue $SLURM_JOB_ID; fi", False),
    ],
)
def test_a_failure_that_is_only_printed(line, found):
    said = whats(f"{line}\n", "E507")
    assert any("The script notices" in what for what in said) == found


def test_a_step_with_fewer_gpus_than_the_job():
    head = f"{JOB}#SBATCH --gpus-per-node=4\n#SBATCH --time=1:00:00\n"
    inner = "torchrun --standalone --nproc_per_node=$SLURM_GPUS_ON_NODE a.py"
    assert not whats(f"srun --ntasks=1 --gpus-per-node=2 bash -c '{inner}'\n", "E204", head)
