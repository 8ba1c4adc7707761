"""Whether the text of a job script is what sbatch gets, or another program completes it first.

Errors are certain only in a finished script. The path, the text and the lines of the repository
that name the file tell that it is a template, a part of a script, or the data of a test.
"""

from functools import lru_cache
from pathlib import PurePosixPath

from echelon.lint.files import Files
from echelon.lint.patterns import pattern

_NAMED = pattern(
    r"(?i)template|skeleton|boilerplate|\.(?:tmpl|tpl|j2|jinja2?|in|mustache|erb|dist|orig)$"
)
_FOLDER = pattern(
    r"(?i)templates?|fixtures?|test_?data|expected\w*|golden|snapshots?|references?|cookiecutter.*"
)
_FILLED_IN = pattern(
    r"(?m)^\s{0,9}```\s{0,9}\w{0,9}$|\{%-?\s*[a-z]\w*|\{\{[^.{}\n][^{}\n]*\}\}|<%[=-]?\s|(?<![\w@])@[A-Z][A-Z_]+@|\{\{\{"
)
"""Parts of a text that another program replaces."""
_LEFT_OPEN = pattern(
    r"(?m)^#SBATCH[ \t]+"
    r"(?:-[ncN]|--(?:nodes|ntasks|ntasks-per-node|cpus-per-task|cpus-per-gpu|time|mem))"
    r"[ =][A-Z]+_[A-Z_]+[ \t]*$"
)
"""A name in the place of a number."""
_TOLD = pattern(
    r"(?im)^[ \t]*#.*\b(?:template|fill[- ]?in|fill (?:this|these|out)|placeholders?|"
    r"remove (?:this|these|the above)|delete (?:this|these)|"
    r"(?:replace|change|edit|adapt|adjust|modify|complete)\b[^.\n]{0,60}\bbefore|"
    r"copy (?:this|and paste)|"
    r"expected output|do not (?:submit|run))"
)
"""Comments that tell to complete the script first."""
_COMPLETES = pattern(
    r"(?i)\b(?:sed|envsubst|awk|perl|m4|cat|cp|head|tail|srun|mpirun|mpiexec|ssh|pdsh)\s|\bopen\(|"
    r"read_text|readlines|template|\.(?:replace|format|render|substitute|sub)\(|"
    r"(?:^|[;&|])\s*(?:source|\.)\s"
)
"""Lines that read a file in order to write another one, or run it in another way."""


def is_template(path: str, text: str) -> bool:
    """Tell whether a path or a text is that of a template or of the data of a test."""
    *folders, name = PurePosixPath(path).parts or ("",)
    return bool(
        _NAMED.search(name) or any(map(_FOLDER.fullmatch, folders)) or _FILLED_IN.search(text)
    )


@lru_cache(maxsize=32)
def is_filled_in(path: str, text: str, files: Files) -> bool:
    """Tell whether another program completes a script, or runs it otherwise."""
    return is_template(path, text) or any(map(_COMPLETES.search, files.lines_with(path)))


def is_unfinished(path: str, text: str, files: Files) -> bool:
    """Tell whether another program or a person completes a script before it is a job."""
    asks = _TOLD.search(text) or _LEFT_OPEN.search(text)
    return bool(asks) or is_filled_in(path, text, files)
