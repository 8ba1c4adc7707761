"""E621 to E627: a rank's device, its group, and whether the script runs at all."""

import ast
import builtins
import difflib
import re
import symtable
from collections.abc import Iterator

from echelon.checks.lint.python_script import (
    PythonScript,
    ancestors,
    constant,
    keyword,
    origin,
    values_of,
)
from echelon.checks.lint.rule import ADVICE, ERROR, Hit, Rule
from echelon.checks.lint.subject import Subject, is_python

_BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl", "hccl", "ccl", "fake", "threaded", "undefined")
_BY_INDEX = re.compile(
    r"device_ids\s*=\s*\[|cuda:\{|\.cuda\(\s*\w|device\(\s*['\"]cuda['\"]\s*,|"
    r"\.to\(\s*(\w*rank|gpu|args\.gpu|args\.local_rank|self\.\w*(rank|gpu)\w*|device_id)\b|"
    r"device\s*=\s*(device|\w*rank|gpu|device_id)\b|device_id\s*=|['\"]cuda:['\"]\s*\+|cuda:%"
)
_MODULE_NAMES = frozenset(
    {
        "__file__",
        "__name__",
        "__doc__",
        "__builtins__",
        "__spec__",
        "__package__",
        "__loader__",
        "__path__",
        "__annotations__",
        "__class__",
        "WindowsError",
        "__dict__",
        "__module__",
        "__qualname__",
        "reveal_type",
        # Python 2's, behind a test of the version.
        *("long", "unicode", "xrange", "basestring", "raw_input", "unichr", "reduce"),
    }
)


def _needs_device(subject: Subject, python: PythonScript) -> bool:
    """Tell whether ranks of a script see several GPUs, and say nothing of which one they use."""
    calls = python.calls("init_process_group")
    if not any("nccl" in ast.unparse(call) or "nccl" in _backend(python, call) for call in calls):
        return False
    if any(keyword(call, "device_id") is not None for call in calls):
        return False
    if python.mentions("set_device", "CUDA_VISIBLE_DEVICES", "torch.cuda.device(", "echelon"):
        return False
    launches = subject.with_python(python)
    one_gpu = [
        launch.amounts.gpus_per_node == 1
        or bool(launch.amounts.gpus_per_task)
        or "CUDA_VISIBLE_DEVICES" in launch.variables
        for launch in launches
    ]
    return not (launches and all(one_gpu))


def _backend(python: PythonScript, call: ast.Call) -> str:
    backend = keyword(call, "backend", 0)
    return origin(python, backend) if backend is not None else ""


def find_one_device(subject: Subject) -> Iterator[Hit]:
    for python in subject.pythons:
        if not _needs_device(subject, python) or _BY_INDEX.search(python.text):
            continue
        places = re.search(r"\.cuda\(\)|['\"]cuda['\"]", python.text)
        if places and not _BY_INDEX.search(python.neighbours):
            yield Hit(
                path=python.path,
                line=python.text[: places.start()].count("\n") + 1,
                what="All ranks of a node use GPU 0, because nothing tells them another: NCCL "
                "fails with 'Duplicate GPU detected'.",
                fix='torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))   (before anything else)',
            )


def find_missing_set_device(subject: Subject) -> Iterator[Hit]:
    for python in subject.pythons:
        if _needs_device(subject, python) and _BY_INDEX.search(python.text):
            yield Hit(
                path=python.path,
                line=python.calls("init_process_group")[0].lineno,
                what="Every rank also opens GPU 0, and some calls (barrier, all_gather_object) "
                "use it, because the process has no device of its own.",
                fix="torch.cuda.set_device(local_rank)   (before init_process_group)",
            )


def find_missing_destroy(subject: Subject) -> Iterator[Hit]:
    for python in subject.pythons:
        calls = python.calls("init_process_group")
        frameworks = python.mentions(
            "destroy_process_group", "lightning", "accelerate", "deepspeed"
        )
        if calls and not frameworks and _is_program(subject, python):
            yield Hit(
                path=python.path,
                line=calls[0].lineno,
                what="Ranks leave without a word to the others: NCCL warns, and may hang or "
                "crash at the end.",
                fix="dist.destroy_process_group()   at the end of the program",
            )


def _is_program(subject: Subject, python: PythonScript) -> bool:
    """Tell what is run from what others import, who may do the rest."""
    calls = any(isinstance(n, ast.Expr) and isinstance(n.value, ast.Call) for n in python.tree.body)
    return calls or "__main__" in python.text or bool(subject.with_python(python))


def find_unknown_backend(subject: Subject) -> Iterator[Hit]:
    for python in subject.pythons:
        for call in python.calls("init_process_group"):
            backend = keyword(call, "backend", 0)
            texts = [constant(v) for v in values_of(python, backend)] if backend is not None else []
            for text in texts[:1]:
                if not isinstance(text, str):
                    continue
                parts = [part.rpartition(":")[2].lower() for part in text.split(",")]
                odd = [part for part in parts if part not in _BACKENDS]
                near = difflib.get_close_matches(odd[0], _BACKENDS, n=1, cutoff=0.7) if odd else []
                if odd and (near or not re.fullmatch(r"\w+", odd[0])):
                    yield Hit(
                        path=python.path,
                        line=call.lineno,
                        what=f"init_process_group fails: there is no backend '{text}'.",
                        fix=f'backend="{near[0] if near else "nccl"}"',
                    )


def find_counted_local_rank(subject: Subject) -> Iterator[Hit]:
    for python in subject.pythons:
        for call in python.calls("set_device"):
            index = keyword(call, "device", 0)
            made_of = origin(python, index) if index is not None else ""
            counted = re.search(r"\brank\s*(%|-\s*\w+\s*\*)|SLURM_PROCID['\"]\]\)\s*%", made_of)
            if counted and "LOCAL" not in made_of:
                yield Hit(
                    path=python.path,
                    line=call.lineno,
                    what="Two ranks of a node get the same GPU when Slurm deals tasks out in "
                    "turn, or nodes have different numbers of them: the local rank is worked out.",
                    fix='local_rank = int(os.environ["SLURM_LOCALID"])   (torchrun: LOCAL_RANK)',
                )


def find_undefined_names(subject: Subject) -> Iterator[Hit]:
    for python in subject.pythons:
        for name, line in sorted(_undefined(python).items(), key=lambda item: item[1]):
            yield Hit(
                path=python.path,
                line=line,
                what=f"NameError when this line is reached: nothing here is called {name}.",
                fix=_guess(python, name),
            )


def _undefined(python: PythonScript) -> dict[str, int]:
    if re.search(r"import \*|globals\(\)|exec\(|__getattr__|NameError|locals\(\)", python.text):
        return {}
    try:
        top = symtable.symtable(python.text, python.path, "exec")
    except (SyntaxError, ValueError, RecursionError):
        return {}
    known = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    known |= {s.get_name() for s in top.get_symbols() if s.is_namespace()}
    tables, wanted = [top], set[str]()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            if symbol.is_global() and (symbol.is_assigned() or symbol.is_imported()):
                known.add(symbol.get_name())  # by `global` in a function
            elif symbol.is_referenced() and (symbol.is_global() or table is top):
                wanted.add(symbol.get_name())
    missing = wanted - known - set(dir(builtins)) - _MODULE_NAMES
    found: dict[str, int] = {}
    for node in python.nodes:
        if not isinstance(node, ast.Name) or node.id not in missing:
            continue
        if not _in_annotation(python, node) and not _is_local(python, node):
            found[node.id] = min(found.get(node.id, node.lineno), node.lineno)
    return found


def _is_local(python: PythonScript, name: ast.Name) -> bool:
    """Tell whether a name of a function around is meant, and not the one that is missing."""
    for scope in ancestors(python, name):
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            bound = {
                argument.arg for argument in ast.walk(scope.args) if isinstance(argument, ast.arg)
            }
            inner = (node for node in ast.walk(scope) if isinstance(node, ast.Name))
            bound |= {node.id for node in inner if isinstance(node.ctx, ast.Store)}
            if name.id in bound:
                return True
        elif isinstance(scope, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            targets = (node for part in scope.generators for node in ast.walk(part.target))
            if any(isinstance(node, ast.Name) and node.id == name.id for node in targets):
                return True
    return False


def _in_annotation(python: PythonScript, node: ast.AST) -> bool:
    while (parent := python.parents.get(node)) is not None:
        if isinstance(parent, ast.arg) or (
            isinstance(parent, ast.AnnAssign) and parent.annotation is node
        ):
            return True
        if isinstance(parent, ast.FunctionDef) and parent.returns is node:
            return True
        node = parent
    return False


def _guess(python: PythonScript, name: str) -> str:
    names = {n.id for n in python.nodes if isinstance(n, ast.Name) and n.id != name}
    near = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.8)
    return near[0] if near else f"import or assign {name}"


def find_syntax_error(subject: Subject) -> Iterator[Hit]:
    if subject.pythons or not is_python(subject.path, subject.text):
        return
    try:
        ast.parse(subject.text)
    except SyntaxError as error:
        yield Hit(
            path=subject.path,
            line=error.lineno or 1,
            what=f"Python does not take the file: {error.msg}.",
            fix="python -m py_compile " + subject.path,
        )
    except (ValueError, RecursionError, MemoryError) as error:
        yield Hit(
            path=subject.path,
            line=1,
            what=f"Python does not take the file: {error}.",
            fix="python -m py_compile " + subject.path,
        )


RULES = (
    Rule(
        code="E621",
        title="all ranks on GPU 0",
        severity=ERROR,
        check=find_one_device,
        why="'cuda' without a number is the current device, which is 0 until somebody sets it.",
        bad="""\
--- train.py
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
model = torch.nn.Linear(1, 1).to("cuda")    # <- here
dist.destroy_process_group()
""",
        good="""\
--- train.py
import os
import torch
import torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
model = torch.nn.Linear(1, 1).to("cuda")
dist.destroy_process_group()
""",
    ),
    Rule(
        code="E622",
        title="no set_device",
        severity=ADVICE,
        check=find_missing_set_device,
        why="To move the model is not enough: collectives without a tensor use the current device.",
        bad="""\
--- train.py
import os
import torch
import torch.distributed as dist
local_rank = int(os.environ["LOCAL_RANK"])
dist.init_process_group("nccl")    # <- here
model = torch.nn.Linear(1, 1).to(local_rank)
dist.destroy_process_group()
""",
        good="""\
--- train.py
import os
import torch
import torch.distributed as dist
local_rank = int(os.environ["LOCAL_RANK"])
dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank))
model = torch.nn.Linear(1, 1).to(local_rank)
dist.destroy_process_group()
""",
    ),
    Rule(
        code="E623",
        title="no destroy_process_group",
        severity=ADVICE,
        check=find_missing_destroy,
        why="Since 2.4 PyTorch warns when a process ends with its NCCL group open.",
        bad="""\
--- train.py
import torch.distributed as dist
dist.init_process_group("gloo")    # <- here
dist.barrier()
""",
        good="""\
--- train.py
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
""",
    ),
    Rule(
        code="E624",
        title="a backend that does not exist",
        severity=ERROR,
        check=find_unknown_backend,
        why="nccl for GPUs, gloo for CPUs, or both: cpu:gloo,cuda:nccl.",
        bad="""\
--- train.py
import torch.distributed as dist
dist.init_process_group(backend="gloo|nccl")    # <- here
dist.destroy_process_group()
""",
        good="""\
--- train.py
import torch.distributed as dist
dist.init_process_group(backend="cpu:gloo,cuda:nccl", device_id=None)
dist.destroy_process_group()
""",
    ),
    Rule(
        code="E625",
        title="a local rank that is worked out",
        severity=ADVICE,
        check=find_counted_local_rank,
        why="rank % GPUs is the local rank only if Slurm fills one node after the other, and all "
        "are alike. It says the local rank itself: SLURM_LOCALID.",
        bad="""\
--- train.py
import os
import torch
rank = int(os.environ["SLURM_PROCID"])
torch.cuda.set_device(rank % torch.cuda.device_count())    # <- here
""",
        good="""\
--- train.py
import os
import torch
torch.cuda.set_device(int(os.environ["SLURM_LOCALID"]))
""",
    ),
    Rule(
        code="E626",
        title="a name that is not defined",
        severity=ERROR,
        check=find_undefined_names,
        why="On a cluster a slip is found after hours in the queue.",
        bad="""\
--- train.py
trainer = object()
print(tainer)    # <- here
""",
        good="""\
--- train.py
trainer = object()
print(trainer)
""",
    ),
    Rule(
        code="E627",
        title="no Python",
        severity=ERROR,
        check=find_syntax_error,
        why="The file cannot be compiled.",
        bad="""\
--- train.py
if True print("yes")    # <- here
""",
        good="""\
--- train.py
if True:
    print("yes")
""",
    ),
)
