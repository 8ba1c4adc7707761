import json
import os

import pytest

from echelon.launch.stage.manifest import (
    StageEntry,
    StageManifest,
    decode_manifest,
    describe_file,
    describe_folder,
)


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "venv"
    (root / "lib" / "deep").mkdir(parents=True)
    (root / "lib" / "deep" / "a.py").write_text("a = 1\n")
    (root / "lib" / "empty").write_bytes(b"")
    (root / "bin").mkdir()
    (root / "bin" / "python").symlink_to("/usr/bin/python3")
    return root


def test_a_manifest_lists_folders_files_and_links(folder):
    found = {entry.path: entry for entry in describe_folder(folder).entries}
    assert list(found) == ["bin", "bin/python", "lib", "lib/deep", "lib/deep/a.py", "lib/empty"]
    assert found["bin/python"].target == "/usr/bin/python3"
    assert found["lib/deep/a.py"].size == 6


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "lib" / "deep" / "a.py").write_text("a = 12\n"),
        lambda root: os.utime(root / "lib" / "empty", ns=(1, 1)),
        lambda root: (root / "lib" / "empty").chmod(0o755),
        lambda root: (root / "lib" / "empty").unlink(),
        lambda root: (root / "lib" / "new").mkdir(),
    ],
    ids=["content", "time", "mode", "gone", "new folder"],
)
def test_the_digest_changes_with_the_environment(folder, change):
    before = describe_folder(folder).digest
    change(folder)
    assert describe_folder(folder).digest != before


def test_the_digest_of_a_folder_stays_the_same_in_later_versions(tmp_path):
    """Otherwise nodes copy again what they have."""
    (tmp_path / "lib").mkdir(mode=0o755)
    (tmp_path / "lib" / "a.py").write_text("a = 1\n")
    (tmp_path / "lib" / "a.py").chmod(0o644)
    os.utime(tmp_path / "lib" / "a.py", ns=(5, 10**18))
    (tmp_path / "lib" / "b.py").symlink_to("a.py")
    (tmp_path / "lib").chmod(0o755)
    assert describe_folder(tmp_path).encoded == (
        b'[["lib","d",493,0,0,""],["lib/a.py","f",420,6,1000000000000000000,""],'
        b'["lib/b.py","l",0,0,0,"a.py"]]'
    )


def test_what_is_not_a_folder_is_an_error_with_a_hint(tmp_path):
    with pytest.raises(Exception, match="not a folder") as raised:
        describe_folder(tmp_path / "nothing")
    assert raised.value.hint


def test_a_file_named_by_its_content_keeps_its_digest_whenever_it_was_used(tmp_path):
    image = tmp_path / "sha256-ab.sif"
    image.write_bytes(b"image")
    first = (
        describe_file(image, named_by_content=True),
        describe_file(image, named_by_content=False),
    )
    os.utime(image, ns=(5, 5))
    second = (
        describe_file(image, named_by_content=True),
        describe_file(image, named_by_content=False),
    )
    assert first[0].digest == second[0].digest
    assert first[1].digest != second[1].digest


def test_a_manifest_survives_the_way_to_another_node(folder):
    manifest = describe_folder(folder)
    assert decode_manifest(manifest.encoded) == manifest
    assert decode_manifest(manifest.encoded).digest == manifest.digest


@pytest.mark.parametrize(
    "entries",
    [
        [["a", "l", 0, 0, 0, "/etc"], ["a/passwd", "f", 0, 0, 0, ""]],
        [["a", "l", 0, 0, 0, "/etc"], ["a", "d", 0, 0, 0, ""], ["a/passwd", "f", 0, 0, 0, ""]],
        [["a", "l", 0, 0, 0, "/etc"], ["a/folder", "d", 0, 0, 0, ""]],
        [["a", "f", 0, 0, 0, ""], ["a", "f", 0, 0, 0, ""]],
        [["missing/file", "f", 0, 0, 0, ""]],
        [[7, "f", 0, 0, 0, ""]],
        [7],
        {"a": 1},
    ],
)
def test_paths_that_lead_elsewhere_are_refused(entries):
    with pytest.raises(ValueError, match="manifest"):
        decode_manifest(json.dumps(entries).encode())


def test_a_kept_manifest_is_known_by_its_digest(folder):
    manifest = describe_folder(folder)
    assert decode_manifest(manifest.encoded, manifest.digest) == manifest
    with pytest.raises(ValueError, match="something else"):
        decode_manifest(manifest.encoded, "0" * 64)


def test_a_manifest_that_is_nested_deeply_is_refused():
    with pytest.raises(ValueError, match="manifest"):
        decode_manifest(b"[" * 100_000)


def test_the_size_is_that_of_all_files():
    entries = (StageEntry("a", "d"), StageEntry("a/b", "f", size=3), StageEntry("c", "f", size=4))
    assert StageManifest(entries).size == 7
    assert StageManifest(entries).files == (1, 2)
