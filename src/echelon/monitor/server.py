"""The web page's server: on this host alone, for whoever has the token; it only reads.

A browser opens one stream for what it shows, and is sent what has changed once a second.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from echelon.clusters.runs import list_runs
from echelon.core.ranklogs import RunLogs
from echelon.core.rundir import RunDir
from echelon.monitor.accounting import account, read_attempts
from echelon.monitor.gate import Gate
from echelon.monitor.heat import HeatMap
from echelon.monitor.reading import RunReader
from echelon.monitor.snapshot import describe

EVERY_S = 1.0
_COLUMNS = 120
_MOST_LINES = 2000
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}


class Guarded:
    """Lets nobody past the gate who may not; what comes back says no more than it must."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app, self._gate = app, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        query = request.url.query
        response: Response | None = None
        if self._gate.refuse(query, request.headers):
            response = PlainTextResponse(
                "forbidden: open the address that echelon dash printed\n", 403
            )
        elif request.method not in ("GET", "HEAD"):
            response = PlainTextResponse("only to be read\n", 405)
        elif self._gate.introduces(query):
            response = RedirectResponse(request.url.path, 303)
            response.set_cookie(
                self._gate.cookie_name, self._gate.token, httponly=True, samesite="strict"
            )
        if response is not None:
            response.headers.update(_HEADERS)
            await response(scope, receive, send)
            return
        await self._app(scope, receive, _with_headers(send))


def _with_headers(send: Send) -> Send:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            own = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
            message = {**message, "headers": [*message["headers"], *own]}
        await send(message)

    return sending


class Pages:
    """What is behind the gate."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs

    async def page(self, _request: Request) -> Response:
        return _file("page.html")

    async def web(self, request: Request) -> Response:
        """Send one of our own files, or plotly's script; a name is not a path."""
        name = request.path_params["name"]
        if name == "plotly.js":
            return Response(_plotly(), media_type="text/javascript")
        return _file(name) if name in ("page.js", "page.css") else _missing()

    async def runs(self, _request: Request) -> Response:
        found = await asyncio.to_thread(self._list)
        return JSONResponse(found)

    def _list(self) -> list[dict[str, Any]]:
        rows = []
        for run in reversed(list_runs(self._runs)):
            state = RunReader(run).read()
            attempt = state.attempt
            rows.append(
                {
                    "run": run.run_id,
                    "phase": state.phase,
                    "began": attempt.began_s if attempt else None,
                    "attempts": len(state.attempts),
                    "ranks": len(state.ranks),
                    "step": state.step,
                }
            )
        return rows

    async def run(self, request: Request) -> Response:
        run = self._find(request)
        return JSONResponse(await asyncio.to_thread(_Watched(run).look)) if run else _missing()

    async def follow(self, request: Request) -> Response:
        run = self._find(request)
        if run is None:
            return _missing()
        return StreamingResponse(_stream(_Watched(run)), media_type="text/event-stream")

    async def logs(self, request: Request) -> Response:
        run = self._find(request)
        if run is None:
            return _missing()
        rank, wanted = request.query_params.get("rank", ""), request.query_params.get("search", "")
        only = int(rank) if rank.isdecimal() else None
        return JSONResponse(await asyncio.to_thread(_read_logs, run, only, wanted))

    def _find(self, request: Request) -> RunDir | None:
        name = request.path_params["name"]
        return next((run for run in list_runs(self._runs) if run.run_id == name), None)


class _Watched:
    """One run, for one browser."""

    def __init__(self, run: RunDir) -> None:
        self._run, self._heat = run, HeatMap(_COLUMNS)
        self._reader = RunReader(run, seen=self._heat.feed)
        self._before = ""

    def look(self) -> dict[str, Any]:
        """Return all of it."""
        told = self._describe()
        return {**told, "heat": self._heat.whole(len(told["ranks"]))}

    def look_again(self) -> dict[str, Any] | None:
        """Return it with what is new of the ranks over time; None when nothing has changed."""
        told = self._describe()
        news, text = self._heat.news(len(told["ranks"])), json.dumps(told)
        if text == self._before and not news:
            return None
        self._before = text
        return {**told, "news": news}

    def _describe(self) -> dict[str, Any]:
        return describe(self._reader.read(), account(read_attempts(self._run)))


async def _stream(watched: _Watched) -> AsyncIterator[str]:
    """Send the run, and then what has changed about it, as long as somebody listens."""
    told: dict[str, Any] | None = await asyncio.to_thread(watched.look)
    while True:
        # A line that says nothing, too, so that one who has left is noticed.
        yield f"data: {json.dumps(told)}\n\n" if told else ": nothing new\n\n"
        await asyncio.sleep(EVERY_S)
        told = await asyncio.to_thread(watched.look_again)


def _read_logs(run: RunDir, rank: int | None, wanted: str) -> list[list[Any]]:
    lines = RunLogs(run.logs, rank=rank).read(over=False, now_s=time.time())
    found = [[line.rank, line.text] for line in lines if wanted.lower() in line.text.lower()]
    return found[-_MOST_LINES:]


def _file(name: str) -> Response:
    content = files("echelon.monitor").joinpath("web", name).read_bytes()
    return Response(content, media_type=_KINDS[Path(name).suffix])


def _plotly() -> bytes:
    return files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()


def _missing() -> Response:
    return PlainTextResponse("not found\n", 404)


def make_app(runs: Path, gate: Gate) -> ASGIApp:
    """Return the whole of it."""
    pages = Pages(runs)
    routes: list[tuple[str, Callable[[Request], Awaitable[Response]]]] = [
        ("/", pages.page),
        ("/web/{name}", pages.web),
        ("/api/runs", pages.runs),
        ("/api/runs/{name}", pages.run),
        ("/api/runs/{name}/follow", pages.follow),
        ("/api/runs/{name}/logs", pages.logs),
    ]
    app = Starlette(routes=[Route(path, page) for path, page in routes])
    return Guarded(app, gate)
