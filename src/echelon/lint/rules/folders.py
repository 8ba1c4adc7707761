"""Folders of the repository that a job changes to by a longer path; part of E215."""

import re
from collections.abc import Iterator

from echelon.lint.bash import Command
from echelon.lint.exit_status import begins_with_errexit
from echelon.lint.facts import CONTAINER
from echelon.lint.files import beside
from echelon.lint.patterns import pattern
from echelon.lint.repository import Repository
from echelon.lint.rule import ADVICE, Hit
from echelon.lint.subject import Subject

_OWN_FOLDER = pattern(
    r"(?i)\$\{(?:SLURM_SUBMIT_DIR|(?:THIS_|CURRENT_)?(?:SCRIPT|SRC)_?(?:DIR|PATH)|HERE|REPO(?:_?ROOT|_?DIR)?)\}"
)
"""A variable whose value is a folder of the repository."""
_PLAIN = pattern(r"[\w.+-]+(?:/[\w.+-]+)*")
_OF_RESULTS = pattern(
    r"(?i)data|dataset|log|out|result|run|checkpoint|ckpt|env|build|wandb|model|tmp|temp|scratch|cache"
)
"""Folders that a repository lacks on purpose."""
_MAKES = pattern(
    r"\b(?:mkdir|ln|mv|cp|rsync|tar|unzip)\s|\bgit\s+(?:clone|submodule|worktree)|makedirs|> "
)


def find_lacking_folders(subject: Subject) -> Iterator[Hit]:
    batch = subject.batch
    if batch is None or not subject.is_job or batch.suspect or "errexit" in batch.settings:
        return
    if begins_with_errexit(batch.text) or CONTAINER.search(batch.text):
        return
    entered = [c for c in batch.commands if c.name == "cd" and c.certain and c.unchecked]
    if not entered or (repository := subject.files.repository(subject.path)) is None:
        return
    for command in entered:
        path = _inside(command, repository)
        if not path or "&&" in subject.line_at(command) or _OF_RESULTS.search(path):
            continue
        first, above = path.partition("/")[0], path.rpartition("/")[0]
        if above and repository.lacks(above, folder=True):
            continue  # it may be another folder of the same name
        if repository.lacks(path, folder=True) and not _may_be_made(subject, first):
            nearest = repository.nearest(path, folder=True).rstrip("/")
            yield Hit(
                at=command,
                what=f"This repository has no folder {path}"
                + (f"; the nearest is {nearest}. " if nearest else ". ")
                + "If `cd` fails, the script continues in the wrong directory.",
                fix="cd … || exit 1",
                severity=ADVICE,
            )


def _inside(command: Command, repository: Repository) -> str:
    """Return the path of a folder from the root of the repository, or from a folder in it."""
    if len(command.arguments) != 1:
        return ""
    text = command.arguments[0].text.rstrip("/")
    start, _, rest = text.partition("/")
    if _OWN_FOLDER.fullmatch(start):
        path = re.sub(r"^(?:\.{1,2}/)+", "", rest)
        known = "/" in path or rest != path  # the job may start above the repository
        return path if _PLAIN.fullmatch(path) and known else ""
    parts = text.split("/")
    if not text.startswith(("/", "~", "$")) or repository.name not in parts:
        return ""
    last = len(parts) - parts[::-1].index(repository.name)
    path = "/".join(parts[last:])
    return path if _PLAIN.fullmatch(path) and not repository.has_common_name else ""


def _may_be_made(subject: Subject, name: str) -> bool:
    """Tell whether the script or another file of the repository creates a folder of this name."""
    lines = [line for shell in subject.shells for line in shell.text.split("\n")]
    lines += subject.files.lines_with(beside(subject.path, name))
    word = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-])")
    return any(word.search(line) and _MAKES.search(line) for line in lines)
