import json
import os
from pathlib import Path

import pytest

from container_image import write_image
from echelon.client.submit.images import judge_python, settle_image
from echelon.core.shell import FakeShell, Result
from echelon.errors import (
    EchelonError,
    NotFoundError,
    NotPermittedError,
    UnavailableError,
    UsageError,
)
from echelon.launch.container.reference import parse_reference
from echelon.launch.container.store import ImageStore, read_image_id
from echelon.spec.job_spec import JobSpec
from requirements import require_root

DIGEST = f"sha256:{'c' * 64}"


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("image") / "bare.tar"
    write_image(path, torch=False, bare=True)
    return path


def settle(folder, shell=None, **keys):
    environ = {"HOME": str(folder)}
    return settle_image(JobSpec(**keys), folder, environ, shell or FakeShell(programs=[])).image


def answer(version=(3, 12, 1), torch=True):
    return json.dumps({"path": "/usr/bin/python3", "version": list(version), "torch": torch})


def test_a_request_without_an_image_is_unchanged(tmp_path):
    assert settle(tmp_path) == ""


def test_an_image_file_gets_its_full_path(tmp_path):
    (tmp_path / "a.sif").touch()
    assert settle(tmp_path, image="a.sif") == str(tmp_path / "a.sif")
    with pytest.raises(NotFoundError, match=r"b\.sif does not exist"):
        settle(tmp_path, image="b.sif")


def test_an_image_of_podmans_storage_gets_its_digest(tmp_path):
    shell = FakeShell({"podman image inspect": f"{DIGEST}\n"}, programs=["podman"])
    assert settle(tmp_path, shell, image="localhost/x:1") == f"localhost/x:1@{DIGEST}"
    missing = FakeShell({"podman image inspect": Result(argv=(), code=125)}, programs=["podman"])
    with pytest.raises(NotFoundError, match="not in podman's storage") as raised:
        settle(tmp_path, missing, image="localhost/x:1")
    assert "podman images" in raised.value.hint
    assert settle(tmp_path, missing, image=f"localhost/x:1@{DIGEST}").endswith(DIGEST)


def test_an_image_with_a_digest_needs_no_registry(tmp_path):
    assert settle(tmp_path, image=f"127.0.0.1:9/x@{DIGEST}") == f"127.0.0.1:9/x@{DIGEST}"
    with pytest.raises(UnavailableError, match="cannot ask 127"):
        settle(tmp_path, image="127.0.0.1:9/x:1")


@pytest.mark.parametrize("keys", [{"image": "A B"}, {"image": "/x.sif", "image_mounts": ("data",)}])
def test_an_invalid_image_is_an_error(tmp_path, keys):
    with pytest.raises(UsageError) as raised:
        settle(tmp_path, **keys)
    assert raised.value.hint


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        (answer(), ""),
        (answer(version=(3, 9, 2)), "is Python 3.9.2; Echelon needs 3.11 or newer"),
        (answer(torch=False), "is Python 3.12.1, and has no torch"),
        ("what?", "podman cannot start x: no"),
    ],
)
def test_the_python_of_an_image_is_judged_by_its_output(output, problem):
    found = judge_python(JobSpec(image="x"), output, "no\n", "podman")
    assert (problem in found) if problem else (found == "")


def test_an_image_is_checked_with_the_first_variant_that_works(tmp_path, archive):
    def run(argv):
        refused = Result(argv=tuple(argv), code=126, stderr="Error: rlimit")
        limited = any(word.startswith("--ulimit") for word in argv)
        return Result(argv=tuple(argv), stdout=answer(torch=False)) if limited else refused

    answers = {"podman image exists": "", "podman run": run}
    shell = FakeShell(answers, programs=["podman"])
    with pytest.raises(EchelonError, match="has no torch"):
        settle(tmp_path, shell, image=str(archive))
    run_lines = [line for line in shell.calls if line[:2] == ("podman", "run")]
    assert len(run_lines) == 2
    assert read_image_id(archive) in run_lines[-1]


def test_an_image_that_podman_has_not_unpacked_here_is_not_unpacked_for_a_check(tmp_path, archive):
    shell = FakeShell({"podman image exists": Result(argv=(), code=1)}, programs=["podman"])
    assert settle(tmp_path, shell, image=str(archive)) == str(archive)


def test_a_machine_without_containers_leaves_the_image_check_to_the_nodes(
    tmp_path, archive, capsys
):
    refused = Result(argv=(), code=125, stderr="Error: cannot set up user namespace")
    shell = FakeShell({"podman image exists": "", "podman run": refused}, programs=["podman"])
    assert settle(tmp_path, shell, image=str(archive)) == str(archive)
    assert "user namespaces" in capsys.readouterr().err


def test_an_image_in_a_cache_that_others_can_write_to_is_not_started_for_a_check(tmp_path):
    image, cache = f"127.0.0.1:9/x@{DIGEST}", tmp_path / "cache"
    cache.mkdir()
    (cache / f"{parse_reference(image).stem}.sif").touch()
    cache.chmod(0o777)
    shell = FakeShell(programs=["apptainer"])
    with pytest.raises(NotPermittedError, match="is not trusted: everybody can write to"):
        settle(tmp_path, shell, image=image, image_cache=str(cache))
    assert not shell.calls


@pytest.mark.parametrize("linked", [False, True])
def test_an_image_that_another_user_left_in_the_cache_is_not_started(tmp_path, linked):
    """Its folder was open to others once."""
    require_root("to give a file to another user")
    image, cache = f"127.0.0.1:9/x@{DIGEST}", tmp_path / "cache"
    cache.mkdir(mode=0o700)
    planted = cache / f"{parse_reference(image).stem}.sif"
    theirs = tmp_path / "theirs" if linked else planted
    theirs.touch()
    os.chown(theirs, 12345, 12345)
    if linked:
        planted.symlink_to(theirs)
    shell = FakeShell(programs=["apptainer"])
    with pytest.raises(NotPermittedError, match="belongs to user 12345") as raised:
        settle(tmp_path, shell, image=image, image_cache=str(cache))
    assert str(planted) in raised.value.hint
    with pytest.raises(NotPermittedError, match="belongs to user 12345"):
        ImageStore(cache, shell).fetch(parse_reference(image), "apptainer")
    assert not shell.calls


def test_images_for_pyxis_are_not_checked(tmp_path):
    path = Path(tmp_path, "a.sqsh.tar")
    path.touch()
    assert settle(tmp_path, image=str(path), image_runtime="pyxis") == str(path)
