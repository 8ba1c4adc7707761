"""E611 to E615: writing and loading checkpoints, and evaluation on rank 0."""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from echelon.lint.facts import may_be_on_other_nodes, may_have_several_ranks
from echelon.lint.patterns import pattern
from echelon.lint.python_guards import guards, handed_over, has_alternative, is_called
from echelon.lint.python_reached import is_in_running
from echelon.lint.python_script import (
    Function,
    PythonScript,
    ancestors,
    enclosing_function,
    keyword,
    origin,
    unparse,
)
from echelon.lint.rule import ADVICE, WARNING, Hit, Rule
from echelon.lint.subject import Subject

_ONE_PER_NODE = pattern(r"local_rank|LOCAL_RANK|LOCALID|rank\s*%|\bgpu\b|local_main")
_ONE_PER_RANK = pattern(
    r"rank|RANK|PROCID|LOCALID|getpid|uuid|mkstemp|mkdtemp|mktemp|token_hex|TemporaryFile"
)
"""Expressions that make a file name different in each process."""
_ZERO_ENTERS = pattern(r"rank\w*(\(\))?\s*==\s*0|not \w*rank|is_main|is_master|is_primary")
_OTHERS_LEFT = pattern(
    r"not \((.*rank\w*(\(\))?( (!=|>) 0)?\)$|not .*(is_main|is_master|is_primary))"
)
_NO_FILE = pattern(r"BytesIO|buffer|tempfile|TemporaryFile|TemporaryDirectory|\btmp\w*\.name")
"""Targets of torch.save that no other process writes: a buffer or a temporary file."""
_FROM_CPU = pattern(r"\.cpu\(\)|['\"]cpu['\"]|cpu_offload|offload_to_cpu|full_state_dict")
_WEIGHTS = pattern(r"state|ckpt|checkpoint|resume|weight|model|last|best|pretrain", re.IGNORECASE)
_IS_MODEL = pattern(r"(?i)state_dict|model|ckpt|checkpoint|weight|optim|param|last|best|epoch")
"""Text of calls that save what all ranks have, rather than data of their own."""
_DATA = pattern(
    r"\b\w*(data(set)?|samples|inputs|labels|targets|features|images|tokens)\w*\s*=[^=]"
)
"""Names of variables that hold data rather than weights."""
_NUMBERED = pattern(r"epoch|step|iter", re.IGNORECASE)
"""Parts of file names that differ from one checkpoint to the next."""
_ATOMIC = ("os.replace", "os.rename", "shutil.move", ".replace(", ".rename(", "atomic")


def _saves(python: PythonScript) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Yield calls of torch.save with their target."""
    for call in python.calls("save"):
        target = keyword(call, "f", 1)
        if unparse(call.func) != "torch.save" or target is None:
            continue
        if not _NO_FILE.search(_made_of(python, target)):
            yield call, target


def find_every_rank_saves(subject: Subject) -> Iterator[Hit]:
    for python in subject.distributed:
        if not may_have_several_ranks(subject, python):
            continue
        for call, target in _saves(python):
            if _ONE_PER_RANK.search(_made_of(python, target)) or not is_called(python, call):
                continue
            if not guards(python, call):
                yield Hit(
                    at=python.at(call),
                    what="All ranks write this file at the same time, which can corrupt it.",
                    fix=_on_rank_zero(python, call),
                )

    for python in subject.distributed:
        if may_have_several_ranks(subject, python):
            yield from _saves_in_modules(python)


def _saves_in_modules(python: PythonScript) -> Iterator[Hit]:
    """Find files that a function of an imported module writes, if all ranks call it."""
    for module in python.modules:
        for call, target in _saves(module):
            function = enclosing_function(module, call)
            if function is None or guards(module, call):
                continue
            if _ONE_PER_RANK.search(_made_of(module, target) + unparse(function)):
                continue
            method = any(isinstance(node, ast.ClassDef) for node in ancestors(module, call))
            callers = python.calls(function.name)
            named = re.search(rf"\bimport\b.*\b{function.name}\b", python.text) or any(
                isinstance(c.func, ast.Attribute) and unparse(c.func.value) in module.path
                for c in callers
            )
            inner = [c for c in module.calls(function.name) if c is not call]
            if method or not callers or not named or inner:
                continue
            if not any(guards(python, caller) for caller in callers):
                yield Hit(
                    at=module.at(call),
                    what="All ranks write this file at the same time, which can corrupt it. They "
                    f"call {function.name} in {python.path}, line {callers[0].lineno}.",
                    fix=f"if dist.get_rank() == 0:  # around the call of {function.name}"
                    + _or_own_name(module, call),
                )


def _on_rank_zero(python: PythonScript, call: ast.Call) -> str:
    """Return a condition for one rank that also works without the process group."""
    here = enclosing_function(python, call)
    ended = [
        end
        for end in python.calls("destroy_process_group")
        if enclosing_function(python, end) is here and end.lineno < call.lineno
    ]
    if not ended:
        return f"if dist.get_rank() == 0:  # around this call{_or_own_name(python, call)}"
    return (
        "rank = dist.get_rank()  # before destroy_process_group, which ends the group\n"
        f"if rank == 0:  # around this call{_or_own_name(python, call)}"
    )


def _or_own_name(python: PythonScript, call: ast.Call) -> str:
    """Return a second fix for what may not be a model, so that each rank has data of its own."""
    saved, target = keyword(call, "obj", 0), keyword(call, "f", 1)
    made_of = f"{origin(python, saved)} {unparse(target) if target else ''}"
    if _IS_MODEL.search(made_of):
        return ""
    return "\nor add the rank to the name of the file, if each rank has its own data"


def _made_of(python: PythonScript, target: ast.expr) -> str:
    """Return the text of all expressions that a file name is derived from, callers included."""
    names = [node for node in ast.walk(target) if isinstance(node, ast.Name)]
    given = [value for name in names for value in handed_over(python, name)]
    return " ; ".join(origin(python, value) for value in (target, *given))


def find_one_writer_per_node(subject: Subject) -> Iterator[Hit]:
    if not subject.may_have_several_nodes:
        return
    for python in subject.distributed:
        launches = subject.with_python(python)
        if launches and not any(map(may_be_on_other_nodes, launches)):
            continue
        for call, target in _saves(python):
            tests = guards(python, call)
            if not tests or re.search("rank|RANK|node|NODE", origin(python, target)):
                continue
            per_node = all(_ONE_PER_NODE.search(test) for test in tests)
            if per_node and not re.search(r"==\s*-1", " ".join(tests)):
                yield Hit(
                    at=python.at(call),
                    what="One rank of each node writes this file. On several nodes, they write it "
                    "at the same time.",
                    fix="if dist.get_rank() == 0:  # instead of the local rank",
                )


def find_torn_checkpoint(subject: Subject) -> Iterator[Hit]:
    for python in subject.pythons:
        if python.mentions(*_ATOMIC):
            continue
        loads = [call for call in python.calls("load") if unparse(call.func) == "torch.load"]
        for call, target in _saves(python):
            function = enclosing_function(python, call)
            loaded = {
                unparse(keyword(load, "f", 0) or load)
                for load in loads
                # Further down, the script loads its best weights for a test.
                if load.lineno < call.lineno or enclosing_function(python, load) is not function
            }
            passing = re.search(r"\bte?mp", _made_of(python, target))
            if unparse(target) in loaded and _replaces_itself(python, call, target) and not passing:
                yield Hit(
                    at=python.at(call),
                    what="A job that is killed while saving leaves an incomplete file. The "
                    "previous checkpoint is lost, and the next job cannot resume.",
                    fix='torch.save(state, f"{path}.tmp"); os.replace(f"{path}.tmp", path)',
                )


def _replaces_itself(python: PythonScript, call: ast.Call, target: ast.expr) -> bool:
    """Tell whether a call writes the same file again and again: in a loop, to a fixed name."""
    function = enclosing_function(python, call)
    handed = {argument.arg for argument in function.args.args} if function else set()
    made_of = _made_of(python, target)
    if handed & {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}:
        return False  # the callers choose the name
    if _NUMBERED.search(made_of):
        return False
    places: list[ast.AST] = [call, *(python.calls(function.name) if function else [])]
    loops = [_loop_around(python, place) for place in places]
    return any(loop and not _counts(loop, made_of) for loop in loops)


def _loop_around(python: PythonScript, node: ast.AST) -> ast.For | ast.While | None:
    """Return the innermost loop around a node."""
    return next((a for a in ancestors(python, node) if isinstance(a, ast.For | ast.While)), None)


def _counts(loop: ast.For | ast.While, name: str) -> bool:
    """Tell whether a file name contains the variable of a loop."""
    if isinstance(loop, ast.While):
        return False
    variables = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    return not variables.isdisjoint(re.findall(r"\w+", name))


def find_missing_map_location(subject: Subject) -> Iterator[Hit]:
    for python in subject.distributed:
        if not may_have_several_ranks(subject, python):
            continue
        if not python.mentions("cuda", "nccl") or _saves_from_cpu(python):
            continue
        launches = subject.with_python(python)
        seen = (launch.amounts for launch in launches)
        if launches and all(1 in (a.gpus_per_task, a.gpus_per_node) for a in seen):
            continue  # each rank sees one GPU
        for call in python.calls("load"):
            if unparse(call.func) != "torch.load" or keyword(call, "map_location", 1) is not None:
                continue
            if any(given.arg is None for given in call.keywords):
                continue
            made_of = origin(python, call.args[0]) if call.args else ""
            if re.search("rank|RANK", made_of) or _NO_FILE.search(made_of):
                continue
            if guards(python, call) or not _is_checkpoint(python, call):
                continue
            yield Hit(
                at=python.at(call),
                what="Every rank loads the file onto the GPU it was saved from, usually GPU 0. "
                "That GPU then holds one copy per rank.",
                fix='torch.load(path, map_location="cpu")',
                severity=None if is_in_running(python, call) else ADVICE,
            )


def _saves_from_cpu(python: PythonScript) -> bool:
    """Tell whether the script moves tensors to the CPU before it saves them."""
    saved = [keyword(call, "obj", 0) for call, _ in _saves(python)]
    texts = [origin(python, value) for value in saved if value is not None]
    return bool(texts) and all(_FROM_CPU.search(text) for text in texts)


def _is_checkpoint(python: PythonScript, call: ast.Call) -> bool:
    """Tell whether a file holds weights; tensors of a dataset are usually saved from the CPU."""
    around = unparse(python.parents.get(call, call))
    for parent in ancestors(python, call):
        if isinstance(parent, ast.stmt):
            around = unparse(parent).partition("\n")[0]
            break
    made_of = origin(python, call.args[0]) if call.args else ""
    return bool(_WEIGHTS.search(f"{around} {made_of}")) and not _DATA.search(around)


def find_lonely_forward(subject: Subject) -> Iterator[Hit]:
    for python in subject.pythons:
        wrapped = _wrapped_names(python)
        if not wrapped or not _may_have_buffers(python):
            continue
        if not may_have_several_ranks(subject, python):
            continue
        runs: dict[str, list[ast.Call]] = {}
        for call in (node for node in python.nodes if isinstance(node, ast.Call)):
            for name in _forwards(python, call, set(wrapped)) & set(wrapped):
                if _is_after(python, call, wrapped[name]):
                    runs.setdefault(name, []).append(call)
        for name, calls in runs.items():
            guarded = [guards(python, call) for call in calls]
            conditions = frozenset(condition for tests in guarded for condition in tests)
            for call, tests in zip(calls, guarded, strict=True):
                lonely = any(map(_is_rank_zero, tests))
                if lonely and not has_alternative(tests, conditions):
                    yield _lonely(python, call, name)


def _lonely(python: PythonScript, call: ast.Call, model: str) -> Hit:
    return Hit(
        at=python.at(call),
        what=f"Only rank 0 runs `{model}`, which is wrapped in DDP. It waits forever for the other "
        "ranks when DDP broadcasts buffers, such as those of BatchNorm.",
        fix=f"use {model}.module here, or let every rank evaluate its share",
    )


def _wrapped_names(python: PythonScript) -> dict[str, ast.Assign]:
    """Return the variables that hold a model wrapped in DDP, with their first assignment."""
    made = (python.parents.get(call) for call in python.calls("DistributedDataParallel", "DDP"))
    assigned = [node for node in made if isinstance(node, ast.Assign)]
    assigned.sort(key=lambda node: -node.lineno)
    return {unparse(target): node for node in assigned for target in node.targets}


def _is_after(python: PythonScript, call: ast.Call, wrapping: ast.Assign) -> bool:
    """Tell whether a call can use what was wrapped: not further up, nor a variable of its own."""
    function, name = enclosing_function(python, call), unparse(wrapping.targets[0])
    if function is enclosing_function(python, wrapping):
        return call.lineno > wrapping.lineno
    own = (node for node in ast.walk(function) if isinstance(node, ast.Assign)) if function else ()
    set_here = (part for node in own for target in node.targets for part in ast.walk(target))
    return not any(isinstance(part, ast.expr) and name == unparse(part) for part in set_here)


def _may_have_buffers(python: PythonScript) -> bool:
    """Tell whether a model may have buffers: it defines some, or comes from elsewhere."""
    if re.search(
        r"BatchNorm|SyncBatch|register_buffer|resnet|torchvision\.models|timm|models\.", python.text
    ):
        return True
    wrapped = [c for c in python.calls("DistributedDataParallel", "DDP") if c.args]
    modules = [n.name for n in python.nodes if isinstance(n, ast.ClassDef)]
    made_of = " ".join(origin(python, call.args[0]) for call in wrapped)
    own = any(re.search(rf"\b{name}\(", made_of) for name in modules)
    layers = re.search(r"\bnn\.|Sequential|Linear", made_of)
    return not own and not layers


def _forwards(python: PythonScript, call: ast.Call, wrapped: set[str]) -> set[str]:
    """Return the models that a call runs, directly or through a function of the script."""
    direct = unparse(call.func)
    if direct not in wrapped and direct not in python.functions:
        return set()
    around = enclosing_function(python, call)
    # A parameter is reported where the caller passes the model.
    handed = {argument.arg for argument in around.args.args} if around else set()
    found = {direct} - handed
    for function in python.functions.get(direct, []):
        runs = _runs(function)
        names = [argument.arg for argument in function.args.args]
        for argument, name in zip(call.args, names, strict=False):
            if name in runs:
                found.add(unparse(argument))
    return found


@lru_cache(maxsize=1000)
def _runs(function: Function) -> frozenset[str]:
    """Return the functions that a function calls, as written."""
    return frozenset(unparse(n.func) for n in ast.walk(function) if isinstance(n, ast.Call))


def _is_rank_zero(test: str) -> bool:
    if re.search(r"\bor\b|local_rank|LOCAL", test):
        return False
    return bool((_OTHERS_LEFT if test.startswith("not (") else _ZERO_ENTERS).search(test))


RULES = (
    Rule(
        code="E611",
        title="checkpoint written by every rank",
        severity=WARNING,
        check=find_every_rank_saves,
        why="All ranks have the same weights, so only one of them needs to save.",
        example="""\
 --- train.py
 import torch
 import torch.distributed as dist
 dist.init_process_group("gloo")
-torch.save({"step": 1}, "last.pt")    # <- here
+if dist.get_rank() == 0:
+    torch.save({"step": 1}, "last.pt")
 dist.destroy_process_group()
""",
    ),
    Rule(
        code="E612",
        title="checkpoint written by one rank per node",
        severity=WARNING,
        check=find_one_writer_per_node,
        why="Every node has a local rank 0, and the nodes usually share a file system.",
        example="""\
 --- train.py
 import os
 import torch
 import torch.distributed as dist
 dist.init_process_group("gloo")
-local_rank = int(os.environ["LOCAL_RANK"])
-if local_rank == 0:
+rank = int(os.environ["RANK"])
+if rank == 0:
     torch.save({"step": 1}, "last.pt")    # <- here
 dist.destroy_process_group()
""",
    ),
    Rule(
        code="E613",
        title="checkpoint overwritten in place",
        severity=WARNING,
        check=find_torn_checkpoint,
        why="Write the new checkpoint to a temporary file, then rename it. The old checkpoint "
        "remains until the new one is complete.",
        example="""\
 --- train.py
 import os
 import torch
 if os.path.exists("last.pt"):
     state = torch.load("last.pt")
 for step in range(9):
-    torch.save({"step": step}, "last.pt")    # <- here
+    torch.save({"step": step}, "last.pt.tmp")
+    os.replace("last.pt.tmp", "last.pt")
""",
    ),
    Rule(
        code="E614",
        title="missing `map_location`",
        severity=WARNING,
        check=find_missing_map_location,
        why="By default, `torch.load` moves tensors to the device on which they were saved. In a "
        "branch, such as one that resumes a run, it is advice.",
        example="""\
 --- train.py
 import os
 import torch
 import torch.distributed as dist
 dist.init_process_group("nccl")
 torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
-state = torch.load("start.pt")    # <- here
+state = torch.load("start.pt", map_location="cpu")
 dist.destroy_process_group()
""",
    ),
    Rule(
        code="E615",
        title="DDP model run on rank 0 only",
        severity=WARNING,
        check=find_lonely_forward,
        why="If a model has buffers, the forward pass of its DDP wrapper is a collective "
        "operation. All ranks must take part in it.",
        example="""\
 --- train.py
 import torch
 import torch.distributed as dist
 from torch.nn.parallel import DistributedDataParallel as DDP
 dist.init_process_group("gloo")
 model = DDP(torch.nn.BatchNorm1d(2))
 if dist.get_rank() == 0:
-    print(model(torch.ones(4, 2)))    # <- here
+    print(model.module(torch.ones(4, 2)))
 dist.destroy_process_group()
""",
    ),
)
