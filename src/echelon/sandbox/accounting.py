"""MariaDB and slurmdbd for a sandbox, so that `sacct` works.

The database is kept in the sandbox's directory, listens on loopback only and is removed with the
sandbox.
"""

import secrets
from collections.abc import Callable, Sequence
from typing import Protocol

from echelon.core.atomic_file import write_atomic
from echelon.core.shell import Result
from echelon.core.waiting import wait_until
from echelon.errors import UnavailableError
from echelon.sandbox.config import SandboxState, render_slurmdbd_conf
from echelon.sandbox.layout import Layout

PROGRAMS = {
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server-core",
    "mariadb-install-db": "mariadb-server-core",
    "mariadb": "mariadb-client-core",
}
"""Program → Debian package."""


class LoginHost(Protocol):
    """The host on which both daemons run."""

    def run(self, argv: Sequence[str], *, stdin: str = "") -> Result:
        """Run a program and wait for it."""

    def start(self, argv: Sequence[str], *, log: str) -> None:
        """Start a program in the background."""

    def last_complaint(self, *logs: str) -> str:
        """Return the last error found in the logs."""


def start_accounting(state: SandboxState, layout: Layout, login: LoginHost) -> None:
    """Start MariaDB and slurmdbd, and wait until slurmdbd answers.

    Raises:
        UnavailableError: a daemon did not start in time.
    """
    password = secrets.token_hex(16)
    _start_database(state, layout, password, login)
    write_atomic(layout.slurmdbd_conf, render_slurmdbd_conf(state, layout, password))
    login.start(["slurmdbd", "-D"], log="slurmdbd.out")
    # Register the cluster before slurmctld starts, which otherwise logs an error and retries.
    add = ["sacctmgr", "--immediate", "add", "cluster", layout.cluster_name]
    _await(lambda: login.run(add).code == 0, "slurmdbd", login)
    login.run(["sacctmgr", "--immediate", "add", "account", "sandbox"]).check()
    login.run(["sacctmgr", "--immediate", "add", "user", state.user, "account=sandbox"]).check()


def _start_database(state: SandboxState, layout: Layout, password: str, login: LoginHost) -> None:
    layout.database.mkdir(mode=0o700)
    data, socket = layout.database / "data", layout.database / "mariadb.sock"
    login.run(
        [
            "mariadb-install-db",
            "--no-defaults",
            f"--datadir={data}",
            f"--user={state.user}",
            "--skip-test-db",
            # Only the sandbox's owner can log in as root, and only through the socket.
            "--auth-root-authentication-method=socket",
            f"--auth-root-socket-user={state.user}",
        ]
    ).check()
    login.start(
        [
            "mariadbd",
            "--no-defaults",
            f"--datadir={data}",
            f"--user={state.user}",
            f"--socket={socket}",
            f"--pid-file={layout.run}/mariadb.pid",
            f"--port={state.database_port}",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            # slurmdbd requires these; MariaDB's defaults are too small.
            "--innodb-buffer-pool-size=256M",
            "--innodb-lock-wait-timeout=900",
        ],
        log="mariadbd.log",
    )
    client = ["mariadb", "--no-defaults", f"--socket={socket}", f"--user={state.user}"]
    _await(lambda: login.run([*client, "--execute=SELECT 1"]).code == 0, "mariadbd", login)
    grant = (
        "CREATE DATABASE slurm;"
        f"CREATE USER slurm@'127.0.0.1' IDENTIFIED BY '{password}';"
        "GRANT ALL ON slurm.* TO slurm@'127.0.0.1';"
    )
    login.run(client, stdin=grant).check()


def _await(condition: Callable[[], bool], daemon: str, login: LoginHost) -> None:
    if not wait_until(condition, timeout_s=60, interval_s=0.1):
        raise UnavailableError(
            f"{daemon} did not answer within 60 s",
            hint=login.last_complaint(f"{daemon}.log", f"{daemon}.out"),
        )
