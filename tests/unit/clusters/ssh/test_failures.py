"""Errors for failures of ssh, with messages as recorded from OpenSSH 9.2."""

import pytest

from echelon.clusters.ssh.failures import explain_ssh
from echelon.errors import NotPermittedError, UnavailableError

CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
Host key for [127.0.0.1]:2299 has changed and you have requested strict checking.
Host key verification failed.
"""
UNKNOWN = """\
No ED25519 host key is known for login and you have requested strict checking.
Host key verification failed.
"""
WRONG = """\
/home/me/.ssh/config: line 3: Bad configuration option: hots
/home/me/.ssh/config: terminating, 1 bad configuration options
"""


@pytest.mark.parametrize(
    ("stderr", "kind", "message", "hint"),
    [
        (CHANGED, NotPermittedError, "is not the one of the last connection", "ssh-keygen -R"),
        (
            UNKNOWN,
            NotPermittedError,
            "host key of me@login is not known",
            "ssh me@login",
        ),
        (
            "me@login: Permission denied (publickey).\r\n",
            NotPermittedError,
            "refused the login: me@login: Permission denied (publickey).",
            "ssh me@login true",
        ),
        (
            "ssh: Could not resolve hostname nowhere: Name or service not known\r\n",
            UnavailableError,
            "unknown: ssh: Could not resolve hostname nowhere",
            "~/.ssh/config",
        ),
        (
            "ssh: connect to host login port 22: Connection refused\r\n",
            UnavailableError,
            "cannot connect to me@login: ssh: connect to host login port 22: Connection refused",
            "VPN",
        ),
        (
            "Connection closed by UNKNOWN port 65535\r\n",
            UnavailableError,
            "the jump host or ProxyCommand of me@login ended the connection",
            "ssh me@login true",
        ),
        (
            "Timeout, server login not responding.\r\n",
            UnavailableError,
            "server login not responding",
            "VPN",
        ),
        (
            WRONG,
            UnavailableError,
            "terminating, 1 bad",
            "correct the file",
        ),
        ("", UnavailableError, "ssh printed nothing", "ssh me@login true"),
    ],
)
def test_each_ssh_failure_has_a_message_and_a_hint(stderr, kind, message, hint):
    error = explain_ssh("me@login", stderr)
    assert isinstance(error, kind)
    assert message in error.message
    assert hint in error.hint


def test_a_changed_host_key_differs_from_an_unknown_one():
    """ssh prints the same last line for both."""
    assert "last connection" in explain_ssh("h", CHANGED).message
