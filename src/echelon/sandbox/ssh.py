"""OpenSSH's sshd on a sandbox's login host, to rehearse submitting over ssh (--ssh).

The only key that may log in is made for the sandbox and kept in its directory, as is the host key.
Nothing in a home directory is read or changed.
"""

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from echelon.core.atomic_file import write_atomic
from echelon.core.shell import Result
from echelon.core.waiting import wait_until
from echelon.errors import UnavailableError
from echelon.sandbox.config import LOGIN, SSHD, SandboxState
from echelon.sandbox.layout import DEFAULT_NAME, Layout
from echelon.sandbox.processes import MARK

PROGRAMS = {"sshd": "openssh-server", "ssh-keygen": "openssh-client"}
"""Program → Debian package."""

START_TIMEOUT_S = 20


class LoginHost(Protocol):
    """The host on which sshd runs."""

    def run(self, argv: Sequence[str], *, stdin: str = "") -> Result:
        """Run a program and wait for it."""

    def start(self, argv: Sequence[str], *, log: str) -> None:
        """Start a program in the background."""

    def last_complaint(self, *logs: str) -> str:
        """Return the last error found in the logs."""


# --- rendering ------------------------------------------------------------------------------


def host_alias(name: str) -> str:
    """Return the sandbox's name in ssh_config: `ssh ALIAS`."""
    return DEFAULT_NAME if name == DEFAULT_NAME else f"{DEFAULT_NAME}-{name}"


def find_endpoint(state: SandboxState) -> tuple[str, int]:
    """Return the address and port at which this machine reaches sshd."""
    network = state.network
    # The machine's own network has a link to the login host, but other machines cannot reach it.
    address = network.addresses[LOGIN] if network.kind == "namespaces" else "127.0.0.1"
    return address, network.ports[SSHD]


def render_sshd_config(state: SandboxState, layout: Layout) -> str:
    """Return sshd_config: logins with the sandbox's key only."""
    address, port = find_endpoint(state)
    sections = [
        [
            f"ListenAddress {address}",
            f"Port {port}",
            f"HostKey {layout.ssh_host_key}",
            "PidFile none",
        ],
        [
            "AuthenticationMethods publickey",
            f"AuthorizedKeysFile {layout.ssh_authorized_keys}",
            "# The sandbox may be below a directory that all users can write to, such as /var/tmp.",
            "# `up` has checked who owns the directories in between.",
            "StrictModes no",
            "PermitRootLogin prohibit-password",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "HostbasedAuthentication no",
            "UsePAM no",
            # An sshd without root cannot become another user.
            *([] if state.user == "root" else [f"AllowUsers {state.user}"]),
        ],
        [
            "AllowTcpForwarding yes",
            "AllowAgentForwarding no",
            "X11Forwarding no",
            "PermitTunnel no",
            "PermitUserRC no",
            "MaxSessions 20",
        ],
        [
            f"# All in one line: sshd ignores a second one. `down` finds processes by {MARK}.",
            f"SetEnv SLURM_CONF={layout.slurm_conf} {MARK}={layout.root}",
            "AcceptEnv LANG LC_*",
            "PrintMotd no",
            "PrintLastLog no",
            "Subsystem sftp internal-sftp",
        ],
    ]
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def render_ssh_config(state: SandboxState, layout: Layout) -> str:
    """Return ssh_config: everything that ssh needs to log in."""
    address, port = find_endpoint(state)
    return f"""\
Host {host_alias(state.config.name)}
    HostName {address}
    Port {port}
    User {state.user}
    IdentityFile {layout.ssh_key}
    IdentitiesOnly yes
    UserKnownHostsFile {layout.ssh_known_hosts}
    StrictHostKeyChecking yes
"""


def render_known_hosts(state: SandboxState, host_key: str) -> str:
    """Return known_hosts with sshd's public key."""
    address, port = find_endpoint(state)
    host = address if port == 22 else f"[{address}]:{port}"
    kind, key = host_key.split()[:2]
    return f"{host} {kind} {key}\n"


def render_shadow(passwd: str) -> str:
    """Return an /etc/shadow for the accounts in `passwd`: without passwords, none is locked."""
    names = [line.partition(":")[0] for line in passwd.splitlines() if ":" in line]
    return "".join(f"{name}:*:::::::\n" for name in names)


def render_start(layout: Layout) -> str:
    """Return start.sh: sshd's first program, in a mount namespace of its own."""
    return f"""\
# Starts the sshd $1 of a sandbox; needs root and a mount namespace of its own.
set -e
# Without PAM, sshd refuses accounts whose password is locked, such as root's on Ubuntu.
mount --bind '{layout.ssh_shadow}' /etc/shadow
# Logins to the sandbox do not belong in the machine's records.
for record in /run/utmp /var/log/wtmp /var/log/btmp /var/log/lastlog; do
    own='{layout.ssh_shadow.parent}'/${{record##*/}}
    : > "$own"
    [ ! -e "$record" ] || mount --bind "$own" "$record"
done
# sshd changes its root directory to this one, which Debian's service creates.
mkdir -p -m 0755 /run/sshd
exec "$1" -D -e -f '{layout.sshd_config}'
"""


# --- starting -------------------------------------------------------------------------------


def start_sshd(state: SandboxState, layout: Layout, login: LoginHost, sshd: Path) -> None:
    """Make the keys, start sshd, and wait until it answers.

    Args:
        state: the sandbox.
        layout: its files.
        login: the host on which sshd runs.
        sshd: its absolute path, which it needs to start itself again for each connection.

    Raises:
        UnavailableError: sshd did not start in time.
    """
    _write_files(state, layout, login)
    plain = [str(sshd), "-D", "-e", "-f", str(layout.sshd_config)]
    own_mounts = ["unshare", "--mount", "--propagation", "slave"]
    argv = [*own_mounts, "bash", str(layout.ssh_start), str(sshd)]
    login.start(argv if state.network.kind == "namespaces" else plain, log=layout.sshd_log.name)
    endpoint = find_endpoint(state)
    if not wait_until(lambda: _answers(endpoint), timeout_s=START_TIMEOUT_S, interval_s=0.05):
        raise UnavailableError(
            f"sshd did not answer within {START_TIMEOUT_S} s at {endpoint[0]}:{endpoint[1]}",
            hint=login.last_complaint(layout.sshd_log.name),
        )
    write_atomic(layout.ssh_config, render_ssh_config(state, layout), mode=0o644)


def _write_files(state: SandboxState, layout: Layout, login: LoginHost) -> None:
    layout.ssh.mkdir(mode=0o755)  # sshd reads authorized_keys as the user who logs in
    for key, comment in ((layout.ssh_key, "user"), (layout.ssh_host_key, "host")):
        name = f"{layout.cluster_name}-{comment}"
        login.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(key)]
        ).check()
    host_key = layout.ssh_host_key.with_suffix(".pub").read_text()
    texts = {
        layout.ssh_authorized_keys: layout.ssh_key.with_suffix(".pub").read_text(),
        layout.ssh_known_hosts: render_known_hosts(state, host_key),
        layout.sshd_config: render_sshd_config(state, layout),
    }
    if state.network.kind == "namespaces":
        texts[layout.ssh_shadow] = render_shadow(Path("/etc/passwd").read_text(errors="replace"))
        texts[layout.ssh_start] = render_start(layout)
    for path, text in texts.items():
        write_atomic(path, text, mode=0o644)


def _answers(endpoint: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(endpoint, timeout=2) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
