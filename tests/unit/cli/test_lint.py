import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from echelon.cli import main
from echelon.lint.linting import RULES, THEMES

ROOT = Path(__file__).parents[3]
BAD = "#!/bin/bash\n#SBATCH --mem=16Go\n#SBATCH --nodes=1\nexport MASTER_PORT=29500\npython x.py\n"


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
        "job.sh:2: E111 error: '16Go' is not a valid memory size. sbatch rejects the script."
    )
    assert lines[1] == "    #SBATCH --mem=16G"
    assert lines[2].startswith("job.sh:4: E301 warning: ")
    assert lines[-1] == "1 file: 1 error, 1 warning"


def test_a_script_without_problems_exits_with_0(script, capsys):
    assert main.run(["lint", script("#!/bin/bash\n#SBATCH --mem=16G\npython x.py\n")]) == 0
    assert capsys.readouterr().out == "1 file: no problems found\n"


def test_advice_does_not_change_the_exit_status(script, capsys):
    text = "#!/bin/bash\n#SBATCH --mail-user=[me]\npython x.py\n"
    assert main.run(["lint", script(text)]) == 0
    assert "E116 advice" in capsys.readouterr().out


def test_json(script, capsys):
    assert main.run(["lint", "--json", script(BAD)]) == 1
    first = json.loads(capsys.readouterr().out)[0]
    assert first.keys() == {"code", "path", "line", "severity", "what", "fix"}
    assert (first["code"], first["line"], first["severity"]) == ("E111", 2, "error")


@pytest.mark.parametrize("place", ["the line", "the line before"])
def test_a_comment_ignores_a_code(script, capsys, place):
    own, before = (
        ("  # echelon: ignore E301", "")
        if place == "the line"
        else ("", "# echelon: ignore E301\n")
    )
    text = f"#!/bin/bash\n#SBATCH --nodes=1\n{before}export MASTER_PORT=29500{own}\npython x.py\n"
    assert main.run(["lint", script(text)]) == 0
    text = text.replace("ignore E301", "ignore E405, E302")
    assert main.run(["lint", script(text)]) == 1


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


def test_a_directory_is_an_error(tmp_path, capsys):
    assert main.run(["lint", str(tmp_path)]) == 2
    assert "is a directory" in capsys.readouterr().err


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
    rows = re.findall(r"^\| (E\d+) \| (\w+) \| (.+) \|$", page, re.MULTILINE)
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
    assert "hint: pip install 'echelon[lint]'" in done.stderr


def test_secrets_are_not_printed(script, capsys):
    text = (
        "#!/bin/bash\n#SBATCH --nodes=1\nexport WANDB_API_KEY=hunter2hunter2hunter2\npython x.py\n"
    )
    assert main.run(["lint", script(text)]) == 1
    assert "hunter2" not in capsys.readouterr().out
