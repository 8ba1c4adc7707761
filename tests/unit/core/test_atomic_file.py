import errno

import pytest

from echelon.core.atomic_file import replacing


def test_a_failed_write_names_the_file_and_leaves_nothing(tmp_path):
    """The system names a file that cannot be opened, but none that cannot be written."""
    path = tmp_path / "spec.toml"
    with pytest.raises(OSError, match="No space left") as caught, replacing(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.filename == str(path)
    assert list(tmp_path.iterdir()) == []
