"""E215: scripts that are only in other folders than those where a job usually starts."""

from collections.abc import Iterator, Sequence

from echelon.lint.patterns import pattern
from echelon.lint.repository import Repository
from echelon.lint.rule import ADVICE, Hit
from echelon.lint.rules.wanted import Wanted
from echelon.lint.subject import Subject

_MOVES = frozenset({"cd", "pushd", "popd", "chdir"})
_STAYS = pattern(r"cd\s+\S*\$\{?SLURM_SUBMIT_DIR\}?\S?$")
_STARTS_THERE = pattern(r"\bcd\s|\bcwd\b|chdir|\.\./|--workdir")
"""Lines about the job script after which it starts in another folder."""
_MOST = 2
"""Maximum number of folders: people who have more of them submit from each."""


def find_misplaced(
    subject: Subject, repository: Repository, wanted: Sequence[Wanted]
) -> Iterator[Hit]:
    """Find scripts in folders that are neither above nor beside the job script."""
    root = subject.files.root(subject.path)
    moves = [c for c in subject.commands if c.name in _MOVES and not _STAYS.match(c.text)]
    if root is None or moves or not wanted:
        return
    usual = {"", *_with_those_above(root.below)}
    for one in wanted:
        folders = repository.folders_with(one.path) if one.reader else []
        if not folders or usual & set(folders) or len(folders) > _MOST or ".." in one.path:
            continue
        if any(map(_STARTS_THERE.search, subject.files.lines_with(subject.path))):
            return
        yield Hit(
            at=one.at,
            what=f"{one.path} is only in {' and in '.join(folders)}. {one.reader} fails unless "
            "sbatch is called there.",
            fix=f"cd {folders[0]} || exit 1",
            severity=ADVICE,
        )


def _with_those_above(folder: str) -> Iterator[str]:
    """Yield a folder and the folders above it."""
    while folder:
        yield folder
        folder = folder.rpartition("/")[0]
