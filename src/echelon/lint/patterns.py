"""Regular expressions that are compiled when they are first used: most are not, for one script."""

import re
from typing import Any, cast


def pattern(text: str, flags: re.RegexFlag | int = 0) -> re.Pattern[str]:
    """Return a pattern that behaves like that of `re.compile`."""
    return cast("re.Pattern[str]", _Pattern(text, flags))


class _Pattern:
    def __init__(self, text: str, flags: re.RegexFlag | int) -> None:
        self._given = (text, flags)

    def __getattr__(self, name: str) -> Any:
        """Compile the pattern, and keep the method that was asked for."""
        found = getattr(re.compile(*self._given), name)
        setattr(self, name, found)
        return found
