"""What looks like a problem and is none, or a smaller one, beside what is one."""

import pytest

from echelon.lint.linting import lint
from unit.lint.fakes import SlurmOf, TextFiles

JOB = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --time=1:00:00\n"


def findings(script, *, slurm=None, **beside):
    files = TextFiles({f"{name}.py": text for name, text in beside.items()})
    return lint(script, path="job.sh", files=files, programs=SlurmOf(slurm))


def severities(script, code, **options):
    return [str(f.severity) for f in findings(script, **options) if f.code == code]


# --- directives -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "severity"),
    [(None, ["advice"]), ("22.05.8", ["warning"]), ("23.02.0", []), ("24.11.5", [])],
)
@pytest.mark.parametrize("path", ["nowhere/%x.out", "/absolute/%j/out.txt", "nowhere/%A/%a.out"])
def test_slurm_creates_directories_of_output_since_23_02(version, severity, path):
    script = f"{JOB}#SBATCH --output={path}\npython a.py\n"
    assert severities(script, "E501", slurm=version) == severity


def test_a_directory_with_the_job_id_cannot_be_made_before():
    script = f"{JOB}#SBATCH --output=/logs/%j/a.out\npython a.py\n"
    (found,) = (f for f in findings(script, slurm="22.05.8") if f.code == "E501")
    assert found.fix == "#SBATCH --output=/logs/%j-a.out"


@pytest.mark.parametrize("option", ["nodes=", "mem=", "time=  # hh:mm:ss", "gres=gpu:"])
def test_an_option_without_a_value_is_one_finding(option):
    script = f"#!/bin/bash\n#SBATCH --{option}\n#SBATCH --cpus-per-task=\npython a.py\n"
    (found,) = (f for f in findings(script) if f.code == "E105")
    assert (str(found.severity), found.lines) == ("warning", [2, 3])


def test_options_that_sbatch_accepts_without_a_value():
    script = f"{JOB}#SBATCH --job-name=\n#SBATCH --account=\npython a.py\n"
    assert severities(script, "E105") == []


def test_a_value_in_the_next_directive():
    script = "#!/bin/bash\n#SBATCH -p\n\n#SBATCH gpu --nodes=2\npython a.py\n"
    assert severities(script, "E105") == []


@pytest.mark.parametrize("second", ["--mem=4G", "'gpu", "gpu 4"])
def test_a_missing_value_that_the_next_directive_does_not_give(second):
    script = f"#!/bin/bash\n#SBATCH -p\n#SBATCH {second}\npython a.py\n"
    assert "error" in severities(script, "E105")


@pytest.mark.parametrize(
    ("comment", "severity"),
    [
        ("# sbatch --cpus-per-task 8 job.sh", []),
        ("#   $ sbatch -A me -c 8 job.sh", []),
        ("# sbatch --mem=4G job.sh", ["warning"]),
        ("#sbatch --cpus-per-task=8", ["warning"]),
    ],
)
def test_a_comment_that_shows_the_options_of_sbatch(comment, severity):
    script = f"{JOB}{comment}\npython a.py --workers $SLURM_CPUS_PER_TASK\n"
    assert severities(script, "E407") == severity


def test_a_comment_that_shows_an_array():
    script = f"{JOB}# sbatch --array=0-9 job.sh\npython a.py $SLURM_ARRAY_TASK_ID\n"
    assert severities(script, "E407") == []


@pytest.mark.parametrize("folder", ["your_logs", "<folder>", "/path/to"])
def test_a_placeholder_in_the_path_of_the_output(folder):
    script = f"{JOB}#SBATCH --output={folder}/%j.out\npython a.py\n"
    found = [(f.code, str(f.severity)) for f in findings(script)]
    assert found == [("E116", "warning")]


@pytest.mark.parametrize("value", ['"..."', "...", "'...'"])
def test_three_dots_are_a_placeholder(value):
    assert severities(f"{JOB}DATA={value}\npython a.py $DATA\n", "E116") == ["warning"]


@pytest.mark.parametrize("value", ['"../..."', "...x", "a...b"])
def test_three_dots_in_a_longer_value_are_none(value):
    assert severities(f"{JOB}DATA={value}\npython a.py $DATA\n", "E116") == []


@pytest.mark.parametrize(
    "body",
    [
        'echo "#!/bin/bash\n#SBATCH --nodes=2\nsrun python a.py" > job\nsbatch job\n',
        "cat <<EOF > job\n#!/bin/bash\n#SBATCH --nodes=2\nEOF\nsbatch job\n",
    ],
)
def test_directives_of_a_script_that_this_one_writes(body):
    assert severities(f"NAME=a\n{body}", "E101") == []


def test_a_part_of_a_template_needs_no_shebang():
    assert severities("#SBATCH --nodes=<N>\npython a.py\n", "E101") == []
    assert severities("#SBATCH --nodes=2\npython a.py\n", "E101") == ["error"]


def test_a_misspelled_directive_that_is_repeated():
    wrong = "#sbatch --mem=4G\n"
    assert severities(f"{JOB}{wrong}python a.py\n", "E103") == ["warning"]
    assert severities(f"{JOB}{wrong}#SBATCH --mem=4G\npython a.py\n", "E103") == []


# --- ports and secrets ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("port", "found"),
    [
        ("$(( 29500 + ${SLURM_JOB_ID:-0} % 1000 ))", False),
        ("$(( 29500 + ${SLURM_JOB_ID: -3} ))", True),
        ("$(( 29500 + ${SLURM_JOB_ID:4} ))", True),
        ("$(( 29500 + ${SLURM_JOB_ID:(-3)} ))", True),
    ],
)
def test_digits_cut_from_the_job_id(port, found):
    script = f"{JOB}export MASTER_PORT={port}\nsrun python a.py\n"
    octal = [f for f in findings(script) if f.code == "E303" and "octal" in f.what]
    assert bool(octal) == found


PORT = "export MASTER_PORT=29512\n"
GROUP = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
ALONE = "print('no process group')\n"


@pytest.mark.parametrize(
    ("body", "script", "lines"),
    [
        (f"{PORT}srun python a.py\n", GROUP, [4]),
        (f"{PORT}srun python a.py\n", ALONE, []),
        (f"{PORT}torchrun --master_port=$MASTER_PORT a.py\n", ALONE, [4]),
        (f"{PORT}{PORT}srun python a.py\n", GROUP, [5]),
        (f"{PORT}srun python a.py\n{PORT}srun python a.py\n", GROUP, [4, 6]),
    ],
)
def test_a_hard_coded_port_that_something_opens(body, script, lines):
    found = [f for f in findings(JOB + body, a=script) if f.code == "E301"]
    assert [line for f in found for line in f.lines] == lines


def test_a_token_is_reported_where_it_is_written():
    token = "hf_" + "aB3" * 11 + "x"
    script = f"{JOB}TOKEN={token}\nhuggingface-cli login --token $TOKEN\npython a.py\n"
    assert [f.lines for f in findings(script) if f.code == "E406"] == [[4]]


@pytest.mark.parametrize(
    ("option", "found"),
    [
        ("--dist-url file://$PWD/meet", True),
        ("--init_method=file:///scratch/meet", True),
        ("hydra.searchpath=[file://$PWD/configs]", False),
        ("--data file:///scratch/data", False),
    ],
)
def test_files_through_which_ranks_meet(option, found):
    assert bool(severities(f"{JOB}srun python a.py {option}\n", "E311")) == found


# --- commands -------------------------------------------------------------------------------


@pytest.mark.parametrize("rest", ["${@}", '"$@"', "$*"])
def test_arguments_that_a_missing_backslash_cuts_off(rest):
    script = f"{JOB}srun python a.py \\\n    --seed=1\n    {rest}\n"
    assert severities(script, "E208") == ["error"]
    assert severities(f"{JOB}srun python a.py\n\n{rest}\n", "E208") == []


@pytest.mark.parametrize("end", ["set +x", "umount /data", "touch done"])
def test_commands_that_hide_a_failure(end):
    assert severities(f"{JOB}srun python a.py\n{end}\n", "E507") == ["warning"]


@pytest.mark.parametrize(
    ("workers", "severity"), [(8, []), (10, ["advice"]), (16, ["advice"]), (32, ["warning"])]
)
def test_workers_that_share_the_cpus(workers, severity):
    head = f"{JOB}#SBATCH --cpus-per-task=16\n#SBATCH --gpus-per-node=2\n"
    launch = f"torchrun --standalone --nproc_per_node=2 a.py --num_workers={workers}\n"
    assert severities(head + launch, "E402") == severity


# --- Python ---------------------------------------------------------------------------------

HEAD = """\
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
rank = dist.get_rank()
"""


OWN_MODEL = """\
model = DDP(Net())
def check():
    model = Net()
    model(x)
if rank == 0:
    check()
"""
FLAG = """\
def train(gpu):
    first = gpu == 0
    if first:
        torch.save({}, "a.pt")
train(1)
"""
METHOD = """\
class Net(torch.nn.Module):
    def save_pretrained(self, to):
        self.part.save_pretrained(to)
        torch.save({}, to)
"""


def of_python(code, text):
    head = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n#SBATCH --time=1:0:0\n"
    return severities(f"{head}#SBATCH --ntasks-per-node=4\nsrun python a.py\n", code, a=text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("model = DDP(torch.nn.BatchNorm1d(2))\nif rank == 0:\n    model(x)\n", True),
        ("model = Net()\nif rank == 0:\n    model(x)\nmodel = DDP(model)\n", False),
        (OWN_MODEL, False),
    ],
)
def test_models_that_are_wrapped_when_they_run(text, found):
    text = f"{HEAD}from timm import Net\nx = 1\n{text}"
    assert bool(of_python("E615", text)) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("for epoch in range(3):\n    torch.save(state, 'last.pt')\n", True),
        ("torch.save(state, 'last.pt')\n", False),
        ("def save():\n    torch.save(state, 'last.pt')\nfor _ in range(3):\n    save()\n", True),
    ],
)
def test_checkpoints_that_replace_themselves(text, found):
    assert bool(of_python("E613", f"import torch\nstate = torch.load('last.pt')\n{text}")) == found


def test_callers_choose_the_name_of_a_checkpoint():
    text = (
        "import torch\ndef save(path):\n    torch.save({}, path)\n"
        "def load(path):\n    return torch.load(path)\n"
        "for step in range(3):\n    save(f'{step}.pt')\n"
    )
    assert of_python("E613", text) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("torch.save({}, 'a.pt')\n", True),
        ("def train(gpu):\n    if gpu == 0:\n        torch.save({}, 'a.pt')\ntrain(1)\n", False),
        (FLAG, False),
        (METHOD, False),
    ],
)
def test_ranks_that_save(text, found):
    assert bool(of_python("E611", HEAD + text)) == found


@pytest.mark.parametrize(
    ("line", "found"), [("", True), ("deepspeed.initialize(model=model)\n", False)]
)
def test_deepspeed_sets_the_device(line, found):
    text = (
        "import deepspeed\nimport torch\nimport torch.distributed as dist\n"
        f"dist.init_process_group('nccl')\nmodel = torch.nn.Linear(2, 2).to('cuda')\n{line}"
    )
    assert bool(of_python("E621", text)) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("# sbatch --array=0-3 job.sh", []),
        ("#sbatch --time=2:00:00 slurm/job.sbatch", []),
        ("#sbatch --time=2:00:00", ["warning"]),
        ("#BATCH --job-name=a", ["error"]),
    ],
)
def test_a_comment_that_tells_how_to_submit(line, found):
    assert severities(f"{JOB}{line}\npython a.py\n", "E103") == found


def test_a_model_from_a_tuple_is_not_the_wrapped_one():
    train = """\
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
import models

def evaluate(path):
    model, config = models.load(path)
    return model(config)

dist.init_process_group("nccl")
model = DDP(models.make())
if dist.get_rank() == 0:
    evaluate("best.pt")
"""
    script = f"{JOB}#SBATCH --gres=gpu:4\nsrun -n4 python train.py\n"
    assert severities(script, "E615", train=train) == []


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("def main():\n    return 1\n    print(missing)\nmain()\n", []),
        ("fast = True\nif not fast:\n    print(missing)\n", []),
        ("fast = True\nif fast:\n    print(1)\nelse:\n    print(missing)\n", []),
        ("import sys\nif sys.argv[1:]:\n    print(missing)\n", ["advice"]),
        ("import sys\nprint(sys.argv[1:] and missing)\n", ["advice"]),
        ("try:\n    print(1)\nexcept OSError:\n    print(missing)\n", ["advice"]),
        ("def unused():\n    print(missing)\n", ["advice"]),
        ("class A:\n    def forward(self):\n        print(missing)\nA()\n", ["advice"]),
        ("class A:\n    def __init__(self):\n        print(missing)\nA()\n", ["warning"]),
        ("class A:\n    def go(self):\n        print(missing)\nA().go()\n", ["warning"]),
        ("def main(a):\n    if a:\n        return\n    print(missing)\nmain(1)\n", ["advice"]),
        ("def f():\n    print(missing)\ndef main():\n    f()\nmain()\n", ["warning"]),
        ("def f():\n    print(missing)\ndef unused():\n    f()\n", ["advice"]),
        ("from a import spawn\ndef f():\n    print(missing)\nspawn(f)\n", ["warning"]),
        ("def f():\n    print(missing)\nif __name__ == '__main__':\n    f()\n", ["warning"]),
        ("fast = True\nif fast:\n    print(missing)\n", ["warning"]),
        ("def f(a):\n    f(a)\n    print(missing)\n", ["advice"]),
        ("def f(a):\n    return max(\n        a, missing)\nf(1)\n", ["warning"]),
        (
            (
                "def f(a):\n    for b in a:\n        if b:\n            return\n"
                "        print(missing)\nf('ab')\n"
            ),
            ["advice"],
        ),
        ("def main():\n    print(missing)\nmain()\n", ["warning"]),
        ("for i in range(2):\n    print(missing)\n", ["warning"]),
        ("print(missing)\n", ["error"]),
        ("if missing > 1:\n    print(1)\n", ["error"]),
    ],
)
def test_an_undefined_name_is_an_error_where_the_script_reaches_it(body, found):
    assert severities(f"{JOB}python a.py\n", "E626", a=body) == found


def test_a_device_that_follows_the_number_of_visible_gpus():
    train = """\
import os, torch
if torch.cuda.device_count() == 1:
    index = 0
else:
    index = int(os.environ["SLURM_LOCALID"])
device = torch.device(f"cuda:{index}")
torch.cuda.set_device(device)
"""
    head = f"{JOB}#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-task=1\n"
    assert severities(f"{head}srun python train.py\n", "E206", train=train) == []


def test_a_file_of_several_requests_to_choose_from():
    lines = "".join(f"#SBATCH --mem={n}G\n" for n in (16, 32, 64))
    assert severities(f"{JOB}{lines}python a.py\n", "E107") == ["advice", "advice"]


@pytest.mark.parametrize(("first", "found"), [("", []), ("torch.load('best.pt')\n", ["warning"])])
def test_weights_that_only_a_test_loads_are_no_checkpoint(first, found):
    train = f"""\
import torch
{first}for step in range(9):
    torch.save({{"step": step}}, 'best.pt')
print(torch.load('best.pt'))
"""
    assert severities(f"{JOB}python train.py\n", "E613", train=train) == found


@pytest.mark.parametrize(("nodes", "found"), [(4, []), (3, ["warning"])])
def test_each_task_is_a_node_of_torchrun(nodes, found):
    torchrun = f"torchrun --nnodes={nodes} --rdzv_backend=c10d --rdzv_endpoint=$HOSTNAME:29500"
    script = f"{JOB}#SBATCH --ntasks-per-node=4\nsrun {torchrun} a.py\n"
    assert severities(script, "E205") == found


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("/path/to/data", ["warning"]),
        ("${DATA:-/path/to/data}", ["advice"]),
        ("${DATA:?Set DATA=/path/to/data}", []),
    ],
)
def test_a_placeholder_as_a_default(value, found):
    assert severities(f"{JOB}DATA={value}\npython a.py\n", "E116") == found


@pytest.mark.parametrize(("start", "found"), [("", []), ("srun ", ["warning"])])
def test_without_srun_a_script_runs_on_one_node(start, found):
    train = """\
import os, torch
import torch.distributed as dist
dist.init_process_group("nccl")
if int(os.environ["LOCAL_RANK"]) == 0:
    torch.save({}, "last.pt")
"""
    script = f"#!/bin/bash\n#SBATCH --ntasks=4\n{start}python train.py\n"
    assert severities(script, "E612", train=train) == found


def test_nothing_after_exit_runs():
    head = "#!/bin/bash\n#SBATCH --nodes=1\n"
    text = f"{head}python a.py\nexit 0\n{head}python b.py\nexit 0\n"
    found = lint(text, path="job.sh", files=TextFiles({}), programs=SlurmOf())
    assert [(f.code, f.line) for f in found if str(f.severity) != "advice"] == [("E507", 3)]


@pytest.mark.parametrize(
    ("command", "kind"),
    [("if FAST:\n    f()", "advice"), ("f()", "warning"), ("print(nothing)", "error")],
)
def test_undefined_names_in_functions(command, kind):
    python = f"import sys\nFAST = len(sys.argv) > 1\ndef f():\n    return nothing\n{command}\n"
    found = lint(python, path="a.py", files=TextFiles({}), programs=SlurmOf())
    kinds = [str(f.severity) for f in found if f.code == "E626"]
    assert kinds == [kind]


@pytest.mark.parametrize(
    ("start", "found"), [("python a.py", False), ("torchrun --nproc_per_node=2 a.py", True)]
)
def test_a_sampler_for_several_ranks(start, found):
    python = (
        "import sys\nfrom torch.utils.data import DistributedSampler\nrank = int(sys.argv[1])\n"
        "sampler = DistributedSampler([1]) if rank != -1 else None\n"
        "for epoch in range(3):\n    print(sampler)\n"
    )
    text = f"#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gres=gpu:2\n{start}\n"
    files = TextFiles({"a.py": python})
    seen = lint(text, path="job.sh", files=files, programs=SlurmOf())
    assert ("E602" in {f.code for f in seen}) == found


def test_installing_is_not_the_program_of_a_job():
    text = "#!/bin/bash\n#SBATCH --nodes=2\npython -m pip install torch\nsh train.sh\n"
    found = lint(text, path="job.sh", files=TextFiles({}), programs=SlurmOf())
    assert "E201" not in {f.code for f in found}


@pytest.mark.parametrize(
    ("imported", "kinds"),
    [("numpy", ["warning"]), ("idr_torch", []), ("our_cluster", ["advice"]), ("mine", ["warning"])],
)
def test_modules_that_may_set_the_rendezvous(imported, kinds):
    python = (
        f"import {imported}\nimport torch.distributed as dist\n"
        "dist.init_process_group('nccl', rank=0, world_size=4)\n"
    )
    text = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --ntasks=4\nsrun python a.py\n"
    assert severities(text, "E310", a=python, mine="x = 1\n") == kinds


@pytest.mark.parametrize(
    ("end", "kind"), [("ls -l $out.bin", "advice"), ("ls", "warning"), ("ls -la", "warning")]
)
def test_a_listing_of_the_result(end, kind):
    found = findings(f"{JOB}python a.py\n{end}\n", a="print(1)\n")
    assert [str(f.severity) for f in found if f.code == "E507"] == [kind]


@pytest.mark.parametrize(
    ("script", "found"), [("a.py --use_vllm", False), ("a.py", True), ("a.py # vllm", True)]
)
def test_a_gpu_for_an_inference_server(script, found):
    text = (
        "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gres=gpu:4\n"
        f"accelerate launch --num_processes=3 {script}\n"
    )
    assert bool(severities(text, "E203")) == found


@pytest.mark.parametrize(("argument", "found"), [("--template run.sh", False), ("--lr 1", True)])
def test_a_program_that_may_start_srun_itself(argument, found):
    text = f"#!/bin/bash\n#SBATCH --nodes=4\npython drive.py {argument}\n"
    assert bool(severities(text, "E201")) == found


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("HF_HOME=/a TORCH_HOME=/b \\\npython a.py", []),
        ("HF_HOME=/a \\\n  TORCH_HOME=/b \\\n  python a.py", []),
        ("HF_HOME='a\nb' TORCH_HOME=/b python a.py", []),
        ("HF_HOME=/a TORCH_HOME=/b\npython a.py", ["warning", "warning"]),
        ("HF_HOME=/a\npython a.py", ["warning"]),
    ],
)
def test_variables_of_one_command_on_several_lines(lines, found):
    assert severities(f"{JOB}{lines}\n", "E312") == found


def test_the_ranks_of_several_steps():
    text = (
        "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=4\n"
        "srun --ntasks=1 python prepare.py\nexport WORLD_SIZE=$SLURM_NTASKS\n"
        'srun bash -c "$COMMAND"\n'
    )
    assert severities(text, "E309") == []


@pytest.mark.parametrize(("name", "found"), [("temp_weights.pth", []), ("last.pth", ["warning"])])
def test_a_file_that_is_read_back_at_once(name, found):
    python = (
        "import torch\nmodel = torch.nn.Linear(1, 1)\n"
        f"model.load_state_dict(torch.load('{name}'))\n"
        f"for epoch in range(9):\n    torch.save(model.state_dict(), '{name}')\n"
    )
    assert severities(f"{JOB}python a.py\n", "E613", a=python) == found


@pytest.mark.parametrize(("gpus", "found"), [("per-task=1", []), ("per-node=2", ["warning"])])
def test_ranks_that_see_one_gpu(gpus, found):
    python = (
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl', init_method='tcp://h:1', rank=0, world_size=2)\n"
        "model = torch.nn.Linear(1, 1).cuda()\n"
        "model.load_state_dict(torch.load('model.pt'))\n"
    )
    text = f"#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --ntasks=2\n#SBATCH --gpus-{gpus}\n"
    assert severities(f"{text}srun python a.py\n", "E614", a=python) == found


@pytest.mark.parametrize(
    ("begin", "found"),
    [("", "warning"), ("if len(sys.argv) > 1: ", "advice"), ("for _ in range(2): ", "warning")],
)
def test_a_checkpoint_that_some_runs_load(begin, found):
    python = (
        "import sys, torch, torch.distributed as dist\ndist.init_process_group('nccl')\n"
        "model = torch.nn.Linear(1, 1).cuda()\n"
        f"{begin}model.load_state_dict(torch.load('model.pt'))\n"
    )
    text = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=2\n"
    launched = f"{text}torchrun --standalone --nproc_per_node=2 a.py\n"
    assert severities(launched, "E614", a=python) == [found]


@pytest.mark.parametrize(("ranks", "found"), [(1, []), (2, ["warning"])])
def test_nodes_with_one_rank(ranks, found):
    python = (
        "import torch, torch.distributed as dist\ndist.init_process_group('nccl')\n"
        "model = torch.nn.Linear(1, 1).cuda()\n"
        "model.load_state_dict(torch.load('model.pt'))\n"
    )
    text = (
        f"#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:{ranks}\n"
        f"srun torchrun --nnodes=2 --nproc_per_node={ranks} a.py\n"
    )
    assert severities(text, "E614", a=python) == found


@pytest.mark.parametrize(
    ("launch", "found"),
    [
        ("torchrun --standalone --nproc_per_node=4 a.py", ["warning"]),
        ("srun torchrun --standalone --nproc_per_node=4 a.py", []),
    ],
)
def test_visible_devices_that_slurm_sets_again_for_a_step(launch, found):
    text = f"{JOB}#SBATCH --gpus-per-node=4\nexport CUDA_VISIBLE_DEVICES=0\n{launch}\n"
    assert severities(text, "E409", a=GROUP) == found


@pytest.mark.parametrize(("gpus", "found"), [(1, []), (2, ["warning"])])
def test_rank_0_that_is_the_only_one(gpus, found):
    python = (
        "import torch, torch.distributed as dist\n"
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "def main(rank, ranks):\n"
        "    dist.init_process_group('nccl', 'tcp://h:1', rank=rank, world_size=ranks)\n"
        "    model = DDP(torch.nn.BatchNorm1d(2))\n"
        "    if rank == 0:\n"
        "        model(torch.ones(4, 2))\n"
        "torch.multiprocessing.spawn(main, (torch.cuda.device_count(),))\n"
    )
    text = f"{JOB}#SBATCH --gres=gpu:{gpus}\npython a.py\n"
    assert severities(text, "E615", a=python) == found


@pytest.mark.parametrize(
    ("comment", "found"),
    [
        ("# usage: ./submit.sh a100 ./job.sh", []),
        ("# python make_job.py job.sh", []),
        ("# sbatch job.sh", ["error"]),
        ("# see job.sh", ["error"]),
    ],
)
def test_a_script_to_which_another_one_adds_the_first_line(comment, found):
    text = f"{comment}\n#SBATCH --nodes=1\n#SBATCH --time=1:00\npython a.py\n"
    assert severities(text, "E101") == found


@pytest.mark.parametrize(
    ("line", "found"), [("{{OPTIONS}}", []), ("{% if gpus %}", []), ("date", ["error"])]
)
def test_a_template_with_a_line_that_is_filled_in(line, found):
    text = f"{JOB}{line}\n#SBATCH --ntasks=2\npython a.py\n"
    assert severities(text, "E102") == found


@pytest.mark.parametrize(
    ("nodes", "variable", "found"),
    [
        (1, "SLURM_NODEID", []),
        (2, "SLURM_NODEID", ["warning"]),
        (1, "SLURM_PROCID", ["warning"]),
        (1, "SLURM_LOCALID", ["warning"]),
    ],
)
def test_the_number_of_the_only_node(nodes, variable, found):
    head = f"#!/bin/bash\n#SBATCH --nodes={nodes}\n#SBATCH --ntasks-per-node=2\n"
    assert severities(f"{head}srun python a.py --rank=${variable}\n", "E308") == found
    exported = f"{head}export RANK=${variable}\nsrun python a.py\n"
    assert severities(exported, "E308") == found


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("sys.exit(1)", []),
        ("exit()", []),
        ("os._exit(0)", []),
        ("raise SystemExit", []),
        ("print(1)", ["warning"]),
        ("sys.exit", ["warning"]),
        ("atexit.exit()", ["warning"]),
    ],
)
def test_undefined_names_after_the_exit(statement, found):
    python = f"import atexit, os, sys\ndef main():\n    {statement}\n    print(missing)\nmain()\n"
    assert severities(f"{JOB}python a.py\n", "E626", a=python) == found


@pytest.mark.parametrize(
    ("setup", "found"),
    [
        ("set -euo pipefail\n", []),
        ("set -o errexit\n", []),
        ("# set -e\nmodule load cuda\n", ["warning"]),
        ("bash -c 'set -e; true'\n", ["warning"]),
        (None, ["advice"]),  # lint does not find it
    ],
)
@pytest.mark.parametrize("command", ["source", "."])
def test_a_sourced_file_that_stops_at_failures(command, setup, found):
    files = TextFiles({"slurm/env.sh": setup} if setup else {})
    text = f"{JOB}{command} slurm/env.sh\npython a.py\necho done\n"
    given = lint(text, path="slurm/job.sh", files=files, programs=SlurmOf())
    assert [str(f.severity) for f in given if f.code == "E507"] == found


@pytest.mark.parametrize(
    ("loops", "name", "found"),
    [
        ("for it in range(9):", "'%d.pt' % it", []),
        ("for it in range(9):", "f'{it}.pt'", []),
        ("for it in range(9):", "'last.pt'", ["warning"]),
        ("for fold in range(9):\n  for it in range(9):", "f'{fold}.pt'", ["warning"]),
    ],
)
def test_a_checkpoint_for_each_pass_of_the_loop(loops, name, found):
    save = f"    path = {name}\n    torch.save(model.state_dict(), path)\n"
    python = (
        "import sys, torch\nmodel = torch.nn.Linear(1, 1)\n"
        "if sys.argv[1:]:\n    path = sys.argv[1]\n    model.load_state_dict(torch.load(path))\n"
        f"{loops}\n{save}"
    )
    assert severities(f"{JOB}python a.py\n", "E613", a=python) == found


@pytest.mark.parametrize(
    ("line", "folders", "found"),
    [
        ("from project.training import train", {"project"}, []),
        ("import project", {"project"}, []),
        ("def main():\n    import project.training", {"project"}, []),
        ("from project.training import train", set(), ["warning"]),
        ("import project", {"project", "scripts/project"}, ["warning"]),
        ("import json", {"project"}, ["warning"]),
    ],
)
def test_a_package_of_the_project_that_may_read_the_rank(line, folders, found):
    python = {"scripts/a.py": f"{line}\nprint(1)\n"}
    text = f"{JOB}#SBATCH --ntasks=4\nsrun python scripts/a.py\n"
    given = lint(text, path="job.sh", files=TextFiles(python, folders), programs=SlurmOf())
    assert [str(f.severity) for f in given if f.code == "E202"] == found


# --- errors are certain ---------------------------------------------------------------------


@pytest.mark.parametrize(("text", "kind"), [("torch.zeros(1).cuda()", "error"), (None, "warning")])
def test_ranks_that_lint_cannot_read_may_share_a_gpu(text, kind):
    script = f"{JOB}#SBATCH --gpus-per-node=2\ntorchrun --standalone --nproc_per_node=4 a.py\n"
    files = {"a": f"import torch\n{text}\n"} if text else {}
    assert severities(script, "E204", **files) == [kind]


@pytest.mark.parametrize(
    ("parser", "kind"),
    [
        ("argparse.ArgumentParser()", "error"),
        ("options.Options()", "warning"),
        ("argparse.ArgumentParser()\noptions.add(parser)\nargs = parser", "warning"),
    ],
)
def test_a_parser_that_may_know_the_local_rank(parser, kind):
    python = f"import argparse, options\nargs = {parser}.parse_args()\n"
    launch = "python -m torch.distributed.launch --nproc_per_node=2 a.py\n"
    assert severities(f"{JOB}#SBATCH --gpus-per-node=2\n{launch}", "E207", a=python) == [kind]


@pytest.mark.parametrize(
    ("branch", "kind"), [("", "error"), ("if len(sys.argv) > 1:\n    ", "warning")]
)
def test_calls_in_a_branch_may_not_be_reached(branch, kind):
    head = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\nsrun python a.py\n"
    python = (
        f"import sys\nimport torch.distributed as dist\n{branch}dist.init_process_group('ncll')\n"
    )
    assert severities(head, "E624", a=python) == [kind]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("srun torchrun --nnodes=2 --master_addr=localhost --master_port=29500 a.py", "error"),
        ("srun -N1 -n1 torchrun --nnodes=1 --master_addr=localhost a.py", "warning"),
        ("export MASTER_ADDR=localhost\nsrun python a.py", "warning"),
    ],
)
def test_a_host_that_python_may_replace(line, kind):
    head = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --exclusive\n"
    assert severities(f"{head}{line}\n", "E307") == [kind]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("torchrun --nnodes=2 --node_rank=\\$SLURM_NODEID a.py", "error"),
        ("python a.py --node=\\$SLURM_NODEID", "warning"),
    ],
)
def test_a_program_may_expand_its_arguments(line, kind):
    head = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --exclusive\n"
    assert severities(f"{head}srun bash -c '{line}'\n", "E313") == [kind]


@pytest.mark.parametrize(
    ("syntax", "codes"), [("if true; then", ["E209"]), ("fi", ["E210"]), ("# fi", ["E209"])]
)
def test_commands_after_a_syntax_error_do_not_run(syntax, codes):
    text = f"{JOB}{syntax}\nrate = 1\necho $rate\n" + "fi\n" * ("if" in syntax)
    assert [f.code for f in findings(text) if f.code in ("E209", "E210")] == codes


@pytest.mark.parametrize(
    ("value", "body", "kind"),
    [
        ("amount", "srun ./a amount\n", "warning"),
        ("four", "srun ./a\n", "error"),
        ("2x", "srun ./a 2x\n", "error"),
    ],
)
def test_a_number_that_another_program_fills_in(value, body, kind):
    text = f"#!/bin/bash\n#SBATCH --ntasks={value}\n#SBATCH --time=1:00\n{body}"
    assert severities(text, "E113") == [kind]


@pytest.mark.parametrize(
    ("body", "kinds"),
    [("srun -n amount ./a amount\n", ["warning"]), ("srun -n many ./a\n", ["error"])],
)
def test_a_step_whose_number_another_program_fills_in(body, kinds):
    assert severities(JOB + body, "E113") == kinds


def test_empty_angle_brackets_are_a_placeholder():
    text = "#!/bin/bash\n#SBATCH --time=<>\nsrun ./a\n"
    assert {f.code for f in findings(text)} & {"E112", "E116"} == {"E116"}


@pytest.mark.parametrize(
    ("loaded", "kinds"), [("impi/2021", []), ("intel intelmpi", []), ("openmpi", ["warning"])]
)
def test_other_mpi_libraries_have_no_slots(loaded, kinds):
    head = "#!/bin/bash\n#SBATCH --ntasks=2\n#SBATCH --time=1:00\n"
    assert severities(f"{head}module load {loaded}\nmpirun -n 4 ./a\n", "E213") == kinds


@pytest.mark.parametrize(("before", "kinds"), [("module load fastblas", []), ("", ["warning"])])
def test_modules_set_variables(before, kinds):
    body = "FASTBLAS_ROOTS=/opt/fastblas\nmake -C $FASTBLAS_ROOT all\n"
    assert severities(f"{JOB}{before}\n{body}", "E314") == kinds


@pytest.mark.parametrize(
    ("before", "end", "kinds"),
    [
        ("", "deactivate", []),
        ("source env/bin/activate", "deactivate", ["warning"]),
        ("", "echo 1 > /proc/sys/kernel/watchdog", []),
        ("", "echo 1 > watchdog", ["warning"]),
    ],
)
def test_a_last_command_that_may_itself_fail(before, end, kinds):
    assert severities(f"{JOB}{before}\npython a.py\n{end}\n", "E507", a="x = 1\n") == kinds


# --- what another program, or a person, completes -------------------------------------------


def in_repository(script, path="job.sh", **others):
    files = TextFiles({path: script, **{name.replace("_", "."): t for name, t in others.items()}})
    found = lint(script, path=path, files=files, programs=SlurmOf())
    return [(f.code, str(f.severity)) for f in found if str(f.severity) != "advice"]


ODD = f"{JOB}#SBATCH --mem=lots\npython a.py\n"


@pytest.mark.parametrize(
    ("others", "kind"),
    [
        ({"submit_sh": "sed 's/lots/4G/' job.sh | sbatch\n"}, "warning"),
        ({"submit_sh": "cat job.sh tail.sh > all.sh\n"}, "warning"),
        ({"submit_py": "text = open('job.sh').read().replace('lots', '4G')\n"}, "warning"),
        ({"submit_py": "TEMPLATE = 'job.sh'\n"}, "warning"),
        ({"README_md": "Run `sbatch job.sh`.\n"}, "error"),
        ({"submit_sh": "sbatch job.sh\n"}, "error"),
        ({"submit_sh": "sed -i s/a/b/ config.yaml\n"}, "error"),
    ],
)
def test_a_script_that_another_one_completes(others, kind):
    assert in_repository(ODD, **others) == [("E111", kind)]


@pytest.mark.parametrize(
    ("path", "comment", "kind"),
    [
        ("job.sh", "", "error"),
        ("job.sh", "# Template of a job.", "warning"),
        ("job.sh", "# Change the account before you submit this.", "warning"),
        ("job.sh", "# Remove these lines.", "warning"),
        ("job.sh", "# Run mkdir logs before submitting.", "error"),
        ("slurm/job_template.sh", "", "warning"),
        ("tests/fixtures/job.sh", "", "warning"),
        ("tests/job.sh", "", "error"),
        ("job.sh.j2", "", "warning"),
        ("job.sh", "{% if gpu %}", "warning"),
        ("job.sh", "echo {{ name }}", "warning"),
        ("job.sh", "#SBATCH --ntasks=N_TASKS", "warning"),
        ("job.sh", "#SBATCH --partition=GPU_SHARED", "error"),
        ("job.sh", "docker ps --format '{{.Names}}'", "error"),
    ],
)
def test_a_script_that_is_not_finished(path, comment, kind):
    script = ODD.replace("python a.py", f"{comment}\npython a.py")
    assert ("E111", kind) in in_repository(script, path)


def test_line_endings_are_wrong_in_a_template_too():
    assert ("E108", "error") in in_repository(ODD.replace("\n", "\r\n"), "template.sh")


def test_a_template_has_no_placeholders():
    script = f"{JOB}#SBATCH --job-name N_{{{{ '%d'|format(n) }}}}\npython a.py\n"
    assert in_repository(script) == []


def test_a_late_directive_that_repeats_an_earlier_one():
    assert severities(f"{JOB}cd a\n#SBATCH --nodes=1  # one\npython a.py\n", "E102") == []


def test_a_late_directive_of_another_script_in_the_file():
    script = f"{JOB}python a.py\n\n#!/bin/bash\n#SBATCH --mem=4G\npython b.py\n"
    assert severities(script, "E102") == ["warning"]
    assert severities(script.replace("#!/bin/bash\n#SBATCH --mem", "#SBATCH --mem"), "E102") == [
        "error"
    ]


@pytest.mark.parametrize(
    ("before", "found"),
    [
        ("exit 0\n", []),
        ("exit  # notes\n", []),
        ("if true; then\nexit\nfi\n", ["error"]),
        ("", ["error"]),
    ],
)
def test_bash_does_not_read_what_is_after_an_exit(before, found):
    assert severities(f"{JOB}python a.py\n{before}notes (of mine\n", "E210") == found


@pytest.mark.parametrize("name", ["profile", "display", "reload"])
def test_a_name_that_another_program_defines(name):
    assert severities(f"{JOB}python a.py\n", "E626", a=f"print({name})\n") == ["warning"]


@pytest.mark.parametrize(("head", "kind"), [("", "error"), ("[ -f b ] && ", "warning")])
def test_an_undefined_name_in_a_script_that_may_not_run(head, kind):
    assert severities(f"{JOB}{head}python a.py\n", "E626", a="print(nothing)\n") == [kind]


@pytest.mark.parametrize(
    ("program", "text", "kind"),
    [
        ("python", "print 'x'\n", "warning"),
        ("python3", "print 'x'\n", "error"),
        ("torchrun --standalone", "print 'x'\n", "error"),
        ("python", "if True print(1)\n", "error"),
    ],
)
def test_a_script_for_python_2(program, text, kind):
    assert severities(f"{JOB}{program} a.py\n", "E627", a=text) == [kind]


@pytest.mark.parametrize(("line", "kind"), [("", "error"), ("[ -f b ] && ", "warning")])
def test_a_background_command_that_may_not_run(line, kind):
    assert severities(f"{JOB}{line}python a.py &\n", "E504") == [kind]


@pytest.mark.parametrize(
    ("shell", "found"),
    [("bash -login", []), ("bash --login", []), ("bash -el", []), ("bash -e", ["warning"])],
)
def test_a_login_shell_may_know_conda(shell, found):
    script = f"#!/bin/{shell}\n#SBATCH --nodes=1\nconda activate a\npython a.py\n"
    assert severities(script, "E408") == found


@pytest.mark.parametrize(
    ("before", "launch", "kind"),
    [
        ("", "srun torchrun --nproc_per_node=2 --standalone a.py", "error"),
        ("if [ -f b ]; then ", "srun torchrun --nproc_per_node=2 --standalone a.py; fi", "warning"),
        (
            "",
            "srun bash -c 'torchrun --nproc_per_node=2 --node_rank=$SLURM_PROCID a.py'",
            "warning",
        ),
        ("#SBATCH --gpus-per-task=2\n", "srun torchrun --nproc_per_node=2 a.py", "warning"),
    ],
)
def test_launchers_that_are_nodes_of_their_own(before, launch, kind):
    script = f"{JOB}#SBATCH --ntasks-per-node=2\n{before}{launch}\n"
    assert severities(script, "E202") == [kind]


@pytest.mark.parametrize(
    ("before", "kind"), [("", "error"), ("[ -f b ] && ", "warning"), ("for i in 1; do ", "error")]
)
def test_a_launcher_without_srun_that_may_not_run(before, kind):
    end = "; done" if "do" in before else ""
    script = f"#!/bin/bash\n#SBATCH --nodes=2\n{before}torchrun --nnodes=2 a.py{end}\n"
    assert severities(script, "E201") == [kind]


@pytest.mark.parametrize(("call", "kind"), [("load()", "error"), ("", "warning")])
def test_a_loader_in_a_function_that_nothing_calls(call, kind):
    python = (
        "from torch.utils.data import DataLoader, DistributedSampler\n"
        "def load():\n    sampler = DistributedSampler([1])\n"
        f"    return DataLoader([1], shuffle=True, sampler=sampler)\n{call}\n"
    )
    assert severities(f"{JOB}python a.py\n", "E601", a=python) == [kind]


def test_backends_of_other_packages():
    python = "import torch.distributed as dist\ndist.init_process_group('mccl')\n"
    assert severities(f"{JOB}python a.py\n", "E624", a=python) == []


@pytest.mark.parametrize("line", ["import six.moves.builtins", "gettext.install('a')", "vars()"])
def test_names_that_a_script_may_define_otherwise(line):
    assert severities(f"{JOB}python a.py\n", "E626", a=f"{line}\nprint(nothing)\n") == []


def test_a_document_with_scripts():
    script = f"{JOB}#SBATCH --mem=lots\npython a.py\n# ```\n```bash\nls\n```\n"
    assert ("E111", "warning") in in_repository(script)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("cd $WORK # /scratch/<user>/runs", []),
        ("cd /scratch/<user>/runs", ["warning"]),
        ("python a.py # --out=/data/<name>/b", []),
    ],
)
def test_a_placeholder_in_a_comment_behind_a_command(line, found):
    assert severities(f"{JOB}{line}\npython a.py\n", "E116") == found


@pytest.mark.parametrize(
    ("block", "found"),
    [
        ("with bar(loader, disable=rank != 0):", []),
        ("with only_if(is_main(rank)):", []),
        ("if rank == 0:", ["warning"]),
    ],
)
def test_an_argument_of_a_context_manager_is_no_condition(block, found):
    train = f"""\
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DDP(torch.nn.BatchNorm1d(2))
{block}
    model(torch.ones(4, 2))
dist.destroy_process_group()
"""
    assert severities(f"{JOB}torchrun --nproc_per_node=2 a.py\n", "E615", a=train) == found


@pytest.mark.parametrize(
    ("array", "kinds"),
    [("0-0", ["advice"]), ("1", ["advice"]), ("0-1", ["warning"]), ("1-$N", ["warning"])],
)
def test_an_array_of_one_task_shares_no_file(array, kinds):
    script = f"{JOB}#SBATCH --array={array}\n#SBATCH --output=a.out\npython a.py\n"
    assert severities(script, "E502") == kinds


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/opt/conda/envs/ml/bin", "advice"),
        ("/data/ml/bin", "advice"),
        ("/opt/conda/bin", "warning"),
        ("~/.local/bin", "warning"),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_an_environment_that_the_path_has_anyway(path, kind, order):
    lines = ["conda activate ml", f'export PATH="{path}:$PATH"'][::order]
    assert severities(f"{JOB}{lines[0]}\n{lines[1]}\npython a.py\n", "E408") == [kind]


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("requirements.txt", "numpy\ntorch>=2.0\n", "warning"),
        ("requirements.txt", "torch==1.13.1\ntorchvision==0.20\n", "advice"),
        ("environment.yml", "  - pytorch=2.1.0=py3\n", "warning"),
        ("pyproject.toml", 'torch = "^2.2"\n', "warning"),
        ("requirements.txt", "torch\n", "advice"),
    ],
)
def test_the_spelling_of_the_local_rank_before_torch_2(name, text, kind):
    python = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--local_rank')\n"
    files = TextFiles({"a.py": f"{python}p.parse_args()\n", name: text})
    script = f"{JOB}python -m torch.distributed.launch --nproc_per_node=2 a.py\n"
    found = lint(script, path="job.sh", files=files, programs=SlurmOf())
    assert [str(f.severity) for f in found if f.code == "E207"] == [kind]


@pytest.mark.parametrize(
    ("option", "values", "found"),
    [
        ("exclude", ("n[1-2]", "n[1-4]"), []),
        ("exclude", ("n1", "n2", "n1,n2"), []),
        ("exclude", ("n1", "n2"), ["warning"]),
        ("gres", ("gpu:1", "gpu:1,tmp:5"), []),
        ("constraint", ("a", "a&b"), []),
        ("time", ("1:00", "11:00"), ["warning"]),
        ("nodes", ("1", "2"), ["warning"]),
    ],
)
def test_a_repeated_option_that_contains_the_earlier_value(option, values, found):
    lines = "".join(f"#SBATCH --{option}={value}\n" for value in values)
    assert severities(f"#!/bin/bash\n{lines}python a.py\n", "E107") == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("job-stats.py", []),
        ("srun job-stats.py --all", []),
        ("python job-stats.py", ["warning"]),
        ("srun python job-stats.py", ["warning"]),
        ("./job-stats.py", ["warning"]),
    ],
)
def test_a_bare_name_is_looked_up_in_path(line, found):
    files = TextFiles({"job.sh": "", "train.py": ""}, repository=True)
    findings = lint(f"{JOB}{line}\n", path="job.sh", files=files, programs=SlurmOf())
    assert [str(f.severity) for f in findings if f.code == "E215"] == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("bash restart.sh", ["warning"]),
        ("if [ -f $AGAIN ]; then ./tools/restart.sh; fi", ["advice"]),
    ],
)
def test_a_script_that_an_earlier_job_may_have_written(line, found):
    files = TextFiles({"job.sh": "", "tools/train.py": ""}, repository=True)
    script = f"{JOB}AGAIN=tools/restart.sh\n{line}\n" if "if" in line else f"{JOB}{line}\n"
    findings = lint(script, path="job.sh", files=files, programs=SlurmOf())
    assert [str(f.severity) for f in findings if f.code == "E215"] == found


@pytest.mark.parametrize(
    ("others", "kind"),
    [
        ({}, "warning"),
        ({"make_sh": "cp job.sh run/ && replace run/job.sh\n"}, "advice"),
        ({"make_py": "text = open('job.sh').read().replace('<out>', out)\n"}, "advice"),
        ({"README_md": "Submit it: sbatch job.sh\n"}, "warning"),
    ],
)
def test_values_that_another_program_fills_in(others, kind):
    script = f"{JOB}OUT=/data/<out>/b\npython a.py $OUT\n"
    files = TextFiles({"job.sh": script, **{n.replace("_", "."): t for n, t in others.items()}})
    found = lint(script, path="job.sh", files=files, programs=SlurmOf())
    assert [str(f.severity) for f in found if f.code == "E116"] == [kind]


@pytest.mark.parametrize(
    ("comment", "found"),
    [
        ("# Set by submit script via --account", ["advice"]),
        ("# overridden on the command line", ["advice"]),
        ("# your account", ["warning"]),
        ("", ["warning"]),
    ],
)
def test_a_placeholder_that_the_command_line_replaces(comment, found):
    script = f"#!/bin/bash\n#SBATCH --account=<ACCOUNT> {comment}\npython a.py\n"
    assert severities(script, "E116") == found


# --- branches, elements and fixes -----------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "severity"),
    [
        ("name=${names[$SLURM_ARRAY_TASK_ID]}\npython a.py", []),
        ("name=${names[$SLURM_ARRAY_TASK_ID]}\npython a.py $name", ["warning"]),
        ("export name=${names[$SLURM_ARRAY_TASK_ID]}\npython a.py", ["warning"]),
        ("python a.py ${names[$SLURM_ARRAY_TASK_ID]}", ["warning"]),
    ],
)
def test_an_element_that_nothing_reads(lines, severity):
    script = f"{JOB}#SBATCH --array=0-4\nnames=(a b c d)\n{lines}\n"
    assert severities(script, "E314") == severity


def fixes(script, code):
    return [f.fix for f in findings(script) if f.code == code]


def test_the_fix_of_a_generated_script_names_it():
    inner = "#!/bin/bash\n#SBATCH --nodes=1\nsrun python a.py\necho done\n"
    assert fixes(inner, "E507") == ["set -e  # near the top of the script"]
    outer = f"#!/bin/bash\ncat > job.sh << 'EOF'\n{inner}EOF\nsbatch job.sh\n"
    assert fixes(outer, "E507") == ["set -e  # near the top of the generated script"]


@pytest.mark.parametrize(
    ("end", "fix"),
    [
        ("exit 0\n", "remove line 5"),
        ("echo done\nexit 0\n", "set -e  # near the top of the script"),
    ],
)
def test_without_exit_0_another_command_may_succeed(end, fix):
    assert fixes(f"{JOB}simulate input\n{end}", "E507") == [fix]


@pytest.mark.parametrize(
    ("more", "line"),
    [("", 5), ("echo done\n", 6)],
)
def test_without_scancel_another_command_may_succeed(more, line):
    script = f"{JOB}srun python a.py\n{more}scancel $SLURM_JOB_ID\n"
    [fix] = fixes(script, "E507")
    assert f"remove line {line}: a job ends" in fix
    assert fix.startswith("set -e") == bool(more)


@pytest.mark.parametrize(("shell", "kind"), [("sh", "posix"), ("bash", "bash")])
def test_the_hook_of_conda_for_the_shell_of_the_script(shell, kind):
    script = f"#!/bin/{shell}\n#SBATCH --nodes=1\nconda activate torch\npython a.py\n"
    assert fixes(script, "E408") == [f'eval "$(conda shell.{kind} hook)"  # before this line']


# --- what has no effect on the job ----------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ('SELF=$(readlink -f "$0")\ncat $SELF\npython a.py\n', []),
        ('SELF=$(realpath "$0")\necho $SELF\npython a.py\n', []),
        ('SELF=$(readlink -f "$0")\ncd ${SELF%/*}\npython a.py\n', ["warning"]),
        ('cd $(dirname $(readlink -f "$0"))\npython a.py\n', ["warning"]),
    ],
)
def test_the_path_of_the_copy_that_is_only_printed(body, found):
    assert severities(f"{JOB}{body}", "E211") == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("node server.js &\npython a.py\nwait\n", ["advice"]),  # it may be a server
        ("python a.py\nwait\n", ["warning"]),
        ("set -e\npython a.py && echo well\necho done\n", []),
        ("python a.py && echo well\necho done\n", ["warning"]),
    ],
)
def test_endings_that_may_be_meant(body, found):
    assert severities(f"{JOB}{body}", "E507") == found


@pytest.mark.parametrize(
    ("use", "found"),
    [('echo "LABELMODE = $LABELMODE"', ["advice"]), ("python b.py $LABELMODE", ["warning"])],
)
def test_a_misspelled_name_that_is_only_printed(use, found):
    assert severities(f"{JOB}LABEL_MODE=a\n{use}\npython a.py $LABEL_MODE\n", "E314") == found


@pytest.mark.parametrize(
    ("name", "python", "found"),
    [
        ("LOCAL_RANK", "import lightning\n", ["advice"]),
        ("LOCAL_RANK", "import os\nos.environ['LOCAL_RANK']\n", ["warning"]),
        ("RANK", "import lightning\n", ["warning"]),
    ],
)
def test_an_early_rank_that_no_program_reads(name, python, found):
    head = "#!/bin/bash\n#SBATCH --nodes=1 --ntasks-per-node=2 --gpus-per-node=2\n"
    script = f"{head}export {name}=$SLURM_PROCID\nsrun python a.py\n"
    files = TextFiles({"a.py": python})
    findings = lint(script, path="job.sh", files=files, programs=SlurmOf())
    assert [str(f.severity) for f in findings if f.code == "E308"] == found


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        ("24h", "--time=24:00:00 "),
        ("2days", "--time=2-00:00:00 "),
        ("1-00:00:00h", "--time=1-00:00:00 "),
        ("soon", "--time=2-12:00:00 "),
    ],
)
def test_the_likely_time_limit(value, fix):
    [found] = fixes(f"#!/bin/bash\n#SBATCH --time={value}\npython a.py\n", "E112")
    assert fix in found


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        ("srun python", "warning"),
        ("deepspeed --hostfile=hosts", "warning"),
        ("deepspeed", "advice"),
        ("torchrun --nproc_per_node=4", "advice"),
    ],
)
@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("E603", "DistributedSampler([], rank=rank)"),
        ("E604", "dist.init_process_group('nccl', rank=rank)"),
    ],
)
def test_a_local_rank_on_the_first_node_only(start, kind, code, call):
    python = (
        "import os\nimport torch.distributed as dist\n"
        "from torch.utils.data import DistributedSampler\n"
        f"rank = int(os.environ['LOCAL_RANK'])\n{call}\n"
    )
    head = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n"
    assert severities(f"{head}{start} a.py\n", code, a=python) == [kind]
