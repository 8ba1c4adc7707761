"""The web page's server: who is let in, what is sent, and what is never sent."""

import asyncio
import json
import re
import time
from importlib.metadata import version

import pytest

from echelon.monitor.server import Gate, Pages, make_app
from echelon.run.directory import RunDir
from echelon.run.event_log import EventWriter
from eventlines import raw

TOKEN = "s3cret"  # noqa: S105
GATE = Gate(token=TOKEN, port=8090)
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def runs(tmp_path):
    run = RunDir.create(tmp_path / "runs", "train-ab12")
    run.spec.write_text("")
    with EventWriter(run.events_of("controller-1"), clock=time.time) as events:
        events.write(raw("attempt", job="7"))
        events.write(raw("joined", node=0, name="node1"))
        events.write(raw("generation", generation=0, world_size=2, nodes=1))
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


def ask(runs, path, *, query="", method="GET", until=None, app=None, **headers):
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
    asyncio.run(asyncio.wait_for((app or make_app(runs, GATE))(scope, receive, send), 20))
    return answer


def see(runs, path, **more):
    return ask(runs, path, authorization=f"Bearer {TOKEN}", **more)


@pytest.mark.parametrize(
    "path",
    ["/api/runs", "/api/runs/train-ab12", "/api/runs/x/logs", "/metrics", "/api", "/x", "/web"],
)
@pytest.mark.parametrize(
    "headers", [{}, {"cookie": f"echelon-8090={TOKEN}"}, {"authorization": "Bearer "}]
)
def test_without_the_token_nothing_leaks(runs, path, headers):
    answer = ask(runs, path, query=f"token={TOKEN}", **headers)
    assert answer.status == 401
    assert b"train-ab12" not in answer.body
    assert TOKEN not in str(answer.headers)


def test_the_page_comes_without_the_token_and_sets_no_cookie(runs):
    for path in ("/", "/web/page.js"):
        answer = ask(runs, path)
        assert answer.status == 200
        assert "set-cookie" not in answer.headers
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "no-referrer"
        policy = answer.headers["content-security-policy"]
        assert re.search(r"script-src 'self' 'sha256-[\w+/]{43}=';", policy)
    assert "set-cookie" not in see(runs, "/api/runs").headers


def test_prometheus_gets_all_runs_with_the_token(runs):
    answer = see(runs, "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert b'echelon_run_state{run="train-ab12"' in answer.body
    assert answer.body.endswith(b"# EOF\n")


def test_pages_of_others_are_refused_even_with_the_token(runs):
    assert see(runs, "/api/runs", origin="http://evil.example").status == 403
    assert see(runs, "/api/runs", host="evil.example:8090").status == 403


@pytest.mark.parametrize("path", ["/", "/web/page.js", "/api/runs", "/api/runs/"])
@pytest.mark.parametrize("look", [ask, see])
@pytest.mark.parametrize(
    "headers", [{"origin": "http://["}, {"host": "["}, {"host": "a:b:c"}, {"origin": "//[x]y"}]
)
def test_malformed_headers_are_refused(runs, path, look, headers):
    answer = look(runs, path, **headers)
    assert answer.status == 403


def test_it_only_reads(runs):
    assert see(runs, "/api/runs", method="POST").status == 405
    assert see(runs, "/api/runs", method="DELETE").status == 405


def test_all_that_the_page_needs_is_here(runs):
    page = see(runs, "/").body.decode()
    wanted = set(re.findall(r"/web/[\w.-]+", page))
    assert {"/web/page.js", "/web/page.css", f"/web/plotly-{version('plotly')}.js"} < wanted
    for path in wanted:
        answer = see(runs, path)
        assert answer.status == 200, path
        assert len(answer.body) > 1000
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        kept = "immutable" if "plotly" in path else "no-store"
        assert kept in answer.headers["cache-control"]


def test_scripts_name_each_other_rightly(runs):
    wanted = {"page.js"}
    for _ in range(3):
        bodies = [see(runs, f"/web/{name}").body.decode() for name in wanted]
        wanted |= {name for body in bodies for name in re.findall(r'from "\./([\w.]+)"', body)}
    page = see(runs, "/").body.decode()
    assert wanted == {name for name in re.findall(r"/web/(\w+\.js)", page) if name != "plotly.js"}


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
    assert run["head"]["run"] == "train-ab12"
    assert [rank[0] for rank in run["ranks"]] == [0, 1]
    assert run["nodes"][0]["name"] == "node1"
    assert "columns" not in run


def test_what_ranks_print_is_sent_as_data(runs):
    answer = see(runs, "/api/runs/train-ab12/logs")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"lines": [[0, "hello"], [0, HOSTILE]], "next": 2, "whole": True}
    found = see(runs, "/api/runs/train-ab12/logs", query="search=HELL").json()
    assert found["lines"] == [[0, "hello"]]
    assert see(runs, "/api/runs/train-ab12/logs", query="rank=1").json()["lines"] == []
    assert see(runs, "/api/runs/train-ab12/logs", query="after=1").json()["lines"] == [[0, HOSTILE]]
    for query in ("rank=-1;drop", "after=1e9", "after=%00", "rank=²", f"after={'9' * 5000}"):
        assert see(runs, "/api/runs/train-ab12/logs", query=query).status == 200


def test_a_run_is_followed_in_a_stream(runs):
    answer = see(runs, "/api/runs/train-ab12/follow", until=b"\n\n")
    assert answer.headers["content-type"].startswith("text/event-stream")
    first = answer.body.decode().split("\n\n")[0]
    assert json.loads(first.removeprefix("data: "))["head"]["run"] == "train-ab12"


def test_a_stream_does_not_keep_a_server_that_is_to_end(runs):
    app = make_app(runs, GATE, over=lambda: True)
    assert see(runs, "/api/runs/train-ab12/follow", app=app).body == b""


def test_runs_that_nobody_looks_at_are_forgotten(runs):
    pages = Pages(runs, lambda: False)
    made = [RunDir.create(runs, f"r-{number}") for number in range(6)]
    first = pages.watch(made[0])
    assert pages.watch(made[0]) is first
    kept = [pages.watch(run) for run in made[1:]][-4:]
    assert [pages.watch(run) for run in made[-4:]] == kept
    assert pages.watch(made[0]) is not first
