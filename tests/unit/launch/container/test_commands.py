import shlex
from pathlib import Path

import pytest

from echelon.errors import UsageError
from echelon.launch.container.commands import (
    Container,
    explain_failure,
    inner_handle,
    is_refusal,
    list_mounts,
    list_variants,
    render_command,
    select_variables,
    split_mount,
)

GOLDEN = Path(__file__).parents[3] / "golden" / "containers"
ENVIRON = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/home/ada",
    "SLURM_JOB_ID": "7",
    "LD_LIBRARY_PATH": "/opt/lib",
    "VIRTUAL_ENV": "/home/ada/venv",
    "CONDA_PREFIX": "/opt/conda",
    "PYTHONPATH": "/opt/echelon-library",
    "SECRET": "do not show",
    "BASH_FUNC_module%%": "() { :; }",
}
EXAMPLES = {
    "apptainer": Container(
        runtime="apptainer",
        image="/images/a.sif",
        mounts=("/home/ada", "/data:/mnt:ro"),
        env={"NAME": "a, b", "PATH": "/opt/conda/bin"},
        workdir="/home/ada/project",
        gpus=True,
        options=("--userns",),
    ),
    "singularity": Container(runtime="singularity", image="/images/a.sif", env={"NAME": "1"}),
    "podman": Container(
        runtime="podman",
        image="sha256:12",
        mounts=("/home/ada", "/data:/mnt:ro"),
        env={"NAME": "a, b", "PATH": "/opt/conda/bin"},
        workdir="/home/ada/project",
        gpus=True,
        options=("--runtime=runc",),
    ),
    "podman-rootless": Container(runtime="podman", image="sha256:12", rootless=True),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_command_lines_are_as_written_down(name):
    argv, env = render_command(EXAMPLES[name], ["python3", "-c", "a b"], ENVIRON, handle=9)
    shown = " \\\n    ".join(shlex.quote(word) for word in argv)
    shown += "\n" + "".join(f"{key}={value}\n" for key, value in sorted(env.items()))
    assert shown == (GOLDEN / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", EXAMPLES)
def test_values_of_inherited_variables_are_in_no_command_line(name):
    argv, env = render_command(EXAMPLES[name], ["true"], ENVIRON)
    assert not any("do not show" in word for word in argv)
    assert env["SECRET"] == ENVIRON["SECRET"]


def test_values_for_the_image_are_in_no_command_line_unless_podman_would_use_them():
    own = {"TOKEN": "do not show", "HOME": "/root", "PATH": "/opt/bin"}
    argv, env = render_command(Container(runtime="podman", image="a", env=own), ["true"], ENVIRON)
    assert not any("do not show" in word for word in argv)
    assert {"HOME=/root", "PATH=/opt/bin", "TOKEN"} <= set(argv)
    assert (env["TOKEN"], env["HOME"], env["PATH"]) == ("do not show", "/home/ada", "/usr/bin:/bin")


def test_what_describes_the_hosts_programs_stays_outside():
    assert select_variables(ENVIRON) == {
        name: ENVIRON[name] for name in ("HOME", "SLURM_JOB_ID", "PYTHONPATH", "SECRET")
    }


def test_the_number_of_the_descriptor_inside():
    numbers = [inner_handle(EXAMPLES[name], 9) for name in ("podman", "apptainer")]
    assert numbers == [3, 9]


def test_limits_and_the_oci_runtime_are_tried_after_the_defaults():
    found = list_variants(
        Container(runtime="podman", image="x", options=("--quiet",)),
        open_files=1024,
        processes=99999,
        runtimes=["runc"],
    )
    limits = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=32768:32768")
    assert [one.options for one in found] == [
        ("--quiet",),
        (*limits, "--quiet"),
        ("--runtime=runc", *limits, "--quiet"),
    ]


def test_apptainer_is_tried_with_a_user_namespace():
    found = list_variants(
        EXAMPLES["singularity"], open_files=1, processes=-1, runtimes=["runc", "crun"]
    )
    assert [one.options for one in found] == [(), ("--userns",)]


@pytest.mark.parametrize(
    ("runtime", "code", "expected"),
    [
        *(("podman", code, True) for code in (125, 126, 127)),
        *(("podman", code, False) for code in (1, -9)),
        *(("apptainer", 255, True), ("apptainer", 1, False)),
    ],
)
def test_which_exit_codes_are_the_runtimes_own(runtime, code, expected):
    assert is_refusal(Container(runtime=runtime, image="x"), code) is expected


def test_folders_in_others_are_mounted_with_them():
    found = list_mounts(
        ["/home/ada", "/home/ada/project", "/scratch/run", "/", "", "/home/adam"], ("/data:/x",)
    )
    assert found == ("/home/ada", "/scratch/run", "/home/adam", "/data:/x")


def test_a_users_own_mount_on_a_folder_wins():
    assert list_mounts(["/home/ada", "/tmp"], ("/local:/tmp",)) == ("/home/ada", "/local:/tmp")  # noqa: S108


@pytest.mark.parametrize("text", ["data", "/a:b", "/a:/b:/c", "/a,b", "", "/a:/b:xx"])
def test_what_is_not_a_mount(text):
    with pytest.raises(UsageError) as raised:
        split_mount(text)
    assert "/path:/path/inside" in raised.value.hint


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("x\nError: write /var: no space left on device\n", "no space left for the image"),
        ("exec /usr/bin/python3: exec format error", "the image is for another architecture"),
        ("Error: reading manifest 9 in h/x: manifest unknown", "the image was not found"),
        ("FATAL: container creation failed: user namespace disabled", "allow user namespaces"),
        (
            'Error: exec: "newuidmap": executable file not found in $PATH',
            "no user ids for the owners",
        ),
        (
            "level=error insufficient UIDs in user namespace\nError: insufficient UIDs in user x",
            "no user ids for the owners of the image's files (x): Error: insufficient",
        ),
        ('Error: exec: "python3": executable file not found in $PATH', "no such Python"),
        ("something\n\nlast line\n", "podman cannot start x: last line"),
        ("", "it printed nothing"),
    ],
)
def test_what_runtimes_print_is_explained(said, reason):
    found, hint = explain_failure("podman", "x", said)
    assert reason in found
    assert hint
