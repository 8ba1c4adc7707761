"""Killing one process of a run, of every kind, and looking at what outlives it."""

import os
import signal
import time

from echelon.core.waiting import wait_until
from local.liverun import PREAMBLE, find_processes

SCRIPT = f"""\
{PREAMBLE}
class Data(torch.utils.data.Dataset):
    def __len__(self): return 1 << 30
    def __getitem__(self, index): return index

begin()
loader = iter(torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2))
next(loader); step()
if "ECHELON_BEACON" in os.environ:
    Path(f"scratch-{{rank}}").write_text(str(Path(os.environ["ECHELON_BEACON"]).parent))
ready()
for batch in loader: step(); time.sleep(0.02)
"""
FILES = """\
from multiprocessing import get_context, shared_memory

memory = shared_memory.SharedMemory(create=True, size=64)
semaphore = get_context("spawn").Semaphore(1)
files = [f"/dev/shm/{memory.name}", f"/dev/shm/sem.{semaphore._semlock.name.lstrip('/')}"]
for worker in multiprocessing.active_children():  # torch and perf would write such, now and then
    files += [f"/dev/shm/torch_{worker.pid}_1_0", f"/tmp/perf-{worker.pid}.map"]
files += [f"/dev/shm/torch_{pid}_1_0", f"/tmp/perf-{pid}.map"]
for name in files[2:]:
    Path(name).write_text("x")
Path(f"files-{rank}").write_text("\\n".join(files))
"""
"""What a rank leaves that is killed; its workers leave sockets in TMPDIR."""
MESSY = SCRIPT.replace("\nready()\n", f"\nimport multiprocessing\n{FILES}\nready()\n")
KINDS = ("rank", "agent", "zygote", "guard", "controller", "command")
WORKERS = 8
"""Of four ranks with two each."""


def kill(run, kind, number=0):
    """Kill one of a kind; when there are several, the number says which."""
    pids = run.await_ranks()
    node = number % 2
    if kind == "rank":
        victim = pids[number % 4]
    elif kind == "command":
        victim = run.command.pid
    else:
        victim = run.find(kind, None if kind == "controller" else node)
    os.kill(victim, signal.SIGKILL)
    if kind == "guard":
        # Alone it is missed by nobody but its agent, which needs one when its own turn comes.
        assert wait_until(lambda: _has_another(run, node, victim), timeout_s=10)
        os.kill(run.find("agent", node), signal.SIGKILL)


def _has_another(run, node, old):
    guards = [process.pid for process in run.processes() if process.role == "guard"]
    return len(guards) == 2 and old not in guards and run.find("guard", node) in guards


def count_workers(run):
    """Return how many processes the ranks have started."""
    found = {process.pid: process for process in run.processes()}
    ranks = set(run.await_ranks())
    return sum(process.parent in ranks for process in found.values())


def await_end(run, *, timeout_s):
    """Return what is left of a run after that time at most, and how long it took to go."""
    began_s = time.monotonic()
    wait_until(lambda: not find_left(run), timeout_s=timeout_s)
    return find_left(run), time.monotonic() - began_s


def find_files(run):
    """Return files of ranks that are still there."""
    names = [name for path in run.folder.glob("files-*") for name in path.read_text().split()]
    names += map(str, run.scratch.glob("pymp-*"))
    return [name for name in names if os.path.exists(name)]  # noqa: PTH110


def remove_files(run):
    """Remove what a run has left outside of its own folders."""
    for name in find_files(run):
        if not name.startswith(str(run.scratch)):
            os.unlink(name)  # noqa: PTH108


def find_left(run):
    """Return processes, their files, and folders in memory that are still there."""
    processes = [f"{p.role} {p.pid}: {p.line}" for p in find_processes(run.folder / "runs")]
    command = [] if run.command.poll() is not None else ["echelon run"]
    scratch = {path.read_text() for path in run.folder.glob("scratch-*")}
    folders = [path for path in scratch if os.path.exists(path)]  # noqa: PTH110
    return processes + command + folders + find_files(run)
