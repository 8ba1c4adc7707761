"""Locks of files and folders between processes."""

import errno
import fcntl
import os

import pytest

from echelon.core.file_lock import locked
from echelon.errors import ConflictError

BUSY = ConflictError("busy", hint="wait")


@pytest.fixture
def path(tmp_path, request):
    place = tmp_path / "place"
    if request.param == "folder":
        place.mkdir()
    return place


@pytest.mark.parametrize("path", ["file", "folder"], indirect=True)
def test_only_one_process_at_a_time_holds_a_lock(path):
    with locked(path, BUSY), pytest.raises(ConflictError, match="busy"), locked(path, BUSY):
        pass
    with locked(path, BUSY):
        pass


def test_a_lock_is_waited_for(tmp_path):
    path = tmp_path / "lock"
    holder = locked(path, BUSY)
    holder.__enter__()
    with pytest.raises(ConflictError), locked(path, BUSY, timeout_s=0.2):
        pass
    holder.__exit__(None, None, None)
    with locked(path, BUSY, timeout_s=60):
        pass


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="link"), locked(tmp_path / "link", BUSY):
        pass
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("required", [False, True])
def test_a_file_system_without_locks_is_an_error_only_if_a_lock_is_required(
    tmp_path, monkeypatch, required
):
    def refuse(_handle, _how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    if required:
        with pytest.raises(OSError, match="No locks"), locked(tmp_path / "x", BUSY, required=True):
            pass
    else:
        with locked(tmp_path / "x", BUSY):
            pass
