"""Paths of a sandbox's files, and valid sandbox names."""

import hashlib
import re
from pathlib import Path

from echelon.errors import UsageError

DEFAULT_NAME = "sandbox"


def is_name(name: str) -> bool:
    """Tell whether a sandbox name is valid: it is used for a directory and for the cluster."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,30}", name) is not None


class Layout:
    """Paths of a sandbox's files, all below one directory; removing it removes everything."""

    def __init__(self, *, root: Path) -> None:
        self.root = root
        self.state = root / "sandbox.json"
        self.etc = root / "etc"
        """Slurm's configuration; the simulated hosts see it as /etc/slurm."""
        self.slurm_conf = self.etc / "slurm.conf"
        self.slurmctld_conf = self.etc / "slurmctld.conf"
        self.gres_conf = self.etc / "gres.conf"
        self.cgroup_conf = self.etc / "cgroup.conf"
        self.slurmdbd_conf = self.etc / "slurmdbd.conf"
        self.hosts = root / "hosts"
        self.boot = root / "boot.sh"
        self.munge = root / "munge"
        self.munge_socket = self.munge / "socket"
        self.controller_state = root / "controller"
        self.spool = root / "spool"
        self.run = root / "run"
        """Pid files and readiness marks."""
        self.logs = root / "logs"
        self.devices = root / "dev"
        self.database = root / "database"
        self.ssh = root / "ssh"
        """Keys and configuration of sshd (--ssh)."""
        self.ssh_key = self.ssh / "id_ed25519"
        self.ssh_host_key = self.ssh / "host_ed25519"
        self.ssh_authorized_keys = self.ssh / "authorized_keys"
        self.ssh_known_hosts = self.ssh / "known_hosts"
        self.ssh_shadow = self.ssh / "shadow"
        self.ssh_start = self.ssh / "start.sh"
        self.sshd_config = self.ssh / "sshd_config"
        self.sshd_log = self.logs / "sshd.log"
        self.ssh_config = root / "ssh_config"
        """For ssh(1); exists once sshd answers."""

    def folders(self) -> list[Path]:
        """Return the directories to create; accounting.py and ssh.py create their own."""
        folders = [self.etc, self.munge, self.controller_state, self.spool]
        return [*folders, self.run, self.logs, self.devices]

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
