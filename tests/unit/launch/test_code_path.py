"""Where ranks look for modules of a project whose code was copied."""

import os
import subprocess
import venv
from pathlib import Path

import pytest

from echelon.launch.code_path import search_path
from echelon.launch.program import find_program
from echelon.run.code import ProjectCopy
from echelon.spec.job_spec import JobSpec


@pytest.fixture
def copy(tmp_path):
    """A project with two folders of modules, and its copy."""
    for top in ("project", "code"):
        for name in ("src/pkg", "lib", "bin"):
            (tmp_path / top / name).mkdir(parents=True)
        (tmp_path / top / "src" / "pkg" / "__init__.py").write_text(f"WHERE = {top!r}\n")
        (tmp_path / top / "train.py").write_text("")
    (tmp_path / "project" / "data").mkdir()
    (tmp_path / "code" / "data").symlink_to(tmp_path / "project" / "data")
    folder = tmp_path / "project"
    return ProjectCopy(root=folder, copy=tmp_path / "code", folder=folder)


@pytest.fixture
def find(copy, tmp_path):
    def call(path=None, *, module=False, sites=()):
        environ = {} if path is None else {"PYTHONPATH": path}
        finders = tmp_path / "finders"
        return search_path(environ, copy, module=module, sites=sites, finders=finders)

    return call


def test_entries_inside_the_project_are_those_of_the_copy(find, copy):
    code, root = copy.copy, copy.root
    assert find(f"{root}/lib:/usr/lib/x:src:{root}") == f"{code}/lib:/usr/lib/x:{code}/src:{code}"
    assert find(f"{root}/data:missing:../elsewhere") == f"{root}/data:missing:../elsewhere"


def test_an_empty_entry_is_the_working_directory(find, copy):
    assert find("/x:") == f"/x:{copy.copy}"
    assert find("") == ""
    assert find() == ""


def test_a_module_is_searched_in_the_copy(find, copy):
    assert find("/x", module=True) == f"{copy.copy}:/x"


def test_a_path_through_a_link_is_inside_the_project(find, copy, tmp_path):
    (tmp_path / "home").symlink_to(copy.root)
    assert find(f"{tmp_path}/home/lib") == f"{copy.copy}/lib"


def test_programs_are_those_of_the_copy(copy):
    def found(**values):
        spec = JobSpec(chdir=str(copy.root), **values)
        return find_program(spec, copy)

    assert found(script="train.py", args=("-x",)).argv == (f"{copy.copy}/train.py", "-x")
    assert found(script=f"{copy.root}/train.py").argv == (f"{copy.copy}/train.py",)
    assert found(script="/bin/true").argv == ("/bin/true",)
    assert found(script="bash").argv == ("bash",)
    module = found(script="pkg.train", module=True)
    assert module.argv == ("pkg.train",)
    assert module.folder() == str(copy.copy)
    assert module.command("python") == ["python", "-P", "-m", "pkg.train"]


FINDERS = {
    # As pip writes them: a path, or a module that is imported at each start.
    "path": ("__editable__.pkg-1.pth", "{root}/src\n", "", ""),
    "finder": (
        "__editable__.pkg-1.pth",
        "import __editable___pkg_1_finder; __editable___pkg_1_finder.install()\n",
        "__editable___pkg_1_finder.py",
        """\
import importlib.util, sys
MAPPING = {{'pkg': '{root}/src/pkg'}}
class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in MAPPING:
            return importlib.util.spec_from_file_location(name, MAPPING[name] + '/__init__.py')
def install():
    sys.meta_path.append(Finder)
""",
    ),
}


@pytest.mark.parametrize("kind", FINDERS)
def test_packages_in_editable_mode_come_from_the_copy(find, copy, tmp_path, kind):
    venv.create(tmp_path / "venv", symlinks=True)
    site = next(Path(tmp_path, "venv", "lib").glob("python*/site-packages"))
    pth, line, module, text = FINDERS[kind]
    (site / pth).write_text(f"# comment\n\n{line.format(root=copy.root)}")
    (site / "other.pth").write_text("import os; os.environ\n../../nothing\n")
    if module:
        (site / module).write_text(text.format(root=copy.root))
    python = [str(tmp_path / "venv" / "bin" / "python"), "-c", "import pkg; print(pkg.WHERE)"]
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def where(**more):
        done = subprocess.run(python, env={**env, **more}, capture_output=True, check=True)
        return done.stdout.decode().strip()

    assert where() == "project"
    assert where(PYTHONPATH=find(sites=[site])) == "code"


def test_other_modules_of_the_python_stay(find, tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (site / "a.pth").write_text("import broken\nimport other\n")
    (site / "broken.py").write_text("def (:\n")
    (site / "other.py").write_text("PATH = '/usr/lib'\n")
    assert find(sites=[site, tmp_path / "missing"]) == ""
