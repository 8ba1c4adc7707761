"""The facts about one key of the request, such as its flag, reader and help text.

The keys are the fields of `JobSpec` in job_spec.py. The command line, sbatch's options, the
documentation and the checks of a request all follow from their entries.
"""

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import Any

from echelon.core.frozen import frozen
from echelon.core.units import format_memory
from echelon.spec import readers

EVERYDAY = "Options"
RESOURCES = "Resources"
RECOVERY = "Restarts and hand-over"
CHECKS = "Checks and measurements"
NOTIFICATION = "Notification"
ENVIRONMENT = "Environment of the ranks"
IMAGE = "Container image"
FAST_START = "Fast start"
SECTIONS = (EVERYDAY, RESOURCES, RECOVERY, CHECKS, NOTIFICATION, ENVIRONMENT, IMAGE, FAST_START)
"""Sections of the help text, in their order."""

RUN, ROLE = "run", "role"
"""Scopes: a key applies to the run as a whole, or to each program of a run with several."""

ONLY_SLURM = ("ray", "local")
"""Where keys that only Slurm uses have no effect."""


@frozen
class Key:
    """A key of the request, as its entry in `JobSpec` describes it."""

    field: str
    """The name of the field."""
    name: str
    """The name in files: the name of the field, unless the entry has another one."""
    flag: str
    """The flag with its placeholder: `--gpus N`; `--env NAME=VALUE ...` if it may be repeated;
    `--module -m` if it takes no value; `SCRIPT` if it is an argument."""
    help: str
    """The description in the help text and in the documentation."""
    section: str
    """The section of the help text."""
    rank: int = 0
    """Sort order in the section: lower ranks come first, equal ones in the order of the fields."""
    read: Callable[[object], Any]
    """Converts a value as a user wrote it."""
    default: Any
    scope: str = RUN
    """`run`, or `role` if each program of a run with several programs could have its own value."""
    sbatch: str = ""
    """The corresponding option of sbatch; clusters/slurm may compute another value for it."""
    in_extra: bool = False
    """Whether `slurm.extra` may set this option too, because 0 has a special meaning for sbatch."""
    unused: tuple[str, ...] = ()
    """Where the key has no effect: `style` (no controller), `ray`, `local` (this machine)."""

    @property
    def parameter(self) -> str:
        """Its name as a parameter of a Python function."""
        return self.name.replace(".", "_")

    @property
    def is_argument(self) -> bool:
        """Whether the command line has an argument for it, not a flag."""
        return not self.flag.startswith("-")

    @property
    def is_repeated(self) -> bool:
        """Whether the command line takes several values."""
        return self.flag.endswith(" ...")

    @property
    def is_table(self) -> bool:
        """Whether its value has names and values."""
        return isinstance(self.default, dict)

    @property
    def spellings(self) -> list[str]:
        """The forms of the flag: `--stage/--no-stage`, or `--module` and `-m`."""
        return [word for word in self.flag.split() if word.startswith("-")]

    @property
    def option(self) -> str:
        """The flag as messages name it: `--stage`."""
        return self.spellings[0].partition("/")[0]

    @property
    def metavar(self) -> str:
        """The placeholder of a value; empty if the flag takes none."""
        last = self.flag.removesuffix(" ...").split()[-1]
        return "" if last.startswith("-") else last

    def value(self, spec: object) -> Any:
        """Return its value in a request."""
        return getattr(spec, self.field)

    def is_set(self, spec: object) -> bool:
        """Tell whether a request differs from the default."""
        return bool(self.value(spec) != self.default)

    def show(self, spec: object) -> str:
        """Return its value in a request as a user would write it."""
        value = self.value(spec)
        if self.read is readers.memory:
            return format_memory(value) if value else ""
        if isinstance(value, tuple):
            return ",".join(value)
        if isinstance(value, Mapping):
            return ", ".join(f"{name}={entry}" for name, entry in value.items())
        if isinstance(value, bool):
            return str(value).lower()
        return str(value) if value or self.is_set(spec) else ""


def key(
    flag: str,
    help_text: str,
    section: str,
    read: Callable[[object], Any],
    default: Any,
    **more: Any,
) -> Any:
    """Return a field of `JobSpec` for a key; `more` are other fields of `Key`."""
    metadata = {"flag": flag, "help": help_text, "section": section, "read": read}
    metadata |= {"default": default, **more}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def collect_keys(request: type) -> dict[str, Key]:
    """Return the keys of a class whose fields are keys, by name."""
    keys = [Key(**{"field": f.name, "name": f.name, **f.metadata}) for f in fields(request)]
    return {one.name: one for one in keys}
