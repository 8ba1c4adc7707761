"""Real nodes of this machine that copy an environment to folders of their own, and use it there."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from echelon.core.waiting import wait_until
from local.liverun import live_run
from requirements import require_root

MIB = 1 << 20
SCRIPT = """\
import json, os
from pathlib import Path
import payload
rank = os.environ["RANK"]
mounts = [line.split() for line in open("/proc/self/mountinfo")]
found = {
    "file": payload.__file__,
    "value": payload.VALUE,
    "mount": [(one[3], one[5]) for one in mounts if one[4] == os.environ["PLACE"]],
    "user": [os.getuid(), os.getgid()],
}
Path(f"found-{rank}").write_text(json.dumps(found))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A small virtual environment with a module, and a large file beside it."""
    place = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    (site,) = place.glob("lib/python*/site-packages")
    (site / "payload.py").write_text("VALUE = 1\n")
    for number in range(20):
        (site / f"part{number}.py").write_text(f"VALUE = {number}\n")
    with (site / "large.bin").open("wb") as large:
        large.truncate(1 * MIB)
    return place


class Stage:
    """The folder with each node's own, and runs that use it."""

    def __init__(self, folder, environment):
        self.folder, self.environment = folder / "stages", environment
        self.place = folder

    def options(self, nodes=2):
        return [
            *(f"--nodes={nodes}", "--procs=1", f"--python={self.environment}/bin/python"),
            *("--stage", f"--stage-dir={self.folder}/%N", "--set=preload=payload"),
            f"--env=PLACE={self.environment}",
        ]

    @contextmanager
    def start(self, *more, nodes=2, script=SCRIPT):
        with live_run(self.place, script, [*self.options(nodes), *more]) as run:
            yield run

    def run(self, *more, nodes=2, code=0):
        """Run to the end; return the event, what ranks have found, and the output."""
        for path in self.place.glob("found-*"):
            path.unlink()
        before = set(self.place.glob("runs/*"))
        with self.start(*more, nodes=nodes) as run:
            assert run.wait() == code, run.output
            (path,) = set(self.place.glob("runs/*")) - before
            events = (path / "events" / "controller-1.jsonl").read_text().splitlines()
            (event,) = [one for one in map(json.loads, events) if one["kind"] == "staged"]
            found = [json.loads((self.place / f"found-{n}").read_text()) for n in range(nodes)]
            return event, found, run.output

    def tree(self, node):
        (found,) = (path for path in (self.folder / node).iterdir() if path.is_dir())
        return found / "tree"

    def payload(self, node):
        (found,) = self.tree(node).glob("lib/python*/site-packages/payload.py")
        return found


@pytest.fixture
def stage(tmp_path, environment):
    return Stage(tmp_path, environment)


def test_ranks_import_from_the_copy_at_the_same_path(stage):
    event, found, output = stage.run()
    assert (event["nodes"], event["found"], event["reader"]) == (2, 0, "node0")
    assert event["without"] == {}
    assert not event["changed"]
    for node, one in enumerate(found):
        assert one["file"].startswith(f"{stage.environment}/lib/")
        ((source, flags),) = one["mount"]
        assert source.endswith(f"/stages/node{node}/{stage.tree(f'node{node}').parent.name}/tree")
        assert flags.startswith("ro")
    assert "warning" not in output

    # The next job finds it.
    event, found, _ = stage.run()
    assert (event["nodes"], event["found"], event["copied"]) == (2, 2, 0)
    assert all(one["mount"] for one in found)

    # A damaged copy is repaired, from the other node.
    os.truncate(stage.payload("node1"), 3)
    (stage.payload("node1").parent / "part3.py").unlink()
    event, found, _ = stage.run()
    assert (event["nodes"], event["found"], event["repaired"]) == (2, 1, 2)
    assert event["reader"] == ""
    assert event["copied"] == len("VALUE = 1\n") + len("VALUE = 3\n")
    assert [one["value"] for one in found] == [1, 1]

    # Only one node has none: it gets all of it from one that has.
    subprocess.run(["rm", "-r", stage.folder / "node0"], check=True)
    event, found, _ = stage.run(nodes=3)
    assert (event["nodes"], event["found"], event["reader"]) == (3, 1, "")
    assert all(one["mount"] for one in found)


def test_a_folder_of_another_user_is_not_used(stage):
    require_root("to be another user")
    for node in ("node0", "node1"):
        (stage.folder / node).mkdir(parents=True)
        os.chown(stage.folder / node, 12345, 12345)
    event, found, output = stage.run()
    assert event["nodes"] == 0
    assert "belongs to user 12345" in event["without"]["node1"]
    assert [one["mount"] for one in found] == [[], []]
    assert "warning: no stage on 2 nodes" in output
    assert "--stage-dir" in output


def test_a_full_disk_goes_on_without(stage):
    require_root("to mount a small disk")
    small = stage.folder / "node1"
    small.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k,mode=700", "none", small], check=True)
    try:
        event, found, output = stage.run()
        left = [path.name for path in small.iterdir()]
    finally:
        subprocess.run(["umount", small], check=True)
    assert (event["nodes"], list(event["without"])) == (1, ["node1"])
    assert "are free in" in event["without"]["node1"]
    assert [bool(one["mount"]) for one in found] == [True, False]
    assert "warning: no stage on 1 node: node1" in output
    assert left == []


def test_a_disk_that_fills_up_meanwhile_goes_on_without(stage):
    """It has enough bytes, but too few inodes, which nobody asks for before."""
    require_root("to mount a small disk")
    small = stage.folder / "node0"
    small.mkdir(parents=True)
    limits = "size=8m,nr_inodes=30,mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", limits, "none", small], check=True)
    try:
        event, found, _ = stage.run(nodes=3)
        left = [path.name for path in small.iterdir()]
    finally:
        subprocess.run(["umount", small], check=True)
    assert (event["nodes"], list(event["without"])) == (2, ["node0"])
    assert "No space left on device" in event["without"]["node0"]
    assert event["reader"] == "node1", "another node reads instead"
    assert [bool(one["mount"]) for one in found] == [False, True, True]
    assert left == []


def test_no_namespaces_mean_no_stage(stage):
    fake = stage.place / "unshare"
    fake.write_text("#!/bin/sh\necho unshare failed: Operation not permitted >&2\nexit 1\n")
    fake.chmod(0o755)
    event, found, output = stage.run(f"--env=PATH={stage.place}:{os.environ['PATH']}")
    assert event["nodes"] == 0
    assert "no mount namespace here" in event["without"]["node0"]
    assert [one["mount"] for one in found] == [[], []]
    assert "warning: no stage on 2 nodes" in output


@pytest.fixture
def large(environment):
    """Have something that takes a while to copy."""
    (path,) = environment.glob("lib/python*/site-packages/large.bin")
    os.truncate(path, 150 * MIB)
    yield 150 * MIB
    os.truncate(path, 1 * MIB)


@pytest.mark.full
@pytest.mark.parametrize("victim", [0, 1])
def test_a_node_that_is_lost_in_between_does_not_keep_the_others(stage, large, victim):
    """The victim is the one that reads, or one that passes it on to nodes 3 and 4."""
    with stage.start(nodes=5) as run:

        def copies():
            growing = (stage.folder / "node4").glob(".new-*/tree/lib/*/site-packages/large.bin")
            return any(path.stat().st_size > 4 * MIB for path in growing)

        assert wait_until(copies, timeout_s=60, interval_s=0.005), run.output
        os.kill(run.find("agent", victim), signal.SIGKILL)
        assert run.wait() == 0, run.output
        (lost,) = run.events("lost")
        first, *later = run.events("staged")
    assert lost["node"] == victim
    assert lost["time"] < first["time"], "it was lost while nodes copied"
    assert first["nodes"] == 4
    assert list(first["without"]) == [f"node{victim}"]
    assert first["reader"] == ("node1" if victim == 0 else "node0")
    assert first["copied"] < 4.9 * large, "what was there was not copied again"
    assert len(list(stage.place.glob("found-*"))) == 5, "the lost node came back"
    assert later, "it got its copy then"
    for node in range(5):
        assert json.loads((stage.place / f"found-{node}").read_text())["mount"]


def test_jobs_leave_no_more_than_the_limit(stage, environment):
    (site,) = environment.glob("lib/python*/site-packages")
    for number in range(3):
        (site / "other.bin").write_bytes(os.urandom(2 * MIB))
        event, _, _ = stage.run("--stage-limit=6M", nodes=1)
        assert event["nodes"] == 1, number
    (site / "other.bin").unlink()
    folder = stage.folder / "node0"
    used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert used <= 6 * MIB
    assert not list(folder.glob(".*"))
