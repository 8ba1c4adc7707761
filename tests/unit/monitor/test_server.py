"""The web page's server: who is let in, what is sent, and what is never sent."""

import asyncio
import json
import time

import pytest

from echelon.core.events import EventWriter
from echelon.core.rundir import RunDir
from echelon.monitor.gate import Gate
from echelon.monitor.server import make_app

TOKEN = "s3cret"  # noqa: S105
GATE = Gate(token=TOKEN, port=8090)
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def runs(tmp_path):
    run = RunDir.create(tmp_path / "runs", "train-ab12")
    run.spec.write_text("")
    with EventWriter(run.events_of("controller-1"), clock=time.time) as events:
        events.write("attempt", job="7")
        events.write("joined", node=0, name="node1")
        events.write("generation", generation=0, world_size=2, nodes=1)
    log = run.rank_log(attempt=1, generation=0, rank=0)
    log.parent.mkdir()
    log.write_text(f"hello\n{HOSTILE}\n")
    (tmp_path / "outside").write_text("nobody's business")
    return tmp_path / "runs"


class Answer:
    def __init__(self):
        self.status, self.headers, self.body = 0, {}, b""

    def json(self):
        return json.loads(self.body)


def ask(runs, path, *, query="", method="GET", until=None, **headers):
    """Return the answer to a request; of a stream, as much as is asked for."""
    answer = Answer()
    over = asyncio.Event()

    async def receive():
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            answer.body += message.get("body", b"")
        if until and until in answer.body:
            over.set()

    told = {"host": "127.0.0.1:8090", **headers}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in told.items()],
        "scheme": "http",
        "server": ("127.0.0.1", 8090),
        "client": ("127.0.0.1", 1),
        "http_version": "1.1",
    }
    asyncio.run(asyncio.wait_for(make_app(runs, GATE)(scope, receive, send), 20))
    return answer


def see(runs, path, **more):
    return ask(runs, path, cookie=f"echelon-8090={TOKEN}", **more)


@pytest.mark.parametrize(
    "path", ["/", "/web/page.js", "/api/runs", "/api/runs/train-ab12", "/api/runs/x/logs", "/x"]
)
@pytest.mark.parametrize(
    "headers", [{}, {"cookie": "echelon-8090=wrong"}, {"authorization": "Bearer "}]
)
def test_without_the_token_nothing_leaks(runs, path, headers):
    answer = ask(runs, path, **headers)
    assert answer.status == 403
    assert b"train-ab12" not in answer.body
    assert TOKEN not in str(answer.headers)


def test_the_address_that_was_printed_lets_one_in_and_is_forgotten(runs):
    answer = ask(runs, "/", query=f"token={TOKEN}")
    assert (answer.status, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"echelon-8090={TOKEN};")
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie


def test_pages_of_others_are_refused_even_with_the_cookie(runs):
    assert see(runs, "/api/runs", origin="http://evil.example").status == 403
    assert see(runs, "/api/runs", host="evil.example:8090").status == 403


def test_it_only_reads(runs):
    assert see(runs, "/api/runs", method="POST").status == 405
    assert see(runs, "/api/runs", method="DELETE").status == 405


@pytest.mark.parametrize("name", ["page.js", "page.css", "plotly.js"])
def test_all_that_the_page_needs_is_here(runs, name):
    answer = see(runs, f"/web/{name}")
    assert answer.status == 200
    assert len(answer.body) > 1000
    assert "script-src 'self'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    "path",
    [
        "/web/../server.py",
        "/web/..%2fserver.py",
        "/web/page.html/../../gate.py",
        "/web/gate.py",
        "/api/runs/..",
        "/api/runs/../outside/logs",
        "/api/runs/%2e%2e/logs",
        "/api/runs/train",
    ],
)
def test_a_name_is_not_a_path(runs, path):
    answer = see(runs, path)
    assert answer.status == 404
    assert b"business" not in answer.body


def test_all_runs_and_one(runs):
    (one,) = see(runs, "/api/runs").json()
    assert (one["run"], one["phase"], one["ranks"]) == ("train-ab12", "RUNNING", 2)
    run = see(runs, "/api/runs/train-ab12").json()
    assert [rank[0] for rank in run["ranks"]] == [0, 1]
    assert run["nodes"][0]["name"] == "node1"
    assert run["heat"] == []


def test_what_ranks_print_is_sent_as_data(runs):
    answer = see(runs, "/api/runs/train-ab12/logs")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == [[0, "hello"], [0, HOSTILE]]
    assert see(runs, "/api/runs/train-ab12/logs", query="search=HELL").json() == [[0, "hello"]]
    assert see(runs, "/api/runs/train-ab12/logs", query="rank=1").json() == []
    assert see(runs, "/api/runs/train-ab12/logs", query="rank=-1;drop").status == 200


def test_a_run_is_followed_in_a_stream(runs):
    answer = see(runs, "/api/runs/train-ab12/follow", until=b"\n\n")
    assert answer.headers["content-type"].startswith("text/event-stream")
    first = answer.body.decode().split("\n\n")[0]
    assert json.loads(first.removeprefix("data: "))["run"] == "train-ab12"
