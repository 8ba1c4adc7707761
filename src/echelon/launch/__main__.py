"""`python LAUNCHER controller|agent|zygote|… …`: the programs that run inside an allocation."""

import importlib
import sys

from echelon.errors import EchelonError
from echelon.launch.roles import ROLES


def main() -> int:
    """Become what the first argument says."""
    role, arguments = sys.argv[1], sys.argv[2:]
    # Only what is wanted is loaded: a node starts many of these.
    try:
        code: int = importlib.import_module(ROLES[role]).main(arguments)
    except EchelonError as error:
        sys.stderr.write(f"{error.message}\nhint: {error.hint}\n" if error.hint else error.message)
        return error.exit_code
    return code


if __name__ == "__main__":
    sys.exit(main())
