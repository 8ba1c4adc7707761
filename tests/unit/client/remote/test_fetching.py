"""Fetching files of a run: patterns, lost connections and refusals."""

import errno
import json
import os
import stat

import pytest

from byte_streams import exchange, talk
from echelon.client.code.tree import Tree
from echelon.client.remote import fetching
from echelon.client.remote.fetching import list_files, parse_wanted, receive_files, send_files
from echelon.errors import (
    ConflictError,
    NotFoundError,
    NotPermittedError,
    UnavailableError,
    UsageError,
)

LONG_AGO_NS = 10**18 + 123


@pytest.fixture
def run(tmp_path):
    """A run directory on the host."""
    root = tmp_path / "host" / "runs" / "a-1"
    write(root, {"spec.toml": "x = 1\n", "job.sbatch": "#!/bin/sh\n", "metrics.jsonl": ""})
    write(root, {"logs/job-1.out": "out\n", "logs/1.0/rank-00000.log": "zero\n"})
    write(root, {"attempts/1/job.json": "{}", "events/controller-1.jsonl": "{}\n"})
    write(root, {"code/train.py": "train\n", "launcher": "zip", "checkpoints/step-1/x": "w" * 9})
    (root / "job.sbatch").chmod(0o700)
    (root / "logs" / "latest").symlink_to("job-1.out")
    (root / "logs" / "away").symlink_to("/etc")
    return root


@pytest.fixture
def here(tmp_path):
    return tmp_path / "laptop" / "a-1"


def write(root, files):
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
        os.utime(root / path, ns=(LONG_AGO_NS, LONG_AGO_NS))


def fetch(run, here, *wanted, progress=lambda _some, _all: None, **cuts):
    return exchange(
        lambda stream: receive_files(here, wanted, stream, progress),
        lambda stream: send_files(run, wanted, stream),
        **cuts,
    )


def content(folder):
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def parts(folder):
    return [path for path in folder.rglob("*") if path.name.endswith(".part")]


def test_checkpoints_and_code_are_not_fetched_by_default(run, here):
    reported = []
    done = fetch(run, here, progress=lambda *numbers: reported.append(numbers)).check().laptop
    expected = {
        path: text
        for path, text in content(run).items()
        if not path.startswith(("code/", "launcher", "checkpoints/"))
    }
    assert content(here) == expected
    assert (done.files, done.unchanged, done.warnings) == (len(expected), 0, ())
    assert done.size == sum(map(len, expected.values()))
    assert reported[-1] == (done.size, done.size)
    assert not os.path.lexists(here / "logs" / "latest")
    assert (here / "spec.toml").stat().st_mtime_ns == LONG_AGO_NS
    modes = [
        stat.S_IMODE((here / name).stat().st_mode) for name in ("spec.toml", "job.sbatch", ".")
    ]
    assert modes == [0o600, 0o700, 0o700]


def test_only_changed_files_are_fetched_again(run, here):
    fetch(run, here).check()
    write(run, {"logs/job-1.out": "out\nmore\n", "verdict.json": "{}"})
    done = fetch(run, here).check().laptop
    assert (done.files, done.size) == (2, len("out\nmore\n{}"))
    assert (here / "logs" / "job-1.out").read_text() == "out\nmore\n"
    assert fetch(run, here).check().laptop.files == 0


def test_a_file_with_another_time_is_fetched_again(run, here):
    fetch(run, here).check()
    (run / "spec.toml").write_text("y = 2\n")
    assert fetch(run, here).check().laptop.files == 1
    assert (here / "spec.toml").read_text() == "y = 2\n"


@pytest.mark.parametrize(
    ("wanted", "paths"),
    [
        (["checkpoints"], {"checkpoints/step-1/x"}),
        (["checkpoints/"], {"checkpoints/step-1/x"}),
        (["checkpoints/**"], {"checkpoints/step-1/x"}),
        (["logs/*.out"], {"logs/job-1.out"}),
        (["logs/*"], {"logs/job-1.out", "logs/1.0/rank-00000.log"}),
        (["**/*.log"], {"logs/1.0/rank-00000.log"}),
        (["*.toml", "code"], {"spec.toml", "code/train.py"}),
        (["code/train.py"], {"code/train.py"}),
    ],
)
def test_only_files_that_match_patterns_are_fetched(run, here, wanted, paths):
    fetch(run, here, *wanted).check()
    assert set(content(here)) == paths


def test_a_pattern_without_matches_is_an_error(run, here):
    done = fetch(run, here, "logs", "nothing/*.pt")
    assert isinstance(done.laptop, NotFoundError)
    assert "no files that match 'nothing/*.pt'" in done.laptop.message
    assert "checkpoints, code, events, job.sbatch, launcher, logs" in done.laptop.hint
    assert isinstance(done.host, NotFoundError)
    assert not here.exists()


@pytest.mark.parametrize("wanted", ["../b-2", "/etc/passwd", "logs/../..", "", "."])
def test_patterns_that_lead_elsewhere_are_refused(run, wanted):
    with pytest.raises(UsageError):
        parse_wanted([wanted])
    with pytest.raises(UsageError):
        list_files(run, [wanted])


# --- lost connections -------------------------------------------------------------------------


def test_a_fetch_continues_after_a_connection_lost_at_any_byte(run, tmp_path):
    write(run, {"logs/big.log": "0123456789" * 30_000})
    expected = content(run / "logs")
    whole = fetch(run, tmp_path / "whole", "logs").check()
    cuts = [*range(0, 900, 37), *range(900, whole.down, 20_011), whole.down - 1]
    for number, cut in enumerate(cuts):
        here = tmp_path / f"cut-{number}"
        done = fetch(run, here, "logs", cut_down=cut)
        assert isinstance(done.laptop, UnavailableError), cut
        again = fetch(run, here, "logs").check()
        assert content(here / "logs") == expected
        assert parts(here) == []
        got = done.down + again.down
        # Besides what is in flight, only messages are sent twice.
        assert got < whole.down + 70_000
        if cut > 150_000:
            assert again.down < whole.down


def test_a_fetch_continues_after_a_request_lost_at_any_byte(run, tmp_path):
    whole = fetch(run, tmp_path / "whole").check()
    for cut in range(0, whole.up, 7):
        done = fetch(run, tmp_path / f"cut-{cut}", cut_up=cut)
        assert isinstance(done.laptop, UnavailableError)
        assert parts(tmp_path) == []


def test_a_part_is_not_continued_if_its_source_changed(run, here):
    write(run, {"logs/big.log": "0123456789" * 30_000})
    fetch(run, here, "logs", cut_down=200_000)
    assert len(parts(here)) == 1
    write(run, {"logs/big.log": "abcdefghij" * 20_000})
    fetch(run, here, "logs").check()
    assert content(here / "logs") == content(run / "logs")
    assert parts(here) == []


def test_a_large_file_is_sent_in_chunks(run, here, monkeypatch):
    monkeypatch.setattr(fetching, "CHUNK_BYTES", 1000)
    write(run, {"checkpoints/model": "0123456789" * 999})
    fetch(run, here, "checkpoints").check()
    assert content(here / "checkpoints") == content(run / "checkpoints")


# --- files that change ------------------------------------------------------------------------


def change_before_sending(monkeypatch, path, change):
    original = fetching._send_file

    def send(tree, listed, *words):
        if listed.path == path:
            change()
        original(tree, listed, *words)

    monkeypatch.setattr(fetching, "_send_file", send)


def test_a_log_that_grows_is_sent_as_it_was_listed(run, here, monkeypatch):
    log = run / "logs" / "job-1.out"

    def grow():
        with log.open("a") as file:
            file.write("more\n")

    change_before_sending(monkeypatch, "logs/job-1.out", grow)
    done = fetch(run, here, "logs").check().laptop
    assert (here / "logs" / "job-1.out").read_text() == "out\n"
    assert done.warnings == ()
    monkeypatch.undo()
    fetch(run, here, "logs").check()
    assert (here / "logs" / "job-1.out").read_text() == "out\nmore\n"


@pytest.mark.parametrize("deleted", [True, False])
def test_a_file_that_became_shorter_is_skipped(run, here, monkeypatch, deleted):
    log = run / "logs" / "job-1.out"
    change = log.unlink if deleted else lambda: os.truncate(log, 1)
    change_before_sending(monkeypatch, "logs/job-1.out", change)
    done = fetch(run, here, "logs").check().laptop
    (warning,) = done.warnings
    assert warning.startswith("logs/job-1.out was skipped: it ")
    assert set(content(here)) == {"logs/1.0/rank-00000.log"}


def test_a_file_that_becomes_shorter_while_it_is_sent_is_skipped(run, here, monkeypatch):
    monkeypatch.setattr(fetching, "CHUNK_BYTES", 1000)
    write(run, {"logs/a.log": "0123456789" * 100_000})

    def shorten(some, _all):
        if some < 3000:
            os.truncate(run / "logs" / "a.log", 1000)

    done = fetch(run, here, "logs", progress=shorten).check().laptop
    assert done.warnings == ("logs/a.log was skipped: it became shorter",)
    assert "logs/a.log" not in content(here)
    assert parts(here) == []


def test_a_file_that_was_replaced_is_sent_as_it_is_now(run, here, monkeypatch):
    def replace():
        write(run, {"logs/new": "another, longer one\n"})
        (run / "logs" / "new").replace(run / "logs" / "job-1.out")

    change_before_sending(monkeypatch, "logs/job-1.out", replace)
    fetch(run, here, "logs").check()
    assert (here / "logs" / "job-1.out").read_text() == "another, longer one\n"
    assert parts(here) == []


# --- hosts that are not trusted ---------------------------------------------------------------


def listing(*paths):
    return json.dumps({"files": {path: [1, 1, False] for path in paths}}).encode() + b"\n"


@pytest.mark.parametrize("path", ["code/train.py", "elsewhere", "logs/../../x"])
def test_paths_that_were_not_asked_for_are_refused(here, path):
    done = exchange(lambda stream: receive_files(here, [], stream), talk(listing(path)))
    assert isinstance(done.laptop, NotPermittedError)
    assert not here.exists()


ACTED_ON = [
    *(
        "logs/.git/config",
        "logs/.GIT/x",
        "logs/.git",
        "logs/a/.envrc",
        "logs/.bashrc",
        "logs/.zshrc",
    ),
    *(
        "logs/.gitattributes",
        "logs/.gitmodules",
        "logs/.gitignore",
        "logs/.ssh/config",
        "logs/HEAD",
    ),
    *("logs/repo/head", "logs/git~1/x", "logs/\u200c.git/x", "logs/.g\u200cit/x", "logs/pip.conf"),
    *("logs/sitecustomize.py", "logs/usercustomize/__init__.py", "logs/venv/pyvenv.cfg"),
    *("logs/.metadata/x", "logs/.metadata\n", "logs/.echelon-run", "logs/.vscode/tasks.json"),
]
DATA = [
    "logs/x/.metadata",
    "logs/x/.zarray",
    "logs/header",
    "logs/HEAD.json",
    "logs/x.git/y",
    "logs/a.b",
]


@pytest.mark.parametrize("path", ACTED_ON)
def test_files_with_names_that_programs_act_on_are_left_out(run, here, path):
    write(run, {path: "x", "logs/kept": "x"})
    (warning,) = fetch(run, here, "logs").check().laptop.warnings
    assert warning.startswith("1 file left out, because programs such as git act on their names: ")
    assert (here / "logs/kept").exists()
    assert not os.path.lexists(here / path)


def test_hidden_files_of_data_are_fetched(run, here):
    write(run, dict.fromkeys(DATA, "x"))
    assert fetch(run, here, "logs").check().laptop.warnings == ()
    assert set(DATA) <= set(content(here))


def test_any_name_may_be_fetched_into_a_folder_that_is_removed(run, here):
    write(run, {"code/.gitignore": "x"})
    exchange(
        lambda stream: receive_files(here, ["code"], stream, every_name=True),
        lambda stream: send_files(run, ["code"], stream),
    ).check()
    assert (here / "code/.gitignore").exists()


@pytest.mark.parametrize(
    "paths",
    [
        [f"logs/{number}" for number in range(300_000)],
        [f"logs/{number}/" + "/".join("a" * 100) for number in range(2000)],
    ],
)
def test_more_files_or_folders_than_any_run_has_are_refused(here, paths):
    done = exchange(lambda stream: receive_files(here, [], stream), talk(listing(*paths)))
    assert isinstance(done.laptop, UsageError)
    assert "more than 100,000 files and folders" in done.laptop.message
    assert not here.exists()


@pytest.mark.parametrize(
    "message",
    [
        b"Welcome!\n",
        b"{}\n",
        b'{"files": []}\n',
        b'{"files": {"spec.toml": 1}}\n',
        b'{"files": {"spec.toml": [-1, 0, false]}}\n',
        b'{"files": {"spec.toml": [1, 1e99, false]}}\n',
        listing("spec.toml") + b'{"path": "logs"}\n',
        listing("spec.toml") + b'{"path": "spec.toml", "offset": 5, "size": 1, "mtime_ns": 1}\n',
        listing("spec.toml")
        + b'{"path": "spec.toml", "offset": 0, "size": 1, "mtime_ns": 1}\n{"bytes": 2}\nxx',
        listing("spec.toml")
        + b'{"path": "spec.toml", "offset": 0, "size": 1, "mtime_ns": 1}\n{"bytes": 0}\n',
        listing("spec.toml")
        + b'{"path": "spec.toml", "offset": 0, "size": 9999999, "mtime_ns": 2}\n'
        + b'{"bytes": 9999999}\n',
    ],
)
def test_a_malformed_listing_is_refused(here, message):
    done = exchange(lambda stream: receive_files(here, [], stream), talk(message))
    assert isinstance(done.laptop, UnavailableError)
    assert not (here / "spec.toml").exists()


def test_a_link_in_the_place_of_a_folder_is_not_followed(run, here, tmp_path):
    here.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (here / "logs").symlink_to(tmp_path / "elsewhere")
    assert isinstance(fetch(run, here, "logs").laptop, ConflictError)
    assert content(tmp_path / "elsewhere") == {}


def test_a_link_in_the_place_of_a_part_is_not_followed(run, here, tmp_path):
    write(tmp_path, {"victim": ""})
    status = list_files(run, ["spec.toml"])["spec.toml"].status
    here.mkdir(parents=True)
    part = fetching._part("spec.toml", fetching.RunFile(status.st_size, status.st_mtime_ns, False))
    (here / part).symlink_to(tmp_path / "victim")
    fetch(run, here, "spec.toml").check()
    assert (tmp_path / "victim").read_text() == ""
    assert (here / "spec.toml").read_text() == "x = 1\n"


@pytest.mark.parametrize(
    "answer",
    [b'{"needs": {"../../x": 0}}\n', b'{"needs": {"launcher": 0}}\n', b'{"needs": []}\n', b"x\n"],
)
def test_a_receiver_gets_only_listed_files(run, answer):
    done = exchange(
        lambda stream: (stream.receive(), stream.write(answer)),
        lambda stream: send_files(run, [], stream),
    )
    assert isinstance(done.host, UnavailableError)


# --- this machine -----------------------------------------------------------------------------


def test_a_full_disk_while_fetching_is_one_error(run, here, monkeypatch):
    def full(_tree, _path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Tree, "append", full)
    done = fetch(run, here)
    assert isinstance(done.laptop, UnavailableError)
    assert f"no space left in {here}" in done.laptop.message


def test_two_processes_do_not_fetch_into_the_same_folder(run, here):
    with fetching._lock(here):
        assert isinstance(fetch(run, here).laptop, ConflictError)
    fetch(run, here).check()
