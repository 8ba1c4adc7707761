"""A run's folder that names a server of another user: the Ray token does not get there."""

import json
import os
import signal
import socket
from contextlib import contextmanager

import pytest

from echelon.cli import main
from echelon.clusters.ray.address import HttpFetch
from echelon.core.atomic_file import write_atomic
from echelon.spec.job_spec import JobSpec
from prepared import prepare_run

OTHER = 12345
"""Nobody's number: permissions ask for no account."""
TOKEN = "s3cret-token"  # noqa: S105
UNAUTHORIZED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Stranger:
    """A server of another user that asks every visitor for a token, and records what it got."""

    def __init__(self, answer=UNAUTHORIZED):
        read_end, write_end = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            try:
                if os.geteuid() == 0:
                    os.setgroups([])
                    os.setresgid(OTHER, OTHER, OTHER)
                    os.setresuid(OTHER, OTHER, OTHER)
                self._serve(write_end, answer)
            finally:
                os._exit(0)
        os.close(write_end)
        self._got = os.fdopen(read_end)
        self.port = int(self._got.readline())

    def _serve(self, pipe, answer):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            os.write(pipe, f"{listener.getsockname()[1]}\n".encode())
            while True:
                link, _ = listener.accept()
                with link:
                    os.write(pipe, b"connected\n")
                    os.write(pipe, repr(link.recv(65536)).encode() + b"\n")
                    link.sendall(answer)

    def end(self):
        """Return all that it got."""
        os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)
        with self._got:
            return self._got.read()


@contextmanager
def stranger(answer=UNAUTHORIZED):
    one, got = Stranger(answer), []
    try:
        yield one, got
    finally:
        got.append(one.end())


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run on Ray whose folder does not say where yet."""
    for name in ("XDG_STATE_HOME", "RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    found = prepare_run(JobSpec(script="x.py", name="train"), tmp_path / "runs", tmp_path)
    found.claim_attempt()
    return found


def name_address(run, address):
    job = {"job_id": f"ray:{run.run_id}-1@{address}", "submitted": "2026", "after": ""}
    write_atomic(run.attempt(1) / "job.json", json.dumps(job))


@pytest.fixture
def echelon(run, capsys):
    """Runs a command here; returns its code, and what it printed."""
    return lambda *words: (
        main.run([*words, f"--runs-dir={run.path.parent}"]),
        *capsys.readouterr(),
    )


LOOKING = (["ps", "--json"], ["status", "--json"], ["why", "--json"])
ACTING = (["stop", "last"], ["cancel", "last"], ["resume", "last"])


@pytest.mark.parametrize(
    "where",
    [
        *("http://127.0.0.1:{}", "https://127.0.0.1:{}", "http://user:word@127.0.0.1:{}"),
        *("ftp://127.0.0.1:{}", "HTTP://127.0.0.1:{}/", "http://head:8265@127.0.0.1:{}"),
        *("127.0.0.1:{}", "//127.0.0.1:{}", "http://127.0.0.1:{}/x?a="),
    ],
)
def test_an_address_from_a_folder_alone_is_not_contacted(run, echelon, where):
    with stranger() as (server, got):
        name_address(run, where.format(server.port))
        seen = {words[0]: echelon(*words) for words in LOOKING}
        refused = [echelon(*words) for words in ACTING]
    assert got == [""]
    for code, out, err in seen.values():
        assert code == 0, err
        assert "RAY_API_SERVER_ADDRESS" in err
        assert TOKEN not in out + err
    assert json.loads(seen["ps"][1])[0]["state"] == "UNKNOWN"
    assert "you never gave it" in json.loads(seen["status"][1])["reason"]
    for code, _, err in refused:
        assert (code, "you never gave it" in err) == (77, True), err


def test_an_address_that_the_user_gave_is_contacted(run, echelon, monkeypatch):
    """Else the test above would hold for the wrong reason."""
    with stranger() as (server, got):
        address = f"http://127.0.0.1:{server.port}"
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", address)
        name_address(run, address)
        code, _, err = echelon("ps")
    assert (code, "never gave" in err) == (0, False)
    assert f"Bearer {TOKEN}" in got[0]


@pytest.mark.parametrize("named", [False, True])
def test_a_file_is_not_a_cluster(run, echelon, tmp_path, monkeypatch, named):
    record = tmp_path / "api" / "jobs" / f"{run.run_id}-1"
    record.parent.mkdir(parents=True)
    record.write_text('{"status": "SUCCEEDED"}')
    name_address(run, f"file://{tmp_path}")
    if named:
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", f"file://{tmp_path}")
    assert json.loads(echelon("ps", "--json")[1])[0]["state"] == "UNKNOWN"
    with pytest.raises(OSError, match="unknown url type"):
        HttpFetch(f"file://{tmp_path}", TOKEN)("GET", f"/api/jobs/{run.run_id}-1", None)


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(code):
    with stranger() as (target, got):
        away = f"http://127.0.0.1:{target.port}/"
        answer = f"HTTP/1.1 {code} Away\r\nLocation: {away}\r\nContent-Length: 0\r\n\r\n".encode()
        with stranger(answer) as (server, asked):
            fetch = HttpFetch(f"http://127.0.0.1:{server.port}", TOKEN)
            assert fetch("GET", "/api/version", None)[0] == code
    assert got == [""]
    assert "/api/version" in asked[0]
