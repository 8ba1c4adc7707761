"""Who may see the web page: whoever has the token, from a page of our own, by a name of ours. Pure.

The server listens on this host alone, where other users are too, and where any web page that its
user has open could send it requests.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

COOKIE = "echelon"
_LOCAL = ("127.0.0.1", "localhost", "[::1]")
_OWN = ("same-origin", "none")
"""Who may have made a browser ask: a page of ours, or its user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Decides over requests."""

    token: str
    port: int

    def refuse(self, query: str, headers: Mapping[str, str]) -> str:
        """Return why a request is refused; empty when it may pass."""
        if headers.get("host", "") not in self._names():
            return "unknown host"  # a name that somebody else has pointed here
        origin = headers.get("origin", "")
        if origin and urlsplit(origin).netloc not in self._names():
            return "foreign origin"
        # Another port of this host is "same-site": its pages would be sent our cookie.
        if headers.get("sec-fetch-site", "none") not in _OWN and not self.introduces(query):
            return "foreign page"
        if not self._knows(query, headers):
            return "no token"
        return ""

    def introduces(self, query: str) -> bool:
        """Tell whether a request brings the token in its address; the page takes it out there."""
        return self._is_token(*parse_qs(query).get("token", [""])[:1])

    def _names(self) -> set[str]:
        return {f"{name}:{self.port}" for name in _LOCAL}

    def _knows(self, query: str, headers: Mapping[str, str]) -> bool:
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        # Other pages of this host have cookies for the same name, for ports do not part them, and
        # what they put there may be anything.
        pairs = (one.strip().partition("=") for one in headers.get("cookie", "").split(";"))
        known = any(name == self.cookie_name and self._is_token(value) for name, _, value in pairs)
        return known or self.introduces(query) or self._is_token(bearer)

    @property
    def cookie_name(self) -> str:
        return f"{COOKIE}-{self.port}"

    @property
    def cookie(self) -> tuple[bytes, bytes]:
        """The header that lets a browser in from now on.

        It comes with the page itself. To follow a redirect from a link on somebody else's page, as
        in a terminal that is a web page, a browser would not send it.
        """
        value = f"{self.cookie_name}={self.token}; HttpOnly; Path=/; SameSite=strict"
        return b"set-cookie", value.encode()

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self.token.encode())
