"""What `--image` names: an image in a registry, or a file. Pure."""

import hashlib
import re

from echelon.core.frozen import frozen
from echelon.errors import UsageError

DOCKER_HUB = "docker.io"
_SCHEME = "docker://"
_REFERENCE = re.compile(
    r"(?:(?P<registry>[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+(?::[0-9]+)?|localhost(?::[0-9]+)?"
    r"|[A-Za-z0-9-]+:[0-9]+|\[[0-9a-fA-F:]+\](?::[0-9]+)?)/)?"
    r"(?P<repository>[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_LOOPBACK = re.compile(r"(localhost|127(\.[0-9]+){3}|\[::1\])(:[0-9]+)?")


@frozen
class Reference:
    """An image. A file has a path, and nothing else."""

    path: str = ""
    """The file, `.sif` or an OCI archive."""
    registry: str = ""
    """Host and port."""
    repository: str = ""
    tag: str = ""
    digest: str = ""
    """`sha256:…` of its manifest; empty if only a tag is known."""

    def __str__(self) -> str:
        if self.path:
            return self.path
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.registry}/{self.repository}{tag}{f'@{self.digest}' if self.digest else ''}"

    @property
    def pulled(self) -> str:
        """The name to pull: by digest if it is known. Some runtimes reject a tag beside it."""
        ending = f"@{self.digest}" if self.digest else f":{self.tag}"
        return f"{self.registry}/{self.repository}{ending}"

    @property
    def stem(self) -> str:
        """The name of its file in the cache, without the ending."""
        return self.digest.replace(":", "-") or hashlib.sha256(str(self).encode()).hexdigest()

    @property
    def local(self) -> bool:
        """Whether it is only in podman's own storage, as images that were built there are."""
        return self.registry == "localhost"

    @property
    def plain_http(self) -> bool:
        """Whether its registry is on this machine, where podman and Docker do without TLS too."""
        return is_loopback(self.registry)


def is_loopback(host: str) -> bool:
    """Tell whether a host, perhaps with a port, is this machine."""
    return bool(_LOOPBACK.fullmatch(host))


def parse_reference(text: str) -> Reference:
    """Parse `nvcr.io/nvidia/pytorch:25.01-py3`, `docker://…`, or the path of a file.

    Raises:
        UsageError: it is none of these.
    """
    if text.startswith(("/", "./", "../", "~")) or text.endswith((".sif", ".tar")):
        return Reference(path=text)
    found = _REFERENCE.fullmatch(text.removeprefix(_SCHEME))
    if found is None:
        raise UsageError(
            f"'{text}' is not an image",
            hint="write NAME:TAG, REGISTRY/NAME:TAG, or the path of a .sif file or OCI archive",
        )
    registry, repository = found["registry"] or DOCKER_HUB, found["repository"]
    if registry == DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    tag = found["tag"] or ("" if found["digest"] else "latest")
    return Reference(
        registry=registry, repository=repository, tag=tag, digest=found["digest"] or ""
    )
