"""Errors that end a script for certain, and those that it may never reach."""

import pytest

from echelon.lint.certain import find_certain
from echelon.lint.linting import lint
from unit.lint.fakes import TextFiles


def certain(text):
    found = lint(text, path="train.py", files=TextFiles({}))
    assert "E626" in [finding.code for finding in found]
    return [finding.line for finding in find_certain(text, found)]


@pytest.mark.parametrize(
    "text",
    [
        "print(tain)\n",
        "import os\nx = 1\nprint(x, tain)\n",
        "def f():\n    pass\nprint(\n    tain)\n",
        "if __name__ == '__main__':\n    print(tain)\n",
    ],
)
def test_a_line_that_is_always_reached(text):
    assert len(certain(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    print(tain)\n",
        "import os\nif os.name:\n    print(tain)\n",
        "import os\nif os.name:\n    exit()\nprint(tain)\n",
        "try:\n    print(tain)\nexcept Exception:\n    pass\n",
        "import sys\nsys.exit()\nprint(tain)\n",
        "def f():\n    exit()\nf()\nprint(tain)\n",
        "import os\nx = os.name or tain\n",
        "import os\nx = 1 if os.name else tain\n",
        "f = lambda: tain\n",
        "for i in []:\n    print(tain)\n",
        "import argparse\nargparse.ArgumentParser().parse_args()\nprint(tain)\n",
        "with open('x') as f:\n    print(tain)\n",
    ],
)
def test_a_line_that_may_not_be_reached(text):
    assert certain(text) == []
