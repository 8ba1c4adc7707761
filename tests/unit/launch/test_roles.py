import importlib
import sys
from pathlib import Path

import pytest

from echelon.launch.roles import ROLES, role_command


def test_a_program_is_started_from_the_same_copy_in_the_same_python():
    argv = role_command("agent", Path("/runs/x"), 3)
    assert argv[0] == sys.executable
    assert argv[2:] == ["agent", "/runs/x", "3"]
    assert Path(argv[1], "echelon", "launch", "agent.py").exists()


@pytest.mark.parametrize("role", ROLES)
def test_who_one_can_be_is_there(role):
    assert callable(importlib.import_module(ROLES[role]).main)
