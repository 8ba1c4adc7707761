import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.clusters.slurm.styles import PLACEHOLDER, render_script
from echelon.spec.job_spec import STYLES
from echelon.spec.merging import Layer, merge

GOLDEN = Path(__file__).parents[3] / "golden" / "scripts"

EXAMPLE = {
    "script": "train.py",
    "args": ["--epochs", "14", "--note", "it's a test"],
    "nodes": 2,
    "gpus": 4,
    "gpu_type": "a100",
    "cpus_per_task": 32,
    "mem": "64G",
    "time": "2h",
    "partition": "gpu",
    "output": "%x-%j.out",
    "modules": ["cuda/12.4"],
    "venv": "/home/ada/venv",
    "env": {"NCCL_DEBUG": "INFO", "DATA_DIR": "/data/tiny imagenet"},
}


def spec(**values):
    return merge([Layer(source="test", values=values)]).spec


@pytest.mark.parametrize("style", STYLES)
def test_the_script_of_each_style_matches_its_golden_file(style):
    text = render_script(spec(**EXAMPLE, style=style))
    assert text == (GOLDEN / f"{style}.sh").read_text()


@pytest.mark.parametrize(
    ("runtime", "style"), [("apptainer", "srun"), ("podman", "torchrun"), ("pyxis", "static")]
)
def test_scripts_with_an_image_match_their_golden_files(runtime, style):
    example = {key: value for key, value in EXAMPLE.items() if key != "venv"}
    image = {
        "image": "nvcr.io/nvidia/pytorch:25.01-py3",
        "image_runtime": runtime,
        "image_mounts": ["/data", "/scratch/it's:/mnt:ro"],
        "image_env": {"NAME": "a b"},
        "image_python": "/opt/conda/bin/python",
    }
    text = render_script(spec(**example, **image, style=style))
    assert text == (GOLDEN / f"{style}-{runtime}.sh").read_text()
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_torchrun_gets_the_range_of_nodes():
    text = render_script(spec(script="x.py", style="torchrun", nodes="2:4"))
    assert "#SBATCH --nodes=2-4" in text
    assert '--nnodes="2:$SLURM_NNODES"' in text


def test_the_driver_of_a_ray_cluster_gets_its_arguments_unchanged():
    """tests/slurm/test_ray.py runs the rest of the script, which is always the same."""
    text = render_script(spec(script="a b.py", style="ray", args=["$(x)", "it's"], python="/p y"))
    last = text.splitlines()[-3]
    step, _, words = last.removesuffix(" {leash}>&-").partition(" $one ")
    assert step.startswith("srun --nodes=1 ")
    shown = subprocess.run(
        ["bash", "-c", f"python='/p y'; printf '%s\\0' {words}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.split("\0")[:-1] == ["/p y", "a b.py", "$(x)", "it's"]


# --- hostile values, through real bash --------------------------------------------------------

# Stand-ins for what a batch script calls: they print what reached them.
STUBS = {
    # For Ray's head it says that it is up, and stays as long as the script wants it.
    "srun": """if [[ $* = *" bash head" ]]; then
mkdir "$RAY_HOME/t"; echo 127.0.0.1:1 > "$RAY_HOME/t/ray_current_cluster"; exec cat; fi
printf '%s\\0' "$@" > "$SEEN/argv"; env -0 > "$SEEN/env" """,
    "scontrol": "echo NodeAddr=127.0.0.1 x",
    # Asked for a port it prints one; as the launcher of style echelon it is what is started.
    "stub-python": """if [ "$2" = echelon ]; then printf '%s\\0' "$@" > "$SEEN/argv"
env -0 > "$SEEN/env"; else echo 1; fi""",
}
ENVIRONMENT = {
    "SLURM_JOB_NODELIST": "node1",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_JOB_ID": "7",
    "SLURM_CPUS_PER_TASK": "1",
    "SLURMD_NODENAME": "node1",
}

nasty = st.sampled_from(
    [
        *(
            "$(touch owned)",
            "`touch owned`",
            "; touch owned",
            "a'; touch owned; '",
            "\n touch owned\n",
        ),
        *(
            '"',
            "'",
            "\\",
            "$HOME",
            "${x",
            "!!",
            "a b",
            "*",
            "~",
            "#",
            "TASK",
            "\nTASK\n)\n",
            "{}",
            "\t",
            "\r\n",
            "",
        ),
    ]
)
values = st.lists(
    nasty | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
).map("".join)


@pytest.fixture(scope="module")
def stubs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stubs")
    for name, body in STUBS.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    return folder


@given(
    style=st.sampled_from(STYLES),
    script=values.filter(bool),
    args=st.lists(values, max_size=3),
    variable=values,
    name=values.map(lambda text: text.replace("\n", " ").replace("\r", " ")),
)
def test_hostile_values_are_passed_unchanged_and_not_executed(
    stubs, *, style, script, args, variable, name
):
    seen, work = stubs / "seen", stubs / "work"
    for folder in (seen, work):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    request = spec(
        script=script,
        args=args,
        style=style,
        name=name,
        env={"V": variable},
        python="stub-python",
        restarts=3,
    )
    done = subprocess.run(
        ["bash"],
        input=render_script(request).encode(),
        cwd=work,
        env={
            **ENVIRONMENT,
            "SEEN": str(seen),
            "PATH": f"{stubs}:{os.environ['PATH']}",
            "HOME": "/h",
        },
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    argv = (seen / "argv").read_bytes().decode().split("\0")[:-1]
    mark, skipped = {"echelon": ("3", 1), "ray": ("--overlap", 1)}.get(style, ("-c", 3))
    launched = argv[argv.index(mark) + skipped :]
    expected = [script, *args]
    if style not in ("echelon", "static", "torchrun"):
        expected.insert(0, "stub-python")
    assert launched == expected
    assert f"V={variable}" in (seen / "env").read_bytes().decode().split("\0")
    assert list(work.iterdir()) == []


def test_scripts_have_no_windows_line_endings():
    text = render_script(spec(script="x.py", args=["a\r\nb"], env={"V": "it's\r\n\\"}))
    assert "\r" not in text
    assert r"$'a\r\nb'" in text
    assert r"export V=$'it\'s\r\n\\'" in text


def test_style_file_replaces_the_placeholder_by_the_file(stubs):
    text = render_script(spec(script="x.py", style="file", args=["--f", f"a {PLACEHOLDER}'b"]))
    assert """'a '"$DIST_FILE"''"'"'b'""" in text


# --- conda ------------------------------------------------------------------------------------

CONDA = """#!/bin/bash
if [ "$1" = info ]; then echo "${0%/bin/conda}"; fi
"""
CONDA_SH = """\
conda() {
    if [ "$2" != mine ]; then echo no such environment >&2; return 1; fi
    export CONDA_PREFIX=/envs/mine
}
"""


@pytest.fixture
def conda(tmp_path):
    """A fake installation of conda with one environment."""
    base = tmp_path / "it's conda"
    (base / "bin").mkdir(parents=True)
    (base / "etc/profile.d").mkdir(parents=True)
    (base / "bin/conda").write_text(CONDA)
    (base / "bin/conda").chmod(0o755)
    (base / "etc/profile.d/conda.sh").write_text(CONDA_SH)
    return base / "bin"


def start_with_conda(name, stubs, *, path="", exe=""):
    seen = stubs / "seen"
    shutil.rmtree(seen, ignore_errors=True)
    seen.mkdir()
    request = spec(script="x.py", conda=name, python="stub-python")
    done = subprocess.run(
        ["bash"],
        input=render_script(request, conda_exe=exe),
        env={**ENVIRONMENT, "PATH": f"{stubs}:{path}:/usr/bin:/bin", "SEEN": str(seen)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    ran = seen / "env"
    return done, ran.read_text().split("\0") if ran.exists() else None


def test_a_job_uses_the_submitting_shells_conda_or_the_one_on_its_path(stubs, conda):
    for places in ({"exe": str(conda / "conda")}, {"path": conda, "exe": "/gone/conda"}):
        done, environ = start_with_conda("mine", stubs, **places)
        assert (done.returncode, done.stderr) == (0, "")
        assert "CONDA_PREFIX=/envs/mine" in environ


def test_a_job_without_conda_does_not_run_another_python(stubs):
    done, environ = start_with_conda("mine", stubs, exe="/gone/conda")
    assert (done.returncode, environ) == (1, None)
    (line,) = done.stderr.splitlines()
    assert line.startswith("conda not found on ")


def test_a_job_without_its_conda_environment_does_not_run_another_python(stubs, conda):
    done, environ = start_with_conda("it's", stubs, path=conda)
    assert (done.returncode, environ) == (1, None)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"cannot activate the conda environment 'it's' with {conda}/conda on ")


@pytest.mark.parametrize("style", ["echelon", "torchrun"])
def test_a_job_without_its_modules_does_not_start_training(style):
    text = render_script(spec(script="train.py", modules=["cuda/99"], style=style))
    stub = "module() { return 1; }; python3() { echo trained; }; srun() { echo trained; }\n"
    done = subprocess.run(["bash"], input=stub + text, text=True, capture_output=True, check=False)
    assert done.returncode == 1
    assert not done.stdout
    assert "cannot load the environment modules cuda/99 on " in done.stderr
