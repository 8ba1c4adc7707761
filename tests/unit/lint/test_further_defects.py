"""Further defects that lint did not find in scripts, beside what looks like them."""

import struct

import pytest

from echelon.lint.files import DiskFiles, read_mode
from echelon.lint.linting import lint
from unit.lint.fakes import JOB, SlurmOf, TextFiles, codes


def whats(body, code, head=JOB, **beside):
    """Return what lint says in the findings with a code."""
    files = TextFiles({f"{name}.py": text for name, text in beside.items()})
    found = lint(head + body, path="job.sh", files=files, programs=SlurmOf())
    return [f.what for f in found if f.code == code]


# --- paths ----------------------------------------------------------------------------------


def _index(**modes):
    """Return a git index of version 2."""
    entries = b""
    for name, mode in modes.items():
        entry = struct.pack(">6I", *[0] * 6) + struct.pack(">I", mode) + bytes(32)
        entry += struct.pack(">H", len(name)) + name.encode()
        entries += entry + bytes(8 - len(entry) % 8)
    return b"DIRC" + struct.pack(">II", 2, len(modes)) + entries


def test_modes_in_the_index_of_git():
    index = _index(plain=0o100644, other_plain=0o100755, link=0o120000)
    assert read_mode(index, "plain") == 0o100644
    assert read_mode(index, "other_plain") == 0o100755
    assert read_mode(index, "link") is None
    assert read_mode(index, "absent") is None
    assert read_mode(index, "lain") is None
    assert read_mode(b"DIRC\0\0\0\4" + index[8:], "plain") is None
    assert read_mode(b"", "plain") is None


@pytest.mark.parametrize(("mode", "executable"), [(0o100644, False), (0o100755, True)])
def test_the_index_tells_whether_a_file_is_executable(tmp_path, mode, executable):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "index").write_bytes(_index(run=mode))
    (tmp_path / "run").write_text("true\n")
    assert DiskFiles().is_executable(str(tmp_path / "run")) == executable


CONFIGS = {"conf/a.yaml": "", "train.py": "import torch\n"}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("apptainer exec a.sif python train.py --config conf/b.yaml", True),
        ("singularity exec --nv a.sif python train.py --config conf/b.yaml", True),
        ("apptainer exec a.sif python train.py --config conf/a.yaml", False),
        ("apptainer exec a.sif python train.py --config other/b.yaml", False),
        ("apptainer exec a.sif python train.py --config conf.d/a.yaml", False),
        ("apptainer exec --pwd /code a.sif python train.py --config conf/b.yaml", False),
        ("apptainer exec -C a.sif python train.py --config conf/b.yaml", False),
        ("docker run a python train.py --config conf/b.yaml", False),
        ("apptainer exec a.sif python conf/trian.py", False),
    ],
)
def test_a_configuration_file_that_is_missing_in_a_container(line, found):
    files = TextFiles({"job.sh": "", **CONFIGS}, repository=True)
    findings = lint(f"{JOB}{line}\n", path="job.sh", files=files, programs=SlurmOf())
    assert [str(f.severity) for f in findings if f.code == "E215"] == ["advice"] * found
