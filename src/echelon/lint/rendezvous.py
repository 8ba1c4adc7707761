"""Where a script sets the address and the port at which its ranks meet."""

import re
from collections.abc import Iterator

from echelon.lint.bash import Assignment, Word
from echelon.lint.launches import Launch
from echelon.lint.script import Script

FIRST_NODE = 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
FREE_PORT = """\
export MASTER_PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); \
print(s.getsockname()[1])')"""
_PORT_OPTIONS = ("master-port", "main-process-port", "rdzv-endpoint")
_HOST_OPTIONS = ("master-addr", "main-process-ip", "rdzv-endpoint")
_JOB_ID = frozenset({"SLURM_JOB_ID", "SLURM_JOBID"})
_FRAMEWORKS = ("lightning", "Lightning", "init_process_group", "init_distributed", "Accelerator")


def host_words(launch: Launch) -> list[Word]:
    options = launch.launcher.options if launch.launcher is not None else {}
    return [options[name] for name in _HOST_OPTIONS if name in options]


def port_words(launch: Launch) -> list[Word]:
    options = launch.launcher.options if launch.launcher is not None else {}
    words = [options[name] for name in _PORT_OPTIONS if name in options]
    return words + [word for word in launch.arguments if "tcp://" in word.text]


def ports(script: Script) -> Iterator[Assignment]:
    """Yield the ports of a script, each at the place that sets it: a variable or an option."""
    told = set[int]()
    if is_read(script, "MASTER_PORT"):
        for assignment in script.assigned("MASTER_PORT"):
            told.add(id(assignment))
            yield assignment
    for launch in [one.launch for one in script.started]:
        for word in port_words(launch):
            makers = _makers(script, word)
            yield from (maker for maker in makers if id(maker) not in told)
            told |= {id(maker) for maker in makers}
            if not makers:
                path, line = launch.place_of(word, script.path)[:2]
                where = launch.command.where
                yield Assignment(
                    name="", value=word, path=path, line=line, where=where, certain=True
                )


def _makers(script: Script, word: Word) -> list[Assignment]:
    """Return the assignments that a port option takes its port from."""
    port = word.text.rpartition(":")[2].strip("\"'")
    if port.isdecimal():
        # The text has the number instead of the variable.
        return [
            a
            for a in script.assignments
            if a.value.text == port and (a.name in word.names or "PORT" in a.name.upper())
        ]
    named = set(re.findall(r"\$\{?(\w+)", port))
    return [a for a in script.assignments if a.name in named and _is_port(a)]


def _is_port(assignment: Assignment) -> bool:
    value = assignment.value
    named = "PORT" in assignment.name.upper() or value.names & {"RANDOM", *_JOB_ID}
    return bool(named) or value.number is not None


def is_read(script: Script, name: str) -> bool:
    """Tell whether a program may read a variable of the rendezvous that the script sets."""
    set_for = (one.launch.variables for one in script.started)
    if name not in script.exported and not any(name in names for names in set_for):
        return False
    pythons = [one.python for one in script.started if one.launch.launcher is None]
    return any(
        python is None or python.is_distributed or python.mentions(name, *_FRAMEWORKS)
        for python in pythons
    )
