"""E501, E502 and E506: lost output and lost training."""

import re
from collections.abc import Iterator

from echelon.lint.facts import slurm_version
from echelon.lint.files import Place, beside
from echelon.lint.patterns import pattern
from echelon.lint.request import Directive
from echelon.lint.rule import ADVICE, WARNING, Hit, Rule
from echelon.lint.rules.arrays import read_indices
from echelon.lint.rules.placeholders import is_placeholder
from echelon.lint.rules.shared import find_shared_files
from echelon.lint.subject import Subject

_RESUMES = (
    *("load_state_dict", "torch.load", "resume", "load_checkpoint", "restore", "Checkpoint"),
    *("from_pretrained", "lightning", "Trainer("),
)
"""Words in scripts that can resume from a checkpoint."""
_OF_JOB = pattern(r"%\d*[jJA]")
_INTO = pattern(
    r"(?:&?>>?|\btee(?:\s-a)?)\s?[\"']?((?:\./)?(?:[A-Za-z][\w.-]{0,99}/){1,9})[\w.$%{}-]"
)
"""A redirection into a relative directory."""
_GOES_AWAY = pattern(r"(?m)^\s*(?:cd|pushd)\s|module\s+load\s+\S*snakemake")
_CREATES_FOLDERS = (23, 2)
"""The first version of Slurm that creates the directories of output files."""


def find_missing_folder(subject: Subject) -> Iterator[Hit]:
    yield from _missing_targets(subject)
    missing = [*_folders_of_job(subject), *_missing_folders(subject)]
    version = slurm_version(subject.programs) if missing else None
    if version is not None and version >= _CREATES_FOLDERS:
        return
    for item, what, fix in missing:
        yield Hit(
            at=Place(subject.path, item.line),
            what=f"Before 23.02, Slurm does not create the directory {what}",
            fix=fix,
            severity=ADVICE if version is None else None,
        )


def _missing_folders(subject: Subject) -> Iterator[tuple[Directive, str, str]]:
    if _submits_itself(subject):
        return
    chdir = subject.directives.last("chdir")
    elsewhere = chdir.value if chdir else ""
    told = set[str]()
    for option in ("output", "error"):
        item = subject.directives.last(option)
        folder = _folder(item.value) if item else ""
        if elsewhere and not folder.startswith("/") and _is_made(subject, folder):
            continue  # a later job has it
        if item is None or not folder or folder.startswith(("~", "$")) or folder in told:
            continue
        if folder.startswith("/") and not _is_made(subject, folder):
            continue
        if _OF_JOB.search(item.value.rpartition("/")[0]) or is_placeholder(item):
            continue  # placeholders are reported by E116
        told.add(folder)
        places = {beside(base, folder) for base in (subject.path, "", f"{elsewhere}/")}
        if not any(subject.files.is_folder(place) for place in places):
            late = any(c.name == "mkdir" and folder in c.text for c in subject.commands)
            what = (
                f"'{folder}'. If it does not exist, the job fails immediately and writes no output"
            )
            late_or_not = ", and the script's own `mkdir` runs too late." if late else "."
            yield item, what + late_or_not, f"mkdir -p {folder}  # before sbatch"


def _missing_targets(subject: Subject) -> Iterator[Hit]:
    """Find redirections into a directory that is neither in the repository nor created."""
    text = "\n".join(shell.text for shell in subject.shells)
    if subject.batch is None or not subject.is_job or "<<" in text or _GOES_AWAY.search(text):
        return
    told = set[str]()
    for number, line in enumerate(subject.batch.text.split("\n"), start=1):
        found = None if line.lstrip().startswith("#") else _INTO.search(line)
        folder = found[1].rstrip("/").removeprefix("./") if found else ""
        first = folder.partition("/")[0]
        if not folder or folder in told or first == "..":
            continue
        repository = subject.files.repository(subject.path)
        if repository is None or f"{first}/" in repository.names:
            continue
        if re.search(rf"(?:mkdir|install|makedirs|clone|rsync|cp|mv|tar)\b.*\b{first}\b", text):
            continue
        told.add(folder)
        yield Hit(
            at=Place(subject.path, number),
            what=f"Nothing creates the directory '{folder}'. If it does not exist, bash does not "
            "run the command.",
            fix=f"mkdir -p {folder}  # before this line",
            severity=ADVICE,
        )


def _is_made(subject: Subject, folder: str) -> bool:
    """Tell whether the script creates a directory itself."""
    made = (c for c in subject.commands if c.name == "mkdir")
    return any(word.text.rstrip("/") == folder for c in made for word in c.arguments)


def _folders_of_job(subject: Subject) -> Iterator[tuple[Directive, str, str]]:
    """Find directories with the job's ID, which nobody can create before the job has one."""
    for option in ("output", "error"):
        item = subject.directives.last(option)
        folder, _, name = item.value.rpartition("/") if item else ("", "", "")
        if item is not None and "$" not in folder and _OF_JOB.search(folder):
            what = f"'{folder}'. The job fails immediately and writes no output."
            yield item, what, f"#SBATCH --{option}={folder}-{name}"


def _submits_itself(subject: Subject) -> bool:
    """Tell whether the script creates its output directories, and then calls sbatch for itself."""
    own = [c for c in subject.commands if c.name == "sbatch" and re.search(r"\$\{?0", c.text)]
    made = [c for c in subject.commands if c.name == "mkdir"]
    folders = {
        _folder(i.value) for i in subject.directives.items if i.option in ("output", "error")
    }
    return bool(own) and all(
        any(folder in c.text.split() and c.line < own[0].line for c in made) for folder in folders
    )


def _folder(path: str) -> str:
    """Return the leading directories of a path, up to the first one with a pattern."""
    parts = path.split("/")[:-1]
    while parts and any("%" in part for part in parts):
        parts.pop()
    return "/".join(part for part in parts if part != ".") if parts else ""


def find_overwritten_output(subject: Subject) -> Iterator[Hit]:
    yield from find_shared_files(subject)
    mode = subject.directives.last("open-mode")
    appends = mode is not None and mode.value.startswith("a")
    if appends and _runs_one_at_a_time(subject):
        return
    given = subject.directives.last("array")
    array = given is not None and len(read_indices(given.value)) != 1
    for option in ("output", "error"):
        item = subject.directives.last(option)
        if item is None or not item.value or item.value.startswith("/dev/") or "$" in item.value:
            continue
        patterns = set(re.findall(r"%\d*([A-Za-z])", item.value))
        if appends and not patterns & {"j", "J", "A"}:
            yield Hit(
                at=Place(subject.path, item.line),
                what="Jobs that run at the same time append to this file, so their lines are "
                "mixed.",
                fix=f"#SBATCH --{option}={_with_id(item.value, '%A_%a' if array else '%j')}",
                severity=ADVICE,
            )
        elif appends:
            continue
        elif array and not patterns & {"a", "j"}:
            yield Hit(
                at=Place(subject.path, item.line),
                what="All tasks of the job array write to this file.",
                fix=f"#SBATCH --{option}={_with_id(item.value, '%A_%a')}",
            )
        elif not patterns & {"j", "J", "A"}:
            yield Hit(
                at=Place(subject.path, item.line),
                what="The next job overwrites this file, even while this job is still writing it.",
                fix=f"#SBATCH --{option}={_with_id(item.value, '%j')}",
                severity=ADVICE,  # some want one file of a known name
            )


def _runs_one_at_a_time(subject: Subject) -> bool:
    """Tell whether a job starts after the one before it: a singleton, or one that submits it."""
    dependency = subject.directives.last("dependency")
    singleton = dependency is not None and "singleton" in dependency.value
    return singleton or any(command.name == "sbatch" for command in subject.commands)


def _with_id(path: str, pattern: str) -> str:
    """Insert the job ID into a file name, before its extension."""
    if pattern == "%A_%a" and "%A" in path:
        return path.replace("%A", pattern)
    folder, slash, name = path.rpartition("/")
    stem, dot, extension = name.rpartition(".")
    if not stem:
        stem, dot, extension = name, "", ""
    return f"{folder}{slash}{stem}-{pattern}{dot}{extension}"


def find_nothing_saved(subject: Subject) -> Iterator[Hit]:
    limit = subject.directives.last("time")
    if limit is None or subject.directives.last("signal") is not None:
        return
    for python in subject.pythons:
        trains = python.calls("backward") and python.calls("step")
        if trains and "epoch" in python.text and not python.mentions(*_RESUMES):
            yield Hit(
                at=Place(subject.path, limit.line),
                what=f"{python.path} cannot resume from a checkpoint. All progress is lost when "
                "the job reaches its time limit.",
                fix="save the model, optimizer and epoch regularly, and load them at startup",
            )


RULES = (
    Rule(
        code="E501",
        title="output in a missing directory",
        severity=WARNING,
        check=find_missing_folder,
        why="Slurm opens the output file before it runs the script. Since 23.02, it creates the "
        "directory. Before, the job failed, and no file said why. lint asks `sinfo --version` and "
        "reports nothing for newer versions; without Slurm on this machine, the finding is advice.",
        example="""\
 #!/bin/bash
-#SBATCH --output=logs/%j.out    # <- here
-mkdir -p logs
+#SBATCH --output=%x-%j.out
 python train.py
""",
    ),
    Rule(
        code="E502",
        title="output file shared between jobs",
        severity=WARNING,
        check=find_overwritten_output,
        why="Include the job ID in the file name: `%j`, or `%A_%a` for the ID and index of a task "
        "in a job array. The tasks of an array run at the same time, so the files that their "
        "commands write need the index of the task as well.",
        example="""\
 #!/bin/bash
 #SBATCH --array=1-4
-#SBATCH --output=output.txt    # <- here
+#SBATCH --output=output-%A_%a.txt
 python train.py --seed $SLURM_ARRAY_TASK_ID
""",
    ),
    Rule(
        code="E506",
        title="time limit without a checkpoint to resume from",
        severity=ADVICE,
        check=find_nothing_saved,
        why="Slurm kills a job at its time limit. Failures and preemption can end it earlier.",
        example="""\
 #!/bin/bash
 #SBATCH --time=24:00:00    # <- here
 python train.py
 --- train.py
+import os
 import torch
 model = torch.nn.Linear(1, 1)
 optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
+if os.path.exists("last.pt"):
+    model.load_state_dict(torch.load("last.pt"))
 for epoch in range(100):
     model(torch.ones(1, 1)).sum().backward()
     optimizer.step()
+    torch.save(model.state_dict(), "last.tmp")
+    os.replace("last.tmp", "last.pt")
""",
    ),
)
