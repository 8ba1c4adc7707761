"""The web page's server: on this host alone, runs for whoever has the token; it only reads.

A browser opens one stream for what it shows, and is sent what has changed once a second.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cache
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

from echelon.core.records import render_json
from echelon.monitor.connections import KNOWN
from echelon.monitor.gate import NO_TOKEN, Gate
from echelon.monitor.logbook import Wanted
from echelon.monitor.overview import Overview
from echelon.monitor.watched import EVERY_S, Watched
from echelon.run.directory import RunDir
from echelon.run.listing import list_runs

_WATCHED = 4
"""How many runs are kept in memory."""
_PIECE = 2**16
_LONGEST = 200
"""What is searched for is no longer."""
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
_SCRIPTS = ("page", "api", "text", "panels", "tables", "curves", "map", "logs")
_OURS = ("page.css", *(f"{name}.js" for name in _SCRIPTS))
_FRESH, _KEPT = "no-store", "private, max-age=31536000, immutable"


class Guarded:
    """Lets nobody past the gate who may not; what comes back says no more than it must."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app, self._gate = app, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # neither WebSockets nor anything else is served
        headers = Headers(scope=scope)
        if self._gate.knows(headers):
            scope[KNOWN] = True
        app = self._app
        if reason := self._gate.refuse(scope["path"], headers):
            app = PlainTextResponse(
                f"forbidden ({reason}): open the address that echelon dash printed\n",
                401 if reason == NO_TOKEN else 403,
                headers={"www-authenticate": "Bearer"} if reason == NO_TOKEN else {},
            )
        elif scope["method"] not in ("GET", "HEAD"):
            app = PlainTextResponse("only to be read\n", 405, headers={"allow": "GET, HEAD"})
        await app(scope, receive, _with_headers(send))


def _with_headers(send: Send) -> Send:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            told = message["headers"]
            own = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
            if not any(name == b"cache-control" for name, _ in told):
                own.append((b"cache-control", _FRESH.encode()))
            message = {**message, "headers": [*told, *own]}
        await send(message)

    return sending


class Pages:
    """What is behind the gate."""

    def __init__(self, runs: Path, over: Callable[[], bool]) -> None:
        self._runs, self._over = runs, over
        self._overview = Overview(runs)
        # One at a time: searches on slow storage leave threads for the rest of the page.
        self._searching = asyncio.Semaphore(1)
        self._lock = threading.Lock()
        self._watched: dict[Path, Watched] = {}
        """The one that was looked at last comes last."""

    async def page(self, _request: Request) -> Response:
        content = _read("page.html").replace(b"/web/plotly.js", f"/web/{_plotly_name()}".encode())
        return Response(content, media_type="text/html")

    async def web(self, request: Request) -> Response:
        """Send one of our own files, or plotly's script; a name is not a path."""
        name = request.path_params["name"]
        if name == _plotly_name():  # its name says which one it is: it never changes
            headers = {"cache-control": _KEPT, "content-length": str(len(_plotly()))}
            return StreamingResponse(_pieces(_plotly()), 200, headers, "text/javascript")
        if name not in _OURS:
            return _missing()
        return Response(_read(name), media_type=_KINDS[Path(name).suffix])

    async def runs(self, _request: Request) -> Response:
        return _json(await asyncio.to_thread(self._overview.rows))

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
        """Send the run, and then what has changed about it, as long as somebody listens."""
        seen, text = await asyncio.to_thread(watched.news, 0)
        while not self._over():
            # A line that says nothing, too, so that one who has left is noticed.
            yield f"data: {text}\n\n" if text else ": nothing new\n\n"
            if not await asyncio.to_thread(watched.recall):
                await asyncio.sleep(EVERY_S)
            seen, text = await asyncio.to_thread(watched.news, seen)

    def _find(self, request: Request) -> Watched | None:
        name = request.path_params["name"]
        run = next((run for run in list_runs(self._runs) if run.run_id == name), None)
        return self._watch(run) if run else None

    def _watch(self, run: RunDir) -> Watched:
        with self._lock:
            watched = self._watched.pop(run.path, None) or Watched(run)
            self._watched[run.path] = watched
            while len(self._watched) > _WATCHED:
                del self._watched[next(iter(self._watched))]
            return watched


def _json(value: Any) -> Response:
    """Return an answer that a browser can read, whatever numbers and bytes a run has left."""
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
    # Found, not imported: that takes longer than all the rest.
    found = find_spec("plotly")
    places = found.submodule_search_locations if found else None
    assert places, "echelon dash looks whether it is there"
    folder = Path(places[0])
    return (folder / "package_data" / "plotly.min.js").read_bytes()


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    """Give content out as it is read: for one who does not read, little is kept in memory."""
    for start in range(0, len(content), _PIECE):
        yield content[start : start + _PIECE]


def _missing() -> Response:
    return PlainTextResponse("not found\n", 404)


def make_app(runs: Path, gate: Gate, *, over: Callable[[], bool] = lambda: False) -> ASGIApp:
    """Return the whole of it.

    Args:
        runs: the folder that they are in.
        gate: who may enter.
        over: whether the server is to end, and nobody may keep it with a stream.
    """
    pages = Pages(runs, over)
    routes: list[tuple[str, Callable[[Request], Awaitable[Response]]]] = [
        ("/", pages.page),
        ("/web/{name}", pages.web),
        ("/api/runs", pages.runs),
        ("/api/runs/{name}", pages.run),
        ("/api/runs/{name}/follow", pages.follow),
        ("/api/runs/{name}/logs", pages.logs),
    ]
    app = Starlette(routes=[Route(path, page) for path, page in routes])
    app.router.redirect_slashes = False  # nothing is built from a request's headers
    return Guarded(app, gate)
