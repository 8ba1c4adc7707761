import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from container_image import write_image
from echelon.core.shell import FakeShell, Result
from echelon.core.waiting import wait_until
from echelon.errors import (
    MissingProgramError,
    NotFoundError,
    NotPermittedError,
    UnavailableError,
)
from echelon.launch.container.reference import parse_reference
from echelon.launch.container.store import (
    ImageStore,
    cache_folder,
    choose_runtime,
    read_image_id,
)

DIGEST = f"sha256:{'a' * 64}"
IMAGE = parse_reference(f"127.0.0.1:5000/team/x:1@{DIGEST}")


class Runtime(FakeShell):
    """podman and apptainer, which write a file when they are to import an image."""

    def run(self, argv, **_options):
        self.calls.append(tuple(argv))
        for word in argv:
            if word.startswith("--output=") or word.endswith(f".{os.getpid()}"):
                Path(word.removeprefix("--output=")).write_text("the image")
        return Result(argv=tuple(argv))


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "images"


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("image") / "bare.tar"
    write_image(path, torch=False, bare=True)
    return path


def test_podman_pulls_by_digest_and_saves_one_file(cache):
    shell = Runtime()
    path = ImageStore(cache, shell).fetch(IMAGE, "podman")
    name = f"127.0.0.1:5000/team/x@{DIGEST}"
    pull, save = shell.calls
    assert pull == ("podman", "pull", "--quiet", "--tls-verify=false", name)
    assert save[:4] == ("podman", "save", "--quiet", "--format=oci-archive")
    assert save[-1] == name
    assert path == cache / f"{DIGEST.replace(':', '-')}.tar"
    assert path.read_text() == "the image"


def test_apptainer_converts_it_to_one_file(cache):
    shell = Runtime()
    path = ImageStore(cache, shell).fetch(IMAGE, "apptainer")
    ((*command, draft, name),) = shell.calls
    assert command == ["apptainer", "pull", "--no-https"]
    assert Path(draft).parent == cache
    assert name == f"docker://127.0.0.1:5000/team/x@{DIGEST}"
    assert path.name.endswith(".sif")


def test_an_image_that_is_there_is_not_imported_again(cache):
    ImageStore(cache, Runtime()).fetch(IMAGE, "podman")
    shell = Runtime()
    ImageStore(cache, shell).fetch(IMAGE, "podman")
    assert shell.calls == []


def test_a_failed_import_leaves_nothing_and_is_explained(cache):
    failed = Result(argv=("podman",), code=125, stderr="Error: no space left on device")
    store = ImageStore(cache, FakeShell({"podman": failed}))
    with pytest.raises(UnavailableError, match="no space left for the image") as raised:
        store.fetch(IMAGE, "podman")
    assert "--image-cache" in raised.value.hint
    assert store.list() == []
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


def test_what_a_dead_process_left_is_removed(cache):
    cache.mkdir(mode=0o700)
    left = cache / f".{DIGEST.replace(':', '-')}.tar.node9.123"
    left.write_text("half of it")
    ImageStore(cache, Runtime()).fetch(IMAGE, "podman")
    assert not left.exists()


def _import_and_hang(cache, began):
    class Hanging(Runtime):
        def run(self, *_argv, **_options):
            began.set()
            signal.pause()

    ImageStore(cache, Hanging()).fetch(IMAGE, "podman")


def _import(cache, results):
    shell = Runtime()
    ImageStore(cache, shell).fetch(IMAGE, "podman")
    results.put(len(shell.calls))


def test_one_process_imports_while_others_wait_even_after_one_died(cache):
    started = multiprocessing.get_context("fork")
    began, results = started.Event(), started.Queue()
    first = started.Process(target=_import_and_hang, args=(cache, began))
    first.start()
    assert began.wait(10)
    others = [started.Process(target=_import, args=(cache, results)) for _ in range(3)]
    for one in others:
        one.start()
    waiting = lambda: all(_waits_for_lock(one.pid) for one in others)  # noqa: E731
    assert wait_until(waiting, timeout_s=10)
    first.kill()
    calls = [results.get(timeout=10) for _ in others]
    for one in (first, *others):
        one.join()
    assert sorted(calls) == [0, 0, 2]


def _waits_for_lock(pid):
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and f" {pid} " in line for line in lines)


def test_a_cache_that_others_can_write_to_is_refused(cache):
    cache.mkdir()
    cache.chmod(0o777)
    with pytest.raises(NotPermittedError, match="is not trusted"):
        ImageStore(cache, Runtime()).fetch(IMAGE, "podman")
    (cache / f"{IMAGE.stem}.tar").touch()  # one of them may have put it there
    with pytest.raises(NotPermittedError, match="is not trusted"):
        ImageStore(cache, Runtime()).fetch(IMAGE, "podman")


def test_files_are_used_where_they_are(tmp_path, cache):
    sif = tmp_path / "a.sif"
    store = ImageStore(cache, Runtime())
    with pytest.raises(NotFoundError, match=r"a\.sif does not exist"):
        store.fetch(parse_reference(str(sif)), "apptainer")
    sif.touch()
    assert store.fetch(parse_reference(str(sif)), "apptainer") == sif
    with pytest.raises(UnavailableError, match="podman cannot open"):
        store.fetch(parse_reference(str(sif)), "podman")


def test_apptainer_converts_an_archive_once(archive, cache):
    shell = Runtime()
    store = ImageStore(cache, shell)
    path = store.fetch(parse_reference(str(archive)), "apptainer")
    assert shell.calls[0][-1] == f"oci-archive:{archive}"
    assert store.fetch(parse_reference(str(archive)), "apptainer") == path
    assert len(shell.calls) == 1


def test_podman_unpacks_an_archive_once_per_node(archive, cache):
    image = read_image_id(archive)
    there = {"podman image exists": Result(argv=(), code=0)}
    store = ImageStore(cache, FakeShell(there))
    assert store.open(archive, "podman") == image
    missing = {"podman image exists": Result(argv=(), code=1), "podman load": ""}
    shell = FakeShell(missing)
    assert ImageStore(cache, shell).open(archive, "podman") == image
    assert shell.calls[-1] == ("podman", "load", "--quiet", "--input", str(archive))


@pytest.mark.parametrize("content", [b"", b"not a tar", b"\0" * 10240])
def test_a_damaged_archive(tmp_path, content):
    path = tmp_path / "x.tar"
    path.write_bytes(content)
    with pytest.raises(UnavailableError, match="is not an archive of an image"):
        read_image_id(path)


def test_the_list_and_removal(cache):
    store = ImageStore(cache, Runtime())
    assert store.list() == []
    store.fetch(IMAGE, "podman")
    (one,) = store.list()
    assert (one.reference, one.digest, one.runtime) == (str(IMAGE), DIGEST, "podman")
    store.remove(one)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("programs", "named", "image", "expected"),
    [
        (["apptainer", "podman"], "", "x", "apptainer"),
        (["singularity"], "", "x", "singularity"),
        (["podman"], "", "x", "podman"),
        (["apptainer", "podman"], "podman", "x", "podman"),
        (["apptainer", "podman"], "", "localhost/x", "podman"),
        (["podman"], "", "/a.sif", None),
        (["podman"], "apptainer", "x", None),
        ([], "", "x", None),
    ],
)
def test_the_runtime_is_what_is_there(programs, named, image, expected):
    shell = FakeShell(programs=programs)
    if expected:
        assert choose_runtime(named, parse_reference(image), shell) == expected
    else:
        with pytest.raises(MissingProgramError) as raised:
            choose_runtime(named, parse_reference(image), shell)
        assert "--image-runtime" in raised.value.hint


def test_where_the_cache_is():
    assert cache_folder("", {"HOME": "/home/ada"}) == Path("/home/ada/.cache/echelon/images")
    assert cache_folder("", {"XDG_CACHE_HOME": "/c"}) == Path("/c/echelon/images")
    assert cache_folder("/shared", {"HOME": "/home/ada"}) == Path("/shared")
