"""The fault matrix, as data: what is done to a run of two nodes with two ranks each, and what the
verdict has to say of it.

`test_faults.py` tries each of them; `benchmarks/faultmatrix.py` tries them all several times and
counts.
"""

import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from echelon.core.waiting import wait_until
from local.liverun import PREAMBLE, START_S, LiveRun, live_run

ANY = frozenset(range(4))
"""Where all ranks do the same, any of them may be the first."""
HANG = ("--hang-timeout=4", "--on-hang=stop")
POLL = "work = dist.all_reduce(torch.ones(1), async_op=True)\nwhile not work.is_completed(): pass"
"""How ranks wait for NCCL: they use CPU time."""
_LIMIT_MIB = 2048
DYING_ZYGOTE = """\
import os, sys
if "zygote" in sys.orig_argv:
    os.write(2, b"no licence")
    os._exit(3)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong."""

    name: str
    script: str
    """Comes after PREAMBLE, unless it is `raw`."""
    cause: str
    """As in verdict.CAUSES; empty when the run is to succeed all the same."""
    ranks: frozenset[int] | None
    """Who may be blamed; None when it is no rank."""
    code: int
    """What `echelon run` returns."""
    act: Callable[[LiveRun], object] | None = None
    """What is done from outside while it runs."""
    node: str = ""
    """Which node is blamed; empty for: whichever."""
    says: str = ""
    """What the message has to hold."""
    not_retried: str = "disabled"
    """What has to be said of restarts; empty for: nothing."""
    options: tuple[str, ...] = ("--restarts=0",)
    files: Mapping[str, str] = field(default_factory=dict)
    """What lies beside the script."""
    raw: bool = False
    limited: bool = False
    """Whether it runs with little memory, in a cgroup."""
    quick: bool = False
    """Whether CI tries it."""
    timeout_s: float = 60


def rank(*numbers: int) -> frozenset[int]:
    return frozenset(numbers)


def _kill_rank(number: int, signal_number: int) -> Callable[[LiveRun], object]:
    return lambda run: os.kill(run.await_ranks()[number], signal_number)


def _kill(role: str, signal_number: int, node: int | None = None) -> Callable[[LiveRun], object]:
    def act(run: LiveRun) -> None:
        run.await_ranks()
        os.kill(run.find(role, node), signal_number)

    return act


def _signal_zygotes(run: LiveRun, signal_number: int) -> None:
    """Signal the zygotes of both nodes as soon as they exist: they import torch."""

    def zygotes() -> list[int]:
        return [process.pid for process in run.processes() if process.role == "zygote"]

    assert wait_until(lambda: len(zygotes()) == 2, timeout_s=START_S), run.output
    for pid in zygotes():
        os.kill(pid, signal_number)


def _interrupt(run: LiveRun) -> None:
    run.await_ranks()
    run.command.send_signal(signal.SIGINT)


TRAIN = "begin(); step(); ready(); train()"

FAULTS = (
    # --- exceptions -----------------------------------------------------------------------------
    Fault(
        name="an exception in rank 0, while training",
        script="begin(); step()\nif rank == 0: raise ValueError('boom')\ntrain()",
        cause="exception",
        ranks=rank(0),
        code=1,
        says="ValueError: boom",
    ),
    Fault(
        name="an exception in rank 3, while training",
        script="begin(); step()\nif rank == 3: raise ValueError('boom')\ntrain()",
        cause="exception",
        ranks=rank(3),
        node="node1",
        code=1,
        says="ValueError: boom",
        quick=True,
    ),
    Fault(
        name="an exception before the ranks have met",
        script="if rank == 1: raise RuntimeError('no such dataset')\nbegin(); train()",
        cause="exception",
        ranks=rank(1),
        node="node0",
        code=1,
        says="no such dataset",
    ),
    Fault(
        name="an exception in a DataLoader worker",
        script="""\
class Data(torch.utils.data.Dataset):
    def __len__(self): return 100
    def __getitem__(self, index):
        if rank == 2 and index == 9: raise IndexError("sample 9 is broken")
        return index

begin()
for batch in torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=1): step()
""",
        cause="exception",
        ranks=rank(2),
        code=1,
        says="sample 9 is broken",
    ),
    Fault(
        name="an exception in a thread: the process goes on",
        script="""\
begin()
thread = threading.Thread(target=lambda: 1 / 0)
if rank == 1: thread.start(); thread.join()
step()
""",
        cause="",
        ranks=None,
        code=0,
    ),
    Fault(
        name="an exception at exit: Python ignores it, and so do we",
        script="import atexit\nbegin(); step()\natexit.register(lambda: 1 / 0)",
        cause="",
        ranks=None,
        code=0,
    ),
    Fault(
        name="an exception whose owner cleans up first: its victims report before it",
        script="""\
begin(); step()
try:
    if rank == 1: raise KeyError("epoch")
    train()
finally:
    if rank == 1: dist.destroy_process_group(); time.sleep(0.5)
""",
        cause="exception",
        ranks=rank(1),
        code=1,
        says="KeyError",
    ),
    Fault(
        name="an exception whose owner cleans up for longer than anybody waits",
        script="""\
begin(); step()
try:
    if rank == 1: raise KeyError("epoch")
    train()
finally:
    if rank == 1: dist.destroy_process_group(); time.sleep(60)
""",
        # It was killed before it could speak; that it is the one can still be told.
        cause="lost peer",
        ranks=rank(1),
        code=1,
    ),
    Fault(
        name="an exception whose owner does much at its exit",
        script="""\
import atexit
begin(); step()
if rank == 1:
    atexit.register(time.sleep, 60)
    atexit.register(dist.destroy_process_group)
    raise KeyError("epoch")
train()
""",
        cause="exception",
        ranks=rank(1),
        code=1,
        says="KeyError",
    ),
    Fault(
        name="exceptions in two ranks, one after the other",
        script="""\
begin(); step()
if rank == 2: raise ValueError("the first")
if rank == 0: time.sleep(0.5); raise ValueError("the second")
train()
""",
        cause="exception",
        ranks=rank(2),
        code=1,
        says="the first",
    ),
    Fault(
        name="an exception that cannot be told as text",
        script="""\
class Broken(Exception):
    def __str__(self): raise TypeError("no text")

begin(); step()
if rank == 1: raise Broken
train()
""",
        cause="exception",
        ranks=rank(1),
        code=1,
        says="Broken",
    ),
    Fault(
        name="an exception with a message of a megabyte, not all of it text",
        script="""\
begin(); step()
if rank == 2: raise ValueError("boom \\udcff\\0" * 150_000)
train()
""",
        cause="exception",
        ranks=rank(2),
        code=1,
        says="ValueError: boom",
    ),
    Fault(
        name="an exception in a script under torch's @record",
        script="""\
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    begin(); step()
    if rank == 3: raise ValueError("recorded")
    train()

main()
""",
        cause="exception",
        ranks=rank(3),
        code=1,
        says="ValueError: recorded",
    ),
    Fault(
        name="the same exception twice: not tried again",
        script="begin(); step()\nif rank == 1: raise ValueError('always')\ntrain()",
        cause="exception",
        ranks=rank(1),
        code=1,
        options=("--on-hang=restart",),  # which allows restarts, but no particular number
        not_retried="the same error",
    ),
    # --- scripts that cannot start --------------------------------------------------------------
    Fault(
        name="an import of a name that is not there",
        script="from os import nothing_of_the_kind",
        cause="import error",
        ranks=ANY,
        code=1,
        says="nothing_of_the_kind",
        options=("--restarts=3",),
        not_retried="a restart would not help",
    ),
    Fault(
        name="a module that is missing, deep in a package",
        script="if rank == 1: import pack\nbegin(); train()",
        files={"pack/__init__.py": "from pack import inner", "pack/inner.py": "import absent_one"},
        cause="import error",
        ranks=rank(1),
        code=1,
        says="absent_one",
        not_retried="a restart would not help",
    ),
    Fault(
        # One in the script itself is refused before anything is started.
        name="a module with a syntax error",
        script="import broken",
        files={"broken.py": "def (:"},
        cause="import error",
        ranks=ANY,
        code=1,
        says="SyntaxError",
        not_retried="a restart would not help",
    ),
    Fault(
        name="arguments that the script refuses",
        script="""\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", required=True)
parser.parse_args()
""",
        cause="bad arguments",
        ranks=ANY,
        code=2,
        says="--lr",
        options=("--restarts=3",),
        not_retried="a restart would not help",
        quick=True,
    ),
    # --- exits and signals ----------------------------------------------------------------------
    Fault(
        name="sys.exit(3)",
        script="begin(); step()\nif rank == 1: sys.exit(3)\ntrain()",
        cause="exit",
        ranks=rank(1),
        code=3,
        says="exit code 3",
    ),
    Fault(
        name="sys.exit with a message",
        script="begin(); step()\nif rank == 2: sys.exit('the data are stale')\ntrain()",
        cause="exit",
        ranks=rank(2),
        code=1,
        says="the data are stale",
    ),
    Fault(
        name="os._exit(9), after an exception that was dealt with",
        script="""\
import traceback
begin(); step()
if rank == 1:
    try: 1 / 0
    except ZeroDivisionError: traceback.print_exc()
    os._exit(9)
train()
""",
        cause="exit",
        ranks=rank(1),
        code=9,
        says="exit code 9",
    ),
    Fault(
        name="SIGKILL",
        script=TRAIN,
        act=_kill_rank(2, signal.SIGKILL),
        cause="signal",
        ranks=rank(2),
        node="node1",
        code=137,
        says="killed by SIGKILL",
    ),
    Fault(
        name="SIGKILL before the ranks have met",
        script="if rank == 3: os.kill(pid, signal.SIGKILL)\nbegin(); train()",
        cause="signal",
        ranks=rank(3),
        code=137,
        says="SIGKILL",
    ),
    Fault(
        name="a segmentation fault",
        script="import ctypes\nbegin(); step()\nif rank == 0: ctypes.string_at(0)\ntrain()",
        cause="signal",
        ranks=rank(0),
        code=139,
        says="SIGSEGV",
    ),
    Fault(
        name="abort()",
        script="begin(); step()\nif rank == 1: os.abort()\ntrain()",
        cause="signal",
        ranks=rank(1),
        code=134,
        says="SIGABRT",
    ),
    Fault(
        name="SIGTERM from outside to one rank",
        script=TRAIN,
        act=_kill_rank(3, signal.SIGTERM),
        cause="signal",
        ranks=rank(3),
        code=143,
        says="SIGTERM",
    ),
    Fault(
        name="SIGKILL every time, until the restarts are used up",
        script="begin(); step()\nif rank == 2: os.kill(pid, signal.SIGKILL)\ntrain()",
        cause="signal",
        ranks=rank(2),
        code=137,
        options=("--restarts=2",),
        not_retried="all 2 restarts are used up",
    ),
    Fault(
        name="a program that is not Python, and exits with 4",
        script='#!/bin/bash\n[ "$RANK" = 2 ] && { echo giving up; exit 4; }\nsleep 600\n',
        raw=True,
        cause="exit",
        ranks=rank(2),
        code=4,
        says="exit code 4; the last output was: giving up",
    ),
    Fault(
        name="an exception in a Python that we did not start ourselves",
        script=f"#!/bin/bash\nexec {shlex.quote(sys.executable)} inner.py\n",
        files={
            # Python's own end with torch's threads is an abort now and then, of any rank.
            "inner.py": f"""\
{PREAMBLE}begin(); step()
if rank == 1: dist.destroy_process_group(); raise ValueError("boom")
train()
"""
        },
        raw=True,
        cause="exception",
        ranks=rank(1),
        code=1,
        says="ValueError: boom",
    ),
    # --- things that are full, or taken ---------------------------------------------------------
    Fault(
        name="CUDA out of memory",
        # There may be no GPU here: torch's own error, with the text that the allocator gives it.
        script="""\
begin(); step()
if rank == 1:
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 1 has a total capacity of 79.15 GiB "
        "of which 4.61 GiB is free."
    )
train()
""",
        cause="cuda out of memory",
        ranks=rank(1),
        code=1,
        says="Tried to allocate 20.00 GiB",
    ),
    Fault(
        name="killed for memory, by the kernel",
        script="""\
begin(); step()
hoard = []
while rank == 2: hoard.append(torch.ones(1 << 22)); time.sleep(0.005)
train()
""",
        limited=True,
        cause="out of memory",
        ranks=rank(2),
        code=137,
        says="out of memory",
    ),
    Fault(
        name="a DataLoader worker killed for memory, by the kernel",
        script="""\
class Data(torch.utils.data.Dataset):
    def __len__(self): return 100
    def __getitem__(self, index):
        hoard = []
        while rank == 1: hoard.append(torch.ones(1 << 22)); time.sleep(0.005)
        return index

begin()
for batch in torch.utils.data.DataLoader(Data(), num_workers=1): step()
train()
""",
        limited=True,
        cause="out of memory",
        ranks=rank(1),
        code=1,
        says="DataLoader worker",
    ),
    Fault(
        name="more memory than there is, asked for at once",
        script="begin(); step()\nif rank == 1: torch.empty(1 << 55)\ntrain()",
        cause="out of memory",
        ranks=rank(1),
        code=1,
        says="allocate",
    ),
    Fault(
        name="a full disk",
        script="""\
begin(); step()
if rank == 2:
    with open("/dev/full", "w") as file: file.write("a checkpoint")
train()
""",
        cause="disk full",
        ranks=rank(2),
        code=1,
        says="No space left on device",
        quick=True,
    ),
    Fault(
        name="a port that is taken",
        script="""\
begin(); step()
if rank == 3:
    taken = socket.create_server(("127.0.0.1", 0))
    socket.create_server(taken.getsockname())
train()
""",
        cause="port taken",
        ranks=rank(3),
        code=1,
        says="Address already in use",
    ),
    Fault(
        name="a port that is taken, for a store of torch's own",
        script="""\
if rank == 0:
    taken = socket.create_server(("127.0.0.1", 0))
    dist.TCPStore(*taken.getsockname(), is_master=True)
begin(); train()
""",
        cause="port taken",
        ranks=rank(0),
        code=1,
        says="EADDRINUSE",
    ),
    # --- ranks that do not come -----------------------------------------------------------------
    Fault(
        name="a collective that one rank does not join in time",
        script="""\
begin(timeout=timedelta(seconds=3)); step()
if rank == 2: time.sleep(600)
step()
""",
        cause="collective time-out",
        ranks=rank(2),
        code=1,
        says="rank",
        quick=True,
    ),
    Fault(
        name="a meeting that one rank does not come to in time",
        script="if rank == 3: time.sleep(600)\nbegin(timeout=timedelta(seconds=3)); train()",
        cause="collective time-out",
        ranks=rank(3),
        code=1,
    ),
    Fault(
        name="a hang: a rank was stopped",
        script=TRAIN,
        act=_kill_rank(1, signal.SIGSTOP),
        options=HANG,
        cause="hang",
        ranks=rank(1),
        code=1,
        says="SIGSTOP",
        not_retried="hangs end the run",
        quick=True,
    ),
    Fault(
        name="a hang: a rank holds the interpreter's lock",
        script="""\
import ctypes
begin(); step()
# Of all calls that wait, one that goes on when a signal has made it write its stacks.
if rank == 2: ctypes.PyDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)
train()
""",
        options=HANG,
        cause="hang",
        ranks=rank(2),
        code=1,
        says="does not answer: a thread may hold the interpreter lock",
        not_retried="hangs end the run",
    ),
    Fault(
        name="a hang: a rank loops for ever",
        script="begin(); step()\nwhile rank == 1: pass\ntrain()",
        options=HANG,
        cause="hang",
        ranks=rank(1),
        code=1,
        says="has not called all_reduce no. 2 of the default group (gloo), in which ranks 0, 2, 3",
        not_retried="hangs end the run",
    ),
    Fault(
        name="a hang: a rank is in another collective",
        script="begin(); step()\nif rank == 3: dist.recv(torch.ones(1), 0)\ntrain()",
        options=HANG,
        cause="hang",
        ranks=rank(3),
        code=1,
        says="ranks 0, 1, 2 wait; it is in the collective recv",
        not_retried="hangs end the run",
    ),
    Fault(
        name="a hang: a rank is in no collective",
        script="begin(); step()\nif rank == 0: threading.Event().wait()\ntrain()",
        options=HANG,
        cause="hang",
        ranks=rank(0),
        code=1,
        says="has not called all_reduce no. 2",
        not_retried="hangs end the run",
    ),
    Fault(
        name="a hang: all ranks are busy, for they wait by polling",
        script=f"""\
begin(); step()
while rank == 1: pass
{POLL}
""",
        options=HANG,
        cause="hang",
        ranks=rank(1),
        code=1,
        says="has not called all_reduce no. 2 of the default group (gloo), in which ranks 0, 2, 3",
        not_retried="hangs end the run",
    ),
    Fault(
        name="a hang: the rank that sleeps is the cause, not those that poll",
        script=f"begin(); step()\nif rank == 3: time.sleep(600)\n{POLL}",
        options=HANG,
        cause="hang",
        ranks=rank(3),
        code=1,
        says="has not called all_reduce no. 2",
        not_retried="hangs end the run",
    ),
    Fault(
        name="a hang: groups are called in another order",
        script="""\
begin()
groups = [dist.new_group(), dist.new_group()]
for group in groups: dist.all_reduce(torch.ones(1), group=group)
for group in reversed(groups) if rank == 2 else groups:
    dist.all_reduce(torch.ones(1), group=group)
""",
        options=HANG,
        cause="hang",
        ranks=rank(2),
        code=1,
        says="waits in all_reduce no. 2 of group 2 (gloo), but ranks 0, 1, 3 wait in all_reduce",
        not_retried="hangs end the run",
    ),
    Fault(
        name="a hang: others of its group wait for a rank that waits for nobody",
        script="""\
begin()
pair = dist.new_group([1, 2], group_desc="pair")
if rank in (1, 2): dist.all_reduce(torch.ones(1), group=pair)
if rank == 2: time.sleep(600)
if rank == 1: dist.all_reduce(torch.ones(1), group=pair)
train()
""",
        options=HANG,
        cause="hang",
        ranks=rank(2),
        code=1,
        says="has not called all_reduce no. 2 of group 1 (pair, gloo), in which rank 1 waits",
        not_retried="hangs end the run",
    ),
    Fault(
        name="a hang: a rank that speaks of its steps falls behind",
        script="""\
from echelon.launch.protocol.rank_shm import RankShm
beacon = RankShm.open(Path(os.environ["ECHELON_BEACON"]))
begin()
for number in range(100_000):
    if rank == 2 and number == 7: time.sleep(600)
    beacon.step = number
    step()
""",
        options=HANG,
        cause="hang",
        ranks=rank(2),
        code=1,
        says="has not called all_reduce no. 8",
        not_retried="hangs end the run",
    ),
    # --- what is lost besides ranks -------------------------------------------------------------
    Fault(
        name="a lost node: its agent is killed",
        script=TRAIN,
        act=_kill("agent", signal.SIGKILL, node=1),
        cause="lost node",
        ranks=None,
        node="node1",
        code=1,
        quick=True,
    ),
    Fault(
        name="a lost node: its agent says nothing any more",
        script=TRAIN,
        act=_kill("agent", signal.SIGSTOP, node=0),
        cause="lost node",
        ranks=None,
        node="node0",
        code=1,
        says="no message for",
    ),
    Fault(
        name="a zygote is killed, and its ranks with it",
        script=TRAIN,
        act=_kill("zygote", signal.SIGKILL, node=1),
        cause="signal",
        ranks=None,
        node="node1",
        code=137,
        says="zygote",
    ),
    Fault(
        name="the last checkpoint cannot be written",
        script="""\
from echelon import Checkpointer
if rank == 1:
    checkpoints = Checkpointer(Path("saved"), rank=0, world_size=1)
    Path("saved").rmdir(); Path("saved").touch()
    checkpoints.save({"w": torch.zeros(3)}, step=7)
    checkpoints.wait()
""",
        cause="exception",
        ranks=rank(1),
        code=1,
        says="the checkpoint of step 7 could not be written to saved: [Errno 20] Not a directory",
        quick=True,
    ),
    Fault(
        name="the last checkpoint cannot be written, and the script does not wait for it",
        script="""\
from echelon import Checkpointer
if rank == 1:
    checkpoints = Checkpointer(Path("saved"), rank=0, world_size=1)
    Path("saved").rmdir(); Path("saved").touch()
    checkpoints.save({"w": torch.zeros(3)}, step=7)
""",
        cause="exception",
        ranks=rank(1),
        code=1,
        says="the checkpoint of step 7 could not be written to saved: [Errno 20] Not a directory",
        quick=True,
    ),
    Fault(
        name="the zygotes are killed in their first import: others take their orders",
        script="begin(); step()",
        act=lambda run: _signal_zygotes(run, signal.SIGKILL),
        cause="",
        ranks=None,
        code=0,
        quick=True,
    ),
    Fault(
        name="a zygote that is suspended in its first import",
        script="begin(); step()",
        act=lambda run: _signal_zygotes(run, signal.SIGSTOP),
        cause="hang",
        ranks=rank(0),
        node="node0",
        code=1,
        says="its zygote, which imports modules and starts ranks, is suspended (SIGSTOP)",
        not_retried="hangs end the run",
        options=HANG,
    ),
    Fault(
        name="a Python in which no zygote comes up",
        script="begin(); step()",
        files={"sitecustomize.py": DYING_ZYGOTE},
        cause="start",
        ranks=None,
        code=69,
        says="died 3 times in a row before it was ready; the last one exited with code 3",
        not_retried="",
        options=("--restarts=3", "--env=PYTHONPATH=."),
        quick=True,
    ),
    Fault(
        name="the controller is told to stop",
        script=TRAIN,
        act=_kill("controller", signal.SIGTERM),
        cause="cancelled",
        ranks=None,
        code=143,
        not_retried="",
    ),
    Fault(
        name="Ctrl-C",
        script=TRAIN,
        act=_interrupt,
        cause="cancelled",
        ranks=None,
        code=130,
        not_retried="",
        timeout_s=30,
    ),
)


def try_fault(fault: Fault, folder: Path) -> list[str]:
    """Let it happen in an empty folder; return what was wrong about what was said of it."""
    script = fault.script if fault.raw else PREAMBLE + fault.script
    for name, text in fault.files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    with (
        limit_memory(fault) as wrapper,
        live_run(folder, script, fault.options, wrapper=wrapper, restarts=None) as run,
    ):
        if fault.act is not None:
            fault.act(run)
        code = run.wait(fault.timeout_s)
        wrong = _compare(fault, code, run.verdict())
        if "--on-hang=stop" in fault.options and (told := run.output.count("  cause: hang")) != 1:
            wrong.append(f"the verdict was reported {told} times")
        return wrong


def _compare(fault: Fault, code: int, verdict: Mapping | None) -> list[str]:
    found = verdict["failure"] if verdict else {"cause": "", "rank": None, "message": ""}
    wrong = []
    if found["cause"] != fault.cause:
        wrong.append(f"cause {found['cause']!r}, not {fault.cause!r}: {found['message'][:300]}")
    allowed = {None} if fault.ranks is None else fault.ranks
    if found["rank"] not in allowed:
        wrong.append(f"rank {found['rank']}, not {sorted(fault.ranks or [])}")
    if code != fault.code:
        wrong.append(f"exit code {code}, not {fault.code}")
    if fault.says not in found["message"]:
        wrong.append(f"message {found['message'][:300]!r} without {fault.says!r}")
    if fault.node and found["node"] != fault.node:
        wrong.append(f"node {found['node']!r}, not {fault.node!r}")
    if verdict and fault.not_retried not in verdict["not_retried"]:
        wrong.append(f"not retried for {verdict['not_retried']!r}, not {fault.not_retried!r}")
    return wrong


# --- little memory ------------------------------------------------------------------------------


def can_limit_memory() -> bool:
    """Tell whether a cgroup of our own can be made here."""
    return os.geteuid() == 0 and _memory_root() is not None


def _memory_root() -> tuple[Path, str] | None:
    """Return where memory cgroups are and the name of the limit: of version 1, or of 2."""
    first, second = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    if os.access(first / "memory.limit_in_bytes", os.R_OK) and os.access(first, os.W_OK):
        return first, "memory.limit_in_bytes"
    controlled = second / "cgroup.subtree_control"
    if os.access(controlled, os.W_OK) and "memory" in controlled.read_text().split():
        return second, "memory.max"
    return None


@contextmanager
def limit_memory(fault: Fault):
    """Give the words that start a command with little memory; none where there is no limit."""
    if not fault.limited:
        yield ()
        return
    root = _memory_root()
    assert root is not None, "ask can_limit_memory first"
    group = root[0] / f"echelon-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / root[1]).write_text(str(_LIMIT_MIB << 20))
        yield ("bash", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "bash")
    finally:
        group.rmdir()
