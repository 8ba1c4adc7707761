"""The files to install on a login host: Echelon's, and its pure-Python dependencies'."""

import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from echelon import _version

_NEEDED = ("typer", "rich", "cloudpickle", "nvidia-ml-py")
_OPTIONAL = ("starlette", "uvicorn", "plotly")
"""For `echelon dash`, if they are installed here."""
_PARTS = {
    "plotly": re.compile(
        r"plotly/package_data/plotly\.min\.js|[^/]+\.dist-info/(?:METADATA|RECORD)"
    )
}
"""The needed files of large packages."""
_UNUSED = ("pygments", "markdown-it-py")
"""Dependencies of rich that are only for source code and Markdown."""
_COMPILED = (".so", ".pyd", ".dylib")


def find_distributions() -> Iterator[Distribution]:
    """Yield Echelon's direct and indirect dependencies, as installed here."""
    left, known = [*_NEEDED, *_OPTIONAL], set[str]()
    while left:
        name = left.pop(0)
        if name in known or name in _UNUSED:
            continue
        known.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            if name in _NEEDED:
                raise
            continue
        yield found
        if name not in _PARTS:
            left += required_names(found.requires or [])


def required_names(requirements: list[str]) -> list[str]:
    """Return the names of requirements that apply without an extra. Pure."""
    plain = (one for one in requirements if "extra ==" not in one)
    return [re.split(r"[^A-Za-z0-9._-]", one, maxsplit=1)[0].lower() for one in plain]


@cache
def find_files() -> dict[str, Path]:
    """Return the files to install, by their names there."""
    source = Path(_version.__file__).parent
    own = [path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    found = {f"echelon/{path.relative_to(source).as_posix()}": path for path in own}
    for one in find_distributions():
        names = [str(file).replace("\\", "/") for file in one.files or ()]
        if any(name.endswith(_COMPILED) for name in names):
            continue  # compiled for this machine; Echelon works without it there
        part = _PARTS.get(one.name.lower())
        for name in names:
            wanted = part.fullmatch(name) if part else not name.startswith((".", "/"))
            if wanted and "__pycache__" not in name:
                found[name] = Path(str(one.locate_file(name)))
    return {name: path for name, path in found.items() if path.is_file()}
