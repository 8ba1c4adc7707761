"""Nothing that somebody may call a script brings lint down."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echelon.checks.lint.files import TextFiles
from echelon.checks.lint.linting import lint
from echelon.errors import UsageError

GOLDEN = Path(__file__).parents[3] / "golden"
SCRIPTS = [path.read_text() for path in sorted(GOLDEN.glob("lint/*/*.sh"))]
SCRIPTS += [path.read_text() for path in sorted(GOLDEN.glob("scripts/*.sh"))]
PYTHONS = [path.read_text() for path in sorted(GOLDEN.glob("lint/*/*.py"))]

PIECES = [
    *(
        "#!/bin/bash\n",
        "#SBATCH --nodes=2\n",
        "#SBATCH --mem=",
        "#SBATCH ",
        "\n",
        " ",
        "\\\n",
        "\\",
    ),
    *("srun ", "torchrun ", "python train.py", "bash -c ", "./job.sh", "wait", "&", "|", ";", "&&"),
    *(
        "'",
        '"',
        "`",
        "$(",
        ")",
        "$((",
        "))",
        "${",
        "}",
        "$",
        "(",
        "{",
        "<<EOF\n",
        "EOF\n",
        ">",
        "<",
    ),
    *(
        "if ",
        "then ",
        "fi\n",
        "for i in ",
        "do\n",
        "done\n",
        "case x in ",
        "esac",
        "f() ",
        "export ",
    ),
    *(
        "MASTER_PORT=",
        "29500",
        "--nproc_per_node=",
        "--rdzv_endpoint=",
        "$SLURM_PROCID",
        "é",
        "\r\n",
    ),
    *("x=(", "${x[@]}", "=", "0", "99999999999999999999", "%", "file://", "cat > a.sh ", "\t", "#"),
]


def run(text, path="job.sh"):
    files = TextFiles({"job.sh": text, "train.py": text, "a.sh": text})
    try:
        return lint(text, path=path, files=files)
    except UsageError:
        return []


@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
@settings(deadline=None, max_examples=300)
def test_never_fails_on_what_looks_like_bash(text):
    run(text)


@given(st.text(max_size=300), st.sampled_from(["job.sh", "train.py"]))
@settings(deadline=None, max_examples=200)
def test_never_fails_on_any_text(text, path):
    run(text, path)


ODD = st.text(st.characters(min_codepoint=256, exclude_categories=["Cs"]), max_size=60)


@given(ODD, st.sampled_from(["$", "${", "$(", "<<", "x=", "#", '"', "'"]), ODD)
@settings(deadline=None, max_examples=300)
def test_never_fails_on_letters_of_far_away(before, sign, after):
    run(f"{before}{sign}{after}")


@given(st.sampled_from(SCRIPTS), st.integers(0, 6000), st.integers(0, 6000))
@settings(deadline=None, max_examples=300)
def test_never_fails_on_a_part_of_a_script(script, start, end):
    run(script[start:end])
    run(script[:start] + script[end:])


@given(st.sampled_from(PYTHONS), st.integers(0, 80), st.integers(0, 80))
@settings(deadline=None, max_examples=200)
def test_never_fails_on_lines_of_python(script, start, end):
    lines = script.split("\n")
    run("\n".join(lines[:start] + lines[end:]), "train.py")


@given(st.sampled_from(SCRIPTS))
@settings(deadline=None)
def test_findings_point_to_lines_that_are_there(script):
    for finding in run(script):
        assert 1 <= finding.line <= script.count("\n") + 1


def test_what_is_nested_beyond_reason_is_refused_or_read():
    deep = "(" * 3000 + "true" + ")" * 3000
    with pytest.raises(UsageError, match="nested too deeply"):
        lint(f"#!/bin/bash\n{deep}\n", path="job.sh", files=TextFiles({}))
    run("x = " + "-" * 100_000 + "1", "train.py")
    run("$((" + "(" * 500 + "1" + ")" * 500 + "))")


def test_a_script_that_starts_itself_is_read_to_an_end():
    text = "#!/bin/bash\n#SBATCH --nodes=2\nsrun ./job.sh\nbash job.sh\n"
    assert run(text) == []
