import importlib
import sys
from pathlib import Path

import pytest

from echelon.launch.roles import ROLES, role_command


def test_an_installed_echelon_starts_its_own_programs_in_the_same_python():
    """From a launcher they are started by its digest: test_archive.py."""
    argv = role_command("agent", Path("/runs/x"), 3)
    assert argv == [sys.executable, "-m", "echelon.launch", "agent", "/runs/x", "3"]


@pytest.mark.parametrize("role", ROLES)
def test_who_one_can_be_is_there(role):
    assert callable(importlib.import_module(ROLES[role]).main)
