"""Scripts that lint has fixed run on a real Slurm.

Each rule has an example with its problem and the fix. Programs that need a GPU or a large package
are replaced by one that records how it was called. The full matrix runs real ranks wherever an
example does not need a GPU.
"""

import re

import pytest

from echelon.core.waiting import wait_until
from echelon.lint.linting import RULES
from echelon.lint.script import read_script
from requirements import require_root
from slurm.cluster import BIN, Cluster
from unit.lint.fakes import SlurmOf, TextFiles
from unit.lint.test_edits import FIXED, fix
from unit.lint.test_rules import example_files

RECORDING = """\
#!/bin/bash
if [ "$1" = -c ]; then exec {python} "$@"; fi
echo "$(hostname) ${{0##*/}} $*" >> "$SLURM_SUBMIT_DIR/ran"
"""
OTHERS = {
    "module": "#!/bin/bash\n",
    "conda": "#!/bin/bash\necho 'conda() { :; }'\n",
    "mpirun": '#!/bin/bash\nexec "${@:3}"\n',
    "nvidia-smi": "#!/bin/bash\nexec sleep 600\n",
}
PROGRAMS = ("python", "torchrun")
RANK = """\
import os
import torch.distributed as dist
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    total = __import__("torch").ones(1)
    dist.all_reduce(total)
    assert total.item() == dist.get_world_size()
    dist.destroy_process_group()
"""
"""The training of an example that has none of its own."""
GPU = re.compile(r"cuda|nccl|lightning")
JOBS = [rule for rule in RULES if next(iter(example_files(rule.good))) == "job.sh"]
AT_ONCE = 4
DATA = {"seeds.txt": "1\n", "log.txt": ""}
"""Files that examples read."""
SOMETIMES = {"E210", "E502"}
"""Examples that start a program in a branch, a loop, an array or the background."""


@pytest.fixture(scope="module")
def large(home):
    """A cluster with nodes as large as in the examples."""
    require_root("networks of their own for the nodes")
    cluster = Cluster(home, "large")
    cluster("up", "--cpus", "32", "--mem", "128G")
    yield cluster
    cluster("down", check=False)


def write(folder, files):
    folder.mkdir()
    folder.chmod(0o755)
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def make_programs(folder, names):
    folder.mkdir()
    for name in names:
        recording = RECORDING.format(python=BIN / "python")
        (folder / name).write_text(OTHERS.get(name, recording))
        (folder / name).chmod(0o755)
    return folder


def submit(cluster, folder, programs):
    path = f"PATH={programs}:{BIN}:/usr/local/bin:/usr/bin:/bin"
    argv = ["sbatch", "--parsable", f"--chdir={folder}", f"--export=ALL,{path}"]
    return cluster.exec("env", f"--chdir={folder}", *argv, str(folder / "job.sh")).strip()


def await_jobs(cluster, jobs, timeout_s):
    """Return the states of jobs, by what they were called, when all have ended."""
    states = {}

    def ended():
        for name, job in jobs.items():
            if states.get(name) in (None, "PENDING", "RUNNING", "COMPLETING", "CONFIGURING"):
                states[name] = cluster.job(job)["JobState"]
        return not {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"} & set(states.values())

    assert wait_until(ended, timeout_s=timeout_s, interval_s=0.2), states
    return states


def output(folder):
    return "\n".join(
        path.read_text() for path in folder.iterdir() if path.suffix in (".out", ".txt")
    )


def expected(files):
    """Return how often lint says that the programs of an example start."""
    text = files["job.sh"]
    subject = read_script(text, path="job.sh", files=TextFiles(files), programs=SlurmOf())
    launches = [one.launch for one in subject.started]
    return sum(launch.amounts.tasks or 0 if launch.srun is not None else 1 for launch in launches)


def run(cluster, folder, examples):
    """Run examples with programs that record their calls; a few at a time, as nodes have room."""
    folder.chmod(0o755)
    programs = make_programs(folder / "bin", (*PROGRAMS, *OTHERS))
    names = list(examples)
    for at in range(0, len(names), AT_ONCE):
        jobs = {}
        for name in names[at : at + AT_ONCE]:
            write(folder / name, {"train.py": RANK, **DATA, **examples[name]})
            jobs[name] = submit(cluster, folder / name, programs)
        states = await_jobs(cluster, jobs, timeout_s=60)
        assert states == dict.fromkeys(jobs, "COMPLETED"), {n: output(folder / n) for n in jobs}
    for name, files in examples.items():
        ran = folder / name / "ran"
        count = len(ran.read_text().splitlines()) if ran.exists() else 0
        if name not in SOMETIMES:
            assert (name, count) == (name, expected(files))


def test_what_lint_has_edited_runs(large, tmp_path):
    examples = {}
    for rule in (rule for rule in JOBS if rule.code in FIXED):
        files = example_files(rule.bad.replace("    # <- here", ""))
        fixed = fix(files["job.sh"], "job.sh", TextFiles(files))
        assert fixed != files["job.sh"]
        examples[rule.code] = {**files, "job.sh": fixed}
    assert len(examples) >= 4
    run(large, tmp_path, examples)


@pytest.mark.full
def test_every_fixed_example_runs(large, tmp_path):
    examples = {rule.code: example_files(rule.good) for rule in JOBS}
    run(large, tmp_path, examples)


@pytest.mark.full
@pytest.mark.parametrize(
    "rule",
    [rule for rule in JOBS if not GPU.search(rule.good)],
    ids=lambda rule: rule.code,
)
def test_a_fixed_example_runs_real_ranks(large, tmp_path, rule):
    tmp_path.chmod(0o755)
    programs = make_programs(tmp_path / "bin", OTHERS)
    folder = tmp_path / "job"
    others = dict.fromkeys(("a.py", "b.py", "prepare.py", "train.py"), RANK)
    write(folder, {**others, **DATA, **example_files(rule.good)})
    job = submit(large, folder, programs)
    states = await_jobs(large, {rule.code: job}, timeout_s=200)
    assert states == {rule.code: "COMPLETED"}, output(folder)
    # torchrun prints one if the other node, which has its store, ends first.
    lines = [line for line in output(folder).splitlines() if "/elastic/agent/" not in line]
    assert not any("Traceback" in line for line in lines)
