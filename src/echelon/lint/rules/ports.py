"""E301 to E305: the port of the rendezvous."""

import ast
import re
from collections.abc import Iterator

from echelon.lint.bash import Assignment, Where, Word
from echelon.lint.facts import ranks_per_launch
from echelon.lint.files import Place
from echelon.lint.launches import Launch, Launcher
from echelon.lint.patterns import pattern
from echelon.lint.python_script import (
    PythonScript,
    constant,
    is_conditional,
    keyword,
    origin,
    unparse,
)
from echelon.lint.rule import ADVICE, WARNING, Hit, Located, Rule
from echelon.lint.subject import Subject

_PORT_OPTIONS = ("master-port", "main-process-port")
_MANY_GPUS = 4
_FIRST_FREE = 1024
"""Only root may use lower ports."""
_LAST = 65535
_SUM = pattern(
    r"\$\(\(\s*(?P<base>\d{1,9})\s*\+\s*\(?\s*\$?\{?(?P<of>[A-Za-z_]\w*)\}?\s*%\s*(?P<part>\d{1,9})\s*\)?\s*\)\)"
)
"""A port such as $((20000 + SLURM_JOB_ID % 10000))."""
_JOB_ID = frozenset({"SLURM_JOB_ID", "SLURM_JOBID"})
_FRAMEWORKS = ("lightning", "Lightning", "init_process_group", "init_distributed", "Accelerator")
_FREE_PORT = """\
export MASTER_PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); \
print(s.getsockname()[1])')"""
_SERVERS = {
    "vllm serve": "8000",
    "vllm.entrypoints": "8000",
    "sglang.launch_server": "30000",
    "http.server": "8000",
    "uvicorn": "8000",
    "mlflow server": "5000",
    "redis-server": "6379",
    "llama-server": "8080",
    "text-generation-launcher": "",
    "ray start": "",
    "tensorboard": "",
}
"""Servers with their default ports; empty if they look for a free one."""
_NAMED_SERVER = pattern(r"(?i)\b(?:start|run|launch)_?server\b|\bserver\.py\b|\bserve(?:\.py)?\b")
_SERVED_AT = pattern(
    r"(?:--port[ =]|http\.server )(\d{4,5})\b|(?:--bind|-b)[ =]\S{0,40}:(\d{4,5})\b"
)
_LOCAL_URL = pattern(r"https?://(?:localhost|127\.0\.0\.1):(\d{4,5})\b")
_SET_IN_JOB = f"set the port in the job script instead:\n{_FREE_PORT}"
_OLD_TORCH = pattern(
    r"(?i)(?:^|[\s/_-])(?:(?:py)?torch[-/=_]{1,2}(?:1\.\d|2\.0\b)|python[\w/-]{0,20}[/=-]3\.[5-7]\b)"
)
"""A PyTorch before 2.1, whose `--standalone` has a fixed port, or a Python without a later one."""
_RETRY = "echelon script --style torchrun …  # prints a script that retries with another port"


def ports(subject: Subject) -> Iterator[Assignment]:
    """Yield the ports of a script, each at the place that sets it: a variable or an option."""
    words = [(one.launch, word) for one in subject.started for word in _port_words(one.launch)]
    made = [_makers(subject, word) for _, word in words]
    given = [maker for makers in made for maker in makers]
    if any(maker.name == "MASTER_PORT" for maker in given) or _is_read(subject, "MASTER_PORT"):
        yield from subject.assigned("MASTER_PORT")
    yield from (maker for maker in given if maker.name != "MASTER_PORT")
    for (launch, word), makers in zip(words, made, strict=True):
        if not makers:
            path, line = launch.place_of(word, subject.path)[:2]
            where = launch.command.where
            yield Assignment(name="", value=word, path=path, line=line, where=where, certain=True)


def _makers(subject: Subject, word: Word) -> list[Assignment]:
    """Return the assignments that a port option takes its port from."""
    port = word.text.rpartition(":")[2].strip("\"'")
    named = set(re.findall(r"\$\{?(\w+)", port)) if not port.isdecimal() else set()
    found = [a for a in subject.assignments if a.name in named and _is_port(a)]
    if port.isdecimal():
        # The text of a nested shell contains the number instead of the variable.
        found = [a for a in subject.assignments if a.value.text == port and _has_port(a, word)]
    return found


def _has_port(assignment: Assignment, word: Word) -> bool:
    return "PORT" in assignment.name.upper() or (
        assignment.name in word.names and assignment.value.number is not None
    )


def _is_read(subject: Subject, name: str) -> bool:
    """Tell whether a program may read a variable that the script sets."""
    set_for = (one.launch.variables for one in subject.started)
    if name not in subject.exported and not any(name in names for names in set_for):
        return False
    pythons = [one.python for one in subject.started if one.launch.launcher is None]
    return not subject.started or any(
        python is None or python.is_distributed or python.mentions(name, *_FRAMEWORKS)
        for python in pythons
    )


def _is_port(assignment: Assignment) -> bool:
    value = assignment.value
    made = value.number is not None or _is_probe(value) or bool(value.names & _JOB_ID)
    return made or _lowest(value) is not None or assignment.name == "MASTER_PORT"


def _port_words(launch: Launch) -> Iterator[Word]:
    if launch.launcher is not None:
        for name in (*_PORT_OPTIONS, "rdzv-endpoint"):
            if (word := launch.launcher.options.get(name)) is not None:
                yield word
    for word in launch.arguments:
        if "tcp://" in word.text:
            yield word


def _is_probe(value: Word) -> bool:
    """Tell whether a command binds a free port, prints it and releases it."""
    texts = (command.text for command in value.commands)
    return any("getsockname()[1]" in text or "server_address[1]" in text for text in texts)


def _is_exclusive(subject: Subject) -> bool:
    """Tell whether the job shares its nodes with no other job."""
    given = subject.directives.last("exclusive")
    return given is not None and given.value not in ("user", "mcs", "topo")


def _shares(subject: Subject) -> bool:
    """Tell whether other jobs likely run on the node: the job has one, and few of its GPUs."""
    return subject.job.nodes == 1 and 0 < (subject.job.gpus_per_node or 0) < _MANY_GPUS


def find_fixed_port(subject: Subject) -> Iterator[Hit]:
    if _is_exclusive(subject):
        return
    if subject.is_job and not _starts_no_group(subject):
        found = list(ports(subject))
        for number, port in enumerate(found):
            replaced = any(_replaces(subject, later, port) for later in found[number + 1 :])
            if (text := _literal_port(port.value)) and not replaced:
                yield _fixed(port, text, _FREE_PORT)
    if subject.is_job:
        yield from _served(subject)
    for python in subject.pythons:
        for line, value in python_ports(python):
            if isinstance(given := constant(value), str | int) and str(given) != "0":
                yield _fixed(Place(python.path, line), str(given), _SET_IN_JOB)


def _served(subject: Subject) -> Iterator[Hit]:
    """Find servers in the background whose port is the same in each job."""
    text = "\n".join(shell.text for shell in subject.shells)
    used = _LOCAL_URL.search(text)
    told = set[str]()
    # A person chooses the port of a server that is the only program.
    works = any(not one.launch.command.background for one in subject.started)
    few = 0 < (subject.job.gpus_per_node or 0) < _MANY_GPUS
    for command in subject.commands if works and few else ():
        known = next((port for name, port in _SERVERS.items() if name in command.text), None)
        if not command.background or (known is None and not _NAMED_SERVER.search(command.text)):
            continue
        given = _SERVED_AT.search(command.text)
        port = given[1] or given[2] if given else ""
        if not port and "port" not in command.text.lower():
            port = known or (used[1] if used and known is None else "")
        if port and port not in told:
            told.add(port)
            yield Hit(
                at=command,
                what=f"The server has port {port} in each job. If two such jobs share a node, the "
                "second one fails with 'address already in use', or uses the server of the first.",
                fix=_FREE_PORT.replace("MASTER_PORT", "PORT"),
                severity=ADVICE,
            )


def _replaces(subject: Subject, later: Assignment, port: Assignment) -> bool:
    """Tell whether a variable gets another value before anything uses the first one."""
    if later.name != port.name or later.path != port.path or not later.certain:
        return False
    return not any(port.line < one.launch.line < later.line for one in subject.started)


def _starts_no_group(subject: Subject) -> bool:
    """Tell whether nothing opens the port: no launcher, and no script with a process group.

    A program that cannot be read may have one.
    """
    if subject.distributed or any(one.launch.launcher for one in subject.started):
        return False
    return bool(subject.started) and all(one.python for one in subject.started)


def _literal_port(value: Word) -> str:
    if value.number:
        return value.text
    match = re.search(r":(\d{2,5})$", value.text)
    if match is None or value.text.startswith(("localhost:0", "127.0.0.1:0")):
        return ""
    return match[1]


def _fixed(at: Located, number: str, fix: str) -> Hit:
    return Hit(
        at=at,
        what=f"Port {number} is hard-coded. If two such jobs share a node, the second one fails "
        "with 'address already in use'.",
        fix=fix,
    )


def python_ports(python: PythonScript) -> Iterator[tuple[int, ast.expr]]:
    """Yield the values that a script unconditionally sets MASTER_PORT to."""
    for node in python.nodes:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Subscript):
            continue
        if is_conditional(python, node):  # usually a default for when it is not set
            continue
        target = node.targets[0]
        if unparse(target.value).endswith("environ") and constant(target.slice) == "MASTER_PORT":
            yield node.lineno, node.value
    for call in python.calls("init_process_group"):
        method = constant(keyword(call, "init_method", 1))
        match = re.fullmatch(r"tcp://[^:]*:(\d+)", method) if isinstance(method, str) else None
        if match:
            yield call.lineno, ast.Constant(match[1])


def find_default_port(subject: Subject) -> Iterator[Hit]:
    if _is_exclusive(subject) or not subject.is_job:
        return
    for one in subject.started:
        launcher = one.launch.launcher
        # accelerate looks for a free port itself.
        if launcher is None or launcher.kind == "accelerate" or not launcher.complete:
            continue
        if launcher.kind == "deepspeed" and (ranks_per_launch(one.launch) or 0) < 2:
            continue
        given = {"standalone", *_PORT_OPTIONS} & set(launcher.options)
        if given or (
            not one.launch.amounts.gpus_per_node and launcher.option("nproc-per-node") is None
        ):
            continue
        endpoint = launcher.option("rdzv-endpoint")
        if endpoint is not None and not _has_no_port(subject, endpoint):
            continue
        if subject.job.nodes is None and endpoint is None:
            continue
        port = 29500 if endpoint is None else 29400
        yield Hit(
            at=one.launch.place_of(endpoint, subject.path),
            what=f"No port is given, so {launcher.name} uses its default, {port}. A second job on "
            "the node fails, or joins this one.",
            fix=_port_option(subject, launcher),
            severity=None if _shares(subject) else ADVICE,
        )


def _port_option(subject: Subject, launcher: Launcher) -> str:
    if launcher.kind == "deepspeed":
        return f"{_FREE_PORT}\n--master_port=$MASTER_PORT"
    if subject.job.nodes != 1:
        return f"{_FREE_PORT}\n--rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT"
    old = _OLD_TORCH.search(subject.text)
    return "--rdzv_backend=c10d --rdzv_endpoint=localhost:0" if old else "--standalone"


def _has_no_port(subject: Subject, endpoint: Word) -> bool:
    if ":" in re.sub(r"\$\{\w+:[-=?+]", "", endpoint.text):
        return False
    for use in endpoint.uses:
        made = [assignment.value for assignment in subject.assigned(use.name)]
        host = use.name in ("HOSTNAME", "SLURMD_NODENAME") or use.name.startswith("SLURM_")
        if not host and (not made or any(_may_hold_port(value) for value in made)):
            return False
    return True


def _may_hold_port(value: Word) -> bool:
    outside = re.sub(r"\$\(.*\)", "", value.text, flags=re.DOTALL)
    return ":" in outside or any(c.name not in _HOST_COMMANDS for c in value.commands)


_HOST_COMMANDS = frozenset({"hostname", "scontrol", "head", "srun", "cut", "awk", "sed", "uname"})


def _ports_of_job_id(subject: Subject) -> Iterator[Hit]:
    for port in ports(subject):
        if _is_octal(subject, port):
            yield Hit(
                at=port,
                what="Bash reads digits of the job ID with a leading zero as octal. If the ID ends "
                "in 0089, the port is empty; with 0012, it is another one than you expect.",
                fix="$((10000 + SLURM_JOB_ID % 10000))",
            )
        elif port.value.names & _JOB_ID and not (_is_probe(port.value) or _names_only(port.value)):
            yield _of_job_id(port, _FREE_PORT)
    for python in subject.pythons:
        for line, value in python_ports(python):
            if "SLURM_JOB" in origin(python, value):
                yield _of_job_id(Place(python.path, line), _SET_IN_JOB)


def _is_octal(subject: Subject, port: Assignment) -> bool:
    """Tell whether bash calculates with the last digits of the job ID, cut from its text."""
    made = [port, *(a for a in subject.assignments if a.name in port.value.names)]
    lines = "\n".join(subject.line_at(one) for one in made)
    cut = re.search(
        r"\$\{SLURM_JOB_?ID:(\s+-|\s*\(\s*-?)?\d|"  # ${NAME:-0} is a default, and cuts nothing
        r"SLURM_JOB_?ID\}?\S*\s*\|\s*(tail -c|cut -c|grep -o)",
        lines,
    )
    return bool(cut) and "$((" in subject.line_at(port) and "10#" not in lines


def find_unsuitable_port(subject: Subject) -> Iterator[Hit]:
    for port in ports(subject):
        low = _lowest(port.value)
        if low is not None and low < _FIRST_FREE and port.where is Where.BATCH:
            yield Hit(
                at=port,
                what=f"The port can be as low as {low}. Only root may use ports below 1024, so the "
                "job fails from time to time.",
                fix="export MASTER_PORT=$((20000 + RANDOM % 10000))",
            )
    yield from _ports_too_high(subject)
    if not _is_exclusive(subject):
        yield from _ports_of_job_id(subject)


def _ports_too_high(subject: Subject) -> Iterator[Hit]:
    for port in ports(subject):
        found = _SUM.search(subject.line_at(port))
        if found is None or port.where is not Where.BATCH:
            continue
        largest = int(found["part"]) - 1
        highest = int(found["base"]) + (min(largest, 32767) if found["of"] == "RANDOM" else largest)
        if highest > _LAST:
            yield Hit(
                at=port,
                what=f"The port can be as high as {highest}, but the highest is {_LAST}. The job "
                "fails from time to time.",
                fix=f"$((20000 + {found['of']} % 40000))",
            )


def _lowest(value: Word) -> int | None:
    """Return the lowest number that a random port can be; None if it is not random."""
    text = value.text.strip()
    if re.fullmatch(r"\$\{?RANDOM\}?|\$\(\(\s*\$?\{?RANDOM\}?\s*(%\s*\d+\s*)?\)\)", text):
        return 0
    for command in value.commands:
        found = re.search(r"-i\s*([0-9]{1,5})-[0-9]{1,5}\b", command.text)
        if command.name == "shuf" and found and len(value.commands) == 1:
            return int(found[1]) if text.startswith(("$(shuf", "`shuf")) else None
    return None


def _names_only(value: Word) -> bool:
    """Tell whether the job ID is in the host part of an endpoint, not in the port."""
    return ":" in value.text and not re.search(r":\$[^:]*$", value.text)


def _of_job_id(at: Located, fix: str) -> Hit:
    return Hit(
        at=at,
        what="Two jobs on a node get the same port if their job IDs end in the same digits. The "
        "port may also be in use already.",
        fix=fix,
        severity=ADVICE,
    )


def find_released_port(subject: Subject) -> Iterator[Hit]:
    if any("EADDRINUSE" in shell.text for shell in subject.shells) or _is_exclusive(subject):
        return
    for port in ports(subject):
        if _is_probe(port.value) and port.where is Where.BATCH:
            yield Hit(
                at=port,
                what="The port is released as soon as it is chosen. Another job can take it before "
                "rank 0 listens on it.",
                fix=_RETRY,
            )


def find_port_per_task(subject: Subject) -> Iterator[Hit]:
    several = any(
        one.launch.srun is not None and one.launch.amounts.several_tasks for one in subject.started
    )
    for port in ports(subject):
        random = "RANDOM" in port.value.names or any(
            command.name in ("shuf", "jot") for command in port.value.commands
        )
        if several and port.where is Where.TASK and (random or _is_probe(port.value)):
            yield Hit(
                at=port,
                what="Each task chooses its own port, so the ranks never connect to each other.",
                fix=f"{_FREE_PORT}  # in the job script, before srun",
            )


RULES = (
    Rule(
        code="E301",
        title="hard-coded port",
        severity=ADVICE,
        check=find_fixed_port,
        why="Several jobs can run on a node, and Slurm does not assign ports to them. With "
        "`--exclusive`, the node runs only one job, and a fixed port is safe. Unless the job has "
        "one node and up to three of its GPUs, this is advice: other jobs often have whole nodes. "
        "A server that the script starts for itself has the same problem.",
        example="""\
 #!/bin/bash
 #SBATCH --cpus-per-gpu=8
 #SBATCH --nodes=1
 #SBATCH --ntasks-per-node=2
 #SBATCH --gpus-per-node=2
+#SBATCH --exclusive
 export MASTER_PORT=29500    # <- here
 export MASTER_ADDR=$(hostname)
 srun python train.py
""",
    ),
    Rule(
        code="E302",
        title="rendezvous without a port",
        severity=WARNING,
        check=find_default_port,
        why="torchrun uses port 29500 by default, and 29400 with a c10d endpoint. If another job "
        "on the node uses the same default, a node can even join that job's store. "
        "`--standalone` looks for a free port since PyTorch 2.1.",
        example="""\
 #!/bin/bash
 #SBATCH --cpus-per-gpu=8
 #SBATCH --nodes=1
 #SBATCH --gpus-per-node=2
-torchrun --nproc_per_node=2 train.py    # <- here
+torchrun --standalone --nproc_per_node=2 train.py
""",
    ),
    Rule(
        code="E303",
        title="port that may be taken or invalid",
        severity=WARNING,
        check=find_unsuitable_port,
        why="Only root may use ports below 1024, and `$RANDOM` starts at 0. The last digits of job "
        "IDs repeat, so two jobs can get the same port; that is reported as advice.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=2
-export MASTER_PORT=$((RANDOM % 65536))    # <- here
+export MASTER_PORT=$((20000 + RANDOM % 10000))
 export MASTER_ADDR=$(hostname)
 srun python train.py
""",
    ),
    Rule(
        code="E304",
        title="port released before it is used",
        severity=ADVICE,
        check=find_released_port,
        why="The command binds a free port, prints it and releases it. This is much safer than a "
        "fixed port. A script that also retries on EADDRINUSE is safer still.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=2
-MASTER_PORT=$(python -c 'import socket; s=socket.socket(); s.bind(("", 0)); \
print(s.getsockname()[1])')    # <- here
-export MASTER_PORT MASTER_ADDR=$(hostname)
-srun python train.py
+export MASTER_ADDR=$(hostname)
+for try in 1 2 3; do
+    MASTER_PORT=$(python -c 'import socket; s=socket.socket(); s.bind(("", 0)); \
print(s.getsockname()[1])')
+    export MASTER_PORT
+    srun python train.py 2> errors && break
+    grep -q EADDRINUSE errors || exit 1
+done
""",
    ),
    Rule(
        code="E305",
        title="port chosen by each task",
        severity=WARNING,
        check=find_port_per_task,
        why="All ranks must use the same port: the one on which rank 0 listens.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=2
 export MASTER_ADDR=$(hostname)
-srun bash -c 'export MASTER_PORT=$((20000 + RANDOM % 10000)); python train.py'    # <- here
+export MASTER_PORT=$((20000 + RANDOM % 10000))
+srun python train.py
""",
    ),
)
