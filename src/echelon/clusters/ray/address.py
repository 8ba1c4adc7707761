"""Addresses of Ray's Jobs API, and requests to it.

A run directory contains the address of its cluster, but may come from anywhere. Only addresses that
the user gave are contacted: on the command line, in a variable, or with an earlier submission,
which is recorded in the user's state directory.
"""

import http.client
import json
import os
import stat
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from echelon.core.frozen import frozen
from echelon.core.jobs import RAY
from echelon.core.userstate import append_line, state_folder
from echelon.errors import NotPermittedError, UsageError

PREFIX = RAY
DEFAULT = "http://127.0.0.1:8265"
_SCHEMES = ("http", "https")
_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
_RECORD = "ray-addresses"
_LONGEST_ANSWER = 2**24
_ANSWER_S = 30.0
_GLANCE_S = 3.0
"""Time-out if there are other clusters to query."""

Fetch = Callable[[str, str, Any], tuple[int, str]]
"""Method, path and content of a request → status and text of the response.

Raises OSError if there is no response.
"""


@frozen
class JobName:
    """A job ID as it is recorded, with the address of its cluster."""

    submission: str
    address: str = ""
    """Empty for the default address."""

    def __str__(self) -> str:
        where = f"@{self.address}" if self.address else ""
        return f"{PREFIX}{self.submission}{where}"


def parse_job_name(text: str) -> JobName:
    submission, _, address = text.removeprefix(PREFIX).partition("@")
    return JobName(submission=submission, address=address)


def find_address(asked: str, environ: Mapping[str, str]) -> str:
    """Return the address of the Jobs API: the requested one, or that of Ray's own commands.

    Empty if there is none.

    Raises:
        UsageError: the address is invalid.
    """
    if asked:
        return _check_address(asked, repr(asked))
    if api := environ.get("RAY_API_SERVER_ADDRESS", ""):
        return _check_address(api, f"RAY_API_SERVER_ADDRESS={api!r}")
    known = environ.get("RAY_ADDRESS", "")
    if known in ("", "auto", "local"):
        return ""
    if not known.startswith(("http://", "https://")):
        # Ray's own commands use it for ray.init only, and submit jobs elsewhere.
        raise UsageError(
            f"RAY_ADDRESS={known} is an address for ray.init(), not of the Jobs API",
            hint="give the address of the dashboard: --address http://HEAD:8265",
        )
    return _check_address(known, f"RAY_ADDRESS={known}")


def _check_address(text: str, shown: str) -> str:
    address = text if "://" in text else f"http://{text}"
    if not _is_address(address):
        raise UsageError(
            f"{shown} is not a valid address of Ray's Jobs API",
            hint=f"use this form: --address {DEFAULT}",
        )
    return address.rstrip("/")


def _is_address(text: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(text)
        port = parts.port
    except ValueError:  # an unbalanced bracket, or an invalid port
        return False
    bare = not (parts.username or parts.password or parts.query or parts.fragment)
    plain = text.isprintable() and " " not in text
    return bare and plain and bool(parts.hostname) and parts.scheme in _SCHEMES and port != 0


# --- which addresses the user gave ----------------------------------------------------------------


def given_addresses(environ: Mapping[str, str]) -> set[str]:
    """Return the addresses that the user gave, in variables or with earlier submissions."""
    found = {line for line in _read_record(environ) if _is_address(line)}
    for name in _VARIABLES:
        with suppress(UsageError):
            found.add(find_address("", {name: environ.get(name, "")}))
    return found - {""}


def remember_address(address: str, environ: Mapping[str, str]) -> None:
    """Record an address that the user gave, so that `ps` may contact it later."""
    folder = state_folder(environ)
    if folder is None or address in _read_record(environ):
        return
    with suppress(OSError):  # the job was submitted, even if the disk is full
        append_line(folder / _RECORD, address, flags=os.O_NOFOLLOW)


def _read_record(environ: Mapping[str, str]) -> list[str]:
    folder = state_folder(environ)
    with suppress(OSError):
        if folder is None:
            return []
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with os.fdopen(os.open(folder / _RECORD, flags), errors="replace") as file:
            entry = os.fstat(file.fileno())
            # Someone who can write to a parent directory could replace the file, but not own it
            # as this user.
            ours = entry.st_uid == os.geteuid() and not entry.st_mode & 0o022
            return file.read().splitlines() if ours and stat.S_ISREG(entry.st_mode) else []
    return []


def refuse_contact(address: str) -> Fetch:
    """Return a `Fetch` for an address that the user never gave; it only raises an error."""

    def refuse(*_: Any) -> tuple[int, str]:
        raise NotPermittedError(
            f"not contacting the Ray address {address!r}: it comes from the run directory, and "
            "you never gave it",
            hint="give the address of your cluster: --address http://HEAD:8265 if the command "
            "has this option, otherwise RAY_API_SERVER_ADDRESS=http://HEAD:8265",
        )

    return refuse


def find_token(environ: Mapping[str, str]) -> str:
    """Return the token that Ray's own commands would send; empty if there is none."""
    if token := environ.get("RAY_AUTH_TOKEN", "").strip():
        return token
    usual = Path(environ.get("HOME", "/"), ".ray", "auth_token")
    path = Path(environ["RAY_AUTH_TOKEN_PATH"]) if environ.get("RAY_AUTH_TOKEN_PATH") else usual
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text().strip()
    return ""


# --- asking -------------------------------------------------------------------------------------


class HttpFetch:
    """Sends requests over HTTP without a proxy, with the token only if the server requires one."""

    def __init__(self, address: str, token: str, *, hasty: bool = False) -> None:
        """Prepare requests to one address.

        Args:
            address: the address of the Jobs API.
            token: empty if the server must not get one.
            hasty: use a short time-out, and fail at once after the first failure.
        """
        self._address, self._token, self._hasty = address, token, hasty
        self._trouble: OSError | None = None
        # Not build_opener: it follows proxies and redirects, which would leak the token to other
        # hosts, and supports file, ftp and data URLs.
        self._opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(),
            urllib.request.UnknownHandler(),
            urllib.request.HTTPErrorProcessor(),
            urllib.request.HTTPDefaultErrorHandler(),
        ):
            self._opener.add_handler(handler)
        self._headers: dict[str, str] = {}

    def __call__(self, method: str, path: str, content: Any) -> tuple[int, str]:
        if self._trouble and self._hasty:
            raise self._trouble
        try:
            status, text = self._once(method, path, content)
            if status == 401 and self._token and not self._headers:
                self._headers = {"Authorization": f"Bearer {self._token}"}
                status, text = self._once(method, path, content)
        except OSError as error:
            self._trouble = error
            raise
        return status, text

    def _once(self, method: str, path: str, content: Any) -> tuple[int, str]:
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(  # noqa: S310  find_address lets http and https through
            f"{self._address}{path}",
            data=data,
            method=method,
            headers={"Content-Type": "application/json", **self._headers},
        )
        try:
            limit_s = _GLANCE_S if self._hasty else _ANSWER_S
            with self._opener.open(request, timeout=limit_s) as answer:
                return answer.status, answer.read(_LONGEST_ANSWER).decode(errors="replace")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read(_LONGEST_ANSWER).decode(errors="replace")
        except http.client.HTTPException as error:
            raise ConnectionError(f"invalid HTTP response: {error!r}") from error
