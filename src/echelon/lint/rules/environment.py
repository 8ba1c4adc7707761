"""E405 to E409: network interfaces, secrets, conda, and variables that Slurm sets."""

import re
from collections.abc import Iterator
from dataclasses import replace

from echelon.clusters.slurm.options import SBATCH
from echelon.core.units import counted
from echelon.lint.bash import Command, Where
from echelon.lint.edits import Edit, insert_line
from echelon.lint.facts import is_training
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.request import COUNTING_TASKS, NUMBERS_OF_TASKS, OF_OPTIONS
from echelon.lint.rule import ADVICE, WARNING, Hit, Located, Rule
from echelon.lint.rules.arrays import find_no_array
from echelon.lint.subject import Subject

_INTERFACE = pattern(r"=?(eth|en[opsx]|em|eno|ens|enp|ib|hsn|bond|mlx|team|br|p)\w*\d\w*")
_SECRET = pattern(
    r"(?:.*_)?(?:API_KEY|API_TOKEN|ACCESS_TOKEN|AUTH_TOKEN|SECRET|SECRET_KEY|SECRET_ACCESS_KEY|"
    r"PASSWORD|PASSWD)|(?:HF|HUGGINGFACE|HUGGING_FACE_HUB|HUB|GITHUB|GH|GITLAB|COMET|NEPTUNE|"
    r"CLEARML|SLACK|KAGGLE)_TOKEN|WANDB_KEY|KAGGLE_KEY"
)
_NO_SECRET = pattern(
    r"[<\[{$*/~.].*|.*\s.*|x+|your.*|.*(xxx|\.\.\.|…).*|true|false|none|\d+|.{0,7}", re.IGNORECASE
)
_TOKEN = pattern(
    r"\b(hf_[A-Za-z0-9]{30,}|[0-9a-f]{40}|AKIA[0-9A-Z]{16}|gh[pos]_[A-Za-z0-9]{30,})\b"
)
_SERVICES = (("hf_", "hf_token"), ("gh", "github_token"), ("AKIA", "aws_access_key_id"))
"""Beginnings of tokens, and names for the files that hold them."""
_DEFAULT = pattern(r"^(?!\s*#).*?\$\{(\w+):?[-=]([\w+/=.-]{20,200})\}")
"""A variable with a long literal as its default."""
_DUMMY = pattern(r"(?i)dummy|test|example|local|placeholder|change|your|fake|here|token-|not-")
_FEWEST_DIGITS = 4
_DEVICES = pattern(r"\d+(,\d+)*")
_MAKES_ENV = pattern(r"\b(?:virtualenv|-m venv|venv-pack|conda-unpack)\b.*SLURM_TMPDIR")
_OF_SH = pattern(r"#!\s?\S*/(?:sh|dash)\b")
_HOOK = 'eval "$(conda shell.bash hook)"'


def find_interfaces(subject: Subject) -> Iterator[Hit]:
    for assignment in subject.assignments:
        if assignment.name not in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            continue
        text = assignment.value.text
        if not assignment.value.known or not _INTERFACE.fullmatch(text):
            continue
        yield Hit(
            at=assignment,
            what=f"On a node without the interface '{text.removeprefix('=')}', the ranks cannot "
            "connect. Interface names differ between clusters and types of nodes.",
            fix="export NCCL_SOCKET_IFNAME=^lo,docker  # exclude these, or remove the line"
            if assignment.name == "NCCL_SOCKET_IFNAME"
            else "remove the line",  # gloo does not know ^
        )


def find_secrets(subject: Subject) -> Iterator[Hit]:
    told = set[str]()
    for assignment in subject.assignments:
        text = assignment.value.text
        if not assignment.value.known or assignment.value.uses or text == assignment.name:
            continue
        named = _SECRET.fullmatch(assignment.name) and not _NO_SECRET.fullmatch(text)
        if named or (_TOKEN.fullmatch(text) and not re.search("COMMIT|SHA|HASH", assignment.name)):
            told.add(text)
            yield _secret(subject, assignment, f"`{assignment.name}`", _export(assignment.name))
    yield from _secret_defaults(subject)
    for command in subject.commands:
        given = _TOKEN.search(command.text)
        if given and given[0] in told and given[0] not in subject.line_at(command):
            continue  # a variable, reported where it is set
        if given and ("login" in command.text or not re.fullmatch(r"[0-9a-f]{40}", given[0])):
            yield _secret(subject, command, "the token", _read(command, given[0]))


def _secret_defaults(subject: Subject) -> Iterator[Hit]:
    """Find secrets that are the default of their variable, as in ${API_KEY:-…}."""
    for path in dict.fromkeys(shell.path for shell in subject.shells):
        text = subject.text if path == subject.path else subject.files.read(path) or ""
        for number, line in enumerate(text.split("\n"), start=1):
            found = _DEFAULT.match(line) if "${" in line else None
            if found is None or not _SECRET.fullmatch(found[1]) or _DUMMY.search(found[2]):
                continue
            if sum(map(str.isdecimal, found[2])) >= _FEWEST_DIGITS:
                name = f"the default of `{found[1]}`"
                yield _secret(subject, Place(path, number), name, _export(found[1]))


def _secret(subject: Subject, at: Located, name: str, fix: str) -> Hit:
    copied = " Slurm also stores a copy of the script." if at.path == subject.path else ""
    return Hit(
        at=at,
        what=f"Everyone who can read the script can read {name}.{copied}",
        fix=fix,
    )


def _export(variable: str) -> str:
    return (
        f'export {variable}="$(cat ~/.secrets/{variable.lower()})"'
        "  # a file with mode 600, or log in once by hand"
    )


def _read(command: Command, token: str) -> str:
    """Return what replaces the token of a command, with a file for each service."""
    services = (name for beginning, name in _SERVICES if token.startswith(beginning))
    name = "wandb_api_key" if "wandb" in command.text else next(services, "token")
    return f'"$(cat ~/.secrets/{name})"  # instead of the token; a file with mode 600'


def find_unset_variables(subject: Subject) -> Iterator[Hit]:
    if not subject.is_job or subject.directives.several:
        return
    yield from _no_tasks(subject)
    yield from _no_threads(subject)
    yield from find_no_array(subject)
    assigned = {assignment.name for assignment in subject.assignments}
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
            if option is None or use.guarded or use.name in assigned:
                continue
            given = subject.directives.last(option)
            typed = given is not None and "GPUS" in use.name and ":" in given.value
            if (given is not None and not typed) or (
                given is None and _shown_with_sbatch(subject, option)
            ):
                continue
            hit = _unset(Place(path, use.line), use.name, given.value if given else "", option)
            # Then sbatch gets them on its command line, and maybe with this option.
            elsewhere = "GPUS" in use.name and subject.job.gpus_per_node == 0
            yield replace(hit, severity=ADVICE) if elsewhere else hit


def _no_tasks(subject: Subject) -> Iterator[Hit]:
    """Find numbers of tasks in the job script of a job that does not say how many it has."""
    if any(map(subject.directives.last, COUNTING_TASKS)):
        return
    batch = [shell for shell in subject.shells if shell.where is Where.BATCH]
    set_here = {assignment.name for assignment in subject.assignments}
    for assignment in (one for shell in batch for one in shell.assignments):
        line = subject.line_at(assignment)
        for name in (name for name in NUMBERS_OF_TASKS if name not in set_here):
            if (
                re.search(rf"\$\{{?{name}\b(?!:?[-=?+])", line)
                and assignment.name in subject.exported
            ):
                yield _unset(assignment, name, "", "ntasks")


def _no_threads(subject: Subject) -> Iterator[Hit]:
    """Find numbers of threads that are empty, because the job requests no CPUs for its tasks."""
    name, option = "SLURM_CPUS_PER_TASK", "cpus-per-task"
    given = subject.directives.last(option) or _shown_with_sbatch(subject, option)
    if given or subject.assigned(name):
        return
    for assignment in subject.batch.assignments if subject.batch else ():
        plain = assignment.value.text in (f"${name}", f"${{{name}}}")
        if plain and assignment.name.endswith("_NUM_THREADS"):
            yield Hit(
                at=assignment,
                what=f"Slurm sets `${name}` only for jobs with `--{option}`. Without it, "
                f"{assignment.name} is empty, and programs choose a number of threads themselves.",
                fix=f"#SBATCH --{option}=…",
                severity=ADVICE,
            )
            return


def _shown_with_sbatch(subject: Subject, option: str) -> bool:
    """Tell whether a comment shows how to submit the script, with the option after `sbatch`."""
    letters = [f"-{letter}" for letter, name in SBATCH.short.items() if name == option]
    for line in subject.text.split("\n"):
        comment = line.lstrip()
        if not comment.startswith("#") or comment.startswith("#sbatch"):
            continue  # the latter is a misspelled directive
        _, _, given = comment.partition("sbatch ")
        for word in given.split():
            if word.partition("=")[0] == f"--{option}" or word[:2] in letters:
                return True
    return False


def _unset(at: Located, name: str, value: str, option: str) -> Hit:
    if value:
        what = f"`${name}` is '{value}' here, which is not a number."
        fix = "write the number instead of the variable"
    else:
        what = f"`${name}` is empty. Slurm sets it only if the script uses `--{option}`."
        fix = f"#SBATCH --{option}=…"
        fix += "  # or use $SLURM_GPUS_ON_NODE" if name == "SLURM_GPUS_PER_NODE" else ""
        fix += "  # or --ntasks-per-node" if option == "ntasks" else ""
    return Hit(at=at, what=what, fix=fix)


_WITHOUT_CONDA = pattern(
    r"(?:module|ml)(?: (?:load|add|purge|list|reset|--force|"
    r"(?:unload|swap|unuse) \S+|use (?:(?:-a|--append) )?\S+|"
    r"(?i:cuda|cudnn|nccl|gcc|cmake|git|openmpi|slurm|shared|ninja)(?:/[\w.-]+)?))*"
)
"""Commands that load only modules that do not set up conda."""


def find_not_activated(subject: Subject) -> Iterator[Hit]:
    for command in subject.commands:
        other = re.search(r"/activate\.(csh|fish)$", command.text)
        if command.name in ("source", ".") and other:
            yield Hit(
                at=command,
                what=f"This file is for the shell {other[1]}. Bash cannot run it, and the script "
                "continues with another Python.",
                fix=command.text.removesuffix(f".{other[1]}"),
            )
    yield from _unready_conda(subject)
    yield from _made_on_one_node(subject)


def _unready_conda(subject: Subject) -> Iterator[Hit]:
    batch = subject.batch
    if (
        batch is None
        or not subject.is_job
        or re.match(r"#!.*\s(?:-\w*[li]\w*|--?login)\b", subject.text)
    ):
        return
    loaded = init = False
    for command in batch.commands:
        loads = command.name in ("module", "ml") and not _WITHOUT_CONDA.fullmatch(command.text)
        loaded = loaded or loads
        if command.name in ("source", ".", "eval", "spack") or "hook" in command.text:
            return
        action = command.words[1].text if len(command.words) > 1 else ""
        if command.name not in ("conda", "mamba") or action not in ("init", "activate"):
            continue
        if action == "activate" and loaded and not init:
            return
        if action == "activate":
            in_path = _is_in_path(subject, command)
            after = "" if in_path or loaded else " The script continues with another Python."
            told = f"`{command.name} init` changes ~/.bashrc, not the running shell. " * init
            unless = " unless a module has set it up" if loaded else ""
            yield Hit(
                at=command,
                what=f"{told}`{command.name} activate` fails in a job script ('run conda init')"
                f"{unless}.{after}",
                fix=f"{_hook(subject)}  # before this line",
                severity=ADVICE if in_path or loaded else None,
                edits=_before(subject, command),
            )
            return
        init = True


def _is_in_path(subject: Subject, activation: Command) -> bool:
    """Tell whether the script itself adds the programs of an environment to PATH."""
    name = activation.words[-1].text.rstrip("/").rpartition("/")[2]
    folder = re.compile(rf"/(?:envs/[^/:]+|{re.escape(name)})/bin\b")
    return any(folder.search(assignment.value.text) for assignment in subject.assigned("PATH"))


def _made_on_one_node(subject: Subject) -> Iterator[Hit]:
    """Find an environment on the disk of the first node, in a job of several nodes."""
    batch = subject.batch
    if batch is None or not subject.job.several_nodes or not subject.sruns:
        return
    if any(_MAKES_ENV.search(" ".join(w.text for w in words)) for _, _, words in subject.sruns):
        return
    for command in (c for c in batch.commands if c.where is Where.BATCH and c.name != "srun"):
        if _MAKES_ENV.search(command.text):
            yield Hit(
                at=command,
                what="The script makes this environment on the first node only. Steps on other "
                f"nodes (the job has {subject.job.fewest_nodes or 2}) do not find it.",
                fix=f"srun --ntasks=$SLURM_JOB_NUM_NODES --ntasks-per-node=1 {command.name} …",
            )
            return


def _before(subject: Subject, command: Command) -> tuple[Edit, ...]:
    """Return the edit that puts the hook before a command that has a line for itself."""
    line = subject.line_at(command)
    own = re.match(rf"(\s*){re.escape(command.text)}\s*(#.*)?$", line)
    if not own or not command.certain:
        return ()
    return (insert_line(command.line, f"{own[1]}{_hook(subject)}"),)


def _hook(subject: Subject) -> str:
    return _HOOK.replace("bash", "posix") if _OF_SH.match(subject.text) else _HOOK


def find_visible_devices(subject: Subject) -> Iterator[Hit]:
    yield from _missing_devices(subject)
    gpus = subject.job.gpus_per_node
    batch = subject.batch
    if not gpus or batch is None or len(subject.started) != 1:
        return
    if subject.started[0].launch.srun is not None:
        return  # Slurm sets the variable again for each step
    for assignment in batch.assignments:
        value = assignment.value
        if assignment.name != "CUDA_VISIBLE_DEVICES" or not value.known or not assignment.certain:
            continue
        if not _DEVICES.fullmatch(value.text):
            continue
        count = value.text.count(",") + 1
        if count == gpus and not value.uses and subject.directives.last("exclusive") is None:
            yield Hit(
                at=assignment,
                what=f"This replaces the GPUs of the job with {value.text}. Where a job "
                "sees all GPUs of its node, two such jobs on a node share them.",
                fix="remove the line; Slurm sets the variable to the GPUs of the job",
                severity=ADVICE,
            )
        if count != gpus and is_training(subject, subject.started[0]):
            yield Hit(
                at=assignment,
                what=f"`CUDA_VISIBLE_DEVICES` lists {counted(count, 'GPU')}, but the job has "
                f"{gpus} on each node.",
                fix="remove the line; Slurm sets the variable to the GPUs of the job",
            )


def _missing_devices(subject: Subject) -> Iterator[Hit]:
    """Find programs that get the number of a GPU which the job does not have."""
    gpus = subject.job.gpus_per_node
    if not gpus or subject.directives.last("exclusive") is not None or len(subject.started) < 2:
        return
    for one in (one for one in subject.started if one.launch.srun is None):
        for assignment in one.launch.command.assignments:
            value = assignment.value
            if assignment.name != "CUDA_VISIBLE_DEVICES" or not value.known or value.uses:
                continue
            if _DEVICES.fullmatch(value.text) and max(map(int, value.text.split(","))) >= gpus:
                yield Hit(
                    at=assignment,
                    what=f"`CUDA_VISIBLE_DEVICES` is {value.text}, but the job has "
                    f"{counted(gpus, 'GPU')} on each node, which count from 0.",
                    fix="remove the variable; Slurm sets it to the GPUs of the job",
                )


RULES = (
    Rule(
        code="E405",
        title="hard-coded network interface",
        severity=ADVICE,
        check=find_interfaces,
        why="NCCL finds the right interface itself on most clusters. A full name fits only one "
        "type of node. `^name` excludes an interface, and a prefix such as `ib` matches all that "
        "start with it.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=2
-export NCCL_SOCKET_IFNAME=eth0    # <- here
+export NCCL_SOCKET_IFNAME=^lo,docker
 srun python train.py
""",
    ),
    Rule(
        code="E406",
        title="secret in the script",
        severity=WARNING,
        check=find_secrets,
        why="Scripts are copied, shared and committed, and Slurm stores every submitted script.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=1
-export WANDB_API_KEY=made-up-key-of-nobody    # <- here
+export WANDB_API_KEY=$(cat ~/.secrets/wandb)
 python train.py
""",
    ),
    Rule(
        code="E407",
        title="Slurm variable that is not set",
        severity=WARNING,
        check=find_unset_variables,
        why="Variables such as `SLURM_GPUS_PER_NODE` and `SLURM_CPUS_PER_TASK` repeat an option. "
        "They are empty without it, and include the GPU type if the option does, as in a100:4. "
        "It is a warning because sbatch may get the option on its command line.",
        example="""\
 #!/bin/bash
 #SBATCH --cpus-per-gpu=8
-#SBATCH --gres=gpu:4
+#SBATCH --gpus-per-node=4
 torchrun --standalone --nproc_per_node=$SLURM_GPUS_PER_NODE train.py    # <- here
""",
    ),
    Rule(
        code="E408",
        title="environment that is not activated",
        severity=WARNING,
        check=find_not_activated,
        why="A job script is not an interactive shell, so bash does not read the conda setup in "
        "`~/.bashrc`.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=1
+eval "$(conda shell.bash hook)"
 conda activate torch    # <- here
 python train.py
""",
    ),
    Rule(
        code="E409",
        title="`CUDA_VISIBLE_DEVICES` set by hand",
        severity=WARNING,
        check=find_visible_devices,
        why="Slurm sets the variable to the GPUs of the job. A different number leaves GPUs idle "
        "or lists GPUs that do not exist.",
        example="""\
 #!/bin/bash
 #SBATCH --cpus-per-gpu=8
-#SBATCH --gpus-per-node=4
-export CUDA_VISIBLE_DEVICES=0,1    # <- here
+#SBATCH --gpus-per-node=2
 torchrun --standalone --nproc_per_node=2 train.py
""",
    ),
)
