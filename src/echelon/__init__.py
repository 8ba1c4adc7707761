"""Echelon's public API.

Names are loaded when they are first used (PEP 562), so `import echelon` costs nothing and never
pulls in torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from echelon._version import __version__

if TYPE_CHECKING:
    from echelon.errors import EchelonError

__all__ = ["EchelonError", "__version__"]

_HOME = {"EchelonError": "echelon.errors"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'echelon' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
