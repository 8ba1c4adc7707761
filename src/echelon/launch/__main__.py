"""`python LAUNCHER controller|agent|zygote …`: the programs that run inside an allocation."""

import sys

ROLES = ("controller", "agent", "zygote", "telemetry")


def main() -> int:
    """Become what the first argument says."""
    role, arguments = sys.argv[1], sys.argv[2:]
    if role == "controller":
        from echelon.launch.beginning import main as become  # noqa: PLC0415
    elif role == "agent":
        from echelon.launch.agent import main as become  # noqa: PLC0415
    elif role == "telemetry":
        from echelon.launch.telemetry import main as become  # noqa: PLC0415
    else:
        from echelon.launch.zygote import main as become  # noqa: PLC0415
    return become(arguments)


if __name__ == "__main__":
    sys.exit(main())
