"""Workdirs: hostile streams, full disks and locks."""

import contextlib
import errno
import json
import os
import threading
from hashlib import sha256

import pytest

from byte_streams import exchange, talk
from echelon.client.code.tree import Tree
from echelon.client.remote.sending import send_project
from echelon.client.remote.workdir import hold_workdir
from echelon.clusters.ssh.stream import Stream
from echelon.errors import (
    ConflictError,
    EchelonError,
    NotPermittedError,
    TimedOutError,
    UnavailableError,
)
from workdirs import content, describe, receive, send, write

# --- hostile streams --------------------------------------------------------------------------


def header(files=None, links=None):
    return json.dumps({"files": files or {}, "links": links or {}}).encode() + b"\n"


def entry(data=b"x", size=None):
    return [sha256(data).hexdigest(), len(data) if size is None else size, False]


@pytest.mark.parametrize(
    "path",
    [
        *("../x", "/etc/x", "a/../../x", "", ".", "a//b", "a/", "./a", "a\0b", "x" * 300),
        *(".echelon/lock", ".echelon", "runs/a-1/spec.toml", "runs", "\ud800"),
    ],
)
def test_paths_that_lead_elsewhere_are_refused(workdir, path):
    for message in (header({path: entry()}), header(links={path: "x"})):
        done = exchange(talk(message), lambda stream: receive(workdir, stream))
        assert isinstance(done.host, NotPermittedError), done
        assert b"refused the path" in done.laptop
    assert content(workdir) == {}
    assert not (workdir.parent / "x").exists()


def test_a_file_below_a_link_is_refused(workdir):
    message = header({"link/x": entry()}, {"link": "/scratch"})
    done = exchange(talk(message), lambda stream: receive(workdir, stream))
    assert isinstance(done.host, NotPermittedError)


@pytest.mark.parametrize(
    "message",
    [
        b"Welcome to the cluster!\n",
        b"\xff\xfe\n",
        b"[]\n",
        b"{}\n",
        b"[" * 100_000 + b"\n",
        b'{"files": [], "links": {}}\n',
        header({"a": ["x", 1, False]}),
        header({"a": [1]}),
        header({"a": entry(size=-1)}),
        header({"a": entry(size=10**15)}),
        header({"a": entry(size=1.5)}),
        header(links={"a": ""}),
        header(links={"a": 3}),
        header(links={"a": "x" * 5000}),
        header({f"{n}": entry() for n in range(50_001)}),
    ],
)
def test_a_malformed_description_of_a_project_is_refused(workdir, message):
    done = exchange(talk(message), lambda stream: receive(workdir, stream))
    assert isinstance(done.host, UnavailableError)
    assert done.host.hint
    assert b'"error"' in done.laptop


def test_an_endless_message_is_refused(workdir, monkeypatch):
    monkeypatch.setattr("echelon.clusters.ssh.stream.MOST_LINE_BYTES", 5000)
    done = exchange(talk(b"x" * 6000), lambda stream: receive(workdir, stream))
    assert "a message of more than 5,000 bytes" in str(done.host)


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b"y", "content with another digest than announced"),
        (b"", "connection to host was lost"),
        (b"\n", "content with another digest than announced"),
    ],
)
def test_content_with_another_digest_is_refused(workdir, sent, says):
    def answer(stream):
        assert stream.receive() == {"lacking": [sha256(b"x").hexdigest()]}
        stream.write(sent)
        if not sent:
            stream._writer._own.shutdown(1)

    done = exchange(talk(header({"a": entry()}), answer), lambda stream: receive(workdir, stream))
    assert isinstance(done.host, UnavailableError), done.host
    assert says in done.host.message
    assert content(workdir) == {}
    assert not (workdir / ".echelon" / "mirror.json").exists()
    assert not list((workdir / ".echelon").glob("incoming/*"))


def test_bytes_after_the_contents_are_not_read(workdir):
    """Neither a file nor a message: the workdir is complete."""
    message = header({"a": entry()})
    extra = lambda stream: stream.receive() and stream.write(b"x" + b"y" * 1000)  # noqa: E731
    done = exchange(talk(message, extra), lambda stream: receive(workdir, stream))
    assert done.host is None
    assert content(workdir) == {"a": b"x"}


def test_received_contents_in_a_clone_are_not_trusted(project, workdir, tmp_path):
    """The workdir may be a repository of another user."""
    digest = sha256(b"train\n").hexdigest()
    write(tmp_path, {"secret": "train\n"})
    write(workdir, {f".echelon/incoming/{digest}": "evil\n", ".echelon/incoming/more": "x"})
    os.mkfifo(workdir / ".echelon" / "incoming" / sha256(b"a\n").hexdigest())
    link = workdir / ".echelon" / "incoming" / sha256(b"b\n").hexdigest()
    link.symlink_to(tmp_path / "secret")
    send(project, workdir).check()
    assert content(workdir) == content(project)
    assert (tmp_path / "secret").read_text() == "train\n"


def test_a_link_in_place_of_the_received_contents_is_refused(project, workdir, tmp_path):
    write(tmp_path, {"elsewhere/keep": "keep\n"})
    (workdir / ".echelon").mkdir(parents=True)
    (workdir / ".echelon" / "incoming").symlink_to(tmp_path / "elsewhere")
    assert isinstance(send(project, workdir).laptop, ConflictError)
    assert content(tmp_path / "elsewhere") == {"keep": b"keep\n"}


@pytest.mark.parametrize(
    "answer", [b"{}\n", b'{"lacking": ["/etc/passwd"]}\n', b'{"lacking": 3}\n', b"motd\n", b""]
)
def test_a_malformed_answer_of_a_host_is_refused(project, answer):
    described = describe(project)
    done = exchange(
        lambda stream: send_project(described, project, stream),
        lambda stream: stream.receive() and stream.write(answer),
    )
    assert isinstance(done.laptop, UnavailableError)


def test_an_error_of_the_host_is_reported_while_the_laptop_writes(project, workdir, monkeypatch):
    """Over pipes, as ssh has them: they are full when the host stops reading."""
    write(project, {f"big/{n}": f"{n}" * 400_000 for n in range(5)})

    def full(*_words, **_options):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Tree, "replacing", full)
    up, down = os.pipe(), os.pipe()

    def host():
        with os.fdopen(up[0], "rb") as reader, os.fdopen(down[1], "wb") as writer:
            stream = Stream(reader, writer)
            with contextlib.suppress(EchelonError):
                receive(workdir, stream)

    thread = threading.Thread(target=host)
    thread.start()
    described = describe(project)
    with (
        os.fdopen(down[0], "rb") as reader,
        os.fdopen(up[1], "wb", buffering=0) as writer,
        pytest.raises(UnavailableError, match="no space left"),
    ):
        send_project(described, project, Stream(reader, writer))
    thread.join()


# --- the host's file system -------------------------------------------------------------------


SCRIPT = f".echelon/incoming/{sha256(b'#!/bin/sh').hexdigest()}"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("place", [SCRIPT, "tool.sh"], ids=["receiving", "updating"])
def test_a_full_disk_of_the_host_is_one_error(project, workdir, monkeypatch, number, place):
    write(project, {"tool.sh": "#!/bin/sh"})
    for name in ("replacing", "move"):
        method = getattr(Tree, name)

        def fill(self, *words, original=method, mode):
            if place in words:
                raise OSError(number, os.strerror(number))
            return original(self, *words, mode=mode)

        monkeypatch.setattr(Tree, name, fill)
    done = send(project, workdir)
    assert isinstance(done.laptop, UnavailableError)
    assert f"no space left in {workdir}" in done.laptop.message
    assert (workdir / "tool.sh").exists() is False
    monkeypatch.undo()
    again = send(project, workdir).check()
    assert again.laptop.files < 5
    assert content(workdir) == content(project)


def test_a_workdir_that_cannot_be_created_is_an_error(project, tmp_path):
    write(tmp_path, {"file": ""})
    done = send(project, tmp_path / "file" / "workdir")
    assert isinstance(done.laptop, UnavailableError)
    assert str(done.laptop).endswith(f": {done.host}")


def test_a_link_in_place_of_the_record_folder_is_refused(project, workdir, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    workdir.mkdir(parents=True)
    (workdir / ".echelon").symlink_to(tmp_path / "elsewhere")
    assert isinstance(send(project, workdir).host, NotPermittedError)


def test_only_one_process_holds_a_workdir(workdir):
    with (
        hold_workdir(workdir),
        pytest.raises(TimedOutError, match="another submission has held"),
        hold_workdir(workdir, timeout_s=0.2),
    ):
        pass
    with hold_workdir(workdir) as held:
        assert held.root == workdir


def test_two_concurrent_submissions_do_not_mix(tmp_path, workdir):
    roots = [tmp_path / name for name in ("one", "two")]
    for root in roots:
        write(root, {f"pkg/{n}.py": f"{root.name} {n}\n" for n in range(200)})
    outcomes = []
    threads = [
        threading.Thread(target=lambda root=root: outcomes.append(send(root, workdir)))
        for root in roots
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for outcome in outcomes:
        outcome.check()
    assert content(workdir) in [content(root) for root in roots]


def test_a_project_of_many_files_is_sent(tmp_path, workdir):
    root = tmp_path / "many"
    write(root, {f"pkg{n % 100}/{n}.py": f"{n}\n" for n in range(3_000)})
    described = describe(root)
    assert send(root, workdir, described).check().laptop.files == 3_000
    assert send(root, workdir, described).check().laptop.files == 0
