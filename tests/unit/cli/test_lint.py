import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from echelon.cli import main
from echelon.lint.linting import RULES, THEMES

ROOT = Path(__file__).parents[3]
BAD = "#!/bin/bash\n#SBATCH --mem=16Go\n#SBATCH -G1 -N1 -t9\nexport API_KEY=4b1d7c9e\npython x.py\n"


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text, name="job.sh"):
        (tmp_path / name).write_text(text)
        return name

    return write


def test_a_finding_has_a_position_and_a_fix(script, capsys):
    assert main.run(["lint", script(BAD)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "job.sh:2:1: E104 error: '16Go' is not a valid value of `--mem` (a whole number with K, M, "
        "G or T). sbatch rejects the script."
    )
    assert lines[1] == "    #SBATCH --mem=16G"
    assert lines[2].startswith("job.sh:4:1: E406 warning: ")
    assert lines[-1] == "1 file: 1 error, 1 warning (1 fixable with --fix)"


def test_a_script_without_problems_exits_with_0(script, capsys):
    assert main.run(["lint", script("#!/bin/bash\n#SBATCH --mem=16G\npython x.py\n")]) == 0
    assert capsys.readouterr().out == "1 file: no problems found\n"


def test_warnings_fail_only_if_strict(script, capsys):
    text = "#!/bin/bash\n#SBATCH --gpus=1 -N1 -t9\nexport API_KEY=4b1d7c9e\npython x.py\n"
    assert main.run(["lint", script(text)]) == 0
    assert main.run(["lint", "--strict", "job.sh"]) == 1
    assert "E406 warning" in capsys.readouterr().out
    assert main.run(["lint", "--strict", "--severity", "error", "job.sh"]) == 0


def test_advice_does_not_change_the_exit_status(script, capsys):
    text = "#!/bin/bash\n#SBATCH --mail-user=[me]\npython x.py\n"
    assert main.run(["lint", script(text)]) == 0
    assert "no problems found" in capsys.readouterr().out
    assert main.run(["lint", "--severity", "advice", "job.sh"]) == 0
    assert "E116 advice" in capsys.readouterr().out
    assert main.run(["lint", "--select", "E116", "job.sh"]) == 0
    assert "E116 advice" in capsys.readouterr().out


def test_errors_come_first(script, capsys):
    text = f"{BAD}#SBATCH --time=1\n".replace("--mem=16Go", "--mem=16G")
    assert main.run(["lint", script(text)]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("job.sh")]
    assert ["E102" in lines[0], "E406" in lines[1]] == [True, True]


def test_a_removed_rule_says_so(script, capsys):
    for flags in (["--select", "E629", script(BAD)], ["--explain", "e629"]):
        assert main.run(["lint", *flags]) == 2
        assert "the rule E629 was removed" in capsys.readouterr().err
    assert main.run(["lint", "--ignore", "E629", "job.sh"]) == 1


def test_a_merged_code_stands_for_the_one_that_has_its_rule(script, capsys):
    assert main.run(["lint", "--select", "E111", script(BAD)]) == 1
    assert "E104 error" in capsys.readouterr().out
    assert main.run(["lint", "--ignore", "E111", "job.sh"]) == 0


def test_json(script, capsys):
    assert main.run(["lint", "--json", script(BAD)]) == 1
    first = json.loads(capsys.readouterr().out)[0]
    assert first.keys() == {
        *("code", "path", "line", "column", "end_line", "end_column", "severity", "what", "fix"),
        *("also", "edits"),
    }
    assert (first["code"], first["line"], first["severity"]) == ("E104", 2, "error")


@pytest.mark.parametrize("place", ["the line", "the line before"])
def test_a_comment_ignores_a_code(script, capsys, place):
    own, before = (
        ("  # echelon: ignore E406", "")
        if place == "the line"
        else ("", "# echelon: ignore E406\n")
    )
    text = f"#!/bin/bash\n#SBATCH -G1 -N1 -t9\n{before}export API_KEY=4b1d7c9e{own}\npython x.py\n"
    assert main.run(["lint", "--strict", script(text)]) == 0
    text = text.replace("ignore E406", "ignore E409, E301")
    assert main.run(["lint", "--strict", script(text)]) == 1


@pytest.mark.parametrize(
    ("comment", "codes"),
    [
        ("# echelon: ignore-file E406", ["E104"]),
        ("# echelon: ignore-file E406, E104", []),
        ("# echelon: ignore-file", []),
        ("# echelon: ignore", ["E104", "E406"]),
        ("# echelon: ignore E406", ["E104", "E406"]),
    ],
)
def test_a_comment_ignores_codes_in_a_file(script, capsys, comment, codes):
    main.run(["lint", "--json", script(f"{BAD}\n\n{comment}\n")])
    assert [one["code"] for one in json.loads(capsys.readouterr().out)] == codes


@pytest.mark.parametrize(
    ("flags", "codes"),
    [
        (["--select", "E40"], ["E406"]),
        (["--select", "e104,E3"], ["E104"]),
        (["--ignore", "E1"], ["E406"]),
        (["--select", "E1", "--select", "E4", "--ignore", "E406"], ["E104"]),
        (["--severity", "error"], ["E104"]),
    ],
)
def test_flags_choose_findings(script, capsys, flags, codes):
    main.run(["lint", "--json", *flags, script(BAD)])
    assert [one["code"] for one in json.loads(capsys.readouterr().out)] == codes


@pytest.mark.parametrize(
    ("name", "header"), [("echelon.toml", "[lint]"), ("pyproject.toml", "[tool.echelon.lint]")]
)
def test_a_project_file_chooses_findings(script, capsys, name, header):
    script(f'{header}\nignore = ["E104"]\nstrict = true\n', name)
    assert main.run(["lint", "--json", script(BAD)]) == 1
    assert [one["code"] for one in json.loads(capsys.readouterr().out)] == ["E406"]
    assert main.run(["lint", "--json", "--ignore", "E406", "job.sh"]) == 1
    assert [one["code"] for one in json.loads(capsys.readouterr().out)] == ["E104"]
    assert main.run(["script", "train.py"]) == 0  # the table is not part of a request


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('ignore = "E104"', "not a list of codes: 'E104'"),
        ('ignore = ["E999"]', "unknown rule: E999"),
        ('severity = "high"', "invalid value for --severity: 'high'"),
        ("severity = 1", "'severity' is not a string"),
        ("strict = 1", "'strict' is not true or false"),
        ('selekt = ["E1"]', "unknown key 'selekt' in [lint]"),
    ],
)
def test_a_wrong_table_is_one_error_with_a_hint(script, capsys, lines, message):
    script(f"[lint]\n{lines}\n", "echelon.toml")
    assert main.run(["lint", script(BAD)]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert message in first
    assert second.startswith("hint: ")


def test_an_unknown_format_is_an_error(script, capsys):
    assert main.run(["lint", "--output-format", "xml", script(BAD)]) == 2
    assert "choose text, json, sarif, github" in capsys.readouterr().err


def test_a_baseline_is_found_from_any_directory(script, capsys, monkeypatch, tmp_path):
    assert main.run(["lint", "--write-baseline", "known.json", script(BAD)]) == 0
    here = Path.cwd()
    Path("pyproject.toml").write_text('[tool.echelon.lint]\nbaseline = "known.json"\n')
    assert main.run(["lint", "job.sh"]) == 0
    Path("sub").mkdir()
    monkeypatch.chdir("sub")
    assert main.run(["lint", "../job.sh"]) == 0
    assert main.run(["lint", "--baseline", "../known.json", str(here / "job.sh")]) == 0
    Path("../known.json").write_text("no")
    capsys.readouterr()
    assert main.run(["lint", "../job.sh"]) == 2
    assert "../known.json: the baseline is not valid" in capsys.readouterr().err


def test_a_baseline_hides_known_findings(script, capsys):
    assert main.run(["lint", "--write-baseline", "known.json", script(BAD)]) == 0
    assert main.run(["lint", "--baseline", "known.json", "job.sh"]) == 0
    script(BAD.replace("export ", "\nconda activate a\nexport "))
    capsys.readouterr()
    assert main.run(["lint", "--strict", "--baseline", "known.json", "--json", "job.sh"]) == 1
    assert [one["code"] for one in json.loads(capsys.readouterr().out)] == ["E408"]
    script("[]", "known.json")
    assert main.run(["lint", "--baseline", "known.json", "job.sh"]) == 2
    assert "the baseline is not valid" in capsys.readouterr().err


def test_fix_and_diff(script, capsys):
    assert main.run(["lint", "--diff", script(BAD)]) == 1
    out = capsys.readouterr().out
    assert "-#SBATCH --mem=16Go\n+#SBATCH --mem=16G\n" in out
    assert Path("job.sh").read_text() == BAD
    assert main.run(["lint", "--diff", "--ignore", "E104", "job.sh"]) == 0
    assert main.run(["lint", "--fix", "job.sh"]) == 0
    assert Path("job.sh").read_text() == BAD.replace("16Go", "16G")
    assert main.run(["lint", "--diff", "job.sh"]) == 0


def test_a_fix_keeps_mode_and_other_files(script, capsys):
    script("A = 'x'\npython x.py\n", "other.sh")
    Path(script(f"{BAD}bash other.sh\n")).chmod(0o750)
    main.run(["lint", "--fix", "job.sh"])
    assert Path("job.sh").stat().st_mode & 0o777 == 0o750
    assert "A = " in Path("other.sh").read_text()  # not named on the command line


def test_stdin(script, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(BAD.encode())))
    assert main.run(["lint", "-"]) == 1
    assert capsys.readouterr().out.startswith("-:2:1: E104")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(BAD.encode())))
    assert main.run(["lint", "--fix", "-"]) == 2
    assert "--diff -" in capsys.readouterr().err


def test_directories_and_patterns(script, tmp_path, capsys):
    for name in ("jobs/a.sh", "jobs/deep/b.sbatch", "jobs/.hidden/c.sh", "jobs/note.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(BAD)
    (tmp_path / "jobs/empty.sh").touch()
    (tmp_path / "jobs/data.sh").write_bytes(b"\0\xff")
    assert main.run(["lint", "--json", "jobs"]) == 1
    found = {one["path"] for one in json.loads(capsys.readouterr().out)}
    assert found == {"jobs/a.sh", "jobs/deep/b.sbatch"}
    assert main.run(["lint", "--json", "jobs/**/*.sh", "jobs/a.sh"]) == 2  # one is empty
    (tmp_path / "jobs/empty.sh").unlink()
    (tmp_path / "jobs/data.sh").unlink()
    capsys.readouterr()
    assert main.run(["lint", "jobs/**/*.sh", "jobs/a.sh"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("1 file: ")
    assert main.run(["lint", "jobs/*.nothing"]) == 2
    assert "no file matches" in capsys.readouterr().err


def test_repeats_are_one_finding(script, capsys):
    text = BAD.replace("python", "python x.py | tee a\n" * 3 + "python")
    main.run(["lint", "--select", "E507", script(text)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("(also lines 6, 7)")
    assert lines[-1] == "1 file: 1 warning"


def test_a_finding_about_several_commands_shows_the_one_with_ranks_first(script, capsys):
    commands = "python data.py\nsrun python train.py\npython plot.py\necho end\n"
    main.run(["lint", "--select", "E507", script(f"#!/bin/bash\n#SBATCH -n 2\n{commands}")])
    (line, _, _) = capsys.readouterr().out.splitlines()
    assert ":4:1: E507" in line
    assert line.endswith("(also lines 3, 5)")


def test_a_python_script_of_two_jobs_is_reported_once(script, capsys):
    script("print(tain)\n", "train.py")
    job = "#!/bin/bash\n#SBATCH --nodes=1\npython train.py\n"
    assert main.run(["lint", script(job, "a.sh"), script(job, "b.sh"), "train.py"]) == 1
    out = capsys.readouterr().out
    assert out.count("E626") == 1
    assert out.splitlines()[-1] == "3 files: 1 error"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "file not found: job.sh"),
        (b"", "job.sh is empty"),
        (b" \n\n", "job.sh is empty"),
        (b"#!/bin/bash\necho \xe9t\xe9\n", "job.sh is not valid UTF-8: byte 18 is 0xe9"),
        (b"\x7fELF\x00\x00", "job.sh is not a script: it contains null bytes"),
    ],
)
def test_an_unreadable_file_is_one_error_with_a_hint(
    tmp_path, monkeypatch, capsys, content, message
):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("job.sh").write_bytes(content)
    assert main.run(["lint", "job.sh"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    first, second = err.splitlines()
    assert first == f"error: {message}"
    assert second.startswith("hint: ")


def test_a_directory_without_scripts_is_an_error(tmp_path, capsys):
    assert main.run(["lint", str(tmp_path)]) == 2
    assert "no job scripts in" in capsys.readouterr().err


def test_no_files_is_an_error_with_a_hint(capsys):
    assert main.run(["lint"]) == 2
    assert "hint: echelon lint SCRIPT.sh" in capsys.readouterr().err


@pytest.mark.parametrize("rule", RULES, ids=[rule.code for rule in RULES])
def test_every_rule_has_an_explanation(rule, capsys):
    assert main.run(["lint", "--explain", rule.code.lower()]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{rule.code} {rule.severity}: {rule.title}\n")
    assert "\nExample:\n" in out
    assert "\nUse instead:\n" in out


def test_an_unknown_code_points_to_the_list(capsys):
    assert main.run(["lint", "--explain", "E999"]) == 2
    assert "--explain all" in capsys.readouterr().err
    assert main.run(["lint", "--explain", "all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > len(RULES)


def test_the_page_lists_all_rules():
    page = (ROOT / "docs" / "lint.md").read_text()
    rows = re.findall(r"^\| (E\d+) \| ([a-z]+) \| (.+) \|$", page, re.MULTILINE)
    assert rows == [(rule.code, str(rule.severity), rule.title) for rule in RULES]
    assert re.findall(r"^### (.+)$", page, re.MULTILINE) == list(THEMES)


def test_a_missing_parser_names_the_extra():
    program = (
        "import sys\n"
        "sys.modules['tree_sitter'] = None\n"
        "sys.modules['tree_sitter_bash'] = None\n"
        "from echelon.cli.main import run\n"
        "sys.exit(run(['lint', 'job.sh']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 69
    assert "-m pip install tree-sitter tree-sitter-bash\n" in done.stderr


def test_secrets_are_not_printed(script, capsys):
    text = (
        "#!/bin/bash\n#SBATCH --nodes=1\nexport WANDB_API_KEY=hunter2hunter2hunter2\npython x.py\n"
    )
    assert main.run(["lint", "--strict", script(text)]) == 1
    assert "hunter2" not in capsys.readouterr().out
