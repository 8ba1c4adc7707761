"""The token file of `echelon dash`, which programs use for repeated calls."""

import pytest

from echelon.cli.dash import _keep_token
from echelon.errors import UsageError


def test_a_token_is_created_once_and_is_private(tmp_path):
    path = tmp_path / "token"
    token = _keep_token(path)
    assert len(token) >= 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert _keep_token(path) == token


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        ("a" * 32, 0o644, "is not private"),
        ("a" * 32, 0o620, "is not private"),
        ("short", 0o600, "holds no token"),
        ("a b" * 20, 0o600, "holds no token"),
        ("", 0o600, "holds no token"),
    ],
)
def test_a_readable_or_invalid_token_file_is_refused(tmp_path, content, mode, message):
    path = tmp_path / "token"
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(UsageError, match=message):
        _keep_token(path)


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot use"):
        _keep_token(tmp_path)
    with pytest.raises(UsageError, match="cannot use"):
        _keep_token(tmp_path / "nowhere" / "token")
