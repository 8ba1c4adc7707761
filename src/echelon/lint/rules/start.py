"""E201 and E202: ranks that nothing starts, or that are started twice."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from echelon.lint.bash import Command, Where
from echelon.lint.facts import ranks_per_launch, runs_always, spawns
from echelon.lint.files import beside
from echelon.lint.launches import Launch
from echelon.lint.patterns import pattern
from echelon.lint.python_script import PythonScript, is_conditional
from echelon.lint.request import read_step
from echelon.lint.rule import ADVICE, ERROR, WARNING, Hit, Rule
from echelon.lint.rules.arrays import find_same_tasks
from echelon.lint.rules.idle import find_unused_tasks
from echelon.lint.rules.nodes import render_hostfile
from echelon.lint.subject import Started, Subject

_SPREADERS = frozenset(
    {
        *("srun", "mpirun", "mpiexec", "orterun", "ssh", "pdsh", "clush", "deepspeed", "ray"),
        *("echelon", "parallel", "pssh", "sbcast", "horovodrun", "jsrun", "prun", "aprun", "xargs"),
    }
)
ONCE_PER_NODE = "srun --ntasks=$SLURM_JOB_NUM_NODES --ntasks-per-node=1"
"""With both options, because srun otherwise keeps the number of tasks of the job."""
_JOINS_RAY = pattern(r"--address\b|symmetric.run|ray up\b|RAY_ADDRESS|start_worker|ray_worker")
"""Text of scripts that add nodes to a Ray cluster."""
_INSTALLERS = frozenset({"pip", "venv", "ensurepip", "virtualenv"})
_CONTACTS_OTHERS = pattern(r"\b(?:submitit|subprocess|ray|dask|mpi4py|paramiko)\b")
"""Words in scripts that may start processes on the other nodes themselves."""
_COPIES = 2
_OF_NODE = pattern(r"(?i)TMP|scratch|/local|/ssd|nvme|/dev/shm")
"""Directories that nodes often have for themselves."""
_COPIES_FILES = pattern(r"\b(?:cp|rsync|tar|unzip|scp)\b")
_OF_TASK = pattern(r"PROCID|LOCALID|NODEID|\bRANK\b|--multi-prog|hostname")
_TELLS_TASKS = pattern(
    r"rank|SLURM|PMI|mpi|distributed|horovod|lightning|accelerate|Trainer|jax|tensorflow|submitit|"
    r"\bray\b|dask|hostname|getpid|subprocess|importlib|environ|getenv|deepspeed|fabric",
    re.IGNORECASE,
)
"""Words of scripts that may tell their tasks apart, or that lint cannot follow."""
_WORLD_OF_SLURM = pattern(
    r"world_size\s*=\s*int\(\s*os\.(?:environ|getenv)\W+SLURM_N(?:TASK|PROC)S\b"
)
"""A world size that the script takes from Slurm in any case."""
_NUMBERS_OF_TASKS = frozenset(
    {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}
)


_READS = pattern(r"\b(?:environ(?:\.get\(|\[)|getenv\()\s{0,9}['\"](\w+)['\"]")
_PASSED_BY_DEEPSPEED = ("MLFLOW", "NCCL", "PYTHON", "MV2", "UCX", "LD_LIBRARY", "PATH")
"""Beginnings of the names of variables that deepspeed passes to other nodes."""


def find_missing_srun(subject: Subject) -> Iterator[Hit]:
    yield from _one_of_several_tasks(subject)
    yield from find_unused_tasks(subject)
    yield from _filled_on_one_node(subject)
    if not subject.is_job or not subject.job.several_nodes:
        return
    yield from _ray_on_one_node(subject)
    hosts = "hostfile" in subject.text.lower() or "deepspeed.json" in subject.text
    for command in (c for c in subject.commands if not c.substituted):
        spreads = _SPREADERS & {word.text.rpartition("/")[2] for word in command.words}
        if spreads - {"deepspeed"} or (spreads and hosts):
            return
        if "hostfile" in command.text:
            return
        if "-m" in (texts := [w.text for w in command.words]) and "echelon" in texts:
            return
    for one in [one for one in subject.started if not _installs(one.launch)][-1:]:
        python = one.python
        if python is not None and _CONTACTS_OTHERS.search(python.text + python.neighbours):
            return
        if python is None and any(
            w.text.endswith((".sh", ".sbatch")) for w in one.launch.arguments
        ):
            return  # the program may run this script, which may call srun
        count = subject.job.fewest_nodes or 2
        waits = _expects_others(one.launch)
        alone = one.launch.launcher is not None and one.launch.launcher.kind == "deepspeed"
        yield Hit(
            at=one.launch,
            what=f"Without a hostfile, deepspeed uses only the first of {count} nodes."
            if alone
            else f"This runs only on the first of {count} nodes, because srun does not start it."
            + (" It waits for the other nodes until it times out." if waits else ""),
            fix=_started_by_srun(one) + (_not_passed(subject, one) if alone else ""),
            # A program that lint cannot read may contact the other nodes itself.
            severity=None
            if (one.launch.launcher or one.python is not None) and runs_always(one.launch)
            else WARNING,
        )


def _filled_on_one_node(subject: Subject) -> Iterator[Hit]:
    """Find directories that srun makes on all nodes, and that only the first node fills."""
    batch = subject.batch
    if batch is None or not subject.is_job:
        return
    made = [(c, folder) for c, folder in _made_by_steps(subject) if c.path == subject.path]
    copies = [c.text for c, _, _ in subject.sruns if _COPIES_FILES.search(c.text)]
    for command in batch.commands if "sbcast" not in batch.text else ():
        target = _filled(command)
        for step, folder in made:
            if command.line < step.line or not f"{target}/".startswith(f"{folder}/"):
                continue
            joined = "&&" in subject.line_at(step) and command.line == step.line
            local = _OF_NODE.search(folder)
            if (not joined and not local) or any(folder in text for text in copies):
                continue
            yield Hit(
                at=command,
                what=f"{command.name} runs only on the first of {subject.job.fewest_nodes} nodes. "
                f"srun makes {folder} on all of them, and on the others it stays empty unless "
                "they share it.",
                fix=f"{ONCE_PER_NODE} bash -c 'mkdir -p … && {command.name} …'",
                severity=ADVICE,
            )
            return


def _made_by_steps(subject: Subject) -> Iterator[tuple[Command, str]]:
    """Yield the directories outside the working directory that a step makes on several nodes."""
    for command, options, rest in subject.sruns:
        name = rest[0].text.rpartition("/")[2] if rest else ""
        several = read_step(subject.job, options).several_nodes
        for word in rest[1:] if several and name == "mkdir" else ():
            folder = word.text.rstrip("/")
            if folder.startswith(("/", "$")) and not folder.startswith(("${HOME}", "/home")):
                yield command, folder


def _filled(command: Command) -> str:
    """Return the directory into which a command copies or unpacks; empty if there is none."""
    texts = [word.text for word in command.arguments]
    option = {"tar": "-C", "unzip": "-d"}.get(command.name)
    if option is not None:
        return next((b.rstrip("/") for a, b in pairwise(texts) if a == option), "")
    plain = [text for text in texts if not text.startswith("-")]
    copies = command.name in ("cp", "rsync") and len(plain) > 1
    return plain[-1].rstrip("/") if copies and ":" not in plain[-1] else ""


def _one_of_several_tasks(subject: Subject) -> Iterator[Hit]:
    """Find a script that expects as many ranks as the job has tasks, but is started once."""
    tasks = subject.job.tasks or 0
    spread = any(
        _SPREADERS & {w.text.rpartition("/")[2] for w in c.words} for c in subject.commands
    )
    if not subject.is_job or subject.job.several_nodes or tasks < 2 or spread:
        return
    for one in subject.started:
        python, launch = one.python, one.launch
        if python is None or launch.launcher or launch.command.background or spawns(python):
            continue
        if python.calls("init_process_group") and _WORLD_OF_SLURM.search(python.text):
            yield Hit(
                at=launch,
                what=f"{python.path} expects {tasks} ranks from SLURM_NTASKS, but only one starts, "
                "because srun does not start it. It waits for the others until it times out.",
                fix=_started_by_srun(one),
            )
            return


def _installs(launch: Launch) -> bool:
    return launch.module and launch.program is not None and launch.program.text in _INSTALLERS


def _expects_others(launch: Launch) -> bool:
    """Tell whether a launcher waits for other nodes."""
    option = launch.launcher.option("nnodes", "num-machines") if launch.launcher else None
    return option is not None and option.text not in ("1", "1:1")


def _started_by_srun(one: Started) -> str:
    """Return a command that starts a launcher once per node, or Python once per task."""
    launch, tasks = one.launch, one.launch.amounts.tasks_per_node
    name = launch.command.name
    if launch.launcher is not None and launch.launcher.kind == "deepspeed":
        return render_hostfile(launch)
    if launch.launcher is not None:
        return f"srun {name} …" if tasks == 1 else f"{ONCE_PER_NODE} {name} …"
    python = one.python
    if python is not None and not _TELLS_TASKS.search(python.text + python.neighbours):
        return "#SBATCH --nodes=1  # the script is one process; or srun, if it is made for several"
    gpus = launch.amounts.gpus_per_node or 0
    if tasks == 1 and gpus > 1 and not spawns(one.python):
        return f"srun {name} …  # with #SBATCH --ntasks-per-node={gpus}, one task per GPU"
    unread = "  # if the script is made for several processes; otherwise #SBATCH --nodes=1"
    return f"srun {name} …{'' if python else unread}"


def _not_passed(subject: Subject, one: Started) -> str:
    """Return how deepspeed passes the variables of the job that a script reads."""
    text = one.python.text if one.python is not None else ""
    own = {assignment.name for assignment in one.launch.command.assignments}
    known = (subject.exported | own) & set(_READS.findall(text))
    names = sorted(name for name in known if not name.startswith(_PASSED_BY_DEEPSPEED))
    if not names:
        return ""
    return (
        f"\nwrite {' and '.join(names)} to ./.deepspeed_env as NAME=value, because deepspeed does "
        "not pass all variables to the other nodes"
    )


def _ray_on_one_node(subject: Subject) -> Iterator[Hit]:
    """Find a Ray cluster of one node, in a job of several."""
    text = "\n".join(shell.text for shell in subject.shells)
    if _JOINS_RAY.search(text):
        return
    for command in subject.commands:
        texts = [word.text for word in command.words]
        if "ray" in texts and "start" in texts and "--head" in texts:
            yield Hit(
                at=command,
                what=f"Ray runs only on the first of {subject.job.fewest_nodes} nodes, because no "
                "`ray start --address` adds the others.",
                fix="srun --nodes=$((SLURM_JOB_NUM_NODES - 1)) "
                "--ntasks=$((SLURM_JOB_NUM_NODES - 1)) --exclude=$(hostname) "
                'ray start --address="$(hostname):6379" --block &  # after the head has started',
            )
            return


def find_launcher_per_task(subject: Subject) -> Iterator[Hit]:
    yield from _starts_twice(subject)
    yield from _same_work(subject)
    yield from find_same_tasks(subject)
    for one in subject.started:
        launch, tasks = one.launch, one.launch.amounts.tasks_per_node
        if launch.launcher is None or launch.srun is None or not tasks or tasks < 2:
            continue
        ranks = ranks_per_launch(launch)
        option = launch.launcher.option("nproc-per-node")
        counted = option is not None and "GPU" in option.text.upper()
        gpus = launch.amounts.gpus_per_node or 0
        if (ranks or 0) > 1 or (ranks is None and counted and gpus > 1):
            yield Hit(
                at=launch,
                what=f"srun starts {launch.launcher.name} {tasks} times on each node, and each "
                "instance tries to start all ranks of the node.",
                fix=_once_per_node(subject, launch),
                severity=None
                if _runs_always(subject, launch) and not _has_own_gpus(launch)
                else WARNING,
            )


def _runs_always(subject: Subject, launch: Launch) -> bool:
    """Tell whether a launch is in no branch, also not in one of an inner shell."""
    place = (launch.path, launch.line)
    inner = (c for s in subject.shells[1:] for c in s.commands if (c.path, c.line) == place)
    return runs_always(launch) and all(command.certain for command in inner)


def _has_own_gpus(launch: Launch) -> bool:
    """Tell whether each task may be a node of its own for a launcher."""
    option = launch.launcher.option("node-rank", "machine-rank") if launch.launcher else None
    by_task = option is not None and "SLURM_PROCID" in {*option.names, option.text.strip("${}")}
    return by_task or bool(launch.amounts.gpus_per_task)


def _same_work(subject: Subject) -> Iterator[Hit]:
    """Find a script that srun starts several times, and that cannot tell its tasks apart."""
    if any(_OF_TASK.search(shell.text) for shell in subject.shells):
        return
    for one in subject.started:
        launch, python, tasks = one.launch, one.python, one.launch.amounts.tasks or 0
        if launch.srun is None or launch.launcher or python is None or tasks < _COPIES:
            continue
        if launch.mpi or launch.command.background or launch.command.where is not Where.BATCH:
            continue
        if _imports_package(subject, python):
            continue
        if not _TELLS_TASKS.search(python.text + python.neighbours):
            yield Hit(
                at=launch,
                what=f"srun starts the script {tasks} times, and all tasks do the same work: "
                f"{python.path} does not read its rank.",
                fix="srun --ntasks=1 …  # and --cpus-per-task instead of --ntasks for more CPUs",
                severity=WARNING,
            )
            return


def _imports_package(subject: Subject, python: PythonScript) -> bool:
    """Tell whether a script imports a package that is elsewhere, so that lint does not read it."""
    names = {alias.name for n in python.nodes if isinstance(n, ast.Import) for alias in n.names}
    names |= {n.module or "" for n in python.nodes if isinstance(n, ast.ImportFrom)}
    tops = {name.partition(".")[0] for name in names} - {""}
    is_folder = subject.files.is_folder
    return any(is_folder(top) and not is_folder(beside(python.path, top)) for top in tops)


def _starts_twice(subject: Subject) -> Iterator[Hit]:
    """Find two programs that both start all ranks: srun and deepspeed, or torchrun and mp.spawn."""
    for one in subject.started:
        launch, launcher = one.launch, one.launch.launcher
        if launcher is None:
            continue
        ssh = launcher.kind == "deepspeed" and "hostfile" in launcher.options
        if ssh and launch.srun is not None and launch.amounts.several_nodes:
            if "no-ssh" not in launcher.options:
                yield Hit(
                    at=launch,
                    what="srun starts deepspeed on each node, and each instance starts the ranks "
                    "of all nodes in the hostfile.",
                    fix="deepspeed …  # without srun",
                )
        elif (ranks_per_launch(launch) or 0) > 1 and one.python is not None:
            calls = one.python.calls("spawn", "start_processes")
            if calls and not any(is_conditional(one.python, call) for call in calls):
                yield Hit(
                    at=one.python.at(calls[0]),
                    what=f"{launcher.name} starts one process per rank, and here each of them "
                    "starts all ranks again.",
                    fix=f"python {launch.program.text if launch.program else '…'}"
                    f"  # without {launcher.name}",
                )


def _once_per_node(subject: Subject, launch: Launch) -> str:
    options = launch.launcher.options.values() if launch.launcher else ()
    derived = any(word.names & _NUMBERS_OF_TASKS for word in options)
    if derived or {"ntasks", "ntasks-per-node"} & set(launch.srun or ()):
        # The request stays as it is, because the script computes other numbers from it.
        return f"{ONCE_PER_NODE} …{_nodes_too(launch)}"
    total = subject.directives.last("ntasks")
    instead = f"  # instead of --ntasks={total.value}" if total else ""
    return f"#SBATCH --ntasks-per-node=1{instead}"


def _nodes_too(launch: Launch) -> str:
    """Return the number of nodes, if the launcher is given that of the tasks."""
    given = launch.launcher.option("nnodes") if launch.launcher else None
    wrong = given is not None and given.number not in (None, launch.amounts.nodes)
    return " --nnodes=$SLURM_JOB_NUM_NODES …" if wrong else ""


RULES = (
    Rule(
        code="E201",
        title="several nodes or tasks without srun",
        severity=ERROR,
        check=find_missing_srun,
        why="A job script runs once, on the first node of the job. Only srun, or a similar "
        "launcher such as mpirun, starts the other tasks and processes on the other nodes. "
        "A command after `srun … &&` runs on the first node.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=2
 #SBATCH --ntasks-per-node=1
 #SBATCH --exclusive
-torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=$HOSTNAME:29500 train.py    # <- here
+srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=$HOSTNAME:29500 train.py
""",
    ),
    Rule(
        code="E202",
        title="launcher or script started too often",
        severity=ERROR,
        check=find_launcher_per_task,
        why="torchrun starts all ranks of a node. If srun starts torchrun once per GPU, there are "
        "too many ranks, or the rendezvous never completes. The same happens if torchrun starts a "
        "script that calls `mp.spawn`, or srun starts deepspeed with a hostfile. A script that "
        "does not read its rank does the same work in every task, which is a warning.",
        example="""\
 #!/bin/bash
 #SBATCH --cpus-per-gpu=8
 #SBATCH --nodes=1
-#SBATCH --ntasks-per-node=4
+#SBATCH --ntasks-per-node=1
 #SBATCH --gpus-per-node=4
 srun torchrun --standalone --nproc_per_node=4 train.py    # <- here
""",
    ),
)
