"""Packages that only some commands need, and how to install them.

Hints name the packages, not `echelon[lint]`: pip would look for Echelon in the package index, but
it was installed from a checkout or a wheel, or was copied to this host.
"""

import shlex
import sys

EXTRAS = {
    "train": ("torch", "safetensors", "numpy"),
    "data": ("pillow",),
    "dash": ("starlette", "uvicorn", "plotly"),
    "lint": ("tree-sitter", "tree-sitter-bash"),
}
"""The packages of each extra of pyproject.toml."""
_MODULES = {"pillow": "PIL"}
"""Modules that are not named after their package."""


def find_extra(module: str) -> str:
    """Return the extra that brings a module; empty if none does."""
    top = module.partition(".")[0]
    for extra, packages in EXTRAS.items():
        if top in (_MODULES.get(one, one.replace("-", "_")) for one in packages):
            return extra
    return ""


def install_command(extra: str) -> str:
    """Return the command that installs an extra's packages for this Python."""
    return shlex.join([sys.executable, "-m", "pip", "install", *EXTRAS[extra]])
