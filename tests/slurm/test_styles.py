"""Every way of starting ranks, in every shape, on real Slurm: sums and ranks are right."""

import json
import sys

import pytest

from echelon.clusters.slurm.styles import PLACEHOLDER, render_script
from echelon.spec.job_spec import STYLES
from echelon.spec.merging import Layer, merge

# What a user's script does, without Echelon: join, sum, leave. `detect` is asked beside it.
PROBE = """\
import datetime, json, os, pathlib, socket, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp
from echelon.world import detect

def work(local_rank=None):
    if local_rank is None:
        place = {}
        world = detect(os.environ)
    else:  # as documented: the node's first rank, plus one's own
        world = detect(os.environ, local_rank=local_rank)
        here = int(os.environ["LOCAL_WORLD_SIZE"])
        place = {
            "rank": int(os.environ["SLURM_NODEID"]) * here + local_rank,
            "world_size": int(os.environ["SLURM_NNODES"]) * here,
        }
    if "--dist-file" in sys.argv:
        place = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
        place["init_method"] = "file://" + sys.argv[sys.argv.index("--dist-file") + 1]
        assert place["init_method"] == world.init_method
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60), **place)
    total = torch.tensor([2.0 ** dist.get_rank()])
    dist.all_reduce(total)
    pathlib.Path(f"rank-{dist.get_rank()}.json").write_text(json.dumps({
        "rank": dist.get_rank(), "size": dist.get_world_size(), "sum": total.item(),
        "detected": [world.rank, world.world_size, world.local_rank, world.node_rank,
                     world.local_world_size, world.nodes, world.gpu],
        "host": socket.gethostname(), "job": os.environ["SLURM_JOB_ID"], "arguments": sys.argv[1:],
    }))
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    if "--spawn" in sys.argv:
        mp.spawn(work, nprocs=int(os.environ["LOCAL_WORLD_SIZE"]))
    else:
        work()
"""

ARGUMENTS = {"spawn": ["--spawn"], "file": ["--dist-file", PLACEHOLDER]}
SHAPES = [(1, 4), (2, 1), (2, 2), (4, 1), (3, 1)]
HOSTILE = ["a b", "$(touch /tmp/owned)", "'\"`;&", "ünï", "*", "-x", "two\nlines", "\\"]


def script(folder, style, nodes, procs, **more):
    folder.mkdir(exist_ok=True)
    (folder / "probe.py").write_text(PROBE)
    values = {
        "script": "probe.py",
        "args": [*ARGUMENTS.get(style, []), *HOSTILE],
        "style": style,
        "nodes": nodes,
        "gpus": procs,
        "python": sys.executable,
        "chdir": str(folder),
        "output": f"{folder}/out",
        **more,
    }
    return render_script(merge([Layer(source="test", values=values)]).spec)


def submit(cluster, folder, text):
    (folder / "job.sh").write_text(text)
    return cluster.exec("sbatch", "--parsable", f"{folder}/job.sh").strip()


def check(cluster, job, folder, shape, *, binding="all"):
    nodes, procs = shape
    state = cluster.await_job(job, "COMPLETED", "FAILED", "NODE_FAIL", timeout_s=150)
    assert state["JobState"] == "COMPLETED", (folder / "out").read_text()
    size = nodes * procs
    ranks = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(size)]
    for rank, said in enumerate(ranks):
        node, local = divmod(rank, procs)
        gpu = 0 if binding == "one" or procs == 1 else local
        assert (said["rank"], said["size"], said["sum"]) == (rank, size, 2.0**size - 1)
        assert said["detected"] == [rank, size, local, node, procs, nodes, gpu]
        assert said["job"] == job
        assert said["arguments"][-len(HOSTILE) :] == HOSTILE
    assert len({said["host"] for said in ranks}) == nodes
    # Nothing of the rendezvous stays in the user's folder.
    left = {path.name for path in folder.iterdir()} - {"runs"}
    assert left == {"probe.py", "job.sh", "out", *(f"rank-{rank}.json" for rank in range(size))}


RANKED = STYLES[:-1]
"""Those that start ranks; tests/ray has the last one, which starts a Ray cluster."""
QUICK = dict(zip(RANKED, [(2, 2), (2, 1), (2, 2), (2, 1), (2, 1), (2, 2)], strict=True))
"""The shape of each style in CI: 2 x 2 if it numbers the ranks of a node itself."""


@pytest.mark.parametrize(
    ("style", "shape"),
    [
        pytest.param(
            style,
            shape,
            marks=[] if QUICK[style] == shape else [pytest.mark.full],
            id=f"{style}-{shape[0]}x{shape[1]}",
        )
        for style in RANKED
        for shape in SHAPES
    ],
)
def test_ranks_find_each_other(full, tmp_path, style, shape):
    job = submit(full, tmp_path, script(tmp_path, style, *shape))
    check(full, job, tmp_path, shape)


@pytest.mark.full
@pytest.mark.parametrize("option", ["gpus-per-task", "gpus-per-node", "gpus"])
def test_gpus_may_be_asked_for_in_every_way(full, tmp_path, option):
    job = submit(full, tmp_path, script(tmp_path, "srun", 2, 2, gpu_option=option))
    binding = "one" if option == "gpus-per-task" else "all"
    check(full, job, tmp_path, (2, 2), binding=binding)


@pytest.fixture
def awkward(full):
    """A site where hosts are not called as their nodes, no name resolves, and there are decoys."""
    box = full.box
    hosts = box.layout.hosts.read_text()
    names = ["node1", "node2"]
    try:
        box.layout.hosts.write_text("127.0.0.1\tlocalhost\n")
        for number, node in enumerate(names, start=1):
            decoy = (
                f"hostname c209-{number} && ip link add decoy type veth peer name decoy-end && "
                f"ip addr add 203.0.113.{number}/24 dev decoy && "
                "ip link set decoy up && ip link set decoy-end up"
            )
            box.run(["sh", "-c", decoy], host=node).check()
        yield full
    finally:
        box.layout.hosts.write_text(hosts)
        for node in names:
            box.run(["sh", "-c", f"hostname {node}; ip link del decoy"], host=node)


@pytest.mark.parametrize(
    "style", ["echelon", *(pytest.param(s, marks=pytest.mark.full) for s in RANKED[1:])]
)
def test_names_that_lead_nowhere_do_not_matter(awkward, tmp_path, style):
    text = script(tmp_path, style, 2, 1, nodelist="node[1-2]")
    check(awkward, submit(awkward, tmp_path, text), tmp_path, (2, 1))


@pytest.mark.full
@pytest.mark.parametrize("style", RANKED)
def test_two_jobs_at_once_do_not_disturb_each_other(full, tmp_path, style):
    first, second = tmp_path / "first", tmp_path / "second"
    jobs = [
        (folder, submit(full, folder, script(folder, style, 2, 2, nodelist="node[1-2]")))
        for folder in (first, second)
    ]
    for folder, job in jobs:
        check(full, job, folder, (2, 2))


@pytest.mark.full
@pytest.mark.parametrize("style", ["srun", "static", "torchrun"])
def test_a_port_that_was_taken_meanwhile_is_given_up(full, tmp_path, style):
    """The first choice is a port on which somebody on the first node listens already."""
    listen = (
        "import os, socket, time; s = socket.socket(); s.bind(('', 0)); s.listen(); "
        "open('.port', 'w').write(str(s.getsockname()[1])); time.sleep(300)"
    )
    occupy = [f'{sys.executable} -c "{listen}" &', "until [ -s .port ]; do sleep 0.05; done"]
    text = script(tmp_path, style, 2, 1, prologue=occupy)
    chosen = "MASTER_PORT=$(free_port)"
    assert chosen in text
    text = text.replace(chosen, "MASTER_PORT=$([ $try = 1 ] && cat .port || free_port)")
    job = submit(full, tmp_path, text)
    state = full.await_job(job, "COMPLETED", "FAILED", timeout_s=150)
    said = (tmp_path / "out").read_text()
    (tmp_path / ".port").unlink()
    assert "is already in use: trying another" in said
    assert state["JobState"] == "COMPLETED", said
    check(full, job, tmp_path, (2, 1))


@pytest.mark.parametrize(
    ("style", "code"),
    [
        ("srun", 3),
        pytest.param("file", 3, marks=pytest.mark.full),
        pytest.param("static", 1, marks=pytest.mark.full),  # that of torchrun
    ],
)
def test_a_rank_that_fails_fails_the_job(full, tmp_path, style, code):
    """With its code, not that of the rank which srun ends."""
    text = script(tmp_path, style, 2, 1)
    (tmp_path / "probe.py").write_text(
        "import os, sys, time\nsys.exit(3) if os.environ['RANK'] == '1' else time.sleep(600)\n"
    )
    job = submit(full, tmp_path, text)
    ended = full.await_job(job, "COMPLETED", "FAILED")
    assert (ended["JobState"], ended["ExitCode"]) == ("FAILED", f"{code}:0")


def test_the_script_is_plain_bash(full, tmp_path):
    """Nothing in it needs Echelon, and bash finds no fault with it."""
    for style in STYLES:
        path = tmp_path / f"{style}.sh"
        path.write_text(script(tmp_path, style, 2, 2))
        full.exec("bash", "-n", str(path))
        assert "import echelon" not in path.read_text()
