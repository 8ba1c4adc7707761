"""E211 and E215: paths that do not exist, in the copy that Slurm runs or in the repository."""

import re
from collections.abc import Iterator

from echelon.lint.bash import Command, Shell
from echelon.lint.files import Place, beside
from echelon.lint.patterns import pattern
from echelon.lint.rule import WARNING, Hit, Rule
from echelon.lint.subject import Subject

_OWN_PATH = pattern(r"\$\{?(0\b|BASH_SOURCE)")
_READS_ITSELF = pattern(r"\b(?:cat|cp|head|tail|md5sum|sha256sum)\s+\"?\$\((?:readlink|realpath)\b")
_HANDLED = pattern(r"scontrol\s+show\s+job|SLURM_SUBMIT_DIR|\[\s*(-[nz]\s+)?\"?\$\{SLURM_JOB_ID:")
"""Scripts that look for their directory in another way."""
_SUBMITS = pattern(r"\bsbatch\b")
_PLAIN = pattern(r"(?:\./)?[A-Za-z0-9_][\w./+-]*\.py")
_SHELL_SCRIPT = pattern(r"(?:\./)?[A-Za-z0-9_][\w./+-]*\.(?:sh|bash)")
_CONTAINER = pattern(r"\b(?:singularity|apptainer|docker|podman|shifter|enroot)\b|--container-")
_TEMPLATE = pattern(r"template|your|my_?script", re.IGNORECASE)
_DEFAULT = pattern(r"\$\{(\w+):?-\"?\$\(")
_NEAR = 3
"""Lines between sbatch and `exit` in the same branch."""
_BRINGS_FILES = pattern(
    r"(?:wget|curl|scp|tar|unzip|gh|gdown|hf|huggingface-cli|jupyter|make|cmake|install|tee|pushd)\b"
    r"|git\s+(?:-C\s+\S+\s+)?(?:clone|pull|checkout|submodule|worktree|fetch|switch|archive)\b"
    r"|(?:cp|mv|ln|rsync)\b.*(?:\.py\b|\s\.\S*$|\s[^/\s]+$)"
    r"|cd\s+(?!\S*\$\{?SLURM_SUBMIT_DIR\b)[/~$`-]|cd$"
)
"""Commands after which the directory may have other files than the repository."""


def find_own_directory(subject: Subject) -> Iterator[Hit]:
    batch = subject.batch
    if batch is None or not subject.is_job:
        return
    code = "\n".join(line for line in batch.text.split("\n") if not line.lstrip().startswith("#"))
    if _HANDLED.search(code):
        return
    submitting = [c.line for c in batch.commands if _SUBMITS.search(c.text)]
    if _SUBMITS.search(code) and not _submits_itself(batch):
        return
    for command in batch.commands:
        if command.name not in ("dirname", "realpath", "readlink") or not command.substituted:
            continue
        if _READS_ITSELF.search(subject.line_at(command)):
            continue  # the copy has the same text
        default = _DEFAULT.search(subject.line_at(command))
        if default and re.search(rf"^\s*#.*\b{default[1]}=", batch.text, re.MULTILINE):
            continue  # a comment tells to set the variable
        if submitting and (command.line < max(submitting) or not _runs_always(batch, command)):
            continue  # before the job, in a script that submits itself
        if any(_OWN_PATH.search(word.text) for word in command.arguments):
            yield Hit(
                at=command,
                what="This is not the directory of the script. Slurm runs a copy of the script, "
                "usually in /var/spool/slurmd.",
                fix="$SLURM_SUBMIT_DIR  # the directory where sbatch was called, or a full path",
            )
            return


def _submits_itself(batch: Shell) -> bool:
    """Tell whether a script calls sbatch for itself in a branch that ends it."""
    own = [c for c in batch.commands if _SUBMITS.search(c.text)]
    ends = [c.line for c in batch.commands if c.name in ("exit", "exec")]
    return bool(own) and all(
        _OWN_PATH.search(c.text)
        and not c.certain
        and any(c.line <= end <= c.line + _NEAR for end in ends)
        for c in own
    )


def _runs_always(batch: Shell, inner: Command) -> bool:
    """Tell whether the line of a $(…) is outside branches."""
    assigned = any(a.line == inner.line and a.certain for a in batch.assignments)
    return assigned or any(c.line == inner.line and c.certain for c in batch.commands)


def find_missing_scripts(subject: Subject) -> Iterator[Hit]:
    yield from _not_executable(subject)
    yield from _missing_shell_scripts(subject)
    wanted: dict[str, list[Place]] = {}
    for launch in (one.launch for one in subject.started if one.python is None):
        word = launch.program
        if word and word.known and not launch.module and not launch.elsewhere:
            wanted.setdefault(word.text, []).append(launch.place_of(word, subject.path))
    wanted = {path: at for path, at in wanted.items() if _PLAIN.fullmatch(path)}
    if not wanted or not _stays_in_repository(subject):
        return
    names = subject.files.names(subject.path)
    if names is None:
        return
    code = "\n".join(shell.text for shell in subject.shells)
    for path, places in wanted.items():
        *folders, name = path.removeprefix("./").split("/")
        if name in names or not {f"{folder}/" for folder in folders} <= names:
            continue  # without its folder, it is probably in another repository
        written = rf"(?:>\s{{0,9}}|-[efrs]\s{{1,9}})[^\s>]{{0,200}}{re.escape(name)}"
        if _TEMPLATE.search(name) or re.search(written, code):
            continue
        for place in places:
            yield Hit(
                at=place,
                what=f"No file in this repository is named {name}. Python fails unless the job "
                "starts in another directory.",
                fix="correct the name, or change to the directory of the file before",
            )


def _missing_shell_scripts(subject: Subject) -> Iterator[Hit]:
    """Find scripts that bash is to run, and that are not in the repository."""
    batch = subject.batch
    told = set[str]()
    for command in batch.commands if batch else ():
        run = command.arguments[:1] if command.name in ("bash", "sh") else command.words[:1]
        path = run[0].text if run and run[0].known and not run[0].uses else ""
        name = path.rpartition("/")[2]
        by_path = "/" in path or command.name in ("bash", "sh")
        if not _SHELL_SCRIPT.fullmatch(path) or path in told or not by_path:
            continue
        told.add(path)
        names = subject.files.names(subject.path) if _stays_in_repository(subject) else None
        folders = path.removeprefix("./").split("/")[:-1]
        if names is None or name in names or not {f"{folder}/" for folder in folders} <= names:
            continue
        if not _TEMPLATE.search(name) and len(re.findall(re.escape(name), subject.text)) == 1:
            yield Hit(
                at=command,
                what=f"No file in this repository is named {name}. Bash fails unless the job "
                "starts in another directory.",
                fix="correct the name, or change to the directory of the file before",
            )


def _not_executable(subject: Subject) -> Iterator[Hit]:
    """Find files that the script runs by their path, and that are not executable."""
    batch = subject.batch
    if batch is None or not subject.is_job or "chmod" in batch.text:
        return
    for command in batch.commands:
        path = command.words[0].text if command.words else ""
        if not re.fullmatch(r"(?:\./)?[\w.-]+(?:/[\w.-]+)+", path) or not command.words[0].known:
            continue
        places = {beside(base, path) for base in (subject.path, "")}
        found = [place for place in places if subject.files.read(place) is not None]
        if found and not any(map(subject.files.is_executable, found)):
            yield Hit(
                at=command,
                what=f"{path} is not executable: 'Permission denied'.",
                fix=f"chmod +x {path}  # or call it with its interpreter",
            )
            return


def _stays_in_repository(subject: Subject) -> bool:
    """Tell whether the job sees the files of the repository and no others."""
    if not subject.is_job or subject.directives.last("chdir") is not None:
        return False
    if _TEMPLATE.search(subject.path) or any(shell.suspect for shell in subject.shells):
        return False
    if any(_CONTAINER.search(shell.text) for shell in subject.shells):
        return False
    return not any(_BRINGS_FILES.match(c.text.rpartition("/bin/")[2]) for c in subject.commands)


RULES = (
    Rule(
        code="E211",
        title="directory of the script taken from `$0`",
        severity=WARNING,
        check=find_own_directory,
        why="sbatch copies the script, and slurmd runs the copy on the first node. `$0` and "
        "`BASH_SOURCE` are the path of the copy, and the files beside the original are not there.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=1
-cd "$(dirname "$0")"    # <- here
+cd "$SLURM_SUBMIT_DIR"
 python train.py
""",
    ),
    Rule(
        code="E215",
        title="script that does not exist or is not executable",
        severity=WARNING,
        check=find_missing_scripts,
        why="Python and bash exit at once if the script does not exist. Lint reports a script only "
        "if no file of that name is in the git repository of the job script, and if no command "
        "may create it or change the directory.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=1
-python trian.py    # <- here
+python train.py
 --- train.py
 print("training")
""",
    ),
)
