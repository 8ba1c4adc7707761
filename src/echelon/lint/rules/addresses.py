"""E306 to E308: the host of the rendezvous, and rank variables that expand too early."""

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from echelon.core.nodes import expand
from echelon.errors import UsageError
from echelon.lint.bash import Assignment, Command, Where, Word
from echelon.lint.facts import PER_TASK, reads_variables
from echelon.lint.files import Place
from echelon.lint.launches import Launch
from echelon.lint.patterns import pattern
from echelon.lint.python_guards import guards
from echelon.lint.python_script import constant, is_conditional
from echelon.lint.request import Amounts, read_step
from echelon.lint.rule import ADVICE, ERROR, WARNING, Hit, Located, Rule
from echelon.lint.subject import Subject

_OWN_HOST = frozenset({"HOSTNAME", "SLURMD_NODENAME", "HOST"})
_LOOPBACK = pattern(r"(localhost|127\.0\.0\.1|0\.0\.0\.0|::1)(:.*)?")
_ALL_NODES = pattern(
    r"\$\{?SLURM_(JOB_|STEP_)?NODELIST\}?(:.*)?|"
    r"(\$\(|`)\s*scontrol\s+show\s+hostnames?[^|;&]*(\)|`)(:.*)?"
)
_LITERAL = pattern(r"(?P<host>[A-Za-z][A-Za-z0-9-]*[0-9][\w.-]*|\d{1,3}(?:\.\d{1,3}){3})(?::.*)?")
"""A host name with a number, as nodes have, or an address."""
_OF_HOST = pattern(r"(?i)master|head|main|addr|host|node|ip$|rdzv|endpoint")
_SUBMIT_HOST = pattern(r"\$\{?SLURM_SUBMIT_HOST\}?(:.*)?")
_FIRST_NODE = 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
_RANK_NAMES = frozenset(
    {"RANK", "LOCAL_RANK", "NODE_RANK", "MACHINE_RANK", "GROUP_RANK", "NODEID", "PROC_ID"}
)

_ONE_ELEMENT = pattern(
    r'=\(\s*"(?P<list>\$\{?(?P<name>\w+)\}?|\$\(scontrol show hostnames?[^()]*\))"\s*\)'
)


def find_picked_address(subject: Subject) -> Iterator[Hit]:
    commands = subject.commands
    for number, command in enumerate(commands):
        texts = [word.text for word in command.words]
        asks = any(text.rpartition("/")[2] == "hostname" for text in texts)
        if asks and {"-i", "--ip-address"} & set(texts) and _is_whole(subject, command):
            yield Hit(
                at=command,
                what="This prints 127.0.1.1 on some hosts and several addresses on others. The "
                "other nodes then cannot connect.",
                fix=_FIRST_NODE,
                severity=ADVICE,
            )
        if not asks or not {"-I", "--all-ip-addresses"} & set(texts) or not command.substituted:
            continue
        field = _picked_field(commands[number + 1 : number + 4])
        if field is None:
            continue
        which = {1: "first", 2: "second", 3: "third"}.get(field, f"{field}th")
        yield Hit(
            at=command,
            what=f"This picks the {which} address of the host, but their order is undefined. "
            "The address can be empty, or unreachable from other nodes.",
            fix=_FIRST_NODE,
            severity=ADVICE if field == 1 else None,
        )


def _is_whole(subject: Subject, command: Command) -> bool:
    """Tell whether the output of a command is the rendezvous host, without a further choice."""
    if not subject.job.several_nodes or not command.substituted or command.piped_into:
        return False
    own = (a for a in subject.assignments if any(c is command for c in a.value.commands))
    return any(_is_told_to_ranks(subject, assignment) for assignment in own)


def _picked_field(following: list[Command]) -> int | None:
    """Return the number of the field that cut or awk selects."""
    for command in following:
        if command.name == "cut" and command.piped:
            match = re.search(r"-f\s*([0-9]{1,9})", command.text)
            return int(match[1]) if match else None
        if command.name in ("awk", "gawk") and command.piped:
            match = re.search(r"print\s*\$([0-9]{1,9})", command.text)
            return int(match[1]) if match else None
    return None


def find_wrong_host(subject: Subject) -> Iterator[Hit]:
    yield from _literal_hosts(subject)
    if not subject.job.several_nodes:
        return
    yield from _hosts_in_one_element(subject)
    blamed: set[str] = set()
    # The first element of an array of hosts is one host, also as plain $NAME.
    arrays = {assignment.name for assignment in subject.assignments if assignment.array}
    for assignment in subject.assignments:
        sure = assignment.certain and assignment.name not in arrays
        reason = _wrong_host(assignment.value, assignment.where) if sure else ""
        handed_on = bool(assignment.value.names & blamed)
        if reason and not handed_on and _is_told_to_ranks(subject, assignment):
            blamed.add(assignment.name)
            yield replace(_wrong(assignment, reason, _FIRST_NODE), severity=WARNING)
    told: set[str] = set()
    for one in subject.started:
        for word in _host_words(one.launch):
            # Variables are checked where they are assigned.
            known = {a.name for a in subject.assignments} & word.names
            reason = "" if known else _wrong_host(word, _shell_of(subject, one.launch))
            if reason and word.text not in told:
                told.add(word.text)
                hit = _wrong(
                    Place(one.launch.path, word.line or one.launch.line), reason, _FIRST_NODE
                )
                yield replace(hit, severity=None if _expects_several(one.launch) else WARNING)
    yield from _wrong_in_python(subject)


def _literal_hosts(subject: Subject) -> Iterator[Hit]:
    """Find names of nodes that Slurm may not choose."""
    nodes = subject.job.nodes
    if not subject.is_job or not (subject.job.several_nodes or nodes == 1):
        return
    listed = _listed(subject)
    words: list[tuple[Located, Word]] = [
        (a, a.value)
        for a in subject.assignments
        if _OF_HOST.search(a.name) and _is_told_to_ranks(subject, a)
    ]
    words += [
        (Place(one.launch.path, word.line or one.launch.line), word)
        for one in subject.started
        for word in _host_words(one.launch)
        if not _is_external(one.launch)
    ]
    for at, word in words:
        found = _LITERAL.fullmatch(word.text) if _has_plain_host(subject, word) else None
        if found is None or _LOOPBACK.fullmatch(word.text) or word.text.startswith(("127.", "0.")):
            continue
        short = found["host"].partition(".")[0]
        told = rf"(?:-w|nodelist)[ =]?\S{{0,200}}{re.escape(short)}"  # also in a comment
        if listed is None or short in listed or re.search(told, subject.text):
            continue
        yield Hit(
            at=at,
            what=f"Slurm may choose other nodes than {found['host']}. The ranks then never connect "
            "to it.",
            fix=_FIRST_NODE,
            severity=ADVICE if nodes == 1 else WARNING,
        )


def _is_external(launch: Launch) -> bool:
    """Tell whether ranks meet at a server that is not part of the job."""
    backend = launch.launcher.option("rdzv-backend") if launch.launcher else None
    return backend is not None and backend.text.startswith("etcd")


def _has_plain_host(subject: Subject, word: Word) -> bool:
    """Tell whether a host, perhaps before a port, is written out where it is used."""
    host, colon, _ = word.text.partition(":")
    # Variables are checked where they are assigned.
    values = [a.value.text for a in subject.assignments if a.name in word.names]
    known = word.known and not word.uses
    return known or (bool(colon) and not any(host in value for value in values))


def _listed(subject: Subject) -> set[str] | None:
    """Return the short names of the nodes that the job has to get; None if they are unknown."""
    given = [item.value for item in subject.directives.items if item.option == "nodelist"]
    given += [options["nodelist"].text for _, options, _ in subject.sruns if "nodelist" in options]
    if any(re.search(r"[/$`]", value) for value in given):
        return None
    try:
        return {name.partition(".")[0] for value in given for name in expand(value)}
    except UsageError:
        return None


def _expects_several(launch: Launch) -> bool:
    nodes = launch.launcher.option("nnodes", "num-machines") if launch.launcher else None
    return nodes is not None and (nodes.number or 0) > 1


def _hosts_in_one_element(subject: Subject) -> Iterator[Hit]:
    """Find arrays whose quotes make one element of all host names."""
    for assignment in (one for one in subject.assignments if one.array):
        found = _ONE_ELEMENT.search(subject.line_at(assignment))
        lists = [a.value.text for a in subject.assignments if found and a.name == found["name"]]
        if found and any("scontrol show hostname" in text for text in (*lists, found[0])):
            yield Hit(
                at=assignment,
                what=f"The quotes make one element of all host names. `{assignment.name}[0]` is "
                f"the whole list, and `{assignment.name}[1]` is empty.",
                fix=f"{assignment.name}=({found['list']})",
                severity=WARNING,
            )


def _is_told_to_ranks(subject: Subject, assignment: Assignment) -> bool:
    """Tell whether a variable is the rendezvous host, not just an intermediate value."""
    named = assignment.name.upper() in ("MASTER_ADDR", "MASTER_IP", "HEAD_NODE_IP")
    if named and assignment.name.isupper() and reads_variables(subject):
        return True
    words = [word for one in subject.started for word in _host_words(one.launch)]
    if any(assignment.name in re.findall(r"\$\{?(\w+)", word.text) for word in words):
        return True
    # In the word, a known value has replaced its variable.
    likely = named or assignment.value.known
    return likely and any(assignment.name in word.names for word in words)


def _shell_of(subject: Subject, launch: Launch) -> Where:
    """Return which shell expanded the words of a launcher."""
    for shell in reversed(subject.shells):
        if shell.path == launch.path and shell.where is Where.TASK:
            lines = {command.line for command in shell.commands}
            if launch.line in lines and launch.command not in shell.commands:
                return Where.TASK
    return Where.BATCH


def _host_words(launch: Launch) -> Iterator[Word]:
    if launch.launcher is not None:
        for name in ("master-addr", "main-process-ip", "rdzv-endpoint"):
            if (word := launch.launcher.options.get(name)) is not None:
                yield word


def _wrong_host(value: Word, where: Where) -> str:
    """Return why ranks on several nodes cannot connect to a host; empty if they can."""
    if _LOOPBACK.fullmatch(value.text):
        return f"'{value.text}' is a different host on each node"
    if _ALL_NODES.fullmatch(value.text):
        return "This is the list of all nodes, not a single node"
    if _SUBMIT_HOST.fullmatch(value.text):
        return "This is the host where sbatch ran, but rank 0 runs on the first node of the job"
    own = any(c.name == "hostname" for c in value.commands) or value.names & _OWN_HOST
    if where is Where.TASK and own and "scontrol" not in {c.name for c in value.commands}:
        return "This is expanded on every node, so each node uses its own name"
    names = [command.name for command in value.commands]
    last = [c for c in value.commands if c.name == "tail" and re.search(r"-n?\s*1$", c.text)]
    if "scontrol" in names and last and "head" not in names and len(names) == 2:
        return "This is the last node, but rank 0 runs on the first one"
    return ""


def _wrong(at: Located, reason: str, fix: str) -> Hit:
    return Hit(at=at, what=f"{reason}. The ranks never connect.", fix=fix)


def _wrong_in_python(subject: Subject) -> Iterator[Hit]:
    for python in subject.pythons:
        for node in python.nodes:
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Subscript):
                continue
            name, value = constant(node.targets[0].slice), constant(node.value)
            looped = isinstance(value, str) and _LOOPBACK.fullmatch(value)
            if name != "MASTER_ADDR" or not looped:
                continue
            if not guards(python, node) and not is_conditional(python, node):
                reason = f"'{value}' is a different host on each node"
                fix = f"set it in the job script instead:\n{_FIRST_NODE}"
                yield replace(_wrong(python.at(node), reason, fix), severity=WARNING)


def find_early_expansion(subject: Subject) -> Iterator[Hit]:
    told: set[tuple[str, int]] = set()
    for hit in (*_early_words(subject), *_early_files(subject), *_early_exports(subject)):
        if (hit.at.path, hit.at.line) not in told:
            told.add((hit.at.path, hit.at.line))
            yield hit


def _differing(amounts: Amounts) -> frozenset[str]:
    """Return the variables that differ between tasks: the number of the node if it has others."""
    return PER_TASK - {"SLURM_NODEID"} if amounts.nodes == 1 else PER_TASK


def _early_words(subject: Subject) -> Iterator[Hit]:
    """Yield uses in the arguments or the here-document of srun."""
    for command, options, words in subject.sruns:
        step = read_step(subject.job, options)
        if command.where is not Where.BATCH or not step.several_tasks:
            continue
        given = [*words, *([command.stdin] if command.stdin else [])]
        # With this backend, torchrun chooses the rank of a node itself.
        unused = "c10d" in " ".join(word.text for word in given)
        for word in given:
            for use in word.uses:
                if use.name in _differing(step):
                    hit = _early(Place(command.path, use.line), use.name)
                    yield replace(hit, severity=ADVICE if unused else None)


def _early_files(subject: Subject) -> Iterator[Hit]:
    """Yield uses in a here-document that is written to a file which srun starts."""
    run = {shell.text for shell in subject.shells if shell.where is Where.TASK}
    for shell in subject.shells:
        for text in shell.written.values():
            if text.text in run and subject.job.several_tasks and shell.where is Where.BATCH:
                yield from (
                    _early(Place(shell.path, u.line), u.name)
                    for u in text.uses
                    if u.name in _differing(subject.job)
                )


def _early_exports(subject: Subject) -> Iterator[Hit]:
    plain = [
        one
        for one in subject.started
        if one.launch.srun is not None
        and one.launch.launcher is None  # a launcher sets the ranks itself
        and one.launch.amounts.several_tasks
    ]
    for assignment in subject.assignments:
        names = assignment.value.names & _differing(subject.job)
        if assignment.where is not Where.BATCH or not names or not _is_rank(subject, assignment):
            continue
        if any(assignment.name not in one.launch.variables for one in plain):
            # Unlike RANK, which init_process_group reads.
            unread = assignment.name == "LOCAL_RANK" and all(
                one.python is not None and not one.python.mentions("LOCAL_RANK", "local_rank")
                for one in plain
            )
            hit = _early(assignment, min(names))
            yield replace(hit, severity=ADVICE) if unread else hit


def _is_rank(subject: Subject, assignment: Assignment) -> bool:
    return (
        assignment.name in _RANK_NAMES
        and assignment.certain
        and assignment.name in subject.exported
    )


def _early(at: Located, name: str) -> Hit:
    return Hit(
        at=at,
        what=f"`${name}` is 0 for every task, because the job script expands it before srun "
        "starts.",
        fix=f"srun bash -c '… ${name} …'  # in single quotes, each task expands it",
    )


RULES = (
    Rule(
        code="E306",
        title="address picked from `hostname -I` or `-i`",
        severity=WARNING,
        check=find_picked_address,
        why="`hostname -I` prints all addresses of a host, in no defined order. `hostname -i` "
        "prints what the name resolves to, which can be 127.0.1.1. The name of the first node is "
        "reliable.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=2
 #SBATCH --exclusive
 export MASTER_PORT=29500
-export MASTER_ADDR=$(hostname -I | cut -d ' ' -f 2)    # <- here
+export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
 srun python train.py
""",
    ),
    Rule(
        code="E307",
        title="wrong rendezvous host",
        severity=ERROR,
        check=find_wrong_host,
        why="All ranks must connect to the same host: the first node, and Slurm chooses the nodes "
        "unless `--nodelist` names them. In the job script, "
        "`$(hostname)` is the first node. In a command that srun starts, it is a different name "
        "on each node.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=2
 #SBATCH --exclusive
-srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=localhost:29500 train.py    # <- here
+srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=$HOSTNAME:29500 train.py
""",
    ),
    Rule(
        code="E308",
        title="rank variable expanded before srun",
        severity=WARNING,
        check=find_early_expansion,
        why="The job script runs as task 0 on node 0, so it expands the variable to 0 for all "
        "tasks. With single quotes, a backslash or a separate script, each task expands it itself.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=2
 #SBATCH --exclusive
 export MASTER_ADDR=$(hostname)
-srun torchrun --nnodes=2 --node_rank=$SLURM_NODEID --master_addr=$MASTER_ADDR \\
-    --master_port=29500 train.py
+srun bash -c 'torchrun --nnodes=2 --node_rank=$SLURM_NODEID --master_addr=$MASTER_ADDR \\
+    --master_port=29500 train.py'
""",
    ),
)
