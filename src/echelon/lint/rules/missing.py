"""E215: scripts, configuration files and folders that the git repository of the job lacks."""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import PurePosixPath

from echelon.lint.bash import Command
from echelon.lint.exit_status import begins_with_errexit
from echelon.lint.files import beside
from echelon.lint.patterns import pattern
from echelon.lint.python_script import parse_python
from echelon.lint.repository import Repository, likeness
from echelon.lint.rule import ADVICE, WARNING, Hit, Rule
from echelon.lint.rules.arguments import refuses
from echelon.lint.rules.folders import find_lacking_folders
from echelon.lint.rules.misplaced import find_misplaced
from echelon.lint.rules.unusable import find_unusable_paths
from echelon.lint.rules.wanted import LISTS_PACKAGES, Wanted, find_wanted
from echelon.lint.subject import Subject

_FOLDER = pattern(r"(?:\.{1,2}/)*[A-Za-z0-9_][\w.+-]*(?:/[\w.+-]+)*/?")
_SLOT = pattern(r"\b[A-Z]+_TO_[A-Z_]+\b")
_MOUNTS = pattern(r"\b(?:singularity|apptainer)\b")
"""Containers that mount the directory of the job."""
_OTHER_CONTAINER = pattern(
    r"\b(?:docker|podman|shifter|enroot)\b|--container-|--pwd\b|--cwd\b|--workdir\b|--home\b|"
    r"--contain(?:all)?\b|--no-mount\b|\b(?:singularity|apptainer)\b[^\n]{0,300}\s-(?:c|C|H|W)\s"
)
"""Containers with another working directory, or without the files of the job."""
_TEMPLATE = pattern(r"template|your|my_?script|placeholder|path/to|example", re.IGNORECASE)
_COMMON = frozenset(
    {
        *("main", "train", "run", "test", "setup", "config", "eval", "evaluate", "utils", "env"),
        *("job", "submit", "build", "install", "start", "default", "base", "predict", "inference"),
        *("preprocess", "prepare", "download", "finetune", "pretrain", "generate", "sample"),
        *("benchmark", "model", "data", "dataset", "launch", "plot", "convert", "settings"),
    }
)
"""Names that most repositories have."""
_COMMON_FOLDERS = frozenset(
    {"src", "scripts", "tools", "configs", "config", "examples", "requirements", "data"}
)
"""Folders that most repositories have."""
_ALIKE = 0.85
_MOST = 5
"""Maximum number of missing paths to report, because each takes a search of the repository."""
_MAKES = pattern(
    r"\b(?:mkdir|cp|mv|ln|tee|touch|rsync|sed|jq|envsubst|tar|unzip|cat|clone)\b|^\s*install\b"
)
_TARGET = r"(?:>\s{0,9}|-[efrsdoOxwL]\s{1,9}|--o[\w-]{0,20}[ =])"
"""Text before the name of a file that a command may write."""
_WRITES_LISTS = pattern(
    r"\bpip-compile\b|\buv pip compile\b|\bpipreqs\b|"
    r"\b(?:conda|mamba|micromamba|env|uv|poetry|pdm|pipenv|pixi) (?:export|requirements|lock)\b"
)
"""Commands that write lists of packages."""
_WRITES = pattern(r"(?i)open\([^)]*['\"][wax]|dump|write|save|\bto_\w|out|copy|move|rename|link|>")
"""Lines that may create the files that they name."""
_BRINGS_FILES = pattern(
    r"(?:wget|scp|tar|unzip|gh|gdown|hf|huggingface-cli|jupyter|make|cmake|install|pushd)\b"
    r"|curl\b(?!.*\s(?:-X ?POST|--data\S*|-d)\b)"
    r"|tee\s.*\.(?:py|sh|ya?ml|json|toml|cfg)\b"
    r"|git\s+(?:-C\s+\S+\s+)?(?:clone|pull|checkout|submodule|worktree|fetch|switch|archive)\b"
    r"|(?:cp|mv|ln|rsync)\b.*(?:\.py\b|\s\.\S*$|\s[^/\s]+$)"
    r"|cd\s+(?!\S*\$\{?SLURM_SUBMIT_DIR\b)[/~$`-]|cd$"
)
"""Commands after which the directory may have other files than the repository."""
_CLONE = pattern(r"cd\s+(?:[~$]\S*|/[^/\s]+/\S+)$")
_UNPACKS_ELSEWHERE = pattern(
    r"^(?:tar|unzip)\b.*\s(?:-C|-d|--directory)[ =]?"
    r"(?:/|~/|\$\{?(?!SLURM_SUBMIT|PWD|HERE|ROOT|DIR\b)\w)"
)
"""The archive is unpacked in a directory of its own, such as $TMPDIR."""


def find_missing_paths(subject: Subject) -> Iterator[Hit]:
    yield from find_unusable_paths(subject)
    yield from find_lacking_folders(subject)
    wanted = find_wanted(subject)
    folder = _first_folder(subject)
    if not wanted and folder is None:
        return
    repository = subject.files.repository(subject.path)
    if repository is None or not _sees_files(subject):
        return
    if any(_enters_hidden(command, repository) for command in subject.commands):
        return
    left = _leaving(subject, repository)
    if len(left) == 1 and left[0].certain and _CLONE.match(left[0].text):
        # It may be a clone under another name, which has the same folders.
        foreign = _may_be_foreign(left[0], wanted, repository)
        wanted = [
            one
            for one in wanted
            if one.reader
            and _has_folder(one.path, repository)
            and not (foreign and _folder(one.path) in _COMMON_FOLDERS)
        ]
        folder = None
    elif left:
        return
    in_image = any(_MOUNTS.search(shell.text) for shell in subject.shells)
    if in_image:
        # The paths are usually those of the job's directory.
        wanted = [
            replace(one, certain=False) for one in wanted if _has_folder(one.path, repository)
        ]
        folder = None
    yield from _misspelt_clone(subject, repository)
    if folder is not None:
        yield from _missing_folder(subject, repository, *folder)
    for hit in _all_missing(subject, repository, wanted):
        image = " The image of the container may have it." if in_image else ""
        yield replace(hit, what=hit.what + image)
    yield from find_misplaced(subject, repository, wanted)


def _all_missing(subject: Subject, repository: Repository, wanted: list[Wanted]) -> Iterator[Hit]:
    missing = (one for one in wanted if not one.found and _is_missing(one.path, repository))
    for one in islice(missing, _MOST):
        if not _may_be_made(subject, one):
            other_name = _other_name(subject, repository)
            made_from = _notebook(subject, repository, one.path)
            hit = _missing(one, repository, other_name=other_name, made_from=made_from)
            yield _with_other_arguments(subject, one, repository, hit)


# --- whether it does ------------------------------------------------------------------------


def _is_missing(path: str, repository: Repository) -> bool:
    """Tell whether a path is missing, and not part of another repository or of its results."""
    *folders, name = (part for part in path.split("/") if part not in (".", ".."))
    if _TEMPLATE.search(path) or not repository.lacks(path):
        return False
    names = repository.names
    if all(f"{folder}/" in names for folder in folders):
        return True
    nearest = repository.nearest(path)
    near = nearest.split("/")[-2:] == path.split("/")[-2:] or likeness(nearest, path) > _ALIKE
    common = PurePosixPath(name).stem.lower() in _COMMON
    return name in names and (near or not common)


def _has_folder(path: str, repository: Repository) -> bool:
    """Tell whether a repository has the folder of a path."""
    folder = _folder(path)
    return bool(folder) and not repository.lacks(folder, folder=True)


def _folder(path: str) -> str:
    return path.removeprefix("./").rpartition("/")[0]


def _may_be_foreign(command: Command, wanted: list[Wanted], repository: Repository) -> bool:
    """Tell whether the directory that a job changes to may be that of another project."""
    name = command.arguments[0].text.rstrip("/").rpartition("/")[2]
    if name.startswith("$") or repository.resembles(name):
        return False
    return all(repository.lacks(one.path) for one in wanted if "/" in one.path)


def _may_be_made(subject: Subject, one: Wanted) -> bool:
    """Tell whether the script, or another one in the repository, may create a file first."""
    name = one.path.rpartition("/")[2]
    code = "\n".join(shell.text for shell in subject.shells)
    if one.reader in LISTS_PACKAGES:
        if _WRITES_LISTS.search(code):
            return True
        code = re.sub(rf"\s-[rf]\s{{1,9}}{re.escape(one.path)}", "", code)
    if re.search(rf"{_TARGET}[^\s>]{{0,200}}{re.escape(name)}", code):
        return True
    own = set(code.split("\n"))
    if any(name in part and _MAKES.search(part) for part in re.split(r"[\n;&|]", code)):
        return True
    lines = subject.files.lines_with(beside(subject.path, name))
    return any(line not in own and _WRITES.search(line) for line in lines)


def _missing(one: Wanted, repository: Repository, *, other_name: str, made_from: str) -> Hit:
    path = re.sub(r"^(?:\.{1,2}/)+", "", one.path)
    nearest = repository.nearest(path)
    what = (
        f"No path in this repository ends with {path}."
        if "/" in path
        else f"No file in this repository is named {path}."
    )
    if other_name:
        reader = one.reader or "The job"
        what += f" {reader} fails if {other_name} is a clone of it, or a folder in one."
    elif one.reader and "/" not in path and not one.rooted:
        what += f" {one.reader} fails unless the job starts in another directory."
    if made_from:
        what += f" It may be made from {made_from}."
    certain = one.reader and one.certain and not other_name and not made_from
    return Hit(
        at=one.at,
        what=what,
        fix=_advise(path, nearest, made_from),
        severity=None if certain else ADVICE,
    )


def _with_other_arguments(subject: Subject, one: Wanted, repository: Repository, hit: Hit) -> Hit:
    """Add to a finding if the script that is probably meant does not accept the arguments."""
    nearest, root = repository.nearest(one.path), subject.files.root(subject.path)
    text = subject.files.read(f"{root.path}/{nearest}") if nearest and root else None
    python = parse_python(text, path=nearest, files=subject.files) if text else None
    launches = (started.launch for started in subject.started)
    run = [each for each in launches if each.program and each.program.text == one.path]
    if python is None or not any(refuses(python, launch) for launch in run):
        return hit
    return replace(hit, fix=f"{hit.fix} It does not accept these arguments.")


def _notebook(subject: Subject, repository: Repository, path: str) -> str:
    """Return the notebook from which a script may be made; empty if there is none."""
    name = f"{PurePosixPath(path).stem}.ipynb"
    named = any(name in shell.text for shell in subject.shells)
    return name if path.endswith(".py") and (named or name in repository.names) else ""


def _advise(path: str, nearest: str, notebook: str) -> str:
    if nearest:
        return f"is {nearest} meant?"
    if notebook:
        return f"jupyter nbconvert --to script {notebook}  # in its directory, before the job"
    if slot := _SLOT.search(path):
        return f"replace {slot[0]} with your own value"
    return "correct the name, or change to the directory of the file before"


def _first_folder(subject: Subject) -> tuple[Command, str] | None:
    """Return the first `cd` and its folder, if the script goes on when it fails."""
    batch = subject.batch
    command = next((c for c in batch.commands if c.name == "cd"), None) if batch else None
    if batch is None or command is None or len(command.arguments) != 1:
        return None
    word, line = command.arguments[0], subject.line_at(command)
    stops = "errexit" in batch.settings or begins_with_errexit(batch.text)
    literal = word.known and not word.uses and _FOLDER.fullmatch(word.text)
    if stops or not literal or not command.certain or not command.unchecked or "&&" in line:
        return None
    here = (subject.files.is_folder(beside(base, word.text)) for base in (subject.path, ""))
    return None if any(here) else (command, word.text)


def _missing_folder(
    subject: Subject, repository: Repository, command: Command, path: str
) -> Iterator[Hit]:
    if not repository.lacks(path, folder=True) or _TEMPLATE.search(path):
        return
    nearest = repository.nearest(path, folder=True)
    first = re.sub(r"^(?:\.{1,2}/)+", "", path).partition("/")[0]
    below = first != path.strip("./") and f"{first}/" in repository.names
    made = any(c.name in ("mkdir", "ln", "cp", "mv") for c in subject.commands)
    # A single unknown name may be that of the directory of the repository.
    if (nearest or below) and not made:
        yield Hit(
            at=command,
            what=f"No folder in this repository ends with {path}. The script continues in the "
            "wrong directory."
            + (f" The nearest is {nearest}" if nearest else "").rstrip("/")
            + ("." if nearest else ""),
            fix=f"cd {nearest.rstrip('/') or '…'} || exit 1",
        )


def _misspelt_clone(subject: Subject, repository: Repository) -> Iterator[Hit]:
    """Find the first `cd` to a directory whose name is almost that of the repository.

    Or to one that another file names like the repository.
    """
    entered = (c for c in subject.commands if c.name == "cd" and len(c.arguments) == 1)
    for command in islice(entered, 1):
        path = re.sub(r"[{}]", "", command.arguments[0].text)
        name = path.rstrip("/").rpartition("/")[2]
        made = any(name in c.text for c in subject.commands if c.line < command.line)
        if path.startswith(("/", "~", "$")) and repository.is_misspelt(name) and not made:
            yield Hit(
                at=command,
                what=f"The repository is named {repository.name}, not {name}. If this is its "
                "directory, `cd` fails, and the job runs elsewhere.",
                fix=f"cd {path.rstrip('/').removesuffix(name)}{repository.name}",
                severity=ADVICE,
            )
            return
        inside = repository.inside(path) if path.startswith(("/", "~", "$")) else []
        if len(inside) != 1 or f"/{repository.name}" in path:
            continue
        above = path.rstrip("/").removesuffix(inside[0]).rstrip("/").rpartition("/")[0]
        right = f"{above}/{repository.name}"
        lines = subject.files.lines_with(beside(subject.path, repository.name))
        if any(right in re.sub(r"[{}]", "", line) for line in lines):
            yield Hit(
                at=command,
                what=f"Another file of this repository names its directory {right}. `cd` fails "
                "unless both exist.",
                fix=f"cd {right}",
                severity=ADVICE,
            )


def _sees_files(subject: Subject) -> bool:
    """Tell whether the job sees the files of its repository."""
    if not subject.is_job or subject.directives.last("chdir") is not None:
        return False
    if _TEMPLATE.search(subject.path) or any(shell.suspect for shell in subject.shells):
        return False
    return not any(_OTHER_CONTAINER.search(shell.text) for shell in subject.shells)


def _leaving(subject: Subject, repository: Repository) -> list[Command]:
    """Return the commands after which the job may see other files than those of the repository."""
    return [
        c
        for c in subject.commands
        if (_BRINGS_FILES.match(c.text.rpartition("/bin/")[2]) or _goes_beside(c, repository))
        and not _enters(c, repository)
        and not _UNPACKS_ELSEWHERE.search(c.text)
    ]


def _goes_beside(command: Command, repository: Repository) -> bool:
    """Tell whether a command changes to the directory of another project, as in `cd ../other`."""
    path = command.arguments[0].text if command.name == "cd" and command.arguments else ""
    folder = re.sub(r"^(?:\.{1,2}/)+", "", path)
    if not path.startswith("../") or not folder.strip("./"):
        return False
    first = folder.partition("/")[0]
    known = f"{first}/" in repository.names
    return not known and not repository.nearest(first, folder=True)


def _enters(command: Command, repository: Repository) -> bool:
    """Tell whether a command changes to the repository by its name, as in `cd ~/project`."""
    if command.name != "cd" or not command.arguments:
        return False
    parts = command.arguments[0].text.rstrip("/").split("/")
    named = [n for n, p in enumerate(parts) if p == repository.name or repository.is_other_name(p)]
    inside = parts[named[-1] + 1 :] if named else []
    # A folder that the repository does not have may be another repository.
    return bool(named) and (not inside or not repository.lacks("/".join(inside), folder=True))


def _enters_hidden(command: Command, repository: Repository) -> bool:
    """Tell whether a command changes to a folder whose files are not known, such as a submodule."""
    path = command.arguments[0].text if command.name == "cd" and command.arguments else ""
    full = path.startswith(("/", "~", "$"))
    return any(map(repository.may_hide, repository.inside(path) if full else [path]))


def _other_name(subject: Subject, repository: Repository) -> str:
    """Return the directory that a job changes to, if only a part of its name is the same."""
    entered = (c for c in subject.commands if c.name == "cd" and _BRINGS_FILES.match(c.text))
    others = (c for c in entered if repository.name not in c.text.split("/"))
    return next((c.arguments[0].text for c in others if c.arguments), "")


RULES = (
    Rule(
        code="E215",
        title="path that does not exist, or script that is not executable",
        severity=WARNING,
        check=find_missing_paths,
        why="Python and bash exit at once if the script does not exist. Lint reports a path only "
        "if no path in the git repository of the job script ends with it, and if no command may "
        "create it or change the directory. A configuration file, an argument, a script that is "
        "only in another folder, or one with a notebook of its name is advice. A full path through "
        "the directory of the repository has to be exact; outside home directories it is advice.",
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
