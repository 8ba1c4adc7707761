"""E628: files beside a Python script that hide modules of the standard library."""

import ast
from collections.abc import Iterator

from echelon.lint.files import beside
from echelon.lint.imported import start_of
from echelon.lint.patterns import pattern
from echelon.lint.python_script import PythonScript
from echelon.lint.rule import WARNING, Hit, Rule
from echelon.lint.subject import Subject

_OF_NUMPY = frozenset(
    {
        *("ast", "collections", "contextlib", "copyreg", "ctypes", "datetime", "dis", "enum"),
        *("functools", "inspect", "keyword", "linecache", "numbers", "opcode", "operator"),
        *("pickle", "platform", "re", "reprlib", "struct", "textwrap", "token", "tokenize"),
        *("types", "typing", "warnings", "weakref"),
    }
)
"""Modules in Python that `import numpy` loads, without those that Python itself starts with."""
_OF_TORCH = _OF_NUMPY | {
    *("argparse", "asyncio", "base64", "bisect", "bz2", "calendar", "concurrent", "copy", "csv"),
    *("dataclasses", "difflib", "email", "fnmatch", "gettext", "glob", "gzip", "hashlib"),
    *("heapq", "http", "ipaddress", "json", "locale", "logging", "lzma", "multiprocessing"),
    *("pathlib", "pickletools", "pkgutil", "pprint", "queue", "quopri", "random", "selectors"),
    *("shutil", "signal", "socket", "ssl", "string", "subprocess", "tarfile", "tempfile"),
    *("threading", "timeit", "traceback", "unittest", "urllib", "uuid", "zipfile"),
}
_FRAMEWORKS = {
    "torch": _OF_TORCH,
    **dict.fromkeys(("torchvision", "lightning", "pytorch_lightning", "timm"), _OF_TORCH),
    **dict.fromkeys(("transformers", "accelerate", "deepspeed", "torchaudio"), _OF_TORCH),
    **dict.fromkeys(("numpy", "pandas", "scipy", "sklearn", "matplotlib"), _OF_NUMPY),
}
_SAFE = pattern(r"PYTHONSAFEPATH|\bpython[0-9.]*\s+(?:-\w+\s+){0,9}-\w{0,9}[PI]\b")
_REMOVES = pattern(r"sys\.path\.(?:pop|remove)|del\s+sys\.path")
"""Shells and scripts that do not search the directory of the script."""


def find_hidden_modules(subject: Subject) -> Iterator[Hit]:
    if any(_SAFE.search(shell.text) for shell in subject.shells):
        return
    told = set[str]()
    for python in subject.pythons:
        found = [one for one in _imports(python) if one[1] in _FRAMEWORKS]
        if not found or _REMOVES.search(python.text):
            continue
        at, framework = max(found, key=lambda one: len(_FRAMEWORKS[one[1]]))
        for module in sorted(_FRAMEWORKS[framework]):
            place = beside(start_of(subject, python), f"{module}.py")
            if place in told or subject.files.read(place) is None:
                continue
            told.add(place)
            yield Hit(
                at=python.at(at),
                what=f"{place} hides Python's module of that name, so {framework} imports the "
                "file instead and fails.",
                fix=f"rename {place}",
            )


def _imports(python: PythonScript) -> Iterator[tuple[ast.stmt, str]]:
    """Yield the first names of the modules that a script imports at its top level."""
    for node in python.tree.body:
        if isinstance(node, ast.Import):
            yield from ((node, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node, (node.module or "").partition(".")[0]


RULES = (
    Rule(
        code="E628",
        title="module of Python hidden by a file",
        severity=WARNING,
        check=find_hidden_modules,
        why="Python searches the directory of the script first, or with `-m` the current "
        "directory. A file there that is named like a module of the standard library replaces it "
        "for all packages.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=1
 python train.py
 --- train.py
-import torch    # <- here
+import torch
 torch.ones(1)
---- random.py
+--- sampling.py
 seed = 1
""",
    ),
)
