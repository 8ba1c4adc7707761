"""E215: scripts that are only in other folders than those where a job usually starts."""

from collections.abc import Iterator, Sequence

from echelon.lint.bash import Command
from echelon.lint.patterns import pattern
from echelon.lint.repository import Repository
from echelon.lint.rule import ADVICE, Hit
from echelon.lint.rules.wanted import Wanted
from echelon.lint.subject import Subject

_MOVES = frozenset({"cd", "pushd", "popd", "chdir"})
_STAYS = pattern(r"cd\s+\S*\$\{?SLURM_SUBMIT_DIR\}?\S?$")
_STARTS_THERE = pattern(r"\bcd\s|\bcwd\b|chdir|\.\./|--workdir")
"""Lines about the job script after which it starts in another folder."""
_TOP = "the top directory of the repository"
_MOST = 2
"""Maximum number of folders: people who have more of them submit from each."""


def find_misplaced(
    subject: Subject, repository: Repository, wanted: Sequence[Wanted]
) -> Iterator[Hit]:
    """Find scripts in folders that are neither above nor beside the job script."""
    root = subject.files.root(subject.path)
    moves = [c for c in subject.commands if c.name in _MOVES and not _STAYS.match(c.text)]
    if root is None or not wanted:
        return
    usual = {"", *_with_those_above(root.below)}
    for one in wanted:
        folders = repository.folders_with(one.path) if one.reader else []
        if not folders or len(folders) > _MOST or ".." in one.path:
            continue
        only = f"{one.path} is only in {' and in '.join(folder or _TOP for folder in folders)}"
        entered = {""} if one.rooted else _entered(repository, moves, one)
        # A folder that the repository lacks may be the repository itself, under another name.
        known = not any(folder and repository.lacks(folder, folder=True) for folder in entered)
        if entered and known and not entered & set(folders):
            here = min(entered) or _TOP
            yield Hit(
                at=one.at,
                what=f"{only}, not in {here}. {one.reader} does not find it.",
                fix=f"{folders[0] or '.'}/{one.path}",
                severity=None if one.rooted and one.certain else ADVICE,
            )
        if one.found or entered or moves or usual & set(folders):
            continue
        if any(map(_STARTS_THERE.search, subject.files.lines_with(subject.path))):
            return
        yield Hit(
            at=one.at,
            what=f"{only}. {one.reader} fails unless sbatch is called there.",
            fix=f"cd {folders[0]} || exit 1",
            severity=ADVICE,
        )


def _entered(repository: Repository, moves: Sequence[Command], one: Wanted) -> set[str]:
    """Return the folders of the repository that the job may be in when it reaches a command.

    Empty if they are not known. There are several if the name of the repository occurs twice.
    """
    if len(moves) != 1 or moves[0].name != "cd" or not moves[0].certain:
        return set()
    path = moves[0].arguments[0].text if len(moves[0].arguments) == 1 else ""
    if moves[0].path != one.at.path or moves[0].line > one.at.line:
        return set()
    return set(repository.inside(path))


def _with_those_above(folder: str) -> Iterator[str]:
    """Yield a folder and the folders above it."""
    while folder:
        yield folder
        folder = folder.rpartition("/")[0]
