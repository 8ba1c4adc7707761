"""The training library as ranks will find it, imported once for all ranks of a node.

The zygote's own modules have the same names, but are another copy. A rank searches for the library
on its own path, and gets these modules if it finds the same, unchanged files.
"""

import contextlib
import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from echelon.core.frozen import frozen
from echelon.launch.program_text import PACKAGE
from echelon.launch.zygote.rank import hide_launcher, lead_path


@frozen
class Library:
    """An imported copy of the package."""

    modules: Mapping[str, ModuleType]
    files: Mapping[str, tuple[int, int]]
    """Their files, each with size and modification time."""

    def is_at(self, spec: ModuleSpec | None) -> bool:
        """Tell whether a search found this copy, and its files are unchanged."""
        here = self.modules[PACKAGE].__file__
        try:
            return spec is not None and spec.origin == here and self.files == _stamp(self.files)
        except OSError:
            return False

    def offer(self) -> None:
        """Use these modules for the first import of the package, if it would find the same."""
        sys.meta_path.insert(0, _Finder(self))


class _Finder(MetaPathFinder):
    def __init__(self, library: Library) -> None:
        self._library = library

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != PACKAGE:
            return None
        others = [one for one in sys.meta_path if one is not self and hasattr(one, "find_spec")]
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next(filter(None, found), None)
        if not self._library.is_at(spec):
            return spec
        return ModuleSpec(name, _Loader(self._library, self), is_package=True)


class _Loader(Loader):
    def __init__(self, library: Library, finder: _Finder) -> None:
        self._library, self._finder = library, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:  # noqa: ARG002
        return None

    def exec_module(self, module: ModuleType) -> None:  # noqa: ARG002
        # The import returns what is in sys.modules afterwards: modules with their real loaders.
        sys.modules.update(self._library.modules)
        # A program that removes the modules and imports them again gets a new copy.
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self._finder)


def import_library(words: Iterable[str], folder: str) -> Library | None:
    """Import what the ranks' library exports under these names; None if there is no library.

    Args:
        words: names that a program uses.
        folder: the first entry of its `sys.path`.
    """
    with _another_copy(), _leading(folder):
        try:
            package = importlib.import_module(PACKAGE)
            for name in sorted(set(words) & set(package.__all__)):
                getattr(package, name)  # imports it lazily
            modules = {name: sys.modules[name] for name in own_modules()}
            files = _stamp(str(module.__file__) for module in modules.values())
        except Exception:  # noqa: BLE001  the ranks will report it
            return None
    return Library(modules=modules, files=files)


def own_modules() -> tuple[str, ...]:
    """Return the names of the package's loaded modules."""
    return tuple(name for name in sys.modules if name.partition(".")[0] == PACKAGE)


@contextlib.contextmanager
def _another_copy() -> Iterator[None]:
    """Remove the package's modules, and restore exactly those at the end."""
    archive = hide_launcher()
    before = {name: sys.modules.pop(name) for name in own_modules()}
    try:
        yield
    finally:
        for name in own_modules():
            del sys.modules[name]
        sys.modules.update(before)
        if archive is not None:
            sys.meta_path.insert(0, archive)  # type: ignore[arg-type]


@contextlib.contextmanager
def _leading(folder: str) -> Iterator[None]:
    """Search for modules like the ranks will."""
    before = list(sys.path)
    lead_path(folder)
    try:
        yield
    finally:
        sys.path[:] = before


def _stamp(files: Iterable[str]) -> dict[str, tuple[int, int]]:
    stats = {file: Path(file).stat() for file in files}
    return {file: (stat.st_size, stat.st_mtime_ns) for file, stat in stats.items()}
