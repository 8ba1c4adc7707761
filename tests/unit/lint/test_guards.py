"""Who writes a checkpoint: one rank by any spelling of it is right, all of them are told."""

import pytest

from echelon.lint.linting import lint
from unit.lint.fakes import TextFiles

HEAD = """\
import argparse, os, sys, tempfile, uuid
import torch
import torch.distributed as dist
from tempfile import NamedTemporaryFile, mkstemp
dist.init_process_group("gloo")
rank, loss, best, state = dist.get_rank(), 1.0, 2.0, {}
"""
TAIL = "\ndist.destroy_process_group()\n"


def codes(body, **beside):
    files = {f"{name}.py": text for name, text in beside.items()}
    return [f.code for f in lint(HEAD + body + TAIL, path="train.py", files=TextFiles(files))]


ONE_RANK = {
    "continue": """
for epoch in range(3):
    if rank != 0:
        continue
    torch.save(state, "last.pt")
""",
    "break": """
for epoch in range(3):
    with torch.no_grad():
        loss = 0
    if rank > 0:
        break
    if loss < best:
        torch.save(state, "last.pt")
""",
    "return at the top of a loop in a function": """
def train():
    for epoch in range(3):
        if rank != 0:
            return
        torch.save(state, "last.pt")
train()
""",
    "exit": """
if dist.get_rank() != 0:
    sys.exit(0)
torch.save(state, "last.pt")
""",
    "the others' branch leaves": """
for epoch in range(3):
    if rank == 0:
        print(epoch)
    else:
        continue
    torch.save(state, "last.pt")
""",
    "flag": """
is_saver = rank == 0
for epoch in range(3):
    if is_saver and epoch % 2 == 0:
        torch.save(state, "last.pt")
""",
    "flag that turns away": """
saves = not rank
def save():
    if not saves:
        return
    torch.save(state, "last.pt")
save()
""",
    "flag in two branches": """
if rank == 0:
    saves = True
else:
    saves = False
if saves:
    torch.save(state, "last.pt")
""",
    "flag among several": """
saves, prints = rank == 0, rank < 4
if saves:
    torch.save(state, "last.pt")
""",
    "number under another name": """
me = int(os.environ["RANK"])
if me == 0:
    torch.save(state, "last.pt")
""",
    "object that one rank has": """
writer = open("log", "w") if rank == 0 else None
if writer is not None:
    torch.save(state, "last.pt")
""",
    "attribute": """
class Trainer:
    def __init__(self):
        self.is_writer = dist.get_rank() == 0
    def save(self):
        if self.is_writer:
            torch.save(state, "last.pt")
Trainer().save()
""",
    "property": """
class Trainer:
    @property
    def writes(self):
        return dist.get_rank() == 0
    def save(self):
        if not self.writes:
            return
        torch.save(state, "last.pt")
Trainer().save()
""",
    "field": """
class Options:
    def __init__(self, writes):
        self.writes = writes
options = Options(writes=rank == 0)
if options.writes:
    torch.save(state, "last.pt")
""",
    "argument": """
def save(path, wanted):
    if wanted:
        torch.save(state, path)
save("last.pt", rank == 0)
""",
    "function": """
def first():
    return dist.get_rank() == 0
if first():
    torch.save(state, "last.pt")
""",
    "function that answers in branches": """
def first():
    if dist.get_rank() == 0:
        return True
    return False
if first():
    torch.save(state, "last.pt")
""",
    "flag of a function": """
def first():
    return dist.get_rank() == 0
saves = first()
if saves:
    torch.save(state, "last.pt")
""",
    "decorator": """
def once(function):
    def wrapped(*args):
        return function(*args) if dist.get_rank() == 0 else None
    return wrapped
@once
def save():
    torch.save(state, "last.pt")
save()
""",
    "lambda": """
def once(action):
    if dist.get_rank() == 0:
        action()
once(lambda: torch.save(state, "last.pt"))
""",
    "match": """
match rank:
    case 0:
        torch.save(state, "last.pt")
""",
    "assert": """
def save():
    assert rank == 0
    torch.save(state, "last.pt")
if loss:
    save()
""",
    "or": 'rank != 0 or torch.save(state, "last.pt")\n',
    "walrus": """
if (me := dist.get_rank()) == 0:
    torch.save(state, "last.pt")
""",
    "process id": 'torch.save(state, f"part-{os.getpid()}.pt")\n',
    "uuid": 'name = f"{uuid.uuid4()}.pt"\ntorch.save(state, name)\n',
    "mkstemp": "handle, name = mkstemp()\ntorch.save(state, name)\n",
    "temporary file": """
with NamedTemporaryFile() as t:
    torch.save(state, t.name)
""",
    "temporary folder": """
with tempfile.TemporaryDirectory() as folder, open("log") as log:
    torch.save(state, f"{folder}/x.pt")
""",
    "path that is added to": """
path = "part"
path += f"-{rank}.pt"
torch.save(state, path)
""",
    "path of a method's caller": """
class Trainer:
    def save(self, path):
        torch.save(state, path)
Trainer().save(f"part-{rank}.pt")
""",
    "path of the caller": """
def save(path):
    torch.save(state, path)
save(f"part-{rank}.pt")
""",
}


@pytest.mark.parametrize("body", ONE_RANK.values(), ids=ONE_RANK.keys())
def test_one_writer_is_not_told(body):
    assert codes(body) == []


def test_a_function_beside_the_script_is_looked_at():
    body = 'from tools import chosen\nif chosen():\n    torch.save(state, "last.pt")\n'
    tools = "import torch.distributed as dist\ndef chosen():\n    return {} == 0\n"
    assert codes(body, tools=tools.format("dist.get_rank()")) == []
    assert codes(body, tools=tools.format("dist.get_world_size()")) == ["E611"]


ALL_RANKS = {
    "best": """
if loss < best:
    torch.save(state, "best.pt")
""",
    "best, by a call that is given the rank": """
def validate(rank):
    return 1.0
loss = validate(rank)
is_best = loss < best
if is_best:
    torch.save(state, "best.pt")
if validate(rank) < best:
    torch.save(state, "better.pt")
""",
    "every second epoch": """
for epoch in range(3):
    if epoch % 2:
        continue
    torch.save(state, "last.pt")
""",
    "a break of an inner loop": """
for epoch in range(3):
    for _ in range(2):
        if rank != 0:
            break
    torch.save(state, "last.pt")
""",
    "only printing is guarded": """
if rank == 0:
    print("saving")
torch.save(state, "last.pt")
""",
    "an option": """
args = argparse.ArgumentParser().parse_args()
if args.save:
    torch.save(state, "last.pt")
""",
    "with a file": """
with open("last.pt", "wb") as file:
    torch.save(state, file)
""",
    "the caller's path": """
def save(path):
    torch.save(state, path)
save("last.pt")
""",
    "the object's own path": """
class Trainer:
    def __init__(self, path):
        self.path = path
    def save(self, state):
        torch.save(state, self.path)
Trainer("last.pt").save(state)
""",
    "both branches": """
def save():
    torch.save(state, "last.pt")
if rank == 0:
    save()
else:
    save()
""",
    "a flag of something else": """
wanted = loss == 1
if wanted:
    torch.save(state, "last.pt")
""",
}


@pytest.mark.parametrize("body", ALL_RANKS.values(), ids=ALL_RANKS.keys())
def test_all_writers_are_told(body):
    assert set(codes(body)) == {"E611"}


def test_a_flag_of_the_local_rank_is_one_writer_per_node():
    body = 'saves = int(os.environ["LOCAL_RANK"]) == 0\nif saves:\n    torch.save(state, "x.pt")\n'
    assert codes(body) == ["E612"]


DDP = "model = torch.nn.parallel.DistributedDataParallel(torch.nn.BatchNorm1d(2))\n"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("first = rank == 0\nif first:\n    model(state)\n", ["E615"]),
        ("for _ in range(2):\n    if rank != 0:\n        continue\n    model(state)\n", ["E615"]),
        ("if rank == 0:\n    print()\nelse:\n    model(state)\n", []),
        ("first = rank == 0\nif not first:\n    model(state)\n", []),
        ("if rank == 0:\n    print(model(state))\nelse:\n    model(state)\n", []),
        (
            (
                "def train():\n    model(state)\n"
                "if rank == 0:\n    print(train())\nelse:\n    train()\n"
            ),
            [],
        ),
        (
            (
                "def check():\n    model(state)\n"
                "if rank == 0:\n    print(check())\nif best and rank == 0:\n    check()\n"
            ),
            ["E615"],
        ),
    ],
)
def test_the_lonely_forward_is_the_one_of_rank_0(body, found):
    assert codes(DDP + body) == found
