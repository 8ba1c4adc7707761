"""Paths of a sandbox's files, and valid sandbox names."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from echelon.errors import UsageError

DEFAULT_NAME = "sandbox"


def is_name(name: str) -> bool:
    """Tell whether a sandbox name is valid: it is used for a directory and for the cluster."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,30}", name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Paths of a sandbox's files, all below one directory; removing it removes everything."""

    root: Path

    @property
    def state(self) -> Path:
        return self.root / "sandbox.json"

    @property
    def etc(self) -> Path:
        """Slurm's configuration; the simulated hosts see it as /etc/slurm."""
        return self.root / "etc"

    @property
    def slurm_conf(self) -> Path:
        return self.etc / "slurm.conf"

    @property
    def slurmctld_conf(self) -> Path:
        return self.etc / "slurmctld.conf"

    @property
    def gres_conf(self) -> Path:
        return self.etc / "gres.conf"

    @property
    def cgroup_conf(self) -> Path:
        return self.etc / "cgroup.conf"

    @property
    def slurmdbd_conf(self) -> Path:
        return self.etc / "slurmdbd.conf"

    @property
    def hosts(self) -> Path:
        return self.root / "hosts"

    @property
    def boot(self) -> Path:
        return self.root / "boot.sh"

    @property
    def munge(self) -> Path:
        return self.root / "munge"

    @property
    def munge_socket(self) -> Path:
        return self.munge / "socket"

    @property
    def controller_state(self) -> Path:
        return self.root / "controller"

    @property
    def spool(self) -> Path:
        return self.root / "spool"

    @property
    def run(self) -> Path:
        """Pid files and readiness marks."""
        return self.root / "run"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def devices(self) -> Path:
        return self.root / "dev"

    @property
    def database(self) -> Path:
        return self.root / "database"

    def folders(self) -> list[Path]:
        return [
            self.etc,
            self.munge,
            self.controller_state,
            self.spool,
            self.run,
            self.logs,
            self.devices,
        ]

    @property
    def option(self) -> str:
        """The --name option that selects this sandbox; empty for the default one."""
        return "" if self.root.name == DEFAULT_NAME else f" --name {self.root.name}"

    @property
    def tag(self) -> str:
        """Short suffix, unique on this machine, for names of links and of the cluster."""
        return hashlib.sha256(str(self.root).encode()).hexdigest()[:6]

    @property
    def cluster_name(self) -> str:
        return f"{self.root.name.lower()}-{self.tag}"


def check_path(layout: Layout) -> None:
    """Check the sandbox's path: slurm.conf has no quoting, and Unix socket paths must be short.

    Raises:
        UsageError: the path cannot be used.
    """
    if not re.fullmatch(r"[A-Za-z0-9._/-]+", str(layout.root)):
        raise UsageError(
            f"the path '{layout.root}' contains characters that are not allowed in slurm.conf",
            hint="set ECHELON_SANDBOX_DIR to a path of letters, digits, '.', '_', '-' and '/'",
        )
    longest = str(layout.database / "mariadb.sock")
    if len(longest) > 100:
        raise UsageError(
            f"the path {layout.root} is too long for Unix sockets",
            hint="set ECHELON_SANDBOX_DIR to a shorter path, for example /var/tmp/echelon",
        )
