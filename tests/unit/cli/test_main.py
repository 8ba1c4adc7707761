import importlib
import os
import subprocess
import sys

import pytest
import typer

from echelon import __version__
from echelon.cli import app as commands
from echelon.cli import main
from echelon.errors import ConflictError, EchelonError

HEAVY = [
    *("torch", "numpy", "starlette", "uvicorn", "plotly", "textual", "rich", "psutil", "pynvml"),
    "tree_sitter",
]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["sandbox", "up", "--help"]])
def test_help_and_version_import_nothing_slow(arguments):
    program = (
        "import sys\n"
        "from echelon.cli.main import run\n"
        f"assert run({arguments}) == 0\n"
        f"print('loaded:', sorted(set({HEAVY}) & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "loaded: []"


def test_version_is_printed(capsys):
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == f"echelon {__version__}\n"


def test_a_call_without_arguments_prints_the_help(capsys):
    assert main.run([]) == 0
    assert "Start and stop runs:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["foo"], "no such command 'foo'", "see echelon --help"),
        (["sandbox"], "missing command", "see echelon sandbox --help"),
        (["sandbox", "up", "--node", "3"], "no such option", "see echelon sandbox up --help"),
        (["sandbox", "kill"], "missing argument", "see echelon sandbox kill --help"),
        (["sandbox", "up", "--mem", "16Go"], "'16Go' is not a memory size", "for example 64G"),
    ],
)
def test_an_invalid_call_is_one_error_with_a_hint(capsys, arguments, message, hint):
    assert main.run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    first, second = err.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert second.startswith("hint: ")
    assert hint in second


@pytest.fixture
def failing(monkeypatch):
    """A command line whose only command raises the given error."""

    def install(error):
        app = typer.Typer(rich_markup_mode=None)

        @app.command()
        def fail(*, debug: bool = False) -> None:
            raise error

        monkeypatch.setattr(commands, "app", app)

    return install


@pytest.mark.parametrize(
    ("error", "code", "expected"),
    [
        (
            ConflictError("it is there", hint="take another"),
            73,
            "error: it is there\nhint: take another\n",
        ),
        (EchelonError("short"), 70, "error: short\n"),
        (KeyboardInterrupt(), 130, ""),
        (
            PermissionError(13, "Permission denied", "/x"),
            77,
            "error: /x: Permission denied\nhint: check its owner and mode: ls -ld /x\n",
        ),
        (
            FileNotFoundError(2, "No such file or directory", "/x y"),
            69,
            (
                "error: /x y: No such file or directory\n"
                "hint: check its owner and mode: ls -ld '/x y'\n"
            ),
        ),
        (
            OSError(28, "No space left on device"),
            69,
            (
                "error: [Errno 28] No space left on device\n"
                "hint: free some space (df -h, quota), or use another directory\n"
            ),
        ),
        (
            BlockingIOError(11, "Resource temporarily unavailable"),
            69,
            (
                "error: [Errno 11] Resource temporarily unavailable\n"
                "hint: show where it failed: echelon --debug …\n"
            ),
        ),
    ],
)
def test_an_error_is_printed_and_sets_the_exit_code(failing, capsys, error, code, expected):
    failing(error)
    assert main.run(["--no-debug"]) == code
    assert capsys.readouterr().err == expected


def test_an_unexpected_error_asks_for_a_bug_report(failing, capsys):
    failing(ValueError("odd"))
    assert main.run(["--no-debug"]) == 70
    err = capsys.readouterr().err
    assert err.startswith("error: unexpected ValueError: odd\nhint: this is a bug")
    assert "Traceback" not in err


def test_debug_shows_the_traceback(failing, capsys):
    failing(ValueError("odd"))
    assert main.run(["--debug"]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_a_closed_pipe_exits_with_sigpipe():
    done = subprocess.run(
        f"{sys.executable} -m echelon --help | true",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""


@pytest.mark.parametrize("value", ["0", "false", ""])
def test_debug_variable_can_turn_tracebacks_off(failing, capsys, monkeypatch, value):
    monkeypatch.setenv("ECHELON_DEBUG", value)
    failing(ValueError("odd"))
    assert main.run(["--no-debug"]) == 70
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("redirect", [">/dev/full", ">&-"])
def test_unwritable_output_is_not_reported_as_a_bug(redirect):
    command = f"{sys.executable} -m echelon --version {redirect}"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=env, check=False)
    assert done.returncode in (0, 69)
    assert done.stderr.startswith("error: standard output: " if "full" in redirect else "")
    assert "a bug" not in done.stderr


def test_unwritable_unbuffered_output_is_not_reported_as_a_bug():
    done = subprocess.run(
        f"{sys.executable} -m echelon config >/dev/full",
        shell=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        check=False,
    )
    assert done.returncode == 69
    assert done.stderr.startswith("error: standard output: No space left on device\n")


def test_python_m_echelon_runs_the_command_line():
    done = subprocess.run(
        [sys.executable, "-m", "echelon", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"echelon {__version__}\n"


def test_bash_completes_a_command(tmp_path):
    """Real bash runs the script that --show-completion prints."""
    typer_completion = importlib.import_module("typer.completion")
    script = typer_completion.get_completion_script(
        prog_name="echelon", complete_var="_ECHELON_COMPLETE", shell="bash"
    )
    bin_folder = os.path.dirname(sys.executable)  # noqa: PTH120
    program = f"""
{script}
complete_line() {{
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
    _echelon_completion echelon
    printf '%s\\n' "${{COMPREPLY[@]}}"
}}
complete_line echelon san
complete_line echelon sandbox re
complete_line echelon sandbox up --gpu-
"""
    environ = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", program], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["sandbox", "restore", "--gpu-type"]
