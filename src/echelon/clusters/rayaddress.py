"""Where a Ray cluster takes jobs, and how it is asked there."""

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echelon.errors import UsageError

PREFIX = "ray:"
DEFAULT = "http://127.0.0.1:8265"
_SCHEMES = ("http", "https")
_ANSWER_S = 30.0
_GLANCE_S = 3.0
"""How long an answer may take where there are others to ask."""

Fetch = Callable[[str, str, Any], tuple[int, str]]
"""Method, path and content of a request; status and text of the answer.

Raises OSError where nobody answers.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobName:
    """A job's id, as we write it down: it says where to ask."""

    submission: str
    address: str = ""
    """Empty where nobody has named one: it is the default then."""

    def __str__(self) -> str:
        where = f"@{self.address}" if self.address else ""
        return f"{PREFIX}{self.submission}{where}"


def parse_job_name(text: str) -> JobName:
    submission, _, address = text.removeprefix(PREFIX).partition("@")
    return JobName(submission=submission, address=address)


def find_address(asked: str, environ: Mapping[str, str]) -> str:
    """Return where a Ray cluster takes jobs: what was asked, or as Ray's own commands find it.

    Empty where nobody says so.

    Raises:
        UsageError: it is no address of the kind.
    """
    if asked:
        return _check_address(asked, repr(asked))
    if api := environ.get("RAY_API_SERVER_ADDRESS", ""):
        return _check_address(api, f"RAY_API_SERVER_ADDRESS={api!r}")
    known = environ.get("RAY_ADDRESS", "")
    if known in ("", "auto", "local"):
        return ""
    if not known.startswith(("http://", "https://")):
        # Ray's own commands take it for ray.init alone, and would go elsewhere with jobs.
        raise UsageError(
            f"RAY_ADDRESS={known} is where ray.init() goes, not where jobs are taken",
            hint="name the dashboard's address: --address http://HEAD:8265",
        )
    return _check_address(known, f"RAY_ADDRESS={known}")


def _check_address(text: str, shown: str) -> str:
    address = text if "://" in text else f"http://{text}"
    if not _is_address(address):
        raise UsageError(
            f"{shown} is no address of Ray's Jobs API",
            hint=f"write it like this: --address {DEFAULT}",
        )
    return address.rstrip("/")


def _is_address(text: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(text)
        port = parts.port
    except ValueError:  # half a bracket, or a port that is no number
        return False
    bare = not (parts.username or parts.password or parts.query or parts.fragment)
    plain = text.isprintable() and " " not in text
    return bare and plain and bool(parts.hostname) and parts.scheme in _SCHEMES and port != 0


def find_token(environ: Mapping[str, str]) -> str:
    """Return the token that Ray's own commands would show; empty when there is none."""
    if token := environ.get("RAY_AUTH_TOKEN", "").strip():
        return token
    usual = Path(environ.get("HOME", "/"), ".ray", "auth_token")
    path = Path(environ["RAY_AUTH_TOKEN_PATH"]) if environ.get("RAY_AUTH_TOKEN_PATH") else usual
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text().strip()
    return ""


# --- asking -------------------------------------------------------------------------------------


class HttpFetch:
    """Asks over HTTP, directly; it shows the token only to one who asks for it."""

    def __init__(self, address: str, token: str, *, hasty: bool = False) -> None:
        """Name whom to ask.

        Args:
            address: its own.
            token: empty where it may have none.
            hasty: whether to wait for an answer only once, and not for long.
        """
        self._address, self._token, self._hasty = address, token, hasty
        self._trouble: OSError | None = None
        # No proxy: it would see the token. No redirects: neither shall another host.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Straight())
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
                return answer.status, answer.read().decode(errors="replace")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode(errors="replace")
        except http.client.HTTPException as error:
            raise ConnectionError(f"it does not speak HTTP: {error!r}") from error


class _Straight(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None
