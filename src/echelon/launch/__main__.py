"""`python LAUNCHER controller|agent|zygote|… …`: the programs that run inside an allocation."""

import importlib
import sys

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


def main() -> int:
    """Become what the first argument says."""
    role, arguments = sys.argv[1], sys.argv[2:]
    # Only what is wanted is loaded: a node starts many of these.
    code: int = importlib.import_module(ROLES[role]).main(arguments)
    return code


if __name__ == "__main__":
    sys.exit(main())
