"""What the commands of a job are: programs, servers, or neither."""

import re

from echelon.lint.bash import Command, Shell
from echelon.lint.patterns import pattern

_STARTERS = ("srun", "torchrun", "mpirun", "mpiexec", "deepspeed", "accelerate")
QUIET = frozenset({"echo", "date", "printf", "hostname", "true", ":", "kill", "sleep"})
SERVER = pattern(
    r"\bvllm serve\b|vllm\.entrypoints|sglang\.launch_server|\btext-generation-launcher\b|"
    r"\btensorboard\b.*--logdir|\bjupyter[- ](lab|notebook)\b|\bray start\b.*--block|"
    r"\bnvidia-smi\b.* (-l|--loop|dmon|pmon)|-m http\.server|\bmlflow (ui|server)\b|"
    r"\bollama serve\b|\bredis-server\b|\btail -[fF]\b|\bsleep inf"
)
"""Programs that run until something ends them."""

ENDS_OTHERS = frozenset({"kill", "pkill", "killall", "scancel", "timeout"})


def starts(command: Command) -> bool:
    return command.name in _STARTERS or bool(re.match(r"python|.*\.py$", command.name))


def runs_script(command: Command) -> bool:
    scripts = (word.text for word in command.arguments if word.text.endswith((".sh", ".bash")))
    return command.name in ("bash", "sh") and any(scripts)


def training_functions(batch: Shell) -> set[str]:
    """Return the functions of a script that start a program."""
    return {c.function for c in batch.commands if c.function and starts(c)}


def waits_for_server(batch: Shell) -> bool:
    """Tell whether a script stays at a `wait`, because nothing ends its server before."""
    servers = [c.line for c in batch.commands if c.background and SERVER.search(c.text)]
    waits = [c.line for c in batch.commands if c.text == "wait" and c.certain and not c.substituted]
    if not servers or not waits or waits[-1] < servers[-1] or "trap" in batch.text:
        return False
    before = (c for c in batch.commands if c.line < waits[-1])
    return not any(c.name in ENDS_OTHERS or c.text.startswith("ray stop") for c in before)
