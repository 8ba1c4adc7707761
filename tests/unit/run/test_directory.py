import os
import threading

import pytest

from echelon.core.atomic_file import write_atomic
from echelon.errors import ConflictError, NotFoundError, NotPermittedError, UsageError
from echelon.run.directory import RunDir


def test_a_new_run_is_readable_by_its_owner_alone(tmp_path):
    run = RunDir.create(tmp_path / "runs", "mnist-1")
    assert run.run_id == "mnist-1"
    folders = [run.path, run.attempts, run.events, run.logs, run.checkpoints]
    assert {oct(folder.stat().st_mode & 0o777) for folder in folders} == {"0o700"}
    assert RunDir.open(run.path) == run


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_the_folder_of_all_runs_is_its_owners_alone_whatever_the_umask(tmp_path, umask):
    """Else a member of a group could put a folder of their own in a run's place."""
    before = os.umask(umask)
    try:
        run = RunDir.create(tmp_path / "project" / "runs", "a")
    finally:
        os.umask(before)
    folders = [run.path, run.path.parent, run.path.parent.parent]
    assert {oct(folder.stat().st_mode & 0o777) for folder in folders} == {"0o700"}


def test_a_folder_of_runs_that_is_there_stays_as_it_is(tmp_path):
    tmp_path.chmod(0o750)
    RunDir.create(tmp_path, "a")
    assert tmp_path.stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("run_id", ["", "..", ".", "a/b", "-x", "a b", "$(id)", "a\n", "x" * 101])
def test_an_id_that_is_no_plain_name_is_refused(tmp_path, run_id):
    with pytest.raises(UsageError):
        RunDir.create(tmp_path, run_id)
    assert list(tmp_path.iterdir()) == []


def test_an_id_is_used_once(tmp_path):
    RunDir.create(tmp_path, "a")
    with pytest.raises(ConflictError, match="'a'"):
        RunDir.create(tmp_path, "a")


def test_a_run_that_is_not_there(tmp_path):
    with pytest.raises(NotFoundError, match="'b'"):
        RunDir.open(tmp_path / "b")


def test_a_run_that_others_may_write_to_is_not_trusted(tmp_path):
    run = RunDir.create(tmp_path, "a")
    run.path.chmod(0o770)
    with pytest.raises(NotPermittedError, match="other users can write"):
        RunDir.open(run.path)


def test_a_link_is_not_trusted(tmp_path):
    run = RunDir.create(tmp_path, "a")
    (tmp_path / "b").symlink_to(run.path)
    with pytest.raises(NotPermittedError, match="is a link, or belongs to another user"):
        RunDir.open(tmp_path / "b")


def test_every_file_has_its_place(tmp_path):
    run = RunDir(path=tmp_path)
    assert run.rank_log(attempt=2, generation=1, rank=3) == tmp_path / "logs/2.1/rank-00003.log"
    assert run.checkpoint(1200) == tmp_path / "checkpoints/step-000001200"
    assert run.events_of("agent-node1") == tmp_path / "events/agent-node1.jsonl"


def test_of_many_who_claim_each_gets_its_own_attempt(tmp_path):
    run = RunDir.create(tmp_path, "a")
    claimed = []
    threads = [
        threading.Thread(target=lambda: claimed.append(run.claim_attempt())) for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claimed) == list(range(1, 17))


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "verdict.json"
    write_atomic(path, "old")

    def full_disk(_handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_written_file_has_its_mode_and_bytes(tmp_path):
    write_atomic(tmp_path / "key", b"\x00\xff", mode=0o600)
    assert (tmp_path / "key").read_bytes() == b"\x00\xff"
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


def test_runs_are_not_kept_in_a_file(tmp_path):
    (tmp_path / "runs").touch()
    with pytest.raises(ConflictError, match="not a directory"):
        RunDir.create(tmp_path / "runs", "one")
