"""Where ranks find the project's modules: in the run's copy of the code, instead of in the project.

They look in the folder of the script or module, in PYTHONPATH, and in what packages installed in
editable mode (`pip install -e .`) name. Python reads the latter from `.pth` files after PYTHONPATH,
so entries of PYTHONPATH come before them, and replace modules that those files import.
"""

import ast
import os
import re
import site
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from echelon.core.atomic_file import write_atomic
from echelon.run.code import ProjectCopy, find_copy, verify_code
from echelon.run.directory import RunDir
from echelon.run.request import read_code, read_spec

VARIABLE = "PYTHONPATH"
_IMPORT = re.compile(r"import[ \t]+([A-Za-z_]\w*)")


def search_path(
    environ: Mapping[str, str],
    copy: ProjectCopy,
    *,
    module: bool,
    sites: Iterable[Path],
    finders: Path,
) -> str:
    """Return PYTHONPATH for ranks that execute a copy of their project.

    Args:
        environ: their variables.
        copy: the copy.
        module: whether they run a module: Python would search it in the working directory.
        sites: folders with `.pth` files of the ranks' Python.
        finders: folder for modules that find packages in editable mode; created if there are any.
    """
    # An empty entry is the working directory.
    own = environ[VARIABLE].split(os.pathsep) if environ.get(VARIABLE) else []
    found = [copy.find("")] if module else []
    found += [copy.find(entry) for entry in own]
    for folder in sites:
        for line in _pth_lines(folder):
            if match := _IMPORT.match(line):
                _replace_finder(folder / f"{match[1]}.py", copy, finders)
            elif (entry := copy.find(str(folder / line))) != str(folder / line):
                found.append(entry)
    if finders.exists():
        found.insert(0, str(finders))
    return os.pathsep.join(dict.fromkeys(found))


def _pth_lines(folder: Path) -> Iterator[str]:
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".pth"))  # noqa: PTH208
        for name in names:
            text = (folder / name).read_text(encoding="utf-8-sig", errors="replace")
            yield from (line.rstrip() for line in text.splitlines() if line.strip())
    except OSError:
        return  # Python ignores it too


def _replace_finder(module: Path, copy: ProjectCopy, finders: Path) -> None:
    """Copy a module that a `.pth` file imports, with paths into the project replaced."""
    try:
        tree = ast.parse(module.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    changed = False
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(path)) if path.startswith("/"):
                node.value = copy.find(path)
                changed |= node.value != path
    if changed:
        finders.mkdir(mode=0o700, exist_ok=True)
        write_atomic(finders / module.name, ast.unparse(tree))


def own_sites() -> list[Path]:
    """Return the folders with `.pth` files of this Python."""
    folders = site.getsitepackages()
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return [Path(folder) for folder in folders]


def main(arguments: list[str]) -> int:
    """Carry out `code RUN REQUEST`: check the code of a run, and print PYTHONPATH for its ranks.

    For styles without a controller. REQUEST is the digest of the request.
    """
    run = RunDir.open(Path(arguments[0]).absolute())
    request, code = read_spec(run, arguments[1]), read_code(run, arguments[1])
    copy = find_copy(run, code, request.chdir)
    if code is not None and copy is not None:
        verify_code(run, code)
        path = search_path(
            os.environ,
            copy,
            module=request.module,
            sites=own_sites(),
            finders=run.path / "finders",
        )
        sys.stdout.write(f"{path}\n")
    return 0
