import subprocess

import pytest

from echelon.clusters.ssh.host import LostConnectionError, Talk
from echelon.errors import EchelonError

BEGIN = "printf '\\036echelon\\n'; printf '{\"out\": \"a\"}\\n'; "


def talk(script):
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return Talk("login", subprocess.Popen(["sh", "-c", BEGIN + script], **pipes))


@pytest.mark.parametrize("end", ["exit 255", "kill -KILL $$", "kill -TERM $$", "kill -HUP $$"])
def test_ssh_that_fails_or_is_killed_is_a_lost_connection(end):
    """Commands that follow a run connect again after this error."""
    there = talk(end)
    assert there.has_begun()
    parts = there.output_parts()
    assert next(parts) == ("out", "a")
    with pytest.raises(LostConnectionError, match="the connection to login failed"):
        next(parts)


def test_a_command_without_its_exit_code_is_reported_as_a_bug():
    there = talk("echo odd >&2; exit 3")
    assert there.has_begun()
    with pytest.raises(EchelonError, match="ended with exit code 3: odd") as caught:
        list(there.output_parts())
    assert "this is a bug" in caught.value.hint
