"""Problems of a request that are found before anything is started."""

import sys

import pytest

from echelon.client.submit.checks import (
    check_files,
    check_python,
    check_sweep,
    find_function_problems,
)
from echelon.core.shell import FakeShell, LocalShell
from echelon.errors import UsageError
from echelon.spec.job_spec import JobSpec
from echelon.spec.merging import Layer, merge

OWN_VERSION = "{}.{}".format(*sys.version_info)


def spec(**values):
    return merge([Layer(source="x", values=values)]).spec


@pytest.mark.parametrize(
    ("source", "values", "output", "problem"),
    [
        ("import torch", {}, "torch False", "the Python 'python3' has no torch"),
        ("import torch", {"python": "/p"}, "torch False", "the Python '/p' has no torch"),
        ("import torch", {"venv": "v"}, "torch False", "/v/bin/python' has no torch"),
        ("import torch", {}, "torch True", ""),
        ("pass", {}, "torch False", ""),
        ("pass", {"python": "/p"}, "torch False", ""),
        ("import torch", {"conda": "x"}, "torch False", ""),
        ("import torch", {"modules": ["x"]}, "torch False", ""),
    ],
)
def test_a_python_without_torch_is_a_problem(tmp_path, source, values, output, problem):
    (tmp_path / "train.py").write_text(source)
    (tmp_path / "v" / "bin").mkdir(parents=True)
    (tmp_path / "v" / "bin" / "activate").touch()
    shell = FakeShell(answers={"": f"{output}\n"})
    found = check_python(spec(script="train.py", **values), tmp_path, shell)
    assert (problem in found[0]) if problem else found == []


@pytest.mark.parametrize("python", ["/nowhere/python", "nowhere/python", "python-that-is-not"])
def test_a_missing_python_is_a_problem_for_any_script(tmp_path, python):
    (tmp_path / "train.py").write_text("pass")
    found = check_python(spec(script="train.py", python=python), tmp_path, LocalShell())
    (problem,) = found
    assert problem.startswith(f"Python not found: '{python}'; choose another")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("#!/bin/sh\necho cannot run that >&2; exit 1", "is not a working Python: cannot run that"),
        ("#!/bin/sh\n", "is not a working Python: it printed nothing"),
        ("text", "cannot be executed: [Errno 8] Exec format error"),
        ("#!/nowhere/python\n", "cannot be executed: "),
    ],
)
def test_a_program_other_than_python_is_a_problem(tmp_path, content, problem):
    program = tmp_path / "p"
    program.write_text(content)
    program.chmod(0o755)
    (tmp_path / "train.py").write_text("pass")
    (found,) = check_python(spec(script="train.py", python=str(program)), tmp_path, LocalShell())
    assert found.startswith(f"'{program}' {problem}")


@pytest.mark.parametrize(
    ("content", "values", "problem"),
    [
        (None, {}, "does not exist"),
        ("def", {}, "does not compile"),
        ("pass", {"venv": "v"}, "no virtual environment in "),
        ("pass", {"venv": "v" * 300}, "cannot read the virtual environment "),
        ("pass", {"output": "nowhere/%j.out"}, "the output directory"),
        ("pass", {"venv": "nowhere"}, "no virtual environment"),
        ("pass", {"output": "%j.out"}, ""),
    ],
)
def test_all_problems_of_files_are_returned(tmp_path, content, values, problem):
    if content is not None:
        (tmp_path / "train.py").write_text(content)
    found = check_files(spec(script="train.py", **values), tmp_path)
    assert (problem in found[0]) if problem else found == []


def test_a_function_needs_the_python_version_it_was_pickled_with(tmp_path):
    (problem,) = find_function_problems(JobSpec(), tmp_path, LocalShell(), version="3.9")
    assert "cannot read a function of Python 3.9" in problem
    shell = FakeShell(answers={"/opt/python -c": "3.9\n"})
    request = JobSpec(python="/opt/python")
    assert find_function_problems(request, tmp_path, shell, version="3.9") == []
    activated = JobSpec(prologue=("source /opt/env/activate",))  # its Python is not known here
    assert find_function_problems(activated, tmp_path, shell, version="3.9") == []


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (JobSpec(slurm_extra={"array": "0-3"}), "job arrays"),
        (JobSpec(style="srun"), "needs the style 'echelon'"),
        (JobSpec(python="no-such-python"), "Python not found"),
    ],
)
def test_problems_of_a_request_for_a_function(tmp_path, request_, message):
    (problem,) = find_function_problems(request_, tmp_path, LocalShell(), version=OWN_VERSION)
    assert message in problem


@pytest.mark.parametrize("values", [{"hand_over": "always"}, {"style": "srun"}])
def test_a_sweep_refuses_unsupported_requests(values):
    with pytest.raises(UsageError, match="a sweep does not support"):
        check_sweep(spec(script="train.py", args=["{i}"], **values), ["i"])
