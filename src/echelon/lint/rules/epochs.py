"""E602: samplers that shuffle all epochs in the same way."""

import ast
from collections.abc import Iterator

from echelon.lint.files import Place
from echelon.lint.python_script import constant, keyword
from echelon.lint.rule import WARNING, Hit, rule
from echelon.lint.script import Script

_LOOP_NAMES = ("epoch", "ep")


@rule("E602", WARNING)
def missing_set_epoch(script: Script) -> Iterator[Hit]:
    """Missing `set_epoch`.

    `DistributedSampler` derives the order of the samples from its seed and the epoch. Without
    `set_epoch`, the epoch is always 0, and all epochs have the same order.

    Example:
         --- train.py
         from torch.utils.data import DistributedSampler
         def train(data, step):
             sampler = DistributedSampler(data)    # <- here
             for epoch in range(3):
        +        sampler.set_epoch(epoch)
                 for sample in sampler:
                     step(sample)
    """
    for python in script.pythons:
        samplers = [
            call
            for call in python.calls("DistributedSampler")
            if constant(keyword(call, "shuffle")) is not False
            and any("train" in part or part == "" for part in _targets(python.parents.get(call)))
        ]
        sets = python.mentions("set_epoch", "Lightning", "lightning") or python.calls("Trainer")
        if not samplers or sets:
            continue
        loops = [
            node
            for node in python.nodes
            if isinstance(node, ast.For)
            and isinstance(node.target, ast.Name)
            and node.target.id.startswith(_LOOP_NAMES)
            and any(isinstance(inner, ast.Call) for one in node.body for inner in ast.walk(one))
        ]
        if loops:
            yield Hit(
                at=Place(python.path, samplers[0].lineno),
                what="The sampler shuffles all epochs in the same way, because nothing calls "
                "`set_epoch`.",
                fix="sampler.set_epoch(epoch)  # at the start of each epoch",
            )


def _targets(parent: ast.AST | None) -> list[str]:
    """Return the names that a sampler is assigned to; an empty one if they say nothing."""
    targets = parent.targets if isinstance(parent, ast.Assign) else []
    names = [ast.unparse(target).lower() for target in targets]
    other = ("val", "test", "eval", "dev")
    return [name for name in names if "train" in name] or [
        "" for name in names or [""] if not any(word in name for word in other)
    ]
