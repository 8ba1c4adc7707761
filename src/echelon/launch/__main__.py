"""`python LAUNCHER controller|agent|zygote|ray-step …`: the programs inside an allocation."""

import sys

ROLES = ("controller", "agent", "zygote", "ray-step")


def main() -> int:
    """Become what the first argument says."""
    role, arguments = sys.argv[1], sys.argv[2:]
    if role == "controller":
        from echelon.launch.beginning import main as become  # noqa: PLC0415
    elif role == "agent":
        from echelon.launch.agent import main as become  # noqa: PLC0415
    elif role == "ray-step":
        from echelon.launch.raystep import main as become  # noqa: PLC0415
    else:
        from echelon.launch.zygote import main as become  # noqa: PLC0415
    return become(arguments)


if __name__ == "__main__":
    sys.exit(main())
