"""What a registry says about an image: its digest and its architecture.

Asked over HTTP, so that a tag can be resolved where no runtime is installed.
"""

import hashlib
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from echelon.errors import NotFoundError, UnavailableError
from echelon.launch.container.reference import DOCKER_HUB, Reference, is_loopback

_HUB_HOST = "registry-1.docker.io"
_MANIFESTS = (
    *("application/vnd.oci.image.index.v1+json", "application/vnd.oci.image.manifest.v1+json"),
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_TIMEOUT_S = 20.0
_MOST = 4 << 20
"""Bytes of an answer that are read."""
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')
_MISSING = (401, 403, 404)


def resolve(reference: Reference, architecture: str, credentials: Mapping[str, str]) -> Reference:
    """Return a reference with the digest that its tag has now.

    Args:
        reference: an image in a registry.
        architecture: the one that it must be for, such as amd64.
        credentials: registry → user and password in base64, as clients keep them.

    Raises:
        NotFoundError: the registry has no such image, or not for this architecture.
        UnavailableError: the registry cannot be asked.
    """
    registry = _Registry(reference, credentials.get(reference.registry, ""))
    manifest, digest = registry.get(f"manifests/{reference.digest or reference.tag}")
    try:
        offered = [
            str(one.get("platform", {}).get("architecture", ""))
            for one in manifest.get("manifests", ())
            if one.get("platform", {}).get("os", "linux") == "linux"
        ]
        if not offered and "config" in manifest:
            config, _ = registry.get(f"blobs/{manifest['config']['digest']}")
            offered = [str(config.get("architecture", ""))]
    except (AttributeError, KeyError, TypeError) as error:
        raise UnavailableError(
            f"{reference.registry} does not describe the image {reference} as registries do",
            hint="name a file instead: echelon image pull, where it works",
        ) from error
    if offered and architecture not in offered:
        raise NotFoundError(
            f"the image {reference} is for {', '.join(filter(None, offered))}, not {architecture}",
            hint="choose a tag that is built for this machine",
        )
    return replace(reference, digest=reference.digest or digest)


def read_credentials(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what `podman login` and `docker login` have stored."""
    home = environ.get("HOME", "/")
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    places = [
        environ.get("REGISTRY_AUTH_FILE", ""),
        f"{runtime}/containers/auth.json" if runtime else "",
        f"{home}/.config/containers/auth.json",
        f"{home}/.docker/config.json",
    ]
    found: dict[str, str] = {}
    for place in filter(None, places):
        try:
            entries = json.loads(Path(place).read_text())["auths"]
            for name, entry in entries.items():
                host = str(name).removeprefix("https://").partition("/")[0]
                host = DOCKER_HUB if host == "index.docker.io" else host
                found.setdefault(host, str(entry.get("auth", "")))
        except (OSError, ValueError, KeyError, AttributeError):
            continue  # other clients wrote it, and it may say anything
    return found


class _Registry:
    def __init__(self, reference: Reference, basic: str) -> None:
        self._reference, self._basic = reference, basic
        host = _HUB_HOST if reference.registry == DOCKER_HUB else reference.registry
        scheme = "http" if reference.plain_http else "https"
        self._base = f"{scheme}://{host}/v2/{reference.repository}"
        self._authorization = f"Basic {basic}" if basic else ""

    def get(self, what: str) -> tuple[Mapping[str, Any], str]:
        """Return a JSON document, and its digest."""
        try:
            return self._read(f"{self._base}/{what}", self._authorization)
        except urllib.error.HTTPError as error:
            challenge = error.headers.get("WWW-Authenticate", "")
            error.close()
            if error.code != 401 or not challenge.lower().startswith("bearer"):
                raise self._explain(error) from error
        except (OSError, ValueError) as error:
            raise self._explain(error) from error
        try:
            self._authorization = f"Bearer {self._ask_token(challenge)}"
            return self._read(f"{self._base}/{what}", self._authorization)
        except (OSError, ValueError, KeyError) as error:
            raise self._explain(error) from error

    def _ask_token(self, challenge: str) -> str:
        wanted = dict(_PARAMETER.findall(challenge))
        realm = wanted.pop("realm")
        where = urllib.parse.urlsplit(realm)
        if where.scheme != "https" and not (where.scheme == "http" and is_loopback(where.netloc)):
            raise ValueError(f"it sends us to {realm}")
        query = urllib.parse.urlencode(wanted)
        found, _ = self._read(f"{realm}?{query}", f"Basic {self._basic}" if self._basic else "")
        return str(found.get("token") or found["access_token"])

    def _read(self, url: str, authorization: str) -> tuple[Mapping[str, Any], str]:
        request = urllib.request.Request(url, headers={"Accept": ", ".join(_MANIFESTS)})  # noqa: S310
        if authorization:
            # Not sent on to where a registry keeps its blobs.
            request.add_unredirected_header("Authorization", authorization)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            text = answer.read(_MOST)
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError("it did not answer with a JSON object")  # noqa: TRY004  as damaged JSON
        return found, f"sha256:{hashlib.sha256(text).hexdigest()}"

    def _explain(self, error: Exception) -> NotFoundError | UnavailableError:
        name = self._reference
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        if isinstance(error, urllib.error.HTTPError) and error.code in _MISSING:
            return NotFoundError(
                f"the image {name} was not found: {name.registry} answered {error.code}",
                hint=f"check its name and tag; if it is private: podman login {name.registry}",
            )
        return UnavailableError(
            f"cannot ask {name.registry} about the image {name}: {error}",
            hint="name a digest (NAME@sha256:…), or a file: echelon image pull, where it works",
        )
