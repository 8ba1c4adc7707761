"""Reads the tasks of a sweep from `--grid`, `--file` and sbatch's `--array`."""

import csv
import io
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from echelon.errors import UsageError
from echelon.run.sweep import INDEX, Table, escape
from echelon.spec.job_spec import JobSpec

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.([1-9]\d*))?")
_ARRAY = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::([1-9]\d{0,6}))?)?")
MOST_TASKS = 100_000
"""Limit of tasks per sweep; no cluster accepts more jobs of one user."""


def read_parameters(grids: Sequence[str], file: Path | None) -> list[dict[str, str]]:
    """Return the parameters of each task: each row of the file, with all combinations of the grid.

    Args:
        grids: `NAME=VALUES` each, see `parse_grid`.
        file: a CSV file whose first line has the names.

    Raises:
        UsageError: there are no parameters, or they are invalid.
    """
    rows = read_table(file) if file else [{}]
    parsed = [parse_grid(grid) for grid in grids]
    names = [*rows[0], *(name for name, _ in parsed)]
    check_names(names)
    if not names:
        raise UsageError(
            "a sweep needs parameters", hint="echelon sweep --grid lr=0.1,0.01 train.py --lr {lr}"
        )
    count = len(rows) * math.prod(len(values) for _, values in parsed)
    if count > MOST_TASKS:
        raise UsageError(
            f"the sweep would have {count:,} tasks, more than {MOST_TASKS:,}",
            hint="use fewer values, or list the combinations in a file: --file params.csv",
        )
    grid = [name for name, _ in parsed]
    return [
        {**row, **dict(zip(grid, values, strict=True))}
        for row in rows
        for values in itertools.product(*(values for _, values in parsed))
    ]


def check_names(names: Sequence[str]) -> None:
    """Check the names of parameters.

    Raises:
        UsageError: a name is invalid, reserved or not unique.
    """
    for name in names:
        if not _NAME.fullmatch(name) or name == INDEX:
            raise UsageError(
                f"'{name}' cannot be the name of a parameter",
                hint="begin with a letter and use letters, digits, '_', '.' and '-'; {index} is "
                "the number of the task",
            )
        if names.count(name) > 1:
            raise UsageError(
                f"the parameter '{name}' is given twice",
                hint=f"list all its values together: --grid {name}=A,B",
            )


def parse_grid(text: str) -> tuple[str, list[str]]:
    """Parse `NAME=VALUES`: values separated by commas; 1..5 is 1 to 5, and 0..10..5 is 0, 5, 10."""
    name, equals, listed = text.partition("=")
    values = [value for word in listed.split(",") for value in _expand(word.strip())]
    if not equals or not listed or "" in values:
        raise UsageError(
            f"--grid {text} has no values" if not listed else f"--grid {text} has an empty value",
            hint="write --grid NAME=A,B,C or --grid NAME=1..5",
        )
    return name.strip(), values


def _expand(word: str) -> list[str]:
    if not (found := _RANGE.fullmatch(word)):
        return [word]
    first, last, step = int(found[1]), int(found[2]), int(found[3] or 1)
    if abs(last - first) // step >= MOST_TASKS:
        raise UsageError(f"the range {word} is too long", hint="use fewer values")
    if last < first:
        raise UsageError(f"the range {word} is empty", hint=f"write {last}..{first}")
    return [str(value) for value in range(first, last + 1, step)]


def split_array(spec: JobSpec) -> tuple[JobSpec, Table | None]:
    """Return a request without --array, and the tasks of the array; None if there is none.

    Styles other than `echelon` leave arrays to Slurm. The only parameter of a task is its index, so
    braces in arguments are literal.

    Raises:
        UsageError: the array is invalid.
    """
    # sbatch accepts abbreviated options.
    names = [name for name in spec.slurm_extra if name and "array".startswith(name)]
    if not names or spec.style != "echelon":
        return spec, None
    text = spec.slurm_extra[names[-1]]
    listed, _, limit = text.partition("%")
    parts = [_ARRAY.fullmatch(part) for part in listed.split(",")]
    if not all(parts) or not (limit.isdecimal() or not limit):
        raise UsageError(
            f"invalid value for --array: '{text}'", hint="write such as --array=0-9, 1,3 or 0-9%2"
        )
    indices = {
        index
        for part in parts
        if part
        for index in range(int(part[1]), int(part[2] or part[1]) + 1, int(part[3] or 1))
    }
    if not 0 < len(indices) <= MOST_TASKS:
        raise UsageError(f"--array={text} has no tasks, or too many", hint="write such as 0-9")
    others = {name: value for name, value in spec.slurm_extra.items() if name not in names}
    args = tuple(map(escape, spec.args))
    tasks = dict.fromkeys(sorted(indices), ())
    table = Table(names=(), tasks=tasks, max_running=int(limit or 0))
    return replace(spec, slurm_extra=others, args=args), table


def make_table(
    rows: Sequence[Mapping[str, str]], max_running: int = 0, *, pack: int = 0, per_slot: int = 1
) -> Table:
    """Return the parameters of tasks, which are numbered in order."""
    names = tuple(rows[0])
    tasks = {index: tuple(row[name] for name in names) for index, row in enumerate(rows)}
    return Table(names=names, tasks=tasks, max_running=max_running, pack=pack, per_slot=per_slot)


def read_table(path: Path) -> list[dict[str, str]]:
    """Read a CSV file: the first line has the names, each other line is a row.

    Raises:
        UsageError: the file cannot be read, or a row has another number of values.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        lines = [line for line in csv.reader(io.StringIO(text, newline=""), strict=True) if line]
    except (OSError, ValueError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"cannot read {path}: {why}", hint="pass a CSV file with a line of names"
        ) from error
    if len(lines) < 2:
        raise UsageError(
            f"{path} has no rows", hint="the first line has the names, each other line one task"
        )
    names = [name.strip() for name in lines[0]]
    for number, line in enumerate(lines[1:], start=1):
        if len(line) != len(names):
            raise UsageError(
                f"{path}: row {number} has {len(line)} values, but there are {len(names)} names",
                hint=f"the names are: {', '.join(names)}",
            )
    return [dict(zip(names, map(str.strip, line), strict=True)) for line in lines[1:]]
