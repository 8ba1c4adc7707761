"""Which versions of Ray work. Pure."""

import re

OLDEST = (2, 56)
"""The first version that requires a token and lets workers use a given directory."""
PATTERN = r"(\d+)\.(\d+)"
"""Start of a version: 2.60.0, 2.60rc1."""
SHOWN = ".".join(map(str, OLDEST))


def is_too_old(version: str) -> bool:
    """Tell whether a version is too old, or not a version at all."""
    found = re.match(PATTERN, version)
    return found is None or tuple(map(int, found.groups())) < OLDEST
