"""Variables of the last login, for commands without a login shell."""

import json
import os
from pathlib import Path

import pytest

from echelon.clusters.ssh.login_environment import recall, remember


@pytest.fixture
def environ(tmp_path):
    """The environment of a login, in a home directory with a profile."""
    home = tmp_path / "home"
    home.mkdir()
    (home / ".profile").write_text("export PATH=/opt/slurm/bin:$PATH\n")
    return {
        "HOME": str(home),
        "SHELL": "/bin/bash",
        "PATH": "/opt/slurm/bin:/usr/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "API_TOKEN": "secret",
        "SSH_CLIENT": "1.2.3.4",
    }


def test_kept_login_variables_exclude_secrets_and_the_session(tmp_path, environ):
    remember(tmp_path, environ, 1000.0)
    kept = {"PATH": environ["PATH"], "SLURM_CONF": environ["SLURM_CONF"]}
    assert recall(tmp_path, environ, 1001.0) == kept
    (file,) = tmp_path.glob("login-*.json")
    assert "secret" not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("now_s", [999.0, 1000.0 + 3601])
def test_kept_login_variables_expire(tmp_path, environ, now_s):
    remember(tmp_path, environ, 1000.0)
    assert recall(tmp_path, environ, now_s) is None


def test_an_edited_profile_or_another_shell_discards_kept_variables(tmp_path, environ):
    remember(tmp_path, environ, 1000.0)
    assert recall(tmp_path, {**environ, "SHELL": "/bin/zsh"}, 1001.0) is None
    with Path(environ["HOME"], ".profile").open("a") as profile:
        profile.write("export SLURM_CONF=/other\n")
    assert recall(tmp_path, environ, 1001.0) is None


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", json.dumps({"time_s": "x"})])
def test_a_damaged_file_of_login_variables_is_ignored(tmp_path, environ, content):
    (tmp_path / f"login-{os.uname().nodename}.json").write_text(content)
    assert recall(tmp_path, environ, 1001.0) is None
