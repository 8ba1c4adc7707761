"""The web page's server among strangers: they can neither stop it nor make it fail."""

import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from browser.pages import serving
from echelon.core.waiting import wait_until
from echelon.monitor.connections import MOST
from echelon.run.directory import RunDir

IDLE = 1300


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dash")
    run = RunDir.create(folder / "runs", "train-ab12")
    run.spec.write_text("")
    with serving(folder, limit="ulimit -Sn 1024") as one:
        yield one


def connect(served):
    link = socket.create_connection(("127.0.0.1", served.port), timeout=30)
    link.settimeout(30)
    return link


def is_open(link):
    link.setblocking(False)
    try:
        return link.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def ask_runs(served):
    status, body = served.ask("/api/runs", authorization=served.bearer)
    assert (status, b"train-ab12" in body) == (200, True)


def follow(served, link):
    link.sendall(
        b"GET /api/runs/train-ab12/follow HTTP/1.1\r\n"
        + f"Host: 127.0.0.1:{served.port}\r\nAuthorization: {served.bearer}\r\n\r\n".encode()
    )
    assert link.recv(4096).startswith(b"HTTP/1.1 200")


def check_goes_on(stream):
    """See that a stream brings more than what has come already."""
    stream.setblocking(False)
    with suppress(BlockingIOError):
        while stream.recv(65536):
            pass
    stream.settimeout(30)
    assert stream.recv(65536)


@pytest.mark.parametrize(
    "begun", [b"", b"GET /", b"GET /web/page.js HTTP/1.1\r\nHost: x\r\nX-Slow: "]
)
def test_idle_connections_do_not_keep_the_owner_out(served, begun):
    with ExitStack() as stack:
        stream = stack.enter_context(connect(served))
        follow(served, stream)
        idle = []
        for _ in range(IDLE):
            link = stack.enter_context(connect(served))
            link.sendall(begun)
            idle.append(link)
            if len(idle) % 100 == 0:
                ask_runs(served)
        ask_runs(served)
        assert served.ask("/")[0] == 200
        assert len(list(Path(f"/proc/{served.pid}/fd").iterdir())) < MOST + 100
        check_goes_on(stream)


@pytest.mark.full  # the limits are in tests/unit/monitor/test_connections.py
def test_a_connection_that_sends_no_whole_request_is_closed(served):
    begun = (b"", b"GET / HTTP/1.1\r\n", b"\r\n", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n")
    with ExitStack() as stack:
        links = [stack.enter_context(connect(served)) for _ in begun]
        for link, text in zip(links, begun, strict=True):
            link.sendall(text)
        assert all(map(is_open, links))

        def drip():
            with suppress(OSError):
                links[1].sendall(b"X-More: 1\r\n")  # one that is never at its end
            return not any(map(is_open, links))

        assert wait_until(drip, timeout_s=60, interval_s=0.2)
    ask_runs(served)


def test_one_who_does_not_read_costs_little_memory(served):
    """The largest file that needs no token is 5 MB: many may ask for it and read nothing."""
    page = served.ask("/")[1].decode()
    plotly = page.partition('content="/web/plotly-')[2].partition('"')[0]
    request = f"GET /web/plotly-{plotly} HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n\r\n"
    before = memory_mib(served)
    with ExitStack() as stack:
        for _ in range(100):
            link = stack.enter_context(connect(served))
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            link.sendall(request.encode())
        ask_runs(served)
        assert memory_mib(served) - before < 100  # 450 if all of it were kept for each


def memory_mib(served):
    return psutil.Process(served.pid).memory_info().rss / 2**20


GARBAGE = [
    b"\x16\x03\x01\x02\x00\x01\x00",  # TLS
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://[ HTTP/1.1\r\nHost: [\r\nOrigin: http://[\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n\0\0\0\0garbage\r\n\r\n",
    b"G" * 100_000,
]


@pytest.mark.parametrize("text", GARBAGE, ids=range(len(GARBAGE)))
def test_whatever_is_sent_is_answered_with_a_refusal(served, text):
    """That nothing of it is a traceback, `serving` checks at its end."""
    with connect(served) as link:
        try:
            link.sendall(text)
            answer = link.recv(4096)
        except ConnectionError:  # closed while we were sending: a refusal too
            answer = b""
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer
    ask_runs(served)


def test_garbage_after_a_request_ends_the_connection(served):
    request = f"GET /api/runs/train-ab12/follow HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n"
    more = f"Authorization: {served.bearer}\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connect(served) as link:
        link.sendall((request + more).encode())
        assert link.recv(4096).startswith(b"HTTP/1.1 200")
        link.sendall(b"zz\r\n" * 10)

        def gone():
            try:
                return link.recv(65536) == b""
            except ConnectionError:
                return True

        assert wait_until(gone, timeout_s=30)
    ask_runs(served)
