"""The folder of a version on a host: computed once, and again after each change."""

import os
import sys

import pytest

from echelon import _version
from echelon.clusters.ssh import installed as installed_module
from echelon.clusters.ssh.installed import find_id


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package of one file instead of Echelon, and a folder with installed packages."""
    package, packages = tmp_path / "package", tmp_path / "site-packages"
    package.mkdir()
    packages.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(_version, "__file__", str(package / "__init__.py"))
    monkeypatch.setattr(sys, "path", [str(packages), *sys.path])
    digests = [f"digest {number}" for number in range(9, 0, -1)]
    monkeypatch.setattr(installed_module, "compute_digest", digests.pop)
    return tmp_path


def test_the_digest_of_the_files_is_computed_once(installed):
    memory = installed / "state" / "brought.json"
    first = find_id("/opt/python", memory)
    assert find_id("/opt/python", memory) == first
    assert find_id("", memory) != first
    assert "digest 1" in memory.read_text()


def edit(folder):
    path = folder / "package" / "__init__.py"
    path.write_text("x = 1\n")


def edit_in_the_same_size(folder):
    os.utime(folder / "package" / "__init__.py", ns=(1, 1))


def install(folder):
    (folder / "site-packages" / "rich-99.dist-info").mkdir()


def add_module(folder):
    (folder / "package" / "sub").mkdir()
    (folder / "package" / "sub" / "module.py").write_text("")


def damage(folder):
    (folder / "brought.json").write_text('{"installed": ')


@pytest.mark.parametrize("change", [edit, edit_in_the_same_size, install, add_module, damage])
def test_the_digest_is_computed_again_after_a_change(installed, change):
    memory = installed / "brought.json"
    before = find_id("", memory)
    os.utime(installed / "site-packages", ns=(5, 5))
    before = find_id("", memory)
    change(installed)
    assert find_id("", memory) != before
    assert "digest 3" in memory.read_text()


def test_bytecode_and_the_working_directory_do_not_change_the_digest(installed, monkeypatch):
    memory = installed / "brought.json"
    monkeypatch.setattr(sys, "path", [str(installed / "project"), *sys.path])
    (installed / "project").mkdir()
    monkeypatch.chdir(installed / "project")
    before = find_id("", memory)
    (installed / "package" / "__pycache__").mkdir()
    (installed / "package" / "__pycache__" / "x.pyc").write_text("")
    (installed / "project" / "new.py").write_text("")
    assert find_id("", memory) == before


def test_the_digest_needs_no_writable_folder(installed):
    (installed / "state").write_text("a file")
    assert find_id("", installed / "state" / "brought.json")
