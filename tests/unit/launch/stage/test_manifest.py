import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.launch.stage.manifest import (
    Entry,
    Manifest,
    decode_manifest,
    decode_ranges,
    describe_file,
    encode_ranges,
    for_all,
    walk,
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
    found = {entry.path: entry for entry in walk(folder).entries}
    assert list(found) == ["bin", "bin/python", "lib", "lib/deep", "lib/deep/a.py", "lib/empty"]
    assert found["bin/python"].target == "/usr/bin/python3"
    assert found["lib/deep/a.py"].size == 6


def test_sockets_and_pipes_are_left_out(folder):
    before = walk(folder).digest
    os.mkfifo(folder / "pipe")
    assert walk(folder).digest == before


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
    before = walk(folder).digest
    change(folder)
    assert walk(folder).digest != before


def test_what_is_not_a_folder_is_an_error_with_a_hint(tmp_path):
    with pytest.raises(Exception, match="not a folder") as raised:
        walk(tmp_path / "nothing")
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
    manifest = walk(folder)
    assert decode_manifest(manifest.encoded) == manifest
    assert decode_manifest(manifest.encoded).digest == manifest.digest


@pytest.mark.parametrize(
    "entries",
    [
        [["../up", "f", 0, 0, 0, ""]],
        [["/etc/passwd", "f", 0, 0, 0, ""]],
        [["a", "l", 0, 0, 0, "/etc"], ["a/passwd", "f", 0, 0, 0, ""]],
        [["missing/file", "f", 0, 0, 0, ""]],
        [[7, "f", 0, 0, 0, ""]],
        [7],
        {"a": 1},
    ],
)
def test_paths_that_lead_elsewhere_are_refused(entries):
    with pytest.raises(ValueError, match="manifest"):
        decode_manifest(json.dumps(entries).encode())


def test_a_manifest_that_is_nested_deeply_is_refused():
    with pytest.raises(ValueError, match="manifest"):
        decode_manifest(b"[" * 100_000)


@given(st.sets(st.integers(0, 60)))
def test_ranges_name_the_same_numbers(numbers):
    assert decode_ranges(encode_ranges(sorted(numbers)), 61) == sorted(numbers)


@pytest.mark.parametrize("ranges", [[[-2, 1]], [["a", 1]], 7, [[0, 1], [0, 1], [0, 1]]])
def test_ranges_of_something_else_are_refused(ranges):
    with pytest.raises(ValueError, match="ranges"):
        decode_ranges(ranges, 3)


def test_for_all_keeps_the_order_and_raises_the_first_error():
    assert for_all(lambda n: n * n, range(100)) == [n * n for n in range(100)]
    with pytest.raises(ZeroDivisionError):
        for_all(lambda n: 1 / n, [1, 0, 2])


def test_the_size_is_that_of_all_files():
    entries = (Entry("a", "d"), Entry("a/b", "f", size=3), Entry("c", "f", size=4))
    assert Manifest(entries).size == 7
    assert Manifest(entries).files == (1, 2)
