"""The server of the page: read-only, on this host only, for requests with the token.

A browser opens one stream for the run that it shows, and receives changes once a second.

The server listens only on this host, but other users of the host, and any web page that its user
has open, can send requests. The page and its scripts are public. All other requests need the token,
in a header that browsers do not send by themselves. Cookies are not separated by port, so none is
used.
"""

import asyncio
import hmac
import threading
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import (
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from echelon.core.frozen import frozen
from echelon.core.records import render_json
from echelon.monitor.connections import KNOWN
from echelon.monitor.logbook import Wanted
from echelon.monitor.openmetrics import CONTENT_TYPE, render_metrics
from echelon.monitor.overview import Overview
from echelon.monitor.sweep_table import describe_runs, describe_sweep
from echelon.monitor.watched import EVERY_S, Watched
from echelon.run.directory import RunDir
from echelon.run.listing import list_runs, list_sweeps

_WATCHED = 4
"""Number of runs that are kept in memory."""
_PIECE = 2**16
_LONGEST = 200
"""Length of a search text."""
_POLICY = (
    "default-src 'none'; script-src 'self' 'sha256-{hash}'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
_SCRIPTS = ("page", "api", "text", "panels", "tables", "curves", "map", "logs", "compare", "runs")
_OURS = ("page.css", *(f"{name}.js" for name in _SCRIPTS))
_FRESH, _KEPT = "no-store", "private, max-age=31536000, immutable"


NO_TOKEN = "no token"  # noqa: S105  a reason, not a secret
_BEARER = "Bearer "
_LOCAL = ("127.0.0.1", "localhost", "[::1]")
_OWN = ("same-origin", "none")
"""Allowed origins of a browser's request: our own page, or the user."""


@frozen
class Gate:
    """Decides which requests are allowed."""

    token: str
    port: int

    def refuse(self, path: str, headers: Mapping[str, str]) -> str:
        """Return why a request is refused; empty if it is allowed.

        Headers are only compared, never parsed, so invalid ones raise no error.
        """
        names = [f"{name}:{self.port}" for name in _LOCAL]
        if headers.get("host", "") not in names:
            return "unknown host"  # DNS rebinding
        origin = headers.get("origin", "")
        if origin and origin not in [f"http://{name}" for name in names]:
            return "foreign origin"
        if path == "/" or path.startswith("/web/"):
            return ""
        if headers.get("sec-fetch-site", "none") not in _OWN:
            return "foreign page"
        return "" if self.knows(headers) else NO_TOKEN

    def knows(self, headers: Mapping[str, str]) -> bool:
        """Tell whether a request has the token."""
        shown = headers.get("authorization", "")
        text = shown.removeprefix(_BEARER).encode("utf-8", "surrogatepass")
        return shown.startswith(_BEARER) and hmac.compare_digest(text, self.token.encode())


class Guarded:
    """Rejects requests that the gate refuses, and adds security headers to responses."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app, self._gate = app, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # WebSockets are not served
        headers = Headers(scope=scope)
        if self._gate.knows(headers):
            scope[KNOWN] = True
        app = self._app
        if reason := self._gate.refuse(scope["path"], headers):
            app = PlainTextResponse(
                f"forbidden ({reason}): open the URL that echelon dash printed\n",
                401 if reason == NO_TOKEN else 403,
                headers={"www-authenticate": "Bearer"} if reason == NO_TOKEN else {},
            )
        elif scope["method"] not in ("GET", "HEAD"):
            app = PlainTextResponse("read-only: use GET\n", 405, headers={"allow": "GET, HEAD"})
        await app(scope, receive, _with_headers(send))


@cache
def _policy() -> str:
    """Return what the page may do: of scripts inside it, only our own."""
    script = _read("page.html").partition(b"<script>")[2].partition(b"</script>")[0]
    return _POLICY.format(hash=b64encode(sha256(script).digest()).decode())


def _with_headers(send: Send) -> Send:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            told = message["headers"]
            headers = {"content-security-policy": _policy(), **_HEADERS}
            own = [(name.encode(), value.encode()) for name, value in headers.items()]
            if not any(name == b"cache-control" for name, _ in told):
                own.append((b"cache-control", _FRESH.encode()))
            message = {**message, "headers": [*told, *own]}
        await send(message)

    return sending


class Pages:
    """Handlers of all requests that pass the gate."""

    def __init__(self, runs: Path, over: Callable[[], bool]) -> None:
        self._runs, self._over = runs, over
        self._overview = Overview(runs)
        # One at a time, so that searches on slow storage do not use up all threads.
        self._searching = asyncio.Semaphore(1)
        self._lock = threading.Lock()
        self._watched: dict[Path, Watched] = {}
        """The most recently used one comes last."""

    async def page(self, _request: Request) -> Response:
        content = _read("page.html").replace(b"/web/plotly.js", f"/web/{_plotly_name()}".encode())
        return Response(content, media_type="text/html")

    async def web(self, request: Request) -> Response:
        """Send one of our own files, or plotly's script, by name."""
        name = request.path_params["name"]
        if name == _plotly_name():  # its name contains the version, so it never changes
            headers = {"cache-control": _KEPT, "content-length": str(len(_plotly()))}
            return StreamingResponse(_pieces(_plotly()), 200, headers, "text/javascript")
        if name not in _OURS:
            return _missing()
        return Response(_read(name), media_type=_KINDS[Path(name).suffix])

    async def runs(self, _request: Request) -> Response:
        return _json(await asyncio.to_thread(self._overview.rows))

    async def sweeps(self, _request: Request) -> Response:
        found = await asyncio.to_thread(list_sweeps, self._runs)
        return _json([sweep.sweep_id for sweep in reversed(found)])

    async def sweep(self, request: Request) -> Response:
        name, metric = request.path_params["name"], request.query_params.get("metric", "")
        async with self._searching:
            found = await asyncio.to_thread(list_sweeps, self._runs)
            sweep = next((one for one in found if one.sweep_id == name), None)
            if sweep is None:
                return _missing()
            return _json(await asyncio.to_thread(describe_sweep, sweep, metric[:_LONGEST]))

    async def compare(self, request: Request) -> Response:
        """Describe the runs that are named, like a sweep's tasks."""
        names, metric = request.query_params.getlist("run"), request.query_params.get("metric", "")
        async with self._searching:
            found = {run.run_id: run for run in await asyncio.to_thread(list_runs, self._runs)}
            runs = [found[name] for name in dict.fromkeys(names) if name in found]
            return _json(await asyncio.to_thread(describe_runs, runs, metric[:_LONGEST]))

    async def metrics(self, _request: Request) -> Response:
        samples = await asyncio.to_thread(self._overview.samples)
        text = await asyncio.to_thread(render_metrics, samples)
        return Response(text, headers={"content-type": CONTENT_TYPE})

    async def run(self, request: Request) -> Response:
        watched = await asyncio.to_thread(self._find, request)
        if watched is None:
            return _missing()
        _, text = await asyncio.to_thread(watched.news, 0)
        return Response(text, media_type="application/json")

    async def follow(self, request: Request) -> Response:
        watched = await asyncio.to_thread(self._find, request)
        if watched is None:
            return _missing()
        return StreamingResponse(self._stream(watched), media_type="text/event-stream")

    async def logs(self, request: Request) -> Response:
        watched = await asyncio.to_thread(self._find, request)
        if watched is None:
            return _missing()
        asked = request.query_params
        after, text = _number(asked.get("after", "")), asked.get("search", "")[:_LONGEST]
        wanted = Wanted(rank=_number(asked.get("rank", "")), text=text)
        async with self._searching:
            return _json(await asyncio.to_thread(watched.logs, after, wanted))

    async def _stream(self, watched: Watched) -> AsyncIterator[str]:
        """Send the run, and then its changes, until the browser disconnects."""
        seen, text = await asyncio.to_thread(watched.news, 0)
        while not self._over():
            # Send a comment if nothing changed, so that a closed connection is noticed.
            yield f"data: {text}\n\n" if text else ": nothing new\n\n"
            if not await asyncio.to_thread(watched.recall):
                await asyncio.sleep(EVERY_S)
            seen, text = await asyncio.to_thread(watched.news, seen)

    def _find(self, request: Request) -> Watched | None:
        name = request.path_params["name"]
        run = next((run for run in list_runs(self._runs) if run.run_id == name), None)
        return self.watch(run) if run else None

    def watch(self, run: RunDir) -> Watched:
        """Return a run that is kept in memory, and drop the one that was used least recently."""
        with self._lock:
            watched = self._watched.pop(run.path, None) or Watched(run)
            self._watched[run.path] = watched
            while len(self._watched) > _WATCHED:
                del self._watched[next(iter(self._watched))]
            return watched


def _json(value: Any) -> Response:
    """Return valid JSON, whatever numbers and bytes the run contains."""
    return Response(render_json(value), media_type="application/json")


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else None


@cache
def _read(name: str) -> bytes:
    return files("echelon.monitor").joinpath("web", name).read_bytes()


@cache
def _plotly_name() -> str:
    return f"plotly-{version('plotly')}.js"


@cache
def _plotly() -> bytes:
    # Located, not imported: importing plotly is slow.
    found = find_spec("plotly")
    places = found.submodule_search_locations if found else None
    assert places, "echelon dash checks that plotly is installed"
    folder = Path(places[0])
    return (folder / "package_data" / "plotly.min.js").read_bytes()


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    """Yield content in pieces, so that little is buffered for a slow reader."""
    for start in range(0, len(content), _PIECE):
        yield content[start : start + _PIECE]


def _missing() -> Response:
    return PlainTextResponse("not found\n", 404)


def make_app(runs: Path, gate: Gate, *, over: Callable[[], bool] = lambda: False) -> ASGIApp:
    """Return the application.

    Args:
        runs: the directory of runs.
        gate: decides which requests are allowed.
        over: tells whether the server is shutting down, so that streams end.
    """
    pages = Pages(runs, over)
    routes: list[tuple[str, Callable[[Request], Awaitable[Response]]]] = [
        ("/", pages.page),
        ("/web/{name}", pages.web),
        ("/api/runs", pages.runs),
        ("/api/sweeps", pages.sweeps),
        ("/api/sweeps/{name}", pages.sweep),
        ("/api/compare", pages.compare),
        ("/metrics", pages.metrics),
        ("/api/runs/{name}", pages.run),
        ("/api/runs/{name}/follow", pages.follow),
        ("/api/runs/{name}/logs", pages.logs),
    ]
    app = Starlette(routes=[Route(path, page) for path, page in routes])
    app.router.redirect_slashes = False  # a redirect would contain request headers
    return Guarded(app, gate)
