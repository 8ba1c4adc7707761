"""tests/slowlink.py, before a server that returns what it receives."""

import os
import select
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

SLOWLINK = Path(__file__).parents[1] / "slowlink.py"
TIMEOUT_S = 30


@pytest.fixture
def port():
    """The port of an echo server; each connection ends when the client has sent everything."""
    threads = []

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=echo, args=(connection,)))
            threads[-1].start()

    def echo(connection):
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
            except OSError:
                return  # the link was cut

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads.append(threading.Thread(target=serve))
        threads[0].start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join()


class Client:
    """What ssh would be: the program at the link's near end."""

    def __init__(self, process):
        self.process = process

    def send(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def receive(self, count):
        """Return so many bytes, or fewer if the link ends before."""
        got = bytearray()
        while len(got) < count and self.arrives(TIMEOUT_S):
            if not (data := os.read(self.process.stdout.fileno(), count - len(got))):
                break
            got += data
        return bytes(got)

    def arrives(self, timeout_s):
        """Tell whether something arrives within this time, or the link ends."""
        return bool(select.select([self.process.stdout], [], [], timeout_s)[0])

    def end(self):
        """Return the exit status, and what was printed to stderr."""
        return self.process.wait(timeout=TIMEOUT_S), self.process.stderr.read().decode()


@pytest.fixture
def connect(port, tmp_path):
    @contextmanager
    def connect(delay_ms=0):
        process = subprocess.Popen(
            [
                *(sys.executable, str(SLOWLINK), "127.0.0.1", str(port)),
                *(f"--delay-ms={delay_ms}", f"--control={tmp_path}"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        with process:
            try:
                yield Client(process)
            finally:
                process.kill()

    return connect


@contextmanager
def exchanged(connect, **options):
    """A link that works: something has gone there and back."""
    with connect(**options) as client:
        client.send(b"hello")
        assert client.receive(5) == b"hello"
        yield client


def test_everything_takes_the_delay_in_each_direction(connect):
    with exchanged(connect, delay_ms=100) as client:
        began = time.monotonic()
        client.send(b"again")
        assert client.receive(5) == b"again"
        assert time.monotonic() - began >= 0.2


def test_the_delay_does_not_limit_the_throughput(connect):
    """One piece at a time, 16 MiB would take 256 delays: 51 s."""
    data = os.urandom(16 * 1024 * 1024)
    with exchanged(connect, delay_ms=200) as client:
        began = time.monotonic()
        sender = threading.Thread(target=client.send, args=(data,))
        sender.start()
        got = client.receive(len(data))
        sender.join()
        assert time.monotonic() - began < 10
    assert got == data


def test_the_end_comes_after_everything_that_was_sent(connect):
    with connect(delay_ms=50) as client:
        client.send(b"last words")
        client.process.stdin.close()
        assert client.receive(100) == b"last words"
        assert client.end() == (0, "")


def test_cut_closes_at_once_and_refuses_until_it_is_removed(connect, tmp_path):
    with exchanged(connect) as client:
        (tmp_path / "cut").touch()
        assert client.receive(1) == b""
        assert client.end() == (1, "")
    with connect() as refused:
        assert refused.end() == (1, "slowlink: the link is cut\n")
    (tmp_path / "cut").unlink()
    with exchanged(connect):
        pass


def test_stall_holds_back_everything_and_loses_nothing(connect, tmp_path):
    with exchanged(connect) as client:
        (tmp_path / "stall").touch()
        client.send(b"held back")
        assert not client.arrives(0.3)
        assert client.process.poll() is None
        (tmp_path / "stall").unlink()
        assert client.receive(9) == b"held back"


def test_a_stalled_link_can_be_cut(connect, tmp_path):
    with exchanged(connect) as client:
        (tmp_path / "stall").touch()
        client.send(b"lost")
        (tmp_path / "cut").touch()
        assert client.receive(1) == b""
        assert client.end() == (1, "")


def test_cut_after_passes_exactly_so_many_bytes_to_the_client_once(connect, tmp_path):
    with exchanged(connect) as client:
        (tmp_path / "cut-after").write_text("8\n")
        client.send(b"abcdef")
        assert client.receive(6) == b"abc"  # 8 with the 5 before
        assert client.end() == (1, "")
    assert not (tmp_path / "cut-after").exists()
    with exchanged(connect) as client:
        client.send(b"abcdef")
        assert client.receive(6) == b"abcdef"


def test_of_two_connections_one_is_cut(connect, tmp_path):
    with exchanged(connect) as first, exchanged(connect) as second:
        (tmp_path / "cut-after").write_text("6")
        first.send(b"ab")
        assert first.receive(2) == b"a"
        assert first.end() == (1, "")
        second.send(b"ab")
        assert second.receive(2) == b"ab"


def test_a_server_that_does_not_answer_is_named(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        argv = [sys.executable, str(SLOWLINK), "127.0.0.1", str(unused.getsockname()[1])]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("slowlink: ")
    assert "Connect call failed" in done.stderr
