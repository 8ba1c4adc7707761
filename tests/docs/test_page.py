import pytest

from docs.page import Console, NotRun, PageError, Snippet, Unseen, WrittenFile, parse_page


def steps(text):
    return parse_page("page.md", text).steps


def refuses(text):
    with pytest.raises(PageError) as caught:
        parse_page("page.md", text)
    return str(caught.value)


def test_commands_with_their_output():
    (step,) = steps("# Title\n\n```console\n$ echo a\na\n\nb\n$ true\n```\n")
    assert isinstance(step, Console)
    assert [command.text for command in step.commands] == ["echo a", "true"]
    assert [command.expected for command in step.commands] == [("a", "", "b"), ()]
    assert [command.line for command in step.commands] == [4, 8]
    assert (step.exit_code, step.compared) == (0, True)


def test_a_backslash_continues_a_command():
    (step,) = steps("```console\n$ echo a \\\n    b\na b\n```\n")
    (command,) = step.commands
    assert command.text == "echo a \\\n    b"
    assert command.expected == ("a b",)


def test_a_block_within_a_list_is_read_without_its_indent():
    (step,) = steps("- so:\n  ```console\n  $ echo a\n  a\n    b\n  ```\n")
    assert step.commands[0].expected == ("a", "  b")


def test_what_the_comments_say_is_of_the_next_block_alone():
    first, second = steps(
        "<!-- exit: 3 -->\n<!-- time: 5 -->\n\n```console\n$ a\n```\n```console\n$ b\n```\n"
    )
    assert (first.exit_code, first.limit_s) == (3, 5)
    assert (second.exit_code, second.limit_s) == (0, 120)


def test_output_can_be_hidden():
    (step,) = steps("<!-- output: hidden -->\n```console\n$ a\n```\n")
    assert not step.compared


@pytest.mark.parametrize(
    ("language", "name"), [("python", "train.py"), ("toml", "echelon.toml"), ("bash", "a/job.sh")]
)
def test_a_block_with_a_title_is_a_file(language, name):
    (step,) = steps(f'```{language} title="{name}"\nx\n\n  y\n```\n')
    assert step == WrittenFile(line=1, name=name, content="x\n\n  y\n")


@pytest.mark.parametrize("name", ["/etc/passwd", "../a", "a/../../b"])
def test_a_file_stays_in_the_page_s_folder(name):
    assert "is not in the page's folder" in refuses(f'```bash title="{name}"\n```\n')


def test_what_a_page_needs():
    page = parse_page("page.md", "<!-- needs: sandbox, full -->\n# Title\n")
    assert page.needs == {"sandbox", "full"}
    assert not page.runs


def test_a_block_that_is_not_run_has_its_reason():
    (step,) = steps("<!-- not run: needs a GPU -->\n```console\n$ echelon x\n```\n")
    assert step == NotRun(line=2, reason="needs a GPU", content="$ echelon x\n")


def test_a_command_that_is_not_shown():
    (step,) = steps("<!-- time: 9 -->\n<!-- run: sleep 1; true -->\n")
    assert step == Unseen(line=2, text="sleep 1; true", limit_s=9)


def test_other_blocks_are_code_that_is_not_run():
    (step,) = steps("<!-- excerpt: a.py -->\n```python\nx = 1\n```\n")
    assert step == Snippet(line=2, language="python", content="x = 1\n", excerpt_of="a.py")


def test_what_stands_in_a_block_is_not_about_the_page():
    (step,) = steps("````markdown\n<!-- needs: gold -->\n```console\n$ a\n```\n````\n")
    assert step.language == "markdown"


@pytest.mark.parametrize("language", ["", "bash", "sh", "text"])
@pytest.mark.parametrize(
    "line",
    [
        "echelon ps",
        "$ echelon ps",
        "sudo .venv/bin/echelon sandbox up",
        "DATA_DIR=x echelon run train.py",
        "make",
        "  make test",
        "python -m echelon ps",
    ],
)
def test_a_command_of_ours_that_nobody_runs_is_refused(language, line):
    assert "page.md:3: " in refuses(f"```{language}\nls\n{line}\n```\n")


@pytest.mark.parametrize("line", ["makefile", "echelon: ignore E301", "# echelon ps", "ls"])
def test_other_plain_blocks_are_nobody_s_business(line):
    assert len(steps(f"```\n{line}\n```\n")) == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<!-- need: sandbox -->", "page.md:1: there is no directive 'need'"),
        ("<!-- needs: gold -->", "'gold' cannot be needed; there are: sandbox"),
        ("<!-- exit: 1 -->\n\nText.\n\n```console\n$ a\n```", "page.md:1: 'exit' is said of no"),
        ("<!-- exit: 1 -->\n```python\na\n```", "page.md:1: 'exit' is said of no block"),
        ("<!-- exit: one -->\n```console\n$ a\n```", "'one' is no number"),
        ("<!-- output: short -->\n```console\n$ a\n```", "output can only be hidden"),
        ("<!-- output: hidden -->\n```console\n$ a\na\n```", "output is shown"),
        ("<!-- not run: why -->", "page.md:1: 'not run' is said of no block"),
        ("```console\necho a\n```", "page.md:1: a console block without a line"),
        ("```console\n$ a", "page.md:1: a block that does not end"),
    ],
)
def test_what_cannot_be_meant_is_refused(text, problem):
    assert problem in refuses(text)


def test_all_problems_are_told_at_once():
    assert len(refuses("<!-- a: b -->\n<!-- c: d -->\n").splitlines()) == 2
