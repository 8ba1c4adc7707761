"""Explains why ssh failed, from what it printed. Pure."""

import re
from collections.abc import Callable

from echelon.clusters.ssh.call import LOST
from echelon.errors import EchelonError, NotPermittedError, UnavailableError


class UnreachableError(UnavailableError):
    """A host cannot be reached; a later attempt may succeed."""


class CutError(UnreachableError):
    """ssh exited without a message, as it does when its shared connection is cut."""


_AWAY = (
    r"Connection refused|timed out|No route to host|Network is unreachable|Host is down|"
    r"kex_exchange_identification|Connection closed|Connection reset|Connection to .* closed|"
    r"not responding|banner exchange|Broken pipe"
)
_KNOWN: tuple[tuple[str, Callable[..., EchelonError], str, str], ...] = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        NotPermittedError,
        "the host key of {host} is not the one of the last connection",
        "ask the cluster's staff; if it was changed, forget the old one: ssh-keygen -R HOSTNAME",
    ),
    (
        r"Host key verification failed|No \S+ host key is known",
        NotPermittedError,
        "the host key of {host} is not known to this machine",
        "connect once and compare the key with the cluster's documentation: ssh {host}",
    ),
    (
        r"Permission denied|Too many authentication failures|No supported authentication",
        NotPermittedError,
        "{host} refused the login: {reason}",
        "this must work first: ssh {host} true; to install a key: ssh-copy-id {host}",
    ),
    (
        r"Could not resolve hostname|Name or service not known|nodename nor servname",
        UnreachableError,
        "the host {host} is unknown: {reason}",
        "check the name, or add a Host block to ~/.ssh/config",
    ),
    (
        r"UNKNOWN port 65535",
        UnreachableError,
        "the jump host or ProxyCommand of {host} ended the connection",
        "this must work first: ssh {host} true",
    ),
    (
        _AWAY,
        UnreachableError,
        "cannot connect to {host}: {reason}",
        "check the network or VPN, then: ssh {host} true",
    ),
    (
        r"Bad configuration option|terminating, \d+ bad|Bad owner or permissions",
        UnreachableError,
        "ssh cannot use its configuration: {reason}",
        "correct the file that it names",
    ),
)


def is_lost(code: int) -> bool:
    """Tell whether ssh itself failed or was killed, so that its code is not the command's."""
    return code == LOST or code < 0


def explain_ssh(host: str, stderr: str) -> EchelonError:
    """Return the error for a connection that could not be made or was lost."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip(" \r\n@")]
    for pattern, kind, message, hint in _KNOWN:
        if found := [line for line in lines if re.search(pattern, line)]:
            facts = {"host": host, "reason": found[-1]}
            return kind(message.format(**facts), hint=hint.format(**facts))
    hint = f"this must work first: ssh {host} true"
    if not lines:
        return CutError(f"the connection to {host} failed: ssh printed nothing", hint=hint)
    return UnreachableError(f"the connection to {host} failed: {lines[-1]}", hint=hint)
