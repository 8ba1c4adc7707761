"""The runner itself: what must fail fails, and nothing is left behind."""

import os
import time
from pathlib import Path

import pytest

from docs.page import PageError, parse_page
from docs.running import render_renewed, run_page
from docs.session import CommandError, start_session


def run(text, **options):
    return run_page(parse_page("page.md", text), **options)


def refuses(text):
    with pytest.raises(PageError) as caught:
        run(text)
    return str(caught.value)


def console(*lines):
    return "\n".join(["```console", *lines, "```", ""])


def test_what_a_command_changes_stays():
    run(console("$ x=5; mkdir a; cd a", "$ echo $x; pwd", "5", "/home/me/project/a"))


def test_blocks_of_a_page_share_a_shell_and_files():
    run('```python title="sub/a.py"\nprint(1)\n```\n' + console("$ cd sub", "$ python a.py", "1"))


def test_examples_and_programs_are_there():
    run(console("$ ls examples/mnist/train.py .venv/bin/echelon", "…", "…"))
    run(console("$ sudo echelon --version", "echelon …"))


def test_stderr_is_output_too_in_its_order():
    run(console("$ echo a; echo b >&2; echo c", "a", "b", "c"))


def test_a_command_cannot_read_what_comes_after_it():
    run(console("$ cat", "$ echo a", "a"))


def test_other_output_fails():
    said = refuses(console("$ echo a", "b"))
    assert said.startswith("page.md:2: $ echo a\nprinted something else")
    assert "expected:\n    b\nprinted:\n    a" in said


def test_output_that_was_not_expected_fails():
    assert "printed something else" in refuses(console("$ echo a"))


def test_a_command_that_fails_fails_the_page():
    assert "page.md:2: $ false\nended with 1, not 0" in refuses(console("$ false"))


def test_what_a_failed_command_printed_is_told():
    assert "ended with 2, not 0; it printed:\n    why" in refuses(console("$ (echo why; exit 2)"))


def test_a_command_that_is_to_fail_may():
    run("<!-- exit: 3 -->\n" + console("$ true", "$ (exit 3)"))


def test_a_command_that_is_to_fail_must():
    assert "ended with 0, not 3" in refuses("<!-- exit: 3 -->\n" + console("$ true"))
    assert "ended with 4, not 3" in refuses("<!-- exit: 3 -->\n" + console("$ (exit 4)"))


def test_only_the_last_command_of_a_block_is_to_fail():
    assert "ended with 3, not 0" in refuses("<!-- exit: 3 -->\n" + console("$ (exit 3)", "$ true"))


def test_hidden_output_does_not_hide_a_failure():
    run("<!-- output: hidden -->\n" + console("$ echo a"))
    assert "ended with 1" in refuses("<!-- output: hidden -->\n" + console("$ false"))


def test_an_unseen_command_is_run_and_may_not_fail():
    run("<!-- run: echo x > a -->\n" + console("$ cat a", "x"))
    assert "page.md:1: $ false" in refuses("<!-- run: false -->\n")


def test_a_shell_that_was_left_is_told():
    run("<!-- exit: 4 -->\n" + console("$ exit 4"))
    assert "the shell has ended before" in refuses(console("$ exit 0", "$ true"))


def test_what_is_not_run_is_not_run():
    run("<!-- not run: it fails -->\n" + console("$ false"))


def left(home):
    mark = f"HOME={home}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found += [folder.name] if mark in (folder / "environ").read_bytes() else []
        except OSError:
            continue
    return found


def test_a_command_that_hangs_is_ended_with_what_it_printed_and_nothing_is_left():
    page = parse_page("page.md", console("$ true"))
    began = time.monotonic()
    with start_session(page) as session:
        session.run("setsid sleep 1000 & disown", 10)
        with pytest.raises(CommandError, match=r"not done after 0\.5 s; it had printed:\nhere\n"):
            session.run("echo here; sleep 1000", 0.5)
        home = session.project.parent
        assert left(home)
    assert time.monotonic() - began < 60
    assert not home.exists()
    assert not left(home)


@pytest.mark.slurm
def test_a_page_that_fails_leaves_no_sandbox():
    page = parse_page("page.md", "<!-- needs: sandbox -->\n" + console("$ true"))
    found = {}

    def fail():
        with start_session(page) as session:
            found["home"] = session.project.parent
            found["said"] = session.run("sinfo --noheader; sleep 1000 & disown", 60).output
            raise PageError("the page failed")

    with pytest.raises(PageError, match="the page failed"):
        fail()
    assert "idle node[1-4]" in found["said"]
    assert not found["home"].exists()
    assert not left(found["home"])


def test_the_machine_s_own_folders_are_not_the_page_s():
    page = parse_page("page.md", console("$ true"))
    with start_session(page) as session:
        said = session.run("echo $HOME $XDG_STATE_HOME $ECHELON_SANDBOX_DIR; mktemp", 10).output
    assert os.environ.get("HOME") not in said.split()
    assert all(path.startswith("/home/me") for path in said.split())


def test_outputs_are_renewed_and_what_is_open_stays_open():
    text = (
        "# A\n\n"
        + console("$ echo a; echo $RANDOM-$RANDOM; echo z", "$ echo b $((1+1))", "b …")
        + "\n  "
        + console("$ printf 'c\\n\\nd\\n'", "x", "y", "w").replace("\n", "\n  ")
        + "\nEnd."
    )
    page = parse_page("page.md", text)
    seen = [run_page(page, compare=False) for _ in range(2)]
    renewed = render_renewed(page, *seen)
    assert renewed == (
        "# A\n\n"
        + console(
            "$ echo a; echo $RANDOM-$RANDOM; echo z", "a", "…", "z", "$ echo b $((1+1))", "b …"
        )
        + "\n  "
        + console("$ printf 'c\\n\\nd\\n'", "c", "", "d")
        .replace("\n", "\n  ")
        .replace("  \n", "\n")
        + "\nEnd."
    )
    run(renewed)
