"""The place of a project on a cluster that is reached by ssh."""

import re

from echelon.core.frozen import frozen
from echelon.errors import UsageError

_HOST = re.compile(r"(?:[^\s@/:-][^\s@/:]*@)?[A-Za-z0-9_\[][A-Za-z0-9._:%\[\]-]*")


@frozen
class Site:
    """A login host, and the project's folder on it."""

    host: str
    """Destination for ssh: a name of its config, HOST or USER@HOST."""
    workdir: str
    """The project's folder there; `~` is the home directory there."""
    python: str = ""
    """The Python that runs Echelon there; empty for one on the PATH of a login."""
    cluster: str = ""
    """The cluster profile that names the host."""

    @property
    def option(self) -> str:
        """The option that names this site on a command line."""
        return f"--cluster {self.cluster}" if self.cluster else f"--host {self.host}"


def check_host(host: str) -> str:
    """Return a host's name.

    Raises:
        UsageError: ssh cannot connect to such a name.
    """
    if not _HOST.fullmatch(host):
        raise UsageError(
            f"'{host}' is not a host that ssh can connect to",
            hint="write it as for ssh: a name of ~/.ssh/config, HOST or USER@HOST",
        )
    return host


def default_workdir(project: str) -> str:
    """Return a project's folder on hosts for profiles without `workdir`. Pure."""
    return f"~/echelon/{re.sub(r'[^A-Za-z0-9._-]+', '-', project).strip('-.') or 'project'}"
