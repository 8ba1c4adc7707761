import pytest

from echelon.core.slurm_text import parse_version


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("slurm-wlm 22.05.8\n", (22, 5, 8)),  # Debian's
        ("slurm 24.11.5\n", (24, 11, 5)),
        ("slurm 26.05.0-0rc1\n", (26, 5, 0)),
        ("", ()),
        ("slurm unknown\n", ()),
    ],
)
def test_a_version_is_three_numbers(text, version):
    assert parse_version(text) == version
