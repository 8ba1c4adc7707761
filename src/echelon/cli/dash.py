"""`echelon dash`: serve a page with the user's runs, protected by a token."""

import contextlib
import getpass
import os
import re
import secrets
import socket
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from echelon.cli import console
from echelon.cli.completion import complete_run
from echelon.cli.help import LOOK
from echelon.cli.remote import There
from echelon.cli.run_options import RunsDir, on_host
from echelon.client.remote.remote_calls import keep_trying, open_host, start
from echelon.core.records import open_regular
from echelon.errors import UnavailableError, UsageError
from echelon.run.directory import RUNS
from echelon.run.listing import find_run

app = typer.Typer(rich_markup_mode=None)

_HOST = "127.0.0.1"
_TAKEN = -1
"""Stands for the exit code if the port is in use on the other host."""
_TRIES = 5
"""How many ports are tried: each may be in use on the other host."""
_SILENT_S = 30.0
"""Seconds without a sign of life after which the host stops serving: by then, ssh has given up the
port here, and another user may receive the token from an open tab."""
_LEAST_TOKEN, _MOST_TOKEN = 24, 200
"""Number of characters of a token."""


def dash_there(there: There) -> int:
    """Serve the page on the run's host, and forward a port of this machine to it."""
    if there.values["token_file"]:
        raise UsageError(
            f"--token-file names a file of this machine, but the page is on {there.site.host}",
            hint="remove it: each connection has a token of its own",
        )
    return keep_trying(partial(_connect, there))


def _connect(there: There) -> int:
    """Serve the page until the connection breaks, at an address for this connection only.

    After that, another user of this machine can listen on the port, and the browser still sends
    the token there. So the next connection has another token. It also has another port, because
    pages from one address share their stored data.

    The page accepts only its own address, so the port is the same on both machines.
    """
    for left in reversed(range(_TRIES)):
        listener = _listen(there.values["port"])
        port = listener.getsockname()[1]
        listener.close()
        last = left == 0 or there.values["port"] != 0
        code = _show_there(there, port, last=last)
        if code != _TAKEN:
            break
    return code


def _show_there(there: There, port: int, *, last: bool) -> int:
    words = [f"--port={port}", *there.words()[1:]]
    words = [word for word in words if not word.startswith("--port=0")]
    connection = open_host(there.site).connection
    messages: list[str] = []
    try:
        serving = start(there.site, ["dash", *words], attached=True, patience_s=_SILENT_S)
        with serving as talk:
            for kind, value in talk.output_parts():
                if kind == "end":
                    if not last and f"cannot listen on port {port}" in "".join(messages):
                        return _TAKEN
                    console.note("".join(messages).rstrip())
                    return int(value)
                if kind == "out":
                    connection.forward(port)
                    console.print_result(value.rstrip())
                    console.flush()
                    console.note(
                        f"the page of {there.site.host}, which has another address after a "
                        "broken connection; press Ctrl-C to quit"
                    )
                else:
                    messages.append(value)
    finally:
        connection.cancel_forward(port)
    return 0


@app.command(rich_help_panel=LOOK)
@on_host(dash_there)
def dash(
    run: Annotated[
        str,
        typer.Argument(metavar="[RUN]", help="Run to show first.", autocompletion=complete_run),
    ] = "",
    *,
    runs_dir: RunsDir = RUNS,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")
    ] = 0,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File that keeps the token, for programs; created if it is missing."),
    ] = None,
) -> None:
    """Show runs in the browser: ranks over time, metrics, output.

    The page also shows jobs and where the time went. The server listens only on this host, and
    requires the token in the printed URL.

    Example: echelon dash last
    """
    import uvicorn  # noqa: PLC0415

    from echelon.monitor.connections import (  # noqa: PLC0415
        BACKLOG,
        MOST,
        Connection,
        Room,
        raise_file_limit,
    )
    from echelon.monitor.server import Gate, make_app  # noqa: PLC0415

    if find_spec("plotly") is None:  # its script is served without importing it
        raise ModuleNotFoundError(name="plotly")

    begin = find_run(runs_dir, run).run_id if run else ""
    token = _keep_token(token_file) if token_file else secrets.token_urlsafe(24)
    listener = _listen(port)
    number = listener.getsockname()[1]
    gate = Gate(token=token, port=number)
    console.print_result(
        f"http://{_HOST}:{number}/#token={gate.token}{f'&run={begin}' if begin else ''}"
    )
    console.flush()
    here = f"{getpass.getuser()}@{socket.getfqdn()}"
    console.note(f"from another machine, first run: ssh -L {number}:{_HOST}:{number} {here}")
    console.note("press Ctrl-C to quit")
    # Threads that read files would otherwise delay each request by up to 5 ms per switch.
    sys.setswitchinterval(0.0005)
    # Half of the open files are for connections. The page's own files and closing connections need
    # the others.
    room = Room(most=min(MOST, raise_file_limit() // 2))
    page = make_app(runs_dir, gate, over=lambda: server.should_exit)
    server = uvicorn.Server(
        uvicorn.Config(
            page,
            http=partial(Connection, room=room),  # type: ignore[arg-type]  # only called
            ws="none",
            backlog=BACKLOG,
            log_level="error",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=5,
        )
    )
    server.run(sockets=[listener])


def _keep_token(path: Path) -> str:
    """Return the token in a file that only its owner can read; write a new one if there is none."""
    try:
        with contextlib.suppress(FileExistsError):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(f"{secrets.token_urlsafe(24)}\n")
        with open_regular(path) as content:
            status, token = os.fstat(content.fileno()), content.read(_MOST_TOKEN + 1).strip()
    except OSError as error:
        raise UsageError(
            f"cannot use {path}: {error.strerror}", hint="name another file"
        ) from error
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise UsageError(
            f"{path} holds a secret, but is not private", hint=f"remove it, or chmod 600 {path}"
        )
    if not _LEAST_TOKEN <= len(token) <= _MOST_TOKEN or not re.fullmatch(rb"[A-Za-z0-9_-]+", token):
        raise UsageError(f"{path} holds no token", hint="remove it: a new one is created")
    return token.decode()


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((_HOST, port))
        listener.listen()  # before the URL is printed, so that it can be opened at once
    except OSError as error:
        listener.close()
        raise UnavailableError(
            f"cannot listen on port {port}: {error.strerror}", hint="use any free port: --port 0"
        ) from error
    return listener
