"""E601 to E607: samplers, downloads and metrics of each rank."""

import ast
import re
from collections.abc import Iterator

from echelon.lint.edits import Edit, replace_range
from echelon.lint.facts import may_be_on_other_nodes, may_have_several_ranks, spawns
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.python_guards import guards, is_called
from echelon.lint.python_script import (
    PythonScript,
    ancestors,
    constant,
    enclosing_function,
    has_spread,
    is_conditional,
    keyword,
    last_name,
    origin,
    unparse,
    values_of,
)
from echelon.lint.rule import ADVICE, ERROR, WARNING, Hit, Rule, Severity
from echelon.lint.subject import Subject

_REDUCES = ("all_reduce", "reduce(", "all_gather", "gather", "MetricCollection", "torchmetrics")

_GLOBAL = pattern(r"['\"]RANK['\"]|SLURM_PROCID|get_rank|\bglobal_rank\b|NODE_RANK|NODEID")


def _samplers(python: PythonScript) -> list[ast.Call]:
    return python.calls("DistributedSampler")


def _is_training_sampler(call: ast.Call) -> bool:
    return constant(keyword(call, "shuffle", 3)) is not False


def _with_modules(subject: Subject) -> Iterator[PythonScript]:
    """Yield the scripts and the local modules that they import themselves."""
    told = set[str]()
    for python in subject.pythons:
        for one in (python, *python.modules):
            if one.path not in told:
                told.add(one.path)
                yield one


def find_shuffled_sampler(subject: Subject) -> Iterator[Hit]:
    for python in _with_modules(subject):
        for call in python.calls("DataLoader"):
            shuffle, sampler = keyword(call, "shuffle", 2), keyword(call, "sampler", 3)
            if constant(shuffle) is not True or sampler is None or has_spread(call):
                continue
            values = values_of(python, sampler)
            if values and all(
                isinstance(v, ast.Call) and "ampler" in unparse(v.func) for v in values
            ):
                yield Hit(
                    at=python.at(call),
                    what="`DataLoader` rejects `shuffle=True` together with a sampler: 'sampler "
                    "option is mutually exclusive with shuffle'.",
                    fix="DataLoader(…, sampler=sampler)  # without shuffle; the sampler shuffles",
                    severity=None if _is_reached(python, call) else WARNING,
                    edits=_without(python, call, "shuffle"),
                )


def _is_reached(python: PythonScript, call: ast.Call) -> bool:
    """Tell whether a script makes a call itself, in no branch."""
    return not is_conditional(python, call) and is_called(python, call)


def _without(python: PythonScript, call: ast.Call, name: str) -> tuple[Edit, ...]:
    """Return the edit that removes a keyword argument, with its comma."""
    given: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    names = [word.arg if isinstance(word, ast.keyword) else None for word in given]
    if name not in names:
        return ()
    here = names.index(name)
    places = [python.at(word) for word in given]
    if here + 1 < len(given):  # up to the next argument
        after = places[here + 1]
        last = after._replace(end_line=after.line, end_column=after.column)
        return (replace_range(places[here], last, ""),)
    before = places[here - 1]
    first = before._replace(line=before.end_line, column=before.end_column)
    return (replace_range(first, places[here], ""),)


def find_missing_set_epoch(subject: Subject) -> Iterator[Hit]:
    for python in subject.pythons:
        samplers = [
            (one, call)
            for one in (python, *python.modules)
            for call in _samplers(one)
            if _is_training_sampler(call) and not _is_unused(subject, python, one, call)
        ]
        framework = python.mentions("lightning", "Accelerator(", "accelerate", "ignite", "Fabric(")
        loop = _epoch_loop(python)
        if not samplers or python.mentions("set_epoch") or framework or loop is None:
            continue
        one, call = samplers[0]
        name = _name_in_loop(python, call, loop) if one is python else ""
        epoch = loop.target.id if isinstance(loop.target, ast.Name) else "epoch"
        yield Hit(
            at=one.at(call),
            what="Nothing calls `set_epoch`, so every epoch has the same order of samples.",
            fix=f"{name}.set_epoch({epoch})  # as the first line of the epoch loop"
            if name
            else f"call the sampler's set_epoch({epoch}) as the first line of the epoch loop",
        )


def _name_in_loop(python: PythonScript, sampler: ast.Call, loop: ast.For) -> str:
    """Return an expression for a sampler that a loop can use; empty if there is none."""
    for own in _assigned_to(python, sampler):
        if _sees(python, own, loop):
            return unparse(own)
        for call in python.calls("DataLoader"):
            given = keyword(call, "sampler", 3)
            if given is None or unparse(given) != unparse(own):
                continue
            for loader in _assigned_to(python, call):
                if _sees(python, loader, loop):
                    return f"{unparse(loader)}.sampler"
    return ""


def _assigned_to(python: PythonScript, call: ast.Call) -> list[ast.expr]:
    """Return the names and attributes to which a call is assigned, also in `a if b else c`."""
    parent = next((a for a in ancestors(python, call) if not isinstance(a, ast.IfExp)), None)
    targets = parent.targets if isinstance(parent, ast.Assign) else []
    return [target for target in targets if isinstance(target, ast.Name | ast.Attribute)]


def _sees(python: PythonScript, target: ast.expr, loop: ast.For) -> bool:
    """Tell whether a loop can use what is assigned to a target, as far as lint can tell."""
    around = enclosing_function(python, target)
    if around is enclosing_function(python, loop) or around is None:
        return True
    owners = [
        next((a for a in ancestors(python, node) if isinstance(a, ast.ClassDef)), None)
        for node in (target, loop)
    ]
    own = unparse(target).startswith("self.")
    return own and owners[0] is not None and owners[0] is owners[1]


def _is_unused(subject: Subject, main: PythonScript, one: PythonScript, call: ast.Call) -> bool:
    """Tell whether a sampler is only for several ranks, and the job starts one process."""
    launches = subject.with_python(main)
    alone = all(a.launcher is None and a.srun is None and not a.mpi for a in launches)
    choice = next((a for a in ancestors(one, call) if isinstance(a, ast.IfExp)), None)
    ranks = choice is not None and re.search(
        r"rank|world_size|distributed|ddp", unparse(choice.test)
    )
    return bool(launches and alone and ranks and not spawns(main))


def _epoch_loop(python: PythonScript) -> ast.For | None:
    """Return the loop over the epochs; None if there is none, or if it has a single epoch."""
    for node in python.nodes:
        if isinstance(node, ast.For) and "epoch" in unparse(node.target).lower():
            once = isinstance(node.iter, ast.Call) and [constant(a) for a in node.iter.args] == [1]
            return None if once else node
    return None


def find_local_sampler(subject: Subject) -> Iterator[Hit]:
    for at, severity in _with_local_rank(subject, "DistributedSampler", 2):
        yield Hit(
            at=at,
            what="The sampler uses the local rank. On several nodes, all nodes read the same "
            "samples. The other samples are never read.",
            fix="DistributedSampler(dataset)  # uses the global rank by default",
            severity=severity,
        )


def find_local_group_rank(subject: Subject) -> Iterator[Hit]:
    for at, severity in _with_local_rank(subject, "init_process_group"):
        yield Hit(
            at=at,
            what="The process group uses the local rank. On several nodes, more than one process "
            "claims rank 0, and the group never forms.",
            fix='rank=int(os.environ["RANK"])  # with srun: SLURM_PROCID',
            severity=severity,
        )


def _with_local_rank(
    subject: Subject, function: str, position: int | None = None
) -> Iterator[tuple[Place, Severity]]:
    """Yield calls that pass the local rank as `rank`, if there may be several nodes."""
    for python in _with_modules(subject) if subject.may_have_several_nodes else ():
        severity = ADVICE if _stays_on_first_node(subject, python) else WARNING
        for call in python.calls(function):
            rank = keyword(call, "rank", position)
            if rank is not None and _is_local(python, rank):
                yield python.at(call), severity


def _stays_on_first_node(subject: Subject, python: PythonScript) -> bool:
    """Tell whether the ranks of a script, or of those that import it, are on the first node."""
    launches = [
        one.launch
        for one in subject.started
        if one.python is not None and python in (one.python, *one.python.modules)
    ]
    return bool(launches) and not any(map(may_be_on_other_nodes, launches))


def _is_local(python: PythonScript, rank: ast.expr) -> bool:
    """Tell whether a rank is certainly local: derived from the local rank and nothing else."""
    made_of = origin(python, rank)
    environ = re.search(r"LOCAL_RANK|SLURM_LOCALID", made_of)
    return bool(environ) and not _GLOBAL.search(made_of) and not re.search(r"[*+]", made_of)


def find_downloads(subject: Subject) -> Iterator[Hit]:
    for python in subject.distributed:
        if not may_have_several_ranks(subject, python):
            continue
        for node in python.nodes:
            if not isinstance(node, ast.Call) or constant(keyword(node, "download")) is not True:
                continue
            if guards(python, node) or _behind_barrier(python, node) or not is_called(python, node):
                continue
            yield Hit(
                at=python.at(node),
                what="All ranks download the data to the same directory at the same time. Some "
                "read files that others are still writing.",
                fix="download the data once before the job, or on one rank per node while the "
                "others wait in dist.barrier()",
            )
            break


def _behind_barrier(python: PythonScript, node: ast.AST) -> bool:
    """Tell whether the function uses a barrier or a lock, and so already handles this."""
    function = enclosing_function(python, node)
    text = unparse(function) if function is not None else ""
    return "barrier" in text or "FileLock" in python.text


def find_unreduced(subject: Subject) -> Iterator[Hit]:
    for python in subject.pythons:
        loaders = python.calls("DataLoader")
        if not loaders or not _samplers(python) or python.mentions(*_REDUCES):
            continue
        if any(keyword(call, "sampler", 3) is None or has_spread(call) for call in loaders):
            continue  # one loader gives all data to each rank, possibly this one
        for node in python.nodes:
            divided = (
                node.right
                if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
                else (
                    node.value
                    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div)
                    else None
                )
            )
            if divided is not None and re.fullmatch(r"len\(\S+\.dataset\)", unparse(divided)):
                yield Hit(
                    at=python.at(divided),
                    what="Each rank counts its share of the samples but divides by the size of the "
                    "whole dataset. The result is too small.",
                    fix="dist.all_reduce(counts)  # before the division",
                )
                break


def find_counted_against_all(subject: Subject) -> Iterator[Hit]:
    for python in subject.distributed:
        if not _samplers(python):
            continue
        for call in python.calls("print", "format", "info"):
            text = unparse(call)
            share = re.search(r"\b(batch_idx|i|idx|step|batch)\s*\*\s*len\(", text)
            loader = re.search(r"len\((\w*train\w*|loader)\.dataset\)", text)
            inner = any(
                last_name(c.func) == "format"
                for c in ast.walk(call)
                if isinstance(c, ast.Call) and c is not call
            )
            if share and loader and not inner and not re.search("world_size|get_world_size", text):
                yield Hit(
                    at=python.at(call),
                    what="The progress counts the samples of one rank but divides by those of all "
                    "ranks. It ends far below 100%.",
                    fix="batch_idx * len(data) * dist.get_world_size()",
                )
                break


RULES = (
    Rule(
        code="E601",
        title="`shuffle=True` with a sampler",
        severity=ERROR,
        check=find_shuffled_sampler,
        why="`DataLoader` accepts either a sampler or `shuffle=True`. `DistributedSampler` "
        "shuffles by default.",
        example="""\
 --- train.py
 from torch.utils.data import DataLoader, DistributedSampler
 data = list(range(100))
 sampler = DistributedSampler(data)
-loader = DataLoader(data, shuffle=True, sampler=sampler)    # <- here
+loader = DataLoader(data, sampler=sampler)
""",
    ),
    Rule(
        code="E602",
        title="missing `set_epoch`",
        severity=WARNING,
        check=find_missing_set_epoch,
        why="`DistributedSampler` derives the order of the samples from its seed and the epoch. "
        "Without `set_epoch`, the epoch is always 0.",
        example="""\
 --- train.py
 from torch.utils.data import DataLoader, DistributedSampler
 data = list(range(100))
 sampler = DistributedSampler(data)    # <- here
 loader = DataLoader(data, sampler=sampler)
 for epoch in range(10):
+    sampler.set_epoch(epoch)
     for batch in loader:
         print(batch)
""",
    ),
    Rule(
        code="E603",
        title="sampler that uses the local rank",
        severity=WARNING,
        check=find_local_sampler,
        why="`LOCAL_RANK` starts at 0 on every node. `RANK` is unique across all nodes. The "
        "finding is advice if the job starts ranks on its first node only.",
        example="""\
 --- train.py
 import os
 from torch.utils.data import DistributedSampler
-rank = int(os.environ["LOCAL_RANK"])
+rank = int(os.environ["RANK"])
 sampler = DistributedSampler(range(100), num_replicas=4, rank=rank)    # <- here
""",
    ),
    Rule(
        code="E604",
        title="process group that uses the local rank",
        severity=WARNING,
        check=find_local_group_rank,
        why="`LOCAL_RANK` starts at 0 on every node. The ranks of a process group must be unique. "
        "The finding is advice if the job starts ranks on its first node only.",
        example="""\
 --- train.py
 import os
 import torch.distributed as dist
-rank = int(os.environ["LOCAL_RANK"])
+rank = int(os.environ["RANK"])
 dist.init_process_group("gloo", rank=rank, world_size=4)    # <- here
 dist.destroy_process_group()
""",
    ),
    Rule(
        code="E605",
        title="download on every rank",
        severity=WARNING,
        check=find_downloads,
        why="Compute nodes often have no internet access. If they have it, all ranks write the "
        "same files.",
        example="""\
 --- train.py
 import torch.distributed as dist
 from torchvision.datasets import MNIST
 dist.init_process_group("gloo")
-data = MNIST("data", download=True)    # <- here
+data = MNIST("data", download=False)
 dist.destroy_process_group()
""",
    ),
    Rule(
        code="E606",
        title="count of one rank divided by the size of the dataset",
        severity=WARNING,
        check=find_unreduced,
        why="With a distributed sampler, each rank sees only its share of the data. "
        "`len(loader.dataset)` is the size of the whole dataset.",
        example="""\
 --- train.py
+import torch
+import torch.distributed as dist
 from torch.utils.data import DataLoader, DistributedSampler
 data = list(range(100))
 loader = DataLoader(data, sampler=DistributedSampler(data, shuffle=False))
-right = 0
+right = torch.zeros(1)
 for batch in loader:
     right += len(batch)
+dist.all_reduce(right)
 print(right / len(loader.dataset))    # <- here
""",
    ),
    Rule(
        code="E607",
        title="progress of one rank relative to the whole dataset",
        severity=ADVICE,
        check=find_counted_against_all,
        why="`batch_idx * len(data)` counts the samples of one rank. `len(loader.dataset)` counts "
        "those of all ranks.",
        example="""\
 --- train.py
 import torch.distributed as dist
 from torch.utils.data import DataLoader, DistributedSampler
 dist.init_process_group("gloo")
 data = list(range(100))
 train_loader = DataLoader(data, sampler=DistributedSampler(data))
 for batch_idx, batch in enumerate(train_loader):
-    print(batch_idx * len(batch), len(train_loader.dataset))    # <- here
+    print(batch_idx, len(train_loader))
 dist.destroy_process_group()
""",
    ),
)
