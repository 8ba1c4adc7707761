"""`tools/docs.py`: how it is called, and what it leaves where it is ended."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from docs.test_running import console, left
from echelon.core.waiting import wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tree(tmp_path):
    """A repository with a page of the test's own."""
    (tmp_path / "tools").mkdir()
    shutil.copy2(ROOT / "tools" / "docs.py", tmp_path / "tools")
    for name in ("tests", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def start(tree, *words):
    return subprocess.Popen(
        [sys.executable, "tools/docs.py", *words],
        cwd=tree,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize(
    "words", [("--once", "update", "page.md"), ("update", "--once", "page.md", "page.md")]
)
def test_flags_may_stand_anywhere(tree, words):
    (tree / "page.md").write_text(console("$ echo a"))
    with start(tree, *words) as tool:
        said, _ = tool.communicate(timeout=60)
    assert tool.returncode == 0, said
    assert (tree / "page.md").read_text() == console("$ echo a", "a")


def end(tree, needs, *numbers):
    """Run a page, send signals in its middle, and return the exit code and the page's home."""
    told = tree / "home"
    (tree / "page.md").write_text(
        f"{needs}\n" + console("$ setsid sleep 100 & disown", f"$ echo $HOME > {told}; sleep 100")
    )
    with start(tree, "run", "page.md") as tool:
        try:
            there = wait_until(
                lambda: tool.poll() is not None or (told.exists() and told.read_text()),
                timeout_s=60,
            )
            assert there
            assert tool.poll() is None, tool.stdout.read()
            for number in numbers:
                tool.send_signal(number)
            tool.communicate(timeout=60)
        finally:
            tool.kill()
    return tool.returncode, Path(told.read_text().strip())


@pytest.mark.parametrize(
    "numbers",
    [(signal.SIGTERM,), (signal.SIGINT,), (signal.SIGHUP,), (signal.SIGINT, signal.SIGTERM)],
)
def test_one_that_is_ended_leaves_no_folder_and_no_process(tree, numbers):
    code, home = end(tree, "", *numbers)
    assert code in {128 + number for number in numbers}
    assert not home.exists()
    assert not left(home)


@pytest.mark.slurm
def test_one_that_is_ended_leaves_no_sandbox(tree):
    code, home = end(tree, "<!-- needs: sandbox -->", signal.SIGTERM)
    assert code == 128 + signal.SIGTERM
    assert not home.exists()
    assert not left(home)
