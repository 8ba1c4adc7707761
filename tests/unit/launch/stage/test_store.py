import errno
import json
import os

import pytest

from echelon.errors import NotPermittedError, UnavailableError
from echelon.launch.stage import store as module
from echelon.launch.stage.copying import Copy, read_all
from echelon.launch.stage.manifest import describe_folder
from echelon.launch.stage.store import StageStore

MIB = 1 << 20


@pytest.fixture
def original(tmp_path):
    root = tmp_path / "venv"
    (root / "lib").mkdir(parents=True)
    for name in ("a", "b", "c"):
        (root / "lib" / f"{name}.py").write_text(f"{name} = 1\n" * 100)
    (root / "python").symlink_to("/usr/bin/python3")
    return root


@pytest.fixture
def store(tmp_path):
    made = StageStore(tmp_path / "stages", 64 * MIB)
    made.prepare()
    return made


def fill(store, original):
    """Copy what is there now; return the copy, which is in use."""
    manifest = describe_folder(original)
    stage = store.find(manifest.digest) or store.create(manifest)
    read_all(original, Copy(stage), lambda: None)
    store.keep(stage)
    return stage


def contents(tree):
    return {str(p.relative_to(tree)): p.read_bytes() for p in tree.rglob("*.py")}


def names(store):
    return sorted(path.name for path in store.folder.iterdir())


def test_a_copy_is_found_again(store, original):
    kept = fill(store, original)
    kept.close()
    found = store.find(describe_folder(original).digest)
    assert found.missing == []
    assert contents(found.tree) == contents(original)
    assert (found.tree / "python").readlink() == (original / "python").readlink()
    assert describe_folder(found.tree) == describe_folder(original), "times and modes are kept too"
    found.close()


def test_nothing_is_found_under_another_digest(store, original):
    fill(store, original).close()
    assert store.find("0" * 64) is None
    assert store.find("") is None


def truncate(tree):
    os.truncate(tree / "lib" / "a.py", 3)


def remove(tree):
    (tree / "lib" / "a.py").unlink()


def change_a_byte(tree):
    path = tree / "lib" / "a.py"
    before = path.stat()
    path.write_bytes(b"X" + path.read_bytes()[1:])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # its size and time are as before


def put_a_link(tree):
    (tree / "lib" / "a.py").unlink()
    (tree / "lib" / "a.py").symlink_to("b.py")


@pytest.mark.parametrize("damage", [truncate, remove, change_a_byte, put_a_link])
def test_a_damaged_file_is_noticed_and_only_that_one_copied_again(store, original, damage):
    fill(store, original).close()
    tree = store.folder / describe_folder(original).digest / "tree"
    damage(tree)
    found = store.find(describe_folder(original).digest)
    assert [found.manifest.entries[one].path for one in found.missing] == ["lib/a.py"]
    copy = Copy(found)
    read_all(original, copy, lambda: None)
    store.keep(found)
    assert copy.copied == 600
    assert contents(tree) == contents(original)
    found.close()
    again = store.find(describe_folder(original).digest)
    assert again.missing == []
    again.close()


@pytest.mark.parametrize(
    "damage",
    [
        lambda tree: (tree / "python").unlink(),
        lambda tree: (tree / "lib" / "extra.py").write_text("import harm"),
        lambda tree: (tree / "new").mkdir(),
    ],
    ids=["link", "another file", "another folder"],
)
def test_links_and_additions_are_put_right_without_copying(store, original, damage):
    fill(store, original).close()
    tree = store.folder / describe_folder(original).digest / "tree"
    damage(tree)
    found = store.find(describe_folder(original).digest)
    assert found.missing == []
    assert describe_folder(tree).digest == describe_folder(original).digest
    found.close()


def test_contents_are_compared_after_a_reboot(store, original, tmp_path, monkeypatch):
    fill(store, original).close()
    tree = store.folder / describe_folder(original).digest / "tree"
    index = tree.parent / "index.json"
    change_a_byte(tree)
    # As if the disk had lost a write: the times are those that were recorded.
    record = json.loads(index.read_text())
    record["changed_ns"][0] = (tree / "lib" / "a.py").stat().st_ctime_ns
    index.write_text(json.dumps(record))
    same = store.find(describe_folder(original).digest)
    assert same.missing == []
    same.close()
    boot = tmp_path / "boot"
    boot.write_text("another boot\n")
    monkeypatch.setattr(module, "_BOOT", boot)
    found = store.find(describe_folder(original).digest)
    assert [found.manifest.entries[one].path for one in found.missing] == ["lib/a.py"]
    found.close()


@pytest.mark.parametrize("name", ["manifest.json", "index.json", "info.json"])
@pytest.mark.parametrize(
    "content", [None, b"", b"{}", b"[1]", b"\xff", b'{"bytes":' * 100_000], ids=range(6)
)
def test_a_copy_whose_records_are_damaged_is_removed(store, original, name, content):
    fill(store, original).close()
    path = store.folder / describe_folder(original).digest / name
    path.unlink() if content is None else path.write_bytes(content)
    assert store.find(describe_folder(original).digest) is None
    assert names(store) == []


def test_the_least_recently_used_copy_goes_and_never_one_in_use(store, original, tmp_path):
    store = StageStore(store.folder, 3 * 10 * MIB)
    big = tmp_path / "big"
    big.mkdir()
    digests = []
    for number in range(3):
        (big / "data").write_bytes(bytes([number]) * (9 * MIB))
        stage = fill(store, big)
        digests.append(stage.manifest.digest)
        if number:
            stage.close()
        else:
            first = stage
        os.utime(stage.folder / "info.json", (number, number))
    (big / "data").write_bytes(b"x" * (9 * MIB))
    stage = fill(store, big)
    kept = {path.name for path in store.folder.iterdir() if path.is_dir()}
    assert kept == {digests[0], digests[2], stage.manifest.digest}, "the first one is in use"
    first.close()
    stage.close()


@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000, b'{"bytes": 1e999}', b'{"bytes": "%s"}' % (b"9" * 9000), b" " * (2 * MIB)],
    ids=["deep", "infinite", "digits", "large"],
)
def test_a_copy_whose_size_is_damaged_does_not_keep_others_from_being_made(
    store, original, tmp_path, content
):
    fill(store, original).close()
    (store.folder / describe_folder(original).digest / "info.json").write_bytes(content)
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("x")
    fill(store, other).close()
    assert store.find(describe_folder(original).digest) is None  # beyond repair
    assert names(store) == [describe_folder(other).digest, f"{describe_folder(other).digest}.lock"]


def test_fifty_jobs_leave_no_more_than_the_limit(store, tmp_path):
    store = StageStore(store.folder, 2 * MIB)
    folder = tmp_path / "env"
    folder.mkdir()
    for number in range(50):
        (folder / "data").write_bytes(os.urandom(300_000 + number))
        fill(store, folder).close()
    used = sum(path.stat().st_size for path in store.folder.rglob("*") if path.is_file())
    assert 1 * MIB < used <= 2 * MIB
    assert all(name.removesuffix(".lock") in names(store) for name in names(store))


def test_what_is_larger_than_the_limit_is_refused_with_a_hint(store, original):
    small = StageStore(store.folder, 1000)
    with pytest.raises(UnavailableError, match="may have") as raised:
        small.create(describe_folder(original))
    assert "--stage-limit" in raised.value.hint


def test_copies_in_use_are_not_removed_for_a_larger_one(store, original):
    used = fill(store, original)
    small = StageStore(store.folder, module._space(describe_folder(original)) + 1000)
    with pytest.raises(UnavailableError, match="other jobs use the stage"):
        small.create(describe_folder(original))
    used.close()


def test_a_disk_without_room_is_refused_with_a_hint(store, original, monkeypatch):
    usage = module.shutil.disk_usage("/")._replace(free=10)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _path: usage)
    with pytest.raises(UnavailableError, match="are free in") as raised:
        store.create(describe_folder(original))
    assert "--stage-dir" in raised.value.hint


def test_what_a_killed_job_has_left_is_removed(store, original):
    left = store.create(describe_folder(original))
    assert len(names(store)) == 2
    os.close(left._lock)  # the kernel does this to a killed process
    fill(store, original).close()
    digest = describe_folder(original).digest
    assert names(store) == [digest, f"{digest}.lock"]


def test_what_another_job_is_copying_stays(store, original):
    other = store.create(describe_folder(original))
    mine = fill(store, original)
    assert other.folder.is_dir()
    mine.close()
    other.close()
    digest = describe_folder(original).digest
    assert names(store) == [digest, f"{digest}.lock"]


def test_of_two_jobs_that_copy_the_same_one_is_kept_and_both_work(store, original):
    one, two = (store.create(describe_folder(original)) for _ in range(2))
    for stage in (one, two):
        read_all(original, Copy(stage), lambda: None)
        store.keep(stage)
    assert contents(one.tree) == contents(two.tree) == contents(original)
    assert one.folder.name == describe_folder(original).digest
    assert two.folder != one.folder
    two.close()
    assert contents(one.tree) == contents(original)
    one.close()
    assert len(names(store)) == 2


def test_a_folder_that_others_can_write_to_is_refused(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(NotPermittedError, match="everybody can write") as raised:
        StageStore(folder, MIB).prepare()
    assert "--stage-dir" in raised.value.hint


def test_the_folder_is_private(store):
    assert store.folder.stat().st_mode & 0o777 == 0o700


def test_a_failed_rename_is_an_error(store, original, monkeypatch):
    stage = store.create(describe_folder(original))
    read_all(original, Copy(stage), lambda: None)

    def rename(_self, _target):
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(module.Path, "rename", rename)
    with pytest.raises(OSError, match="no"):
        store.keep(stage)
    stage.close()
