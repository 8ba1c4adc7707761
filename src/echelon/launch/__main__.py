"""`python LAUNCHER controller|agent|zygote|… …`: the programs that run inside an allocation."""

import importlib
import sys

from echelon.launch.roles import ROLES


def main() -> int:
    """Become what the first argument says."""
    role, arguments = sys.argv[1], sys.argv[2:]
    # Only what is wanted is loaded: a node starts many of these.
    code: int = importlib.import_module(ROLES[role]).main(arguments)
    return code


if __name__ == "__main__":
    sys.exit(main())
