"""E621 to E625: the device and the process group of a rank."""

import ast
import difflib
import re
from collections.abc import Iterator

from echelon.lint.edits import Edit, replace_range
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.python_guards import is_called
from echelon.lint.python_script import (
    PythonScript,
    constant,
    is_conditional,
    keyword,
    origin,
    unparse,
    values_of,
)
from echelon.lint.rule import ADVICE, ERROR, WARNING, Hit, Rule
from echelon.lint.subject import Subject

_BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl", "hccl", "ccl", "fake", "threaded", "undefined")
_OF_VENDORS = ("mccl", "cncl", "smddp", "xla", "eccl", "lccl", "rccl", "tccl", "vccl")
"""Backends that other packages register."""
_BY_INDEX = pattern(
    r"device_ids\s*=\s*\[|cuda:\{|\.cuda\(\s*\w|device\(\s*['\"]cuda['\"]\s*,|"
    r"\.to\(\s*(\w*rank|gpu|args\.gpu|args\.local_rank|self\.\w*(rank|gpu)\w*|device_id)\b|"
    r"device\s*=\s*(device|\w*rank|gpu|device_id)\b|device_id\s*=|['\"]cuda:['\"]\s*\+|cuda:%"
)


def _needs_device(subject: Subject, python: PythonScript) -> bool:
    """Tell whether the ranks see several GPUs and do not set their current device."""
    calls = python.calls("init_process_group")
    backends = [origin(python, keyword(call, "backend", 0)) for call in calls]
    if not any("nccl" in text for text in (*map(unparse, calls), *backends)):
        return False
    if any(keyword(call, "device_id") is not None for call in calls):
        return False
    if python.mentions("set_device", "CUDA_VISIBLE_DEVICES", "torch.cuda.device(", "echelon"):
        return False
    if python.mentions("deepspeed.initialize"):  # which sets the device
        return False
    launches = subject.with_python(python)
    one_gpu = [
        launch.amounts.gpus_per_node == 1
        or bool(launch.amounts.gpus_per_task)
        or "CUDA_VISIBLE_DEVICES" in launch.variables
        for launch in launches
    ]
    return not (launches and all(one_gpu))


def find_one_device(subject: Subject) -> Iterator[Hit]:
    for python in subject.pythons:
        if not _needs_device(subject, python) or _BY_INDEX.search(python.text):
            continue
        places = re.search(r"\.cuda\(\)|['\"]cuda['\"]", python.text)
        if places and not _BY_INDEX.search(python.neighbours):
            yield Hit(
                at=Place(python.path, python.text[: places.start()].count("\n") + 1),
                what="All ranks of a node use GPU 0, because none selects another device. NCCL "
                "fails with 'Duplicate GPU detected'.",
                fix='torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # before any CUDA call',
            )


def find_missing_set_device(subject: Subject) -> Iterator[Hit]:
    for python in subject.pythons:
        if _needs_device(subject, python) and _BY_INDEX.search(python.text):
            yield Hit(
                at=python.at(python.calls("init_process_group")[0]),
                what="The process does not set its device. Every rank also opens GPU 0, and calls "
                "such as `barrier` and `all_gather_object` use it.",
                fix="torch.cuda.set_device(local_rank)  # before init_process_group",
            )


def find_missing_destroy(subject: Subject) -> Iterator[Hit]:
    for python in subject.pythons:
        calls = python.calls("init_process_group")
        frameworks = python.mentions(
            "destroy_process_group", "lightning", "accelerate", "deepspeed"
        )
        if calls and not frameworks and _is_program(subject, python):
            yield Hit(
                at=python.at(calls[0]),
                what="The script does not call `destroy_process_group`. NCCL warns, and can hang "
                "or crash at exit.",
                fix="dist.destroy_process_group()  # at the end of the program",
            )


def _is_program(subject: Subject, python: PythonScript) -> bool:
    """Tell whether a file is a program, not a module whose importer may clean up."""
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
                odd = [part for part in parts if part not in _BACKENDS + _OF_VENDORS]
                near = difflib.get_close_matches(odd[0], _BACKENDS, n=1, cutoff=0.7) if odd else []
                if odd and (near or not re.fullmatch(r"\w+", odd[0])):
                    yield Hit(
                        at=python.at(call),
                        what=f"There is no backend '{text}', so `init_process_group` fails.",
                        fix=f'backend="{near[0] if near else "nccl"}"',
                        severity=None
                        if not is_conditional(python, call) and is_called(python, call)
                        else WARNING,
                        edits=_named(python, backend, near) if odd == [text] else (),
                    )


def _named(python: PythonScript, backend: ast.expr | None, near: list[str]) -> tuple[Edit, ...]:
    """Return the edit that replaces a literal name by the nearest one."""
    if not isinstance(backend, ast.Constant) or not near:
        return ()
    return (replace_range(python.at(backend), python.at(backend), f'"{near[0]}"'),)


def find_counted_local_rank(subject: Subject) -> Iterator[Hit]:
    for python in subject.pythons:
        for call in python.calls("set_device"):
            made_of = origin(python, keyword(call, "device", 0))
            counted = re.search(r"\brank\s*(%|-\s*\w+\s*\*)|SLURM_PROCID['\"]\]\)\s*%", made_of)
            if counted and "LOCAL" not in made_of:
                yield Hit(
                    at=python.at(call),
                    what="The local rank is computed from the rank. Two ranks get the same GPU if "
                    "tasks are distributed cyclically or nodes have different numbers of GPUs.",
                    fix='local_rank = int(os.environ["SLURM_LOCALID"])  # torchrun: LOCAL_RANK',
                )


RULES = (
    Rule(
        code="E621",
        title="all ranks on GPU 0",
        severity=WARNING,
        check=find_one_device,
        why="'cuda' without an index is the current device, which is GPU 0 unless the script calls "
        "`set_device`.",
        example="""\
 --- train.py
+import os
 import torch
 import torch.distributed as dist
+torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
 dist.init_process_group("nccl")
 model = torch.nn.Linear(1, 1).to("cuda")    # <- here
 dist.destroy_process_group()
""",
    ),
    Rule(
        code="E622",
        title="missing `set_device`",
        severity=ADVICE,
        check=find_missing_set_device,
        why="Moving the model to a GPU is not enough. Collectives without a tensor use the current "
        "device.",
        example="""\
 --- train.py
 import os
 import torch
 import torch.distributed as dist
 local_rank = int(os.environ["LOCAL_RANK"])
-dist.init_process_group("nccl")    # <- here
+dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank))
 model = torch.nn.Linear(1, 1).to(local_rank)
 dist.destroy_process_group()
""",
    ),
    Rule(
        code="E623",
        title="missing `destroy_process_group`",
        severity=ADVICE,
        check=find_missing_destroy,
        why="Since version 2.4, PyTorch warns if a process exits while its NCCL process group is "
        "open.",
        example="""\
 --- train.py
 import torch.distributed as dist
 dist.init_process_group("gloo")    # <- here
 dist.barrier()
+dist.destroy_process_group()
""",
    ),
    Rule(
        code="E624",
        title="unknown backend",
        severity=ERROR,
        check=find_unknown_backend,
        why="Use nccl for GPUs, gloo for CPUs, or `cpu:gloo,cuda:nccl` for both.",
        example="""\
 --- train.py
 import torch.distributed as dist
-dist.init_process_group(backend="gloo|nccl")    # <- here
+dist.init_process_group(backend="cpu:gloo,cuda:nccl", device_id=None)
 dist.destroy_process_group()
""",
    ),
    Rule(
        code="E625",
        title="local rank computed from the rank",
        severity=ADVICE,
        check=find_counted_local_rank,
        why="`rank % gpus` is the local rank only if Slurm fills one node after the other and all "
        "nodes are the same. Slurm provides the local rank as `SLURM_LOCALID`.",
        example="""\
 --- train.py
 import os
 import torch
-rank = int(os.environ["SLURM_PROCID"])
-torch.cuda.set_device(rank % torch.cuda.device_count())    # <- here
+torch.cuda.set_device(int(os.environ["SLURM_LOCALID"]))
""",
    ),
)
