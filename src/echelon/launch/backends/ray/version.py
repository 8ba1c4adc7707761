"""Which Ray will do. Pure."""

import re

OLDEST = (2, 56)
"""The first that keeps strangers out and has workers use the folder that they are given."""
PATTERN = r"(\d+)\.(\d+)"
"""How a version begins, whatever follows: 2.60.0, 2.60rc1."""
SHOWN = ".".join(map(str, OLDEST))


def is_too_old(version: str) -> bool:
    """Tell whether it is, or is no version at all."""
    found = re.match(PATTERN, version)
    return found is None or tuple(map(int, found.groups())) < OLDEST
