"""Where a project is on a cluster that is reached by ssh."""

import re

from echelon.core.frozen import frozen
from echelon.errors import UsageError

_HOST = re.compile(r"(?:[^\s@/:-][^\s@/:]*@)?[A-Za-z0-9_\[][A-Za-z0-9._:%\[\]-]*")


@frozen
class Site:
    """A login host, and the project's folder on it."""

    host: str
    """As for ssh: a name of its config, HOST or USER@HOST."""
    workdir: str
    """The project's folder there; `~` is the home directory there."""
    python: str = ""
    """The Python that runs Echelon there; empty for one from the PATH of a login."""
    cluster: str = ""
    """Name of the profile it comes from."""

    @property
    def option(self) -> str:
        """The option that names it on a command line."""
        return f"--cluster {self.cluster}" if self.cluster else f"--host {self.host}"


def check_host(host: str) -> str:
    """Return a host's name.

    Raises:
        UsageError: ssh would not take it for one.
    """
    if not _HOST.fullmatch(host):
        raise UsageError(
            f"'{host}' is not a host that ssh can connect to",
            hint="write it as for ssh: a name of ~/.ssh/config, HOST or USER@HOST",
        )
    return host


def default_workdir(project: str) -> str:
    """Return where a project is kept on hosts, if the profile does not say. Pure."""
    return f"~/echelon/{re.sub(r'[^A-Za-z0-9._-]+', '-', project).strip('-.') or 'project'}"
