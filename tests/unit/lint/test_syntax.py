"""Bash's own word on a script: asked for only where the parser stumbles, and never doubted."""

import sys

import pytest

from echelon.core.shell import FakeShell, Result
from echelon.errors import MissingProgramError, TimedOutError
from echelon.lint.linting import lint
from echelon.lint.rules.syntax import parse_complaint
from unit.lint.fakes import TextFiles

HEAD = "#!/bin/bash\n#SBATCH --nodes=1\n"


def found(body, head=HEAD, programs=None, **beside):
    files = TextFiles({f"{name}.sh": text for name, text in beside.items()})
    findings = lint(head + body, path="job.sh", files=files, programs=programs)
    return [(f.path, f.line) for f in findings if f.code == "E210"]


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("if true; then\n    python a.py\n", 4),
        ("for i in 1 2; do\n    python a.py\n", 4),
        ('python a.py "one\npython b.py\n', 3),
        ("python a.py --name 'it's'\n", 3),
        ("python a.py $(hostname\n", 3),
        ("if true; then\n    python a.py\nfi\nfi\n", 6),
        ("python a.py\ndone\n", 4),
        ("python a.py && && python b.py\n", 3),
        ("cat > a.txt <<EOF\ntext\n", 3),
        ("if true; then\n    cat > a.txt <<EOF\n    text\n    EOF\nfi\n", 4),
    ],
)
def test_what_bash_refuses_is_told_where_it_says(body, line):
    assert found(body) == [("job.sh", line)]


@pytest.mark.parametrize(
    "body",
    [
        "if true; then\n    cat > a.txt <<-EOF\n\ttext\n\tEOF\nfi\n",
        "python a.py |& tee log\n",
        "shopt -s extglob\nrm !(keep)\n",
        "x=$(case a in a) echo 1;; esac)\n",
        "coproc cat; [[ $x =~ ^(a|b)$ ]] && echo done\n",
        "((n++)); for ((i=0; i<3; i++)); do echo fi; done\n",
    ],
)
def test_what_bash_takes_is_right(body):
    assert found(body) == []


def test_a_wrapper_is_looked_at_and_a_text_that_was_put_together_is_not():
    assert found("bash w.sh\n", w="#!/bin/bash\nif true; then\n") == [("w.sh", 2)]
    assert found('srun bash -c "if $X; then"\n') == []


@pytest.mark.parametrize("shell", ["/bin/zsh", "/usr/bin/tcsh", "/usr/bin/env fish"])
def test_other_shells_are_not_measured_by_bash(shell):
    assert found("if true; then\n", head=f"#!{shell}\n#SBATCH --nodes=1\n") == []


@pytest.mark.parametrize("shell", ["/bin/bash -l", "/bin/sh", "/usr/bin/env bash"])
def test_bash_has_many_names(shell):
    assert found("if true; then\n", head=f"#!{shell}\n#SBATCH --nodes=1\n")


def fails(error):
    def answer(argv):
        raise error

    return FakeShell({"bash": answer})


@pytest.mark.parametrize(
    "programs",
    [fails(MissingProgramError("bash")), fails(TimedOutError("slow")), FakeShell({"bash": ""})],
)
def test_without_bash_s_word_nothing_is_said(programs):
    assert found("if true; then\n", programs=programs) == []
    assert programs.calls


def test_bash_is_not_asked_about_what_the_parser_takes():
    assert found("python a.py\n", programs=FakeShell()) == []


def test_a_complaint_without_a_line_is_about_the_last():
    assert parse_complaint("bash: syntax error: unexpected end of file\n", lines=7) == (
        7,
        "syntax error: unexpected end of file",
    )
    said = Result(argv=(), stderr="bash: warning: setlocale: LC_ALL: cannot change locale")
    assert parse_complaint(said.stderr, lines=7) is None


def refused(text, path="train.py", **beside):
    files = TextFiles({f"{name}.py": text for name, text in beside.items()})
    findings = [f for f in lint(text, path=path, files=files) if f.code == "E627"]
    return [(f.path, f.line, f.severity) for f in findings]


@pytest.mark.parametrize(
    "line",
    [
        "type X = int",
        "type Pair[T] = tuple[T, T]",
        "def first[T](items: list[T]) -> T: ...",
        "class Box[T]: pass",
        'print(f"{names["a"]}")',
        "print(f'{\"\\n\".join(names)}')",
        'print(t"{names}")',
        "try:\n    pass\nexcept OSError, ValueError:\n    pass",
        "lazy import torch",
    ],
)
def test_syntax_of_a_newer_python_is_no_error(line):
    text = f"names = []\n{line}\n"
    try:
        compile(text, "train.py", "exec")
    except SyntaxError:
        assert [severity for _, _, severity in refused(text)] == ["advice"]
    else:
        assert refused(text) == []


@pytest.mark.parametrize("line", ["if True print(1)", "def f(:", "x = (1,", "type = ", "f x = 1"])
def test_what_no_python_takes_is_an_error(line):
    assert refused(f"names = []\n{line}\n") == [("train.py", 2, "error")]


def test_python_that_a_job_starts_is_looked_at_too():
    job = "#!/bin/bash\n#SBATCH --nodes=1\npython train.py\n"
    assert refused(job, "job.sh", train="if True print(1)\n") == [("train.py", 1, "error")]
    assert refused(job, "job.sh", train="print(1)\n") == []


def test_the_python_that_reads_is_named():
    (finding,) = lint("if True print(1)\n", path="train.py", files=TextFiles({}))
    here = "Python {}.{} ".format(*sys.version_info)
    assert finding.what.startswith(here)


WHOLE = HEAD + "if true; then\n    python train.py \\\n        --lr 1\nfi\n"


@pytest.mark.parametrize(
    "change", [lambda text: text.replace("\n", "\r\n"), lambda text: f"\ufeff{text}"]
)
def test_what_an_editor_of_windows_adds_is_one_finding(change):
    files = TextFiles({"w.sh": change(WHOLE)})
    found = lint(change(WHOLE), path="job.sh", files=files)
    assert [f.code for f in found if f.severity == "error"] == ["E101"]
    findings = lint(HEAD + "srun ./w.sh\n", path="job.sh", files=files)
    assert ("E101", "w.sh", 1) in [(f.code, f.path, f.line) for f in findings]
    assert lint(change("print(1)\n"), path="train.py", files=files) == []


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="this Python accepts it")
@pytest.mark.parametrize("string", ["f'a={b.replace('=', '')}'", 'f"{c} {a["b"]}"', "rf'{a['b']}'"])
def test_quotes_in_a_string_of_python_3_12_are_advice(string):
    text = f"x = print([\n    {string},\n])\n"
    found = lint(text, path="train.py", files=TextFiles({}))
    assert [(f.code, str(f.severity)) for f in found] == [("E627", "advice")]


@pytest.mark.parametrize("string", ["f'{a} {b}'", "f'a'", "f\"{a['b']}\""])
def test_an_error_beside_other_strings_stays_an_error(string):
    found = lint(f"y = {string}\nx = [1\n", path="train.py", files=TextFiles({}))
    assert [(f.code, str(f.severity)) for f in found] == [("E627", "error")]
