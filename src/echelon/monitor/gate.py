"""Who may see the web page: whoever has the token, from a page of our own, by a name of ours. Pure.

The server listens on this host alone, where other users are too, and where any web page that its
user has open could send it requests. The page and its scripts are no secret; all else needs the
token, in a header that no browser sends by itself. Ports do not separate cookies, so none is used.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass

NO_TOKEN = "no token"  # noqa: S105  a reason, not a secret
_BEARER = "Bearer "
_LOCAL = ("127.0.0.1", "localhost", "[::1]")
_OWN = ("same-origin", "none")
"""Who may have made a browser ask: a page of ours, or its user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Decides over requests."""

    token: str
    port: int

    def refuse(self, path: str, headers: Mapping[str, str]) -> str:
        """Return why a request is refused; empty when it may pass.

        Headers are compared, never parsed: whatever they hold, this raises nothing.
        """
        names = [f"{name}:{self.port}" for name in _LOCAL]
        if headers.get("host", "") not in names:
            return "unknown host"  # a name that somebody else has pointed here
        origin = headers.get("origin", "")
        if origin and origin not in [f"http://{name}" for name in names]:
            return "foreign origin"
        if path == "/" or path.startswith("/web/"):
            return ""
        if headers.get("sec-fetch-site", "none") not in _OWN:
            return "foreign page"
        return "" if self.knows(headers) else NO_TOKEN

    def knows(self, headers: Mapping[str, str]) -> bool:
        """Tell whether a request brings the token."""
        shown = headers.get("authorization", "")
        text = shown.removeprefix(_BEARER).encode("utf-8", "surrogatepass")
        return shown.startswith(_BEARER) and hmac.compare_digest(text, self.token.encode())
