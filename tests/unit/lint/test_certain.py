"""Errors that end a script for certain, and those that it may never reach."""

import subprocess
import sys

import pytest

from echelon.lint.certain import find_certain
from echelon.lint.files import DiskFiles
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
        "import sys\nstop = sys.exit\nstop()\nprint(tain)\n",
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


WORKING = [
    "import builtins\nbuiltins.later = 1\nprint(later)\n",
    "globals()['later'] = 1\nprint(later)\n",
    "exec('later = 1')\nprint(later)\n",
    "from os.path import *\nprint(join('a', 'b'))\n",
    "import sys\nsys.exit(0)\nprint(later)\n",
    "raise SystemExit\nprint(later)\n",
    "import os\nos._exit(0)\nprint(later)\n",
    "import sys\nstop = sys.exit\nstop(0)\nprint(later)\n",
    "try:\n    print(later)\nexcept NameError:\n    pass\n",
    "import contextlib\nwith contextlib.suppress(NameError):\n    print(later)\n",
    "print(False and later)\n",
    "print(1 if True else later)\n",
    "f = lambda: later\n",
    "def f(a=1):\n    return later\n",
    "x = [later for _ in ()]\n",
    "from __future__ import annotations\nx: later = 1\n",
    "class A:\n    b = 1\n    c = b\n",
    "for later in ():\n    pass\nelse:\n    later = 1\nprint(later)\n",
    "import os\nif 'NEVER' in os.environ:\n    print(later)\n",
    "while False:\n    print(later)\n",
    "match 1:\n    case later:\n        print(later)\n",
    "(later := 1)\nprint(later)\n",
    "print(__file__, __name__)\n",
    "import runpy, sys\nlater = 1\ndel later\nlater = 2\nprint(later)\n",
    "assert True, later\n",
    "def f():\n    global later\n    later = 1\nf()\nprint(later)\n",
    "if __name__ == '__main__':\n    raise SystemExit(0)\nprint(later)\n",
    "def main():\n    raise SystemExit(0)\nmain()\nprint(later)\n",
    "import os\nos.execv('/bin/true', ['true'])\nprint(later)\n",
    "import unittest\nunittest.main(argv=['a'])\nprint(later)\n",
]
"""Scripts that work, although some have a name that nothing defines."""


@pytest.mark.parametrize("text", WORKING)
def test_no_script_is_refused_that_works(tmp_path, text):
    script = tmp_path / "train.py"
    script.write_text(text)
    done = subprocess.run([sys.executable, "-I", script], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    findings = lint(text, path=str(script), files=DiskFiles())
    assert find_certain(text, findings) == []


@pytest.mark.parametrize(
    "text",
    [
        "print(later)\n",
        "import time\nprint(time.time())\nx = later + 1\n",
        "if __name__ == '__main__':\n    print(later)\n",
    ],
)
def test_what_is_refused_does_not_work(tmp_path, text):
    script = tmp_path / "train.py"
    script.write_text(text)
    findings = lint(text, path=str(script), files=DiskFiles())
    assert len(find_certain(text, findings)) == 1
    done = subprocess.run([sys.executable, "-I", script], capture_output=True, check=False)
    assert b"NameError" in done.stderr
