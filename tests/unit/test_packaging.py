import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path

from echelon.core.extras import EXTRAS

ROOT = Path(__file__).parents[2]


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def constraints():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonical(name): version for name, version in pins}


def test_everything_installed_is_pinned_to_what_is_installed():
    installed = {canonical(d.name): d.version.partition("+")[0] for d in distributions()}
    installed.pop("echelon")
    pins = constraints()
    assert {name: pins.get(name) for name in installed} == installed


def test_every_dependency_of_extras_and_groups_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = list(project["project"]["dependencies"])
    for group in project["dependency-groups"].values():
        wanted += group
    for extra, packages in project["project"]["optional-dependencies"].items():
        wanted += packages if extra != "ray" else []
    names = {canonical(re.match(r"[A-Za-z0-9._-]+", requirement)[0]) for requirement in wanted}
    assert names <= constraints().keys()


def test_torch_is_the_release_users_build_against():
    assert constraints()["torch"] == "2.13.0"


def test_hints_about_an_extra_name_its_packages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {
        extra: tuple(re.match(r"[A-Za-z0-9._-]+", one)[0] for one in packages)
        for extra, packages in project["optional-dependencies"].items()
    }
    assert {extra: named[extra] for extra in EXTRAS} == EXTRAS


def test_nothing_tells_pip_to_look_for_echelon_in_the_package_index():
    """It is not there, and another project could take the name."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    wrong = re.compile(r"pip install (?:\S+ )*['\"]?echelon\b(?!\[\w+\] @)[^\n]*")
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in (*pages, *(ROOT / "src").rglob("*.py"))
        for match in wrong.finditer(path.read_text())
    ]
    assert found == []
