import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path

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
