"""Every example under every way of starting ranks, on real Slurm, with a little data."""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from echelon.clusters.slurm.styles import PLACEHOLDER, render_script
from echelon.spec.job_spec import STYLES
from echelon.spec.merging import Layer, merge
from mnist_files import write_digits

EXAMPLES = Path(__file__).parents[2] / "examples"
NODES, PROCS = 2, 2
RANKS = NODES * PROCS
IMAGES = 256
DATA, PICTURES = "data", "pictures"


@dataclass(frozen=True, kw_only=True)
class Example:
    """How an example is started here, and what it has to say."""

    script: str
    arguments: list[str]
    says: list[str]
    """Patterns of its output; only all ranks together can make it say so."""
    flags: dict[str, list[str]] = field(default_factory=lambda: {"spawn": ["--spawn"]})
    """What a style wants besides."""


STEPS = IMAGES // (16 * RANKS)
TABLE = {
    "allreduce": Example(
        script="allreduce/main.py",
        arguments=["--size=1000", "--repeat=2"],
        says=[
            *(rf"rank {rank} of {RANKS} on node\d, cpu: the sum is verified" for rank in range(4)),
            r"0.004 MB per rank in .* GB/s \(gloo\)",
        ],
    ),
    "gpt": Example(
        script="gpt/train.py",
        arguments=[
            *(f"--text={EXAMPLES}", "--size=tiny", "--steps=8", "--batch-size=8"),
            *("--max-windows=128", "--sample=5", "--shard=hsdp", "--begin=import"),
        ],
        says=[
            rf"million parameters, hsdp, {RANKS} ranks: validation loss \d\.\d+ after 8 steps",
            r"(?m)^(?:0: )?import",
        ],
    ),
    "mnist": Example(
        script="mnist/train.py",
        arguments=[f"--data-dir={DATA}", "--epochs=1", "--batch-size=16"],
        says=[rf"test accuracy (8\d|9\d|100)\.\d\d% after {STEPS} steps on {RANKS} ranks"],
    ),
    "plain_loop": Example(
        script="plain_loop/train.py",
        arguments=[f"--data-dir={DATA}", "--epochs=2", "--batch-size=16"],
        says=[
            rf"epoch 1: test accuracy .*% after {STEPS} steps",
            rf"epoch 2: test accuracy (9\d|100)\.\d\d% after {2 * STEPS} steps",
        ],
    ),
    "tinyimagenet": Example(
        script="tinyimagenet/train.py",
        arguments=[
            *(f"--data-dir={PICTURES}", "--model=resnet18", "--batch-size=4", "--epochs=1"),
            *("--num-workers=1", "--lr=0.01"),
        ],
        says=[r"accuracy .*  loss .*  top5 1\.0000  after 2 steps", r"img/s, at most \d+ MiB"],
    ),
    "resume": Example(
        script="resume/main.py",
        arguments=[f"--data-dir={DATA}", "--arch=mlp", "--epochs=1", "-b32", "-j0", "-p4"],
        says=[
            rf"ranks: {RANKS}, nodes: {NODES}, device: cpu",
            r"Epoch: \[0\]\[  4/8\]  Time .*  Data .*  Loss .*  Acc@1 .*  Acc@5 .*",
            r" \* Acc@1 (9\d|100)\.\d+ Acc@5 100\.000",
            r"best: .*step-000000008",
        ],
        flags={
            "spawn": ["--multiprocessing-distributed"],
            "file": [f"--dist-file={PLACEHOLDER}"],
        },
    ),
}
"""A new example is a new row."""

QUICK = ("echelon-tinyimagenet",)
"""In CI: tests/local and tests/ray run the other examples, and test_styles.py each style."""


RANKED = STYLES[:-1]
"""Those that start ranks: the last one starts a Ray cluster."""


def test_every_example_has_its_row():
    folders = {path.parent.name for path in EXAMPLES.glob("*/*.py")}
    assert folders == set(TABLE)


def write_data(folder, name):
    if name != "tinyimagenet":
        write_digits(folder / DATA, train=IMAGES)
        return
    maker = EXAMPLES / "tinyimagenet" / "make_synthetic.py"
    sizes = ["--classes=4", "--train-per-class=8", "--val-per-class=2"]
    subprocess.run([sys.executable, str(maker), *sizes, str(folder / PICTURES)], check=True)
    shutil.rmtree(folder / PICTURES / "test")  # which has no labels
    done = subprocess.run(
        [sys.executable, "-m", "echelon", "pack", str(folder / PICTURES), "--split=val"],
        check=True,
        capture_output=True,
    )
    assert b"val.packed" in done.stdout  # and the training set is read from its JPEGs


@pytest.mark.parametrize(
    ("style", "name"),
    [
        pytest.param(
            style, name, marks=[] if {style, f"{style}-{name}"} & {*QUICK} else [pytest.mark.full]
        )
        for style in RANKED
        for name in TABLE
    ],
)
def test_an_example_completes_with_every_style(full, tmp_path, style, name):
    example = TABLE[name]
    write_data(tmp_path, name)
    values = {
        "script": str(EXAMPLES / example.script),
        "args": [*example.arguments, *example.flags.get(style, [])],
        "style": style,
        "nodes": NODES,
        "gpus": PROCS,
        "python": sys.executable,
        "chdir": str(tmp_path),
        "output": f"{tmp_path}/out",
        "env": {"OMP_NUM_THREADS": "1"},
    }
    (tmp_path / "job.sh").write_text(
        render_script(merge([Layer(source="test", values=values)]).spec)
    )
    job = full.exec("sbatch", "--parsable", f"{tmp_path}/job.sh").strip()
    ended = full.await_job(job, "COMPLETED", "FAILED", "NODE_FAIL", "TIMEOUT", timeout_s=200)
    said = (tmp_path / "out").read_text()
    assert ended["JobState"] == "COMPLETED", said
    for pattern in example.says:
        assert len(re.findall(pattern, said)) == 1, f"not once {pattern!r} in:\n{said}"


@pytest.mark.full
def test_resume_runs_as_its_flags_are_documented_elsewhere(full, tmp_path):
    """One task per node under plain srun; the script spawns, and its ranks meet in a file."""
    example = TABLE["resume"]
    write_digits(tmp_path / DATA, train=IMAGES)
    said = full.exec(
        *("srun", "-N2", "--gres=gpu:2", f"--chdir={tmp_path}", sys.executable),
        *(str(EXAMPLES / example.script), *example.arguments),
        *("--dist-backend=gloo", "--multiprocessing-distributed", "--dist-file=dist_file"),
    )
    for pattern in example.says:
        assert len(re.findall(pattern, said)) == 1, f"not once {pattern!r} in:\n{said}"
