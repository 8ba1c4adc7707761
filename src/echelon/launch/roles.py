"""The programs that run inside an allocation, and how one starts another."""

import sys
from pathlib import Path

ROLES = {
    "controller": "echelon.launch.beginning",
    "agent": "echelon.launch.agent",
    "zygote": "echelon.launch.zygote",
    "ray-keeper": "echelon.launch.raykeeper",
    "ray-call": "echelon.launch.rayorders",
    "telemetry": "echelon.launch.telemetry",
    "doctor": "echelon.launch.doctor.short",
    "doctor-probe": "echelon.launch.doctor.probe",
}
"""Who one can be, and where that is written."""
_LAUNCHER = Path(__file__).resolve().parents[2]
"""Where this very copy lies: a run's own, mostly."""


def role_command(role: str, *arguments: object) -> list[str]:
    """Return what starts a program of the same copy, in the same Python."""
    assert role in ROLES, role
    return [sys.executable, str(_LAUNCHER), role, *map(str, arguments)]
