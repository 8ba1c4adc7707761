from pathlib import Path

import echelon
from echelon.core.shell import FakeShell
from echelon.launch.agent.image import find_library, list_folders, open_image
from echelon.launch.container.machine import remember_variant
from echelon.launch.container.store import ImageStore
from echelon.spec.job_spec import JobSpec


def test_folders_that_exist_are_mounted_and_devices_are_not(tmp_path):
    for name in ("home", "project/scripts", "run"):
        (tmp_path / name).mkdir(parents=True)
    request = JobSpec(chdir=str(tmp_path / "project"), script="scripts/train.py")
    environ = {"HOME": str(tmp_path / "home"), "TMPDIR": "/nonexistent"}
    found = list_folders(request, tmp_path / "run", Path("/dev/shm/echelon-1"), environ)  # noqa: S108
    assert found == [str(tmp_path / name) for name in ("home", "project", "project/scripts", "run")]


def test_the_library_is_the_installed_one():
    assert find_library() == Path(echelon.__file__).parent


def test_a_file_is_opened_with_what_the_request_says(tmp_path):
    sif = tmp_path / "a.sif"
    sif.touch()
    request = JobSpec(
        image=str(sif),
        image_mounts=("/data",),
        image_env={"A": "1"},
        image_options=("--writable-tmpfs",),
        image_cache=str(tmp_path / "cache"),
        chdir="/project",
    )
    shell = FakeShell(programs=["apptainer"])
    first, second = open_image(request, ["/home/ada"], environ={}, shell=shell, gpus=True)
    library = f"{find_library()}:/opt/echelon-library/echelon:ro"
    assert first.mounts == ("/home/ada", library, "/data")
    assert (first.image, first.workdir, first.gpus) == (str(sif), "/project", True)
    assert first.options == ("--writable-tmpfs",)
    assert second.options == ("--userns", "--writable-tmpfs")


def test_what_worked_on_this_machine_is_tried_first(tmp_path):
    sif = tmp_path / "a.sif"
    sif.touch()
    cache = tmp_path / "cache"
    request = JobSpec(image=str(sif), image_cache=str(cache))
    shell = FakeShell(programs=["apptainer"])
    usual = open_image(request, [], environ={}, shell=shell, gpus=False)
    remember_variant(usual[1], cache)
    assert open_image(request, [], environ={}, shell=shell, gpus=False) == usual[::-1]
    assert ImageStore(cache, shell).list() == []  # the record is not an image
