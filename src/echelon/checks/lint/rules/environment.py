"""E405 to E409: interfaces, secrets, environments, and variables that Slurm does not set."""

import re
from collections.abc import Iterator

from echelon.checks.lint.facts import is_training
from echelon.checks.lint.request import OF_OPTIONS
from echelon.checks.lint.rule import ADVICE, ERROR, WARNING, Hit, Rule
from echelon.checks.lint.subject import Subject

_INTERFACE = re.compile(r"=?(eth|en[opsx]|em|eno|ens|enp|ib|hsn|bond|mlx|team|br|p)\w*\d\w*")
_SURE_TO_DIFFER = re.compile(r"=?(eth|en|em)")
_SECRET = re.compile(
    r"(?:.*_)?(?:API_KEY|API_TOKEN|ACCESS_TOKEN|AUTH_TOKEN|SECRET|SECRET_KEY|SECRET_ACCESS_KEY|"
    r"PASSWORD|PASSWD)|(?:HF|HUGGINGFACE|HUGGING_FACE_HUB|HUB|GITHUB|GH|GITLAB|COMET|NEPTUNE|"
    r"CLEARML|SLACK|KAGGLE)_TOKEN|WANDB_KEY|KAGGLE_KEY"
)
_NO_SECRET = re.compile(
    r"[<\[{$*/~.].*|.*\s.*|x+|your.*|.*(xxx|\.\.\.|…).*|true|false|none|\d+|.{0,7}", re.IGNORECASE
)
_TOKEN = re.compile(
    r"\b(hf_[A-Za-z0-9]{30,}|[0-9a-f]{40}|AKIA[0-9A-Z]{16}|gh[pos]_[A-Za-z0-9]{30,})\b"
)


def find_interfaces(subject: Subject) -> Iterator[Hit]:
    for assignment in subject.assignments:
        if assignment.name not in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            continue
        text = assignment.value.text
        if not assignment.value.known or not _INTERFACE.fullmatch(text):
            continue
        yield Hit(
            path=assignment.path,
            line=assignment.line,
            what=f"On a node without an interface {text.removeprefix('=')} the ranks fail when "
            "they first talk; names differ between clusters and kinds of nodes.",
            fix=f"export {assignment.name}=^lo,docker   (all but these), or leave it out",
            severity=None if _SURE_TO_DIFFER.match(text) else ADVICE,
        )


def find_secrets(subject: Subject) -> Iterator[Hit]:
    for assignment in subject.assignments:
        text = assignment.value.text
        if not assignment.value.known or assignment.value.uses:
            continue
        named = _SECRET.fullmatch(assignment.name) and not _NO_SECRET.fullmatch(text)
        if named or (_TOKEN.fullmatch(text) and not re.search("COMMIT|SHA|HASH", assignment.name)):
            yield _secret(assignment.path, assignment.line, assignment.name)
    for command in subject.commands:
        if "login" in command.text and _TOKEN.search(command.text):
            yield _secret(command.path, command.line, "a token")


def _secret(path: str, line: int, name: str) -> Hit:
    return Hit(
        path=path,
        line=line,
        what=f"Everybody who can read the script has {name}, and so has whoever asks Slurm for it: "
        "sbatch keeps a copy.",
        fix='export NAME="$(cat ~/.secrets/name)"   (chmod 600), or log in once by hand',
    )


def find_unset_variables(subject: Subject) -> Iterator[Hit]:
    if not subject.is_job or subject.directives.several:
        return
    assigned = {assignment.name for assignment in subject.assignments}
    told: set[tuple[int, str]] = set()
    words = [
        (one.launch.path, word)
        for one in subject.started
        for word in (
            *(one.launch.launcher.options.values() if one.launch.launcher else ()),
            *one.launch.arguments,
            *(one.launch.srun or {}).values(),
        )
    ]
    for path, word in words:
        for use in word.uses:
            option = OF_OPTIONS.get(use.name)
            if (
                option is None
                or use.guarded
                or use.name in assigned
                or (use.line, use.name) in told
            ):
                continue
            given = subject.directives.last(option)
            typed = given is not None and "GPUS" in use.name and ":" in given.value
            if given is not None and not typed:
                continue
            told.add((use.line, use.name))
            yield _unset(path, use.line, use.name, given.value if given else "", option)


def _unset(path: str, line: int, name: str, value: str, option: str) -> Hit:
    if value:
        what, fix = f"${name} is '{value}' here, which is no number.", "write the number itself"
    else:
        what = f"${name} is empty: Slurm sets it only when --{option} is asked for."
        fix = f"#SBATCH --{option}=…"
        fix += "   or $SLURM_GPUS_ON_NODE" if name == "SLURM_GPUS_PER_NODE" else ""
    return Hit(path=path, line=line, what=what, fix=fix)


def find_unready_conda(subject: Subject) -> Iterator[Hit]:
    batch = subject.batch
    if batch is None or not subject.is_job or re.match(r"#!.*(-l|--login|-i)\b", subject.text):
        return
    for command in batch.commands:
        if command.name in ("source", ".", "eval", "module", "ml", "spack") or (
            "hook" in command.text
        ):
            return
        if command.name in ("conda", "mamba") and [w.text for w in command.words[1:2]] == [
            "activate"
        ]:
            yield Hit(
                path=command.path,
                line=command.line,
                what=f"'{command.name} activate' fails in a batch job ('run conda init'), and the "
                "script goes on with another Python.",
                fix='eval "$(conda shell.bash hook)"   (before it)',
            )
            return


def find_visible_devices(subject: Subject) -> Iterator[Hit]:
    gpus = subject.job.gpus_per_node
    batch = subject.batch
    if not gpus or batch is None or len(subject.started) != 1:
        return
    for assignment in batch.assignments:
        value = assignment.value
        if assignment.name != "CUDA_VISIBLE_DEVICES" or not value.known or not assignment.certain:
            continue
        if not re.fullmatch(r"\d+(,\d+)*", value.text) or not is_training(
            subject, subject.started[0]
        ):
            continue
        count = value.text.count(",") + 1
        if count != gpus:
            yield Hit(
                path=assignment.path,
                line=assignment.line,
                what=f"It names {count} GPUs, and the job has {gpus} on each node.",
                fix="leave it out: Slurm sets it to the GPUs that the job was given",
            )


RULES = (
    Rule(
        code="E405",
        title="an interface by its name",
        severity=WARNING,
        check=find_interfaces,
        why="NCCL finds the interface by itself in most places. A name is right for one kind of "
        "node; ^name leaves one out, and a name without its number, such as ib, takes any.",
        bad="""\
#!/bin/bash
#SBATCH --nodes=2
export NCCL_SOCKET_IFNAME=eth0    # <- here
srun python train.py
""",
        good="""\
#!/bin/bash
#SBATCH --nodes=2
export NCCL_SOCKET_IFNAME=^lo,docker
srun python train.py
""",
    ),
    Rule(
        code="E406",
        title="a secret in the script",
        severity=WARNING,
        check=find_secrets,
        why="Scripts are copied, shared and committed, and Slurm stores what is submitted.",
        bad="""\
#!/bin/bash
#SBATCH --nodes=1
export WANDB_API_KEY=made-up-key-of-nobody    # <- here
python train.py
""",
        good="""\
#!/bin/bash
#SBATCH --nodes=1
export WANDB_API_KEY=$(cat ~/.secrets/wandb)
python train.py
""",
    ),
    Rule(
        code="E407",
        title="a variable that Slurm does not set",
        severity=ERROR,
        check=find_unset_variables,
        why="SLURM_GPUS_PER_NODE, SLURM_CPUS_PER_TASK and the like repeat an option; without it "
        "they are empty. With a type, as in a100:4, they hold that too.",
        bad="""\
#!/bin/bash
#SBATCH --gres=gpu:4
torchrun --standalone --nproc_per_node=$SLURM_GPUS_PER_NODE train.py    # <- here
""",
        good="""\
#!/bin/bash
#SBATCH --gpus-per-node=4
torchrun --standalone --nproc_per_node=$SLURM_GPUS_PER_NODE train.py
""",
    ),
    Rule(
        code="E408",
        title="conda activate without its hook",
        severity=WARNING,
        check=find_unready_conda,
        why="A batch script is no interactive shell: ~/.bashrc, with conda's lines, is not read.",
        bad="""\
#!/bin/bash
#SBATCH --nodes=1
conda activate torch    # <- here
python train.py
""",
        good="""\
#!/bin/bash
#SBATCH --nodes=1
eval "$(conda shell.bash hook)"
conda activate torch
python train.py
""",
    ),
    Rule(
        code="E409",
        title="CUDA_VISIBLE_DEVICES by hand",
        severity=WARNING,
        check=find_visible_devices,
        why="Slurm sets it to what the job was given. Another number of devices leaves some idle, "
        "or names some that are not there.",
        bad="""\
#!/bin/bash
#SBATCH --gpus-per-node=4
export CUDA_VISIBLE_DEVICES=0,1    # <- here
torchrun --standalone --nproc_per_node=2 train.py
""",
        good="""\
#!/bin/bash
#SBATCH --gpus-per-node=2
torchrun --standalone --nproc_per_node=2 train.py
""",
    ),
)
