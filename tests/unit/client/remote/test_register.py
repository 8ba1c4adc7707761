"""The register of runs on other hosts."""

from pathlib import Path

import pytest

from echelon.client.remote.register import find_entry, forget_run, read_register, record_run
from echelon.clusters.ssh.site import Site
from echelon.errors import UsageError

SITE = Site(host="me@login", workdir="~/echelon/x", python="/opt/python", cluster="alps")


@pytest.fixture
def environ(tmp_path):
    return {"XDG_STATE_HOME": str(tmp_path)}


def test_a_recorded_run_is_read(environ):
    record_run("train-aaaa", Path("/home/me/x"), SITE, environ)
    record_run("train-bbbb", Path("/home/me/y"), SITE, environ)
    known = read_register(environ)
    assert [(one.run, one.project, one.site) for one in known] == [
        ("train-aaaa", "/home/me/x", SITE),
        ("train-bbbb", "/home/me/y", SITE),
    ]


def test_a_run_whose_submission_failed_is_forgotten(environ):
    record_run("train-aaaa", Path("/x"), SITE, environ)
    forget_run("train-aaaa", environ)
    assert read_register(environ) == []


def test_damaged_lines_of_the_register_are_ignored(environ, tmp_path):
    record_run("train-aaaa", Path("/x"), SITE, environ)
    with (tmp_path / "echelon" / "hosts.jsonl").open("ab") as file:
        file.write(b'{"run": "half\n\xff\xfe\n[]\n{"run": "x", "site": 3}\n"run"\n')
    record_run("train-cccc", Path("/x"), SITE, environ)
    assert [one.run for one in read_register(environ)] == ["train-aaaa", "train-cccc"]


def test_last_is_the_last_run_of_the_current_project(environ):
    record_run("train-aaaa", Path("/home/me/x"), SITE, environ)
    record_run("train-bbbb", Path("/home/me/xy"), SITE, environ)
    known = read_register(environ)
    assert find_entry(known, "last", Path("/home/me/x/sub")).run == "train-aaaa"
    assert find_entry(known, "last", Path("/home/me/xy")).run == "train-bbbb"
    assert find_entry(known, "last", Path("/home/me")) is None


def test_a_sweep_is_not_a_run_but_its_tasks_are(environ):
    record_run("train-aaaa", Path("/x"), SITE, environ)
    record_run("train-bbbb", Path("/x"), SITE, environ, sweep=True)
    known = read_register(environ)
    assert find_entry(known, "last", Path("/x")).run == "train-aaaa"
    assert find_entry(known, "last", Path("/x"), sweep=True).run == "train-bbbb"
    assert find_entry(known, "train-bbbb", Path("/x")) is None
    assert find_entry(known, "train-b", Path("/x"), sweep=True).run == "train-bbbb"
    assert find_entry(known, "train-bbbb-7", Path("/x")).run == "train-bbbb-7"
    assert find_entry(known, "train-bbbb-7x", Path("/x")) is None


def test_an_ambiguous_prefix_is_an_error(environ):
    for name in ("train-aaaa", "train-aaab"):
        record_run(name, Path("/x"), SITE, environ)
    known = read_register(environ)
    assert find_entry(known, "train-aaaa", Path("/")).run == "train-aaaa"
    assert find_entry(known, "other", Path("/")) is None
    with pytest.raises(UsageError, match="ambiguous: train-aaaa, train-aaab"):
        find_entry(known, "train-a", Path("/"))


def test_without_a_home_nothing_is_recorded():
    record_run("train-aaaa", Path("/x"), SITE, {})
    assert read_register({}) == []
