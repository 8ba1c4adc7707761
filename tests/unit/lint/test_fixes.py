"""Fixes that are lines of a script: bash accepts the script that has them, and lint too."""

import ast
import re
from pathlib import Path

import pytest

from echelon.core.shell import LocalShell
from echelon.lint.files import DiskFiles
from echelon.lint.linting import lint
from echelon.lint.request import read_directives
from echelon.lint.rules.syntax import ask_bash
from unit.lint.fakes import SlurmOf, TextFiles

BAD = sorted((Path(__file__).parents[2] / "golden/lint/bad").glob("*.sh"))
LINE = re.compile(r"#SBATCH -|(export )?[A-Za-z_]\w*\+?=|(set|mkdir|wait|srun|eval|for|cd) ")
"""How a line of a script begins; other fixes are options, Python or prose."""


def check(text, path):
    return lint(text, path=str(path), files=DiskFiles(), programs=SlurmOf())


def findings():
    for path in BAD:
        text = path.read_text()
        for finding in check(text, path):
            if finding.path == str(path) and LINE.match(finding.fix):
                yield pytest.param(path, text, finding, id=f"{path.name}-{finding.code}")


def name_of(line):
    """The option or the variable that a line sets."""
    found = re.match(r"#SBATCH (-\S*?)[= ]|(?:export )?(\w+)=", line)
    return found and (found[1] or found[2])


def apply(text, finding):
    """The script with the fix, and whether it replaces the line or comes before it."""
    lines = text.split("\n")
    old = lines[finding.line - 1]
    fix = finding.fix.replace("…", "true").split("\n")
    replaces = name_of(old) is not None and name_of(old) == name_of(fix[0])
    if not replaces and fix[0].startswith("#SBATCH"):
        return "\n".join([lines[0], *fix, *lines[1:]]), False
    lines[finding.line - 1 : finding.line] = fix if replaces else [*fix, old]
    return "\n".join(lines), replaces


@pytest.mark.parametrize(("path", "text", "finding"), list(findings()))
def test_bash_accepts_the_fixed_script(path, text, finding):
    fixed, replaces = apply(text, finding)
    assert ask_bash(fixed, LocalShell()) is None
    before, after = read_directives(text).broken, read_directives(fixed).broken
    assert len(after) <= len(before)
    if replaces and "…" not in finding.fix:
        now = check(fixed, path)
        assert (finding.code, finding.what) not in [(f.code, f.what) for f in now]
        assert errors(now) <= errors(check(text, path))


def errors(findings):
    return {finding.code for finding in findings if finding.severity == "error"}


def test_there_are_many():
    assert len(list(findings())) >= 25


JOB = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --exclusive\n"


def fixes(code, body, **beside):
    files = TextFiles({f"{name}.py": text for name, text in beside.items()})
    found = lint(body, path="job.sh", files=files, programs=SlurmOf())
    return [f.fix for f in found if f.code == code]


def test_gloo_gets_no_exclusion():
    assert fixes("E405", f"{JOB}export GLOO_SOCKET_IFNAME=eth0\nsrun python train.py\n") == [
        "remove the line"
    ]


@pytest.mark.parametrize(
    ("value", "fixed"),
    [
        ("out.txt", "out-%j.txt"),
        ("../logs/%x.err", "../logs/%x-%j.err"),
        ("logs.d/run", "logs.d/run-%j"),
        (".hidden", ".hidden-%j"),
    ],
)
def test_an_output_keeps_its_directory_and_its_extension(value, fixed):
    body = f"#!/bin/bash\n#SBATCH --error={value}\npython train.py\n"
    assert fixes("E502", body) == [f"#SBATCH --error={fixed}"]


@pytest.mark.parametrize(("value", "fixed"), [("o.txt", "o-%A_%a.txt"), ("%A.out", "%A_%a.out")])
def test_an_output_of_an_array_has_both_numbers(value, fixed):
    body = f"#!/bin/bash\n#SBATCH --array=1-4\n#SBATCH --output={value}\npython train.py\n"
    assert fixes("E502", body) == [f"#SBATCH --output={fixed}"]


def test_lightning_keeps_a_task_per_gpu():
    lightning = "import lightning\nlightning.Trainer(devices=4, num_nodes=2).fit(None)\n"
    body = f"{JOB}#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=4\npython fit.py\n"
    assert fixes("E201", body, fit=lightning) == ["srun python …"]
    [unread] = fixes("E201", body)
    assert unread.startswith("srun python …  # if the script is made for several processes")
    body = f"{JOB}#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=4\npython fit.py\n"
    assert "--ntasks-per-node=4" in fixes("E201", body, fit=lightning)[0]


def test_a_launcher_starts_once_per_node_even_if_gpus_are_counted_by_tasks():
    head = f"{JOB}#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=4\n"
    torchrun = "torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=$(hostname):29500"
    derived = f"{head}srun {torchrun} --nproc_per_node=$SLURM_NTASKS_PER_NODE train.py\n"
    assert fixes("E202", derived) == ["srun --ntasks=$SLURM_JOB_NUM_NODES --ntasks-per-node=1 …"]
    plain = f"{head}srun {torchrun} --nproc_per_node=4 train.py\n"
    assert fixes("E202", plain) == ["#SBATCH --ntasks-per-node=1"]
    of_tasks = derived.replace("--nnodes=2", "--nnodes=$SLURM_NTASKS")
    assert fixes("E202", of_tasks)[0].endswith("=1 … --nnodes=$SLURM_JOB_NUM_NODES …")
    alone = f"{head}{torchrun} --nproc_per_node=4 train.py\n"
    assert fixes("E201", alone) == [
        "srun --ntasks=$SLURM_JOB_NUM_NODES --ntasks-per-node=1 torchrun …"
    ]


def test_cpus_are_not_multiplied():
    head = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --cpus-per-task=8\n"
    (fix,) = fixes("E403", f"{head}torchrun --standalone --nproc_per_node=75 train.py\n")
    assert fix.startswith("#SBATCH --cpus-per-task=75 ")


def test_no_rank_is_asked_for_after_the_group_is_gone():
    saving = (
        "import torch\nimport torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "dist.destroy_process_group()\ntorch.save({}, 'last.pt')\n"
    )
    (finding,) = lint(saving, path="train.py", files=TextFiles({}))
    assert finding.code == "E611"
    assert finding.fix.startswith("rank = dist.get_rank()  # before destroy_process_group")


@pytest.mark.parametrize(
    ("script", "fix"),
    [
        ("trainer = object()\nprint(tainer)\n", "trainer"),
        ("tokenizer = object()\nprint(Tokenizers)\n", "define or import Tokenizers"),
        ("limit = 1\nprint(LIMIT)\n", "define or import LIMIT"),
        ("def f():\n    trainer = 1\nf()\nprint(tainer)\n", "define or import tainer"),
        ("print(trainer)\nprint(tainer)\n", "define or import tainer"),
        ("def f(trainer):\n    return tainer\nf(1)\n", "trainer"),
        ("import torch as torch_\nfrom a import loader\nprint(lodaer)\n", "loader"),
        ("class Trainer:\n    pass\nprint(Trainr())\n", "Trainer"),
    ],
)
def test_a_similar_name_is_one_of_the_same_kind_that_the_line_can_use(script, fix):
    assert fixes("E626", f"{JOB}python a.py\n", a=script)[-1:] == [fix]


SAMPLER = """\
from torch.utils.data import DataLoader, DistributedSampler
import torch.distributed as dist
dist.init_process_group("nccl")
"""


@pytest.mark.parametrize(
    ("body", "fix"),
    [
        (
            "s = DistributedSampler([])\nfor epoch in range(3):\n    print(s)\n",
            "s.set_epoch(epoch) ",
        ),
        (
            (
                "s = DistributedSampler([]) if dist else None\ndef main():\n"
                "    for n_epoch in range(3):\n        print(s)\nmain()\n"
            ),
            "s.set_epoch(n_epoch) ",
        ),
        (
            (
                "def make():\n    s = DistributedSampler([])\n"
                "    return DataLoader([], sampler=s)\n"
                "loader = make()\nfor epoch in range(3):\n    print(loader)\n"
            ),
            "call the sampler's set_epoch(epoch) ",
        ),
        (
            (
                "class Run:\n    def __init__(self):\n        s = DistributedSampler([])\n"
                "        self.data = DataLoader([], sampler=s)\n    def train(self):\n"
                "        for epoch in range(3):\n            print(self.data)\nRun().train()\n"
            ),
            "self.data.sampler.set_epoch(epoch) ",
        ),
        (
            (
                "class Data:\n    def __init__(self):\n        self.s = DistributedSampler([])\n"
                "class Run:\n    def train(self):\n        for epoch in range(3):\n"
                "            print(epoch)\nRun().train()\n"
            ),
            "call the sampler's set_epoch(epoch) ",
        ),
    ],
)
def test_the_epoch_loop_can_use_the_name_of_the_sampler(body, fix):
    [found] = fixes("E602", f"{JOB}srun python a.py\n", a=SAMPLER + body)
    assert found.startswith(fix)


@pytest.mark.parametrize(
    ("saved", "own"),
    [
        ("torch.save(outputs, 'outputs.pt')", True),
        ("torch.save(outputs, 'last.pt')", False),
        ("torch.save(net.state_dict(), 'net.pt')", False),
    ],
)
def test_data_of_each_rank_can_have_files_of_their_own(saved, own):
    group = "import torch\nimport torch.distributed as dist\ndist.init_process_group('gloo')\n"
    script = f"{group}outputs = torch.zeros(1)\nnet = torch.nn.Linear(1, 1)\n{saved}\n"
    [found] = fixes("E611", f"{JOB}srun python a.py\n", a=script)
    assert ("add the rank to the name of the file" in found) == own


def test_a_fix_in_python_is_python():
    script = (
        "import os\nimport torch.distributed as dist\n"
        "dist.init_process_group('gloo', init_method='file://' + os.getenv('MEET'))\n"
    )
    [found] = fixes("E311", f"{JOB}srun python a.py\n", a=script)
    call = ast.parse(f"call({found})").body[0].value
    assert [argument.arg for argument in call.keywords] == ["init_method"]


LOADER = "import argparse\nfrom torch.utils.data import DataLoader\n"
OPTION = "parser = argparse.ArgumentParser()\nparser.add_argument({}, type=int, default=32)\n"


@pytest.mark.parametrize(
    ("option", "python", "line", "fix"),
    [
        ("", "DataLoader(\n    [],\n    num_workers=32,\n)\n", 5, "num_workers=8"),
        ("--num_workers 32", "", 4, "--num_workers=8"),
        ("-j 32", "", 4, "-j 8"),
        ("data.num_workers=32", "", 4, "data.num_workers=8"),
        (
            "",
            OPTION.format("'-j', '--workers'")
            + "args = parser.parse_args()\nDataLoader([], num_workers=args.workers)\n",
            4,
            "default=8",
        ),
    ],
)
def test_workers_are_changed_where_the_number_is(option, python, line, fix):
    head = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --cpus-per-task=8\n"
    files = TextFiles({"a.py": LOADER + python})
    script = f"{head}python a.py {option}\n"
    found = lint(script, path="job.sh", files=files, programs=SlurmOf())
    assert [(f.line, f.fix) for f in found if f.code == "E402"] == [(line, fix)]


@pytest.mark.parametrize(
    ("gpus", "launch", "fix"),
    [
        ("--gres=gpu:4", "torchrun --nproc_per_node=1", "#SBATCH --gres=gpu:1  # or --nproc_per"),
        ("--gres=gpu:a100:4,tmp:9", "torchrun --nproc_per_node=1", "#SBATCH --gres=gpu:a100:1,tmp"),
        ("--gpus-per-node=4", "deepspeed --num_gpus=1", "#SBATCH --gpus-per-node=1  # or --num_g"),
        ("--gpus-per-node=4", "accelerate launch --num_processes=2", "--num_processes=4"),
        ("--gpus-per-node=4", "torchrun --nproc_per_node=2", "--nproc_per_node=4"),
    ],
)
def test_one_process_may_need_one_gpu(gpus, launch, fix):
    head = f"#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH {gpus}\n"
    [found] = fixes("E203", f"{head}{launch} a.py\n")
    assert found.startswith(fix)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("MEET=/a/b deepspeed a.py", True),
        ("export MEET=/a/b\ndeepspeed a.py", True),
        ("NCCL_DEBUG=INFO deepspeed a.py", False),
        ("deepspeed a.py", False),
    ],
)
def test_variables_that_deepspeed_does_not_pass(body, named):
    python = "import os\nprint(os.environ['MEET'], os.getenv('NCCL_DEBUG'))\n"
    head = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n"
    [found] = fixes("E201", f"{head}{body}\n", a=python)
    assert ("write MEET to ./.deepspeed_env" in found) == named


@pytest.mark.parametrize(
    ("default", "fix"),
    [
        ("FLAG=false", 'FLAG=""  # in line 4'),
        ("FLAG=${FLAG:-false}", 'FLAG="${FLAG:-}"  # in line 4'),
    ],
)
def test_a_default_after_the_arguments_keeps_them(default, fix):
    assert fixes("E315", f"{JOB}{default}\npython a.py ${{FLAG:+--flag}}\n") == [fix]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (f"wandb login {'0a' * 20}", "wandb_api_key"),
        (f"git clone https://ghp_{'0a' * 18}@github.com/a/b", "github_token"),
        (f"huggingface-cli login --token hf_{'0a' * 17}", "hf_token"),
    ],
)
def test_each_secret_has_a_file_of_its_own(command, name):
    [fix] = fixes("E406", f"{JOB}{command}\n")
    assert fix.startswith(f'"$(cat ~/.secrets/{name})"')


def test_a_default_that_is_secret_keeps_the_name_of_its_variable():
    [fix] = fixes("E406", f"{JOB}run ${{A_API_KEY:-{'0a1b' * 8}}}\n")
    assert fix.startswith('export A_API_KEY="$(cat ~/.secrets/a_api_key)"')


@pytest.mark.parametrize(
    ("loaded", "fix"),
    [
        ("pytorch/2.4", "--standalone"),
        ("python/3.10", "--standalone"),
        ("pytorch/1.13.1", "--rdzv_backend=c10d --rdzv_endpoint=localhost:0"),
        ("conda-python/3.7", "--rdzv_backend=c10d --rdzv_endpoint=localhost:0"),
    ],
)
def test_a_free_port_of_an_old_pytorch(loaded, fix):
    head = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=2\n"
    assert fixes("E302", f"{head}module load {loaded}\ntorchrun --nproc_per_node=2 a.py\n") == [fix]


@pytest.mark.parametrize(
    ("value", "fix"), [("", "$DATA_dir  # and give it a value in line 3"), ("/data", "$DATA_dir")]
)
def test_a_similar_variable_without_a_value(value, fix):
    head = f"#!/bin/bash\n#SBATCH --nodes=1\nDATA_dir={value}\n"
    assert fixes("E314", f"{head}python a.py $DATA_DIR\n") == [fix]


@pytest.mark.parametrize(
    ("more", "value", "fix"),
    [
        ("", "none", "remove --mode"),
        ("", "fats", "is one of fast, slow meant?"),
        (", required=True", "none", "is one of fast, slow meant?"),
    ],
)
def test_a_choice_that_the_parser_does_not_accept(more, value, fix):
    python = (
        "import argparse\nparser = argparse.ArgumentParser()\n"
        f"parser.add_argument('--mode', choices=['fast', 'slow']{more})\nparser.parse_args()\n"
    )
    files = TextFiles({"a.py": python})
    text = f"#!/bin/bash\n#SBATCH --nodes=1\npython a.py --mode {value}\n"
    findings = lint(text, path="job.sh", files=files, programs=SlurmOf())
    assert [finding.fix for finding in findings if finding.code == "E207"] == [fix]


@pytest.mark.parametrize(
    ("option", "fix"),
    [
        ("--model-type=a", "is --model_type meant?"),
        ("--modle_type=a", "is --model_type meant?"),
        ("--epochs=3 --modle_type=a --lr=1", "is --model_type meant?\nremove --epochs, --lr"),
    ],
)
def test_an_unknown_option_may_be_a_similar_one(option, fix):
    parser = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--model_type')\n"
    job = f"{JOB}python a.py {option}\n".replace("--nodes=2", "--nodes=1")
    assert fixes("E207", job, a=f"{parser}p.parse_args()\n") == [fix]


@pytest.mark.parametrize(("other", "told"), [("part/eval/a.py", False), ("a.py", True)])
def test_arguments_of_a_script_whose_path_is_also_in_another_folder(other, told):
    parser = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--y')\n"
    files = TextFiles(
        {"eval/a.py": f"{parser}p.parse_args()\n", other: "print(1)\n"}, repository=True
    )
    job = "#!/bin/bash\n#SBATCH --nodes=1\npython eval/a.py --x=1\n"
    found = lint(job, path="part/jobs/job.sh", files=files, programs=SlurmOf())
    assert ("E207" in {f.code for f in found}) == told
