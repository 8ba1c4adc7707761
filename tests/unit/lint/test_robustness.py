"""Lint of texts that are hardly scripts: it neither fails nor loses findings."""

import ast
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.core.shell import FakeShell
from echelon.lint.files import DiskFiles
from echelon.lint.linting import RULES, hits, lint
from echelon.lint.rule import Severity
from echelon.lint.script import read_script
from unit.lint.fakes import TextFiles

GOLDEN = Path(__file__).parents[2] / "golden"
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


CODES = {rule.code: rule for rule in RULES}
LEVELS = list(Severity)


def run(text, path="job.sh"):
    files = TextFiles({"job.sh": text, "train.py": text, "a.sh": text})
    return lint(text, path=path, files=files, programs=FakeShell({"bash": "", "sinfo": ""}))


def checked(text, path="job.sh"):
    """Lint a text, which every file has; assert what holds for all findings."""
    findings = run(text, path)
    for one in findings:
        assert one.path in ("job.sh", "train.py", "a.sh")
        # Python ends lines at \r too.
        assert 1 <= one.line <= text.count("\n") + text.count("\r") + 1
        assert LEVELS.index(one.severity) >= LEVELS.index(CODES[one.code].severity)
        assert one.what
        assert one.fix
    order = [(LEVELS.index(one.severity), one.path != path, one.path, one.line) for one in findings]
    assert order == sorted(order)
    return findings


def in_job(text):
    """Lint a text after a directive with a mistake, which has to be found whatever follows."""
    findings = checked(f"#!/bin/bash\n#SBATCH --mem=16Go\n{text}")
    assert ("job.sh", 2, "E104") in {(one.path, one.line, one.code) for one in findings}


@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
def test_whatever_looks_like_bash_does_not_hide_a_mistake_above_it(text):
    checked(text)
    in_job(text)


@given(st.text(max_size=300), st.sampled_from(["job.sh", "train.py"]))
def test_findings_in_any_text_are_valid(text, path):
    checked(text, path)
    in_job(text)


ODD = st.text(st.characters(min_codepoint=256, exclude_categories=["Cs"]), max_size=60)


@given(ODD, st.sampled_from(["$", "${", "$(", "<<", "x=", "#", '"', "'"]), ODD)
def test_characters_beyond_latin_do_not_hide_a_mistake_above_them(before, sign, after):
    in_job(f"{before}{sign}{after}")


@given(st.sampled_from(SCRIPTS), st.integers(0, 6000), st.integers(0, 6000))
def test_findings_in_a_part_of_a_script_are_valid(script, start, end):
    checked(script[start:end])
    checked(script[:start] + script[end:])


@given(st.sampled_from(PYTHONS), st.integers(0, 80), st.integers(0, 80))
def test_python_has_a_syntax_error_where_its_parser_says_so(script, start, end):
    lines = script.split("\n")
    text = "\n".join(lines[:start] + lines[end:])
    try:
        ast.parse(text)
    except SyntaxError:
        broken = True
    else:
        broken = False
    assert ("E627" in {one.code for one in checked(text, "train.py")}) is broken


@given(st.sampled_from(SCRIPTS))
def test_findings_point_to_lines_that_exist(script):
    checked(script)


def deep_bash(kind, count):
    return {
        "parentheses": "(" * count + "true" + ")" * count,
        "substitutions": "x=" + "$(" * count + "true" + ")" * count,
        "defaults": "x=" + "${a:-" * count + "}" * count,
        "branches": "if true; then\n" * count + "true\n" + "fi\n" * count,
        "lists": "true" + " && true" * count,
        "arithmetic": "x=$((" + "(" * count + "1" + ")" * count + "))",
    }[kind]


NESTED = ["parentheses", "substitutions", "defaults", "branches", "lists", "arithmetic"]


@pytest.mark.parametrize("count", [100, 1000, 10_000])
@pytest.mark.parametrize("kind", NESTED)
def test_bash_that_is_nested_beyond_reason_leaves_the_rest_to_be_checked(kind, count):
    findings = run(f"#!/bin/bash\n#SBATCH --mem=16Go\n{deep_bash(kind, count)}\n")
    told = {(f.code, f.severity) for f in findings}
    assert {("E104", "error")} <= told <= {("E104", "error"), ("E210", "advice")}


def test_a_wrapper_that_is_nested_beyond_reason_says_so():
    files = TextFiles({"w.sh": f"#!/bin/bash\n{deep_bash('branches', 3000)}\n"})
    script = "#!/bin/bash\n#SBATCH --mem=16Go\nsrun bash w.sh\n"
    findings = lint(
        script, path="job.sh", files=files, programs=FakeShell({"bash": "", "sinfo": ""})
    )
    assert [(f.code, f.path) for f in findings] == [("E104", "job.sh"), ("E210", "w.sh")]


GROUP = "import torch\nimport torch.distributed as dist\ndist.init_process_group('gloo')\n"
END = "\nprint(tain)\n"


def long_python(kind, count):
    return {
        "file": "print(" + "+".join(["'a'"] * count) + ")",
        "sum": "x = " + "+".join(["1"] * count),
        "attributes": "x = dist" + ".a" * count,
        "calls": "if dist" + "()" * count + ":\n    pass",
        "branches": "if dist: pass\n" + "elif dist: pass\n" * count,
        "target": "dist" + ".a" * count + " = 1",
    }[kind]


LONG = ["file", "sum", "attributes", "calls", "branches", "target"]


@pytest.mark.parametrize("kind", LONG)
def test_a_long_expression_leaves_the_rest_to_be_checked(kind):
    findings = run(GROUP + long_python(kind, 1500) + END, "train.py")
    assert {f.code for f in findings} == {"E626"}


@pytest.mark.parametrize("kind", LONG)
def test_what_this_python_cannot_hold_is_not_called_wrong(kind):
    findings = run(GROUP + long_python(kind, 100_000) + END, "train.py")
    assert [(f.code, f.severity) for f in findings] == [("E627", "advice")]


def test_a_rule_that_overflows_does_not_end_the_others():
    def overflow(_):
        raise RecursionError
        yield

    first = replace(RULES[0], check=overflow)
    assert list(hits(first, None)) == []


def shells(script, **beside):
    files = TextFiles({f"{name}.sh": text for name, text in beside.items()})
    return read_script(script, path="job.sh", files=files, programs=FakeShell()).shells


JOB = "#!/bin/bash\n#SBATCH --nodes=2\n"


@pytest.mark.parametrize("line", ["A=$A$A", 'A="$A $A"', "A=(${A[@]} ${A[@]})", "A+=$A"])
def test_a_variable_that_doubles_with_every_line_stays_small(line):
    (shell,) = shells(f"{JOB}A=(x y)\nA='x y'\n" + f"{line}\n" * 60 + "python $A ${A[@]}\n")
    assert max(len(assignment.value.text) for assignment in shell.assignments) <= 50_000
    assert len(shell.commands[-1].words) <= 2000


@pytest.mark.parametrize(
    "line",
    [
        *(f"#SBATCH --{name}=N" for name in ("nodes", "ntasks", "gpus", "mem", "time", "array")),
        *("#SBATCH --gres=gpu:N", "#SBATCH --ntasks=N --ntasks-per-node=N -N2", "echo $N ${N}"),
        *("scontrol show hostnames | cut -f N", "srun hostname | awk '{print $N}'"),
        *("python train.py --num-workers N", "torchrun --nnodes=N --nproc-per-node=N x.py"),
        *("echo $((N + 1))", "export OMP_NUM_THREADS=N", "srun -n N -c N python train.py"),
    ],
)
def test_a_number_may_have_any_number_of_digits(line):
    lint(f"#!/bin/bash\n{line.replace('N', '9' * 5000)}\n", path="job.sh", files=TextFiles({}))


def test_what_a_variable_was_is_not_copied_for_every_command():
    (shell,) = shells(JOB + "".join(f"A{n}={n}\ntrue\n" for n in range(200)))
    first, last = shell.commands[0].moment, shell.commands[-1].moment
    assert "A0" in first.values()
    assert "A1" not in first.values()
    assert "A199" in last.values()
    assert first.history is last.history


def test_a_script_that_starts_itself_is_read_to_an_end():
    text = JOB + "set -e\n" + "srun bash job.sh\n" * 8 + "bash job.sh\n" * 8
    found = shells(text, job=text)
    assert len(found) == 1 + 8  # once more as a task, from each srun
    assert run(text) == []


def test_scripts_that_start_one_another_are_read_to_an_end():
    first, second = "bash b.sh\n" * 8, "bash a.sh\n" * 8
    assert len(shells(JOB + "bash a.sh\n", a=first, b=second)) == 1 + 1 + 8


def test_a_forest_of_wrappers_is_read_in_part():
    wrappers = {f"w{n}": f"bash w{n + 1}.sh\n" * 9 for n in range(400)}
    started = "".join(f"bash w{n}.sh\n" for n in range(400))
    assert len(shells(JOB + started, **wrappers)) == 100


def test_wrappers_of_a_megabyte_are_read_in_part():
    wrappers = {f"w{n}": "#" * 400_000 + f"\necho {n}\n" for n in range(5)}
    assert len(shells(JOB + "".join(f"bash {name}.sh\n" for name in wrappers), **wrappers)) == 1 + 2


@pytest.mark.parametrize("name", [".gitignore", ".gitmodules", "other.sh"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "link to itself", "bytes", "large"])
def test_files_of_a_repository_that_are_no_text(tmp_path, name, kind):
    (tmp_path / ".git").mkdir()
    place = tmp_path / name
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "link to itself":
        place.symlink_to(name)
    elif kind == "bytes":
        place.write_bytes(b"\xff\x00/job.sh\n")
    else:
        with place.open("wb") as file:
            file.truncate(1 << 40)
    script = "#!/bin/bash\n#SBATCH --mem=lots\npython3 trian.py\nbash other.sh > logs/<name>/a\n"
    job = tmp_path / "job.sh"
    job.write_text(script)
    codes = {f.code for f in lint(script, path=str(job), files=DiskFiles())}
    assert "E104" in codes
    assert "E215" in codes or (kind, name) == ("folder", ".gitmodules")  # a submodule is missing
