"""E627: Python that cannot be parsed."""

import ast
import re
import sys
from collections.abc import Iterator

from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.rule import ADVICE, ERROR, Hit, rule
from echelon.lint.script import Script

_NEWER = pattern(
    r"\b(?:[fFtT][rR]?|[rR][fFtT])['\"]|^\s*(?:type\s+\w+\s*(?:\[.*\]\s*)?=|(?:async\s+)?(?:def|class)\s+\w+\s*\[|"
    r"except\*?\s+[\w.]+\s*,|match\s.*:|lazy\s)"
)
"""Syntax that a newer version of Python may accept."""


@rule("E627", ERROR)
def python_syntax(script: Script) -> Iterator[Hit]:
    """Python syntax error.

    Python cannot compile the file, so the job fails when it starts the script. Syntax that another
    version of Python may accept is advice.

    Example:
         --- train.py
        -print("epoch" 3)    # <- here
        +print("epoch", 3)
    """
    for path, text in script.unread:
        try:
            ast.parse(text)
        except SyntaxError as error:
            line = error.lineno or 1
            shown = "".join(text.split("\n")[line - 1 : line])
            older = re.match(r"\s*(?:print\s+[^\s(=]|exec\s|except .*,)", shown)
            newer = _NEWER.search(shown)
            yield Hit(
                at=Place(path, line),
                what=f"Python {sys.version_info[0]}.{sys.version_info[1]} cannot parse the file: "
                f"{error.msg}. Lint did not check it.",
                fix=f"python -m py_compile {path}",
                severity=ADVICE if older or newer else None,
            )
        except (ValueError, RecursionError, MemoryError):
            yield Hit(
                at=Place(path, 1),
                what="Python cannot parse the file: it is nested too deeply or contains too long "
                "an expression. Lint did not check it.",
                fix=f"python -m py_compile {path}",
                severity=ADVICE,
            )
