"""Generate the pages of docs/reference/ from the code. `make docs` calls it.

.venv/bin/python tools/reference.py            writes the pages that have changed
.venv/bin/python tools/reference.py --check    exits with 1 if a page is out of date
"""

import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
import typer.main
import variables

from echelon.cli.app import app
from echelon.core.codec import describe
from echelon.launch.protocol.rank_environment import PRIVATE
from echelon.run.event_log import Event
from echelon.run.events import ControllerEvent
from echelon.run.metrics import MetricEvent
from echelon.spec.job_spec import KEYS, JobSpec
from echelon.spec.keys import EVERYDAY, SECTIONS, Key
from echelon.spec.readers import OneOf

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
_MADE = "<!-- made by tools/reference.py: change the code, then `make docs` -->"


def pages() -> dict[str, str]:
    """Return every page: name → expected content."""
    made: dict[str, Callable[[], str]] = {
        "cli.md": render_cli,
        "config.md": render_config,
        "events.md": render_events,
        "environment.md": render_environment,
    }
    return {name: render() for name, render in made.items()}


def out_of_date() -> list[str]:
    """Return the pages that differ from their expected content."""
    found = []
    for name, text in pages().items():
        path = FOLDER / name
        if not path.is_file() or path.read_text() != text:
            found.append(name)
    return found


# --- commands ---------------------------------------------------------------------------------

_CLI = """\
# Commands
{made}

{about}

`echelon COMMAND --help` prints the same. Results go to stdout; errors and progress go to stderr.
[Exit codes](../exit-codes.md).

{options}

{commands}

## Flags of the request
Each is also a key of `echelon.toml`: [all keys](config.md) lists their types and defaults.

{flags}
"""
_EXAMPLE = """

<!-- not run: it shows the form; what it names is not here -->
```console
{lines}
```"""


def render_cli() -> str:
    """Return the reference of commands."""
    root = typer.main.get_command(app)
    top = typer.Context(root, info_name="echelon")
    commands = list(_commands(root, top))
    submit = next(context for _, context in commands if context.info_name == "submit")
    return _CLI.format(
        made=_MADE,
        about=root.help,
        options=_parameters(root.params, top),
        commands="\n\n".join(_render_command(*pair) for pair in commands),
        flags="\n\n".join(_flags(submit)),
    )


def _commands(group: Any, parent: typer.Context) -> Iterator[tuple[Any, typer.Context]]:
    for command in group.commands.values():
        context = typer.Context(command, info_name=command.name, parent=parent)
        yield command, context
        if hasattr(command, "commands"):
            yield from _commands(command, context)


def _render_command(command: Any, context: typer.Context) -> str:
    words, _, example = str(command.help or "").partition("Example:")
    text = f"## {context.command_path}\n{_wrap(words)}"
    if hasattr(command, "commands") and not command.params:
        return text
    usage = " ".join(command.get_usage(context).removeprefix("Usage: ").split())
    text += f"\n\nUsage: `{usage}`"
    if example := example.strip():
        lines = "\n".join(f"$ {line.strip()}" for line in example.splitlines() if line.strip())
        text += _EXAMPLE.format(lines=lines)
    if own := [one for one in command.params if not _of_request(one)]:
        text += f"\n\n{_parameters(own, context)}"
    shared = [one for one in command.params if _of_request(one)]
    if len(shared) > len(KEYS) / 2:
        text += "\n\nAnd every [flag of the request](#flags-of-the-request)."
    elif shared:
        names = ", ".join(f"`{one.opts[-1]}`" for one in shared)
        text += f"\n\n{_wrap(f'And of the [request](#flags-of-the-request): {names}.')}"
    return text


def _of_request(parameter: Any) -> bool:
    """Tell whether a parameter is generated from a key of the request."""
    flags = {key.option for key in KEYS.values() if not key.is_argument}
    return bool(flags & set(parameter.opts)) and parameter.default is None


def _flags(submit: typer.Context) -> Iterator[str]:
    """Return the flags of the request, section by section."""
    for section in SECTIONS:
        flags = [
            one
            for one in submit.command.params
            if _of_request(one) and one.rich_help_panel == section
        ]
        title = "Everyday" if section == EVERYDAY else section
        yield f"### {title}\n{_parameters(flags, submit)}"


def _parameters(parameters: Iterable[Any], context: typer.Context) -> str:
    records = [one.get_help_record(context) for one in parameters if not one.hidden]
    rows = [[f"`{names}`", _cell(text)] for names, text in filter(None, records)]
    return _table(["option", "meaning"], rows)


# --- the request ------------------------------------------------------------------------------

_CONFIG = """\
# Keys of echelon.toml
{made}

The same keys are read in `echelon.toml`, in `[tool.echelon]` of `pyproject.toml`, in a profile
`[clusters.NAME]`, in `~/.config/echelon/config.toml`, from flags and from `--set KEY=VALUE`
([order of precedence](../styles.md#the-request)). `echelon config` shows each value and its origin.
A key without a default requests nothing: the defaults of Slurm and of the site apply.

{keys}

For example:

```toml title="echelon.toml"
nodes = "2:4"
gpus = 4
mem = "64G"
time = "1-12:00:00"        # or "36h", or minutes
hang_timeout = "10m"       # or seconds
modules = ["cuda/12.4", "gcc"]

[env]
NCCL_DEBUG = "INFO"
```
```console
$ echelon config | grep echelon.toml$
nodes                    2:4              /home/me/project/echelon.toml
gpus                     4                /home/me/project/echelon.toml
mem                      64G              /home/me/project/echelon.toml
time                     1-12:00:00       /home/me/project/echelon.toml
hang_timeout             600              /home/me/project/echelon.toml
modules                  cuda/12.4,gcc    /home/me/project/echelon.toml
env                      NCCL_DEBUG=INFO  /home/me/project/echelon.toml
```

In a file, `cluster = "NAME"` chooses the profile `[clusters.NAME]`. `[env]` and `[slurm.extra]` are
tables. If several places have one, their entries are merged by name.

A profile may also have these keys, to submit [from your laptop](../start/from-your-laptop.md):

| key | value | default | what it is | flag |
| --- | --- | --- | --- | --- |
| `host` | text |  | login host, as for ssh: a name in its config, HOST or USER@HOST | `--host` |
| `workdir` | text | `~/echelon/PROJECT` | the project's directory there, on shared storage |  |
"""


def render_config() -> str:
    """Return the reference of the request's keys."""
    rows = [
        [f"`{key.name}`", _type(key.read), _default(key), _cell(key.help), _form(key)]
        for key in KEYS.values()
    ]
    head = ["key", "value", "default", "what it is", "flag"]
    return _CONFIG.format(made=_MADE, keys=_table(head, rows))


def _type(read: Callable[[object], Any]) -> str:
    choices = read.choices if isinstance(read, OneOf) else ()
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    about = (inspect.getdoc(read) or "").removeprefix("Read ").partition(";")[0]
    return _cell(about.rstrip("."))


def _default(key: Key) -> str:
    value = key.show(JobSpec())
    return f"`{value}`" if value else ""


def _form(key: Key) -> str:
    return "argument" if key.is_argument else f"`{key.option}`"


# --- events -----------------------------------------------------------------------------------

_EVENTS = """\
# Events
{made}

These files of a run directory hold one JSON object per line. Each file has one writer, which only
appends ([the other files](../control-plane.md)). Every object has `time` (seconds since the epoch,
by its writer's clock) and `kind`. The last line of a file may be incomplete while it is being
written. Skip kinds and fields that you do not know: later versions may add some. Measurements of
nodes, GPUs and ranks are in `telemetry/`: [telemetry](../telemetry.md).

## `events/controller-<attempt>.jsonl`
Written by the controller of each attempt.

{controller}

## `metrics.jsonl`
Written by rank 0 of a script that uses the Trainer.

{metrics}
"""


def render_events() -> str:
    """Return the reference of events."""
    return _EVENTS.format(
        made=_MADE, controller=_kinds(ControllerEvent), metrics=_kinds(MetricEvent)
    )


def _kinds(events: type[Event]) -> str:
    parts = []
    for kind, event in events.kinds.items():
        rows = [
            [f"`{field.name}`" + (" (optional)" if field.optional else ""), _cell(field.about)]
            for field in describe(event)
        ]
        parts.append(f"### {kind}\n{event.__doc__}\n\n{_table(['field', 'meaning'], rows)}")
    return "\n\n".join(parts)


# --- variables --------------------------------------------------------------------------------

_ENVIRONMENT = """\
# Environment variables
{made}

## What you can set
{users}

To set variables for the ranks, use `[env]` in `echelon.toml` or `--env NAME=VALUE`.

## What a rank sees
Ranks have torchrun's variables, so scripts written for torchrun run unmodified. In a job they also
have Slurm's, with the values that `srun` would give to one task per rank. Scripts that read those
work, too.

{ranks}

All other variables of Slurm are those of a task of `srun`, such as `SLURM_JOB_ID`,
`SLURM_JOB_NODELIST`, `SLURM_JOB_NUM_NODES`, `SLURM_JOB_CPUS_PER_NODE`, `SLURM_CPUS_ON_NODE`,
`SLURM_GPUS_ON_NODE`, `SLURM_JOB_GPUS`, `SLURM_STEP_GPUS`, `SLURMD_NODENAME` and
`SLURM_SUBMIT_DIR`. Variables that repeat the job's request are removed, because `srun` reads them
as options: `SLURM_GPUS`, `SLURM_GPUS_PER_NODE`, `SLURM_GPUS_PER_TASK`, `SLURM_CPUS_PER_GPU`,
`SLURM_MEM_PER_NODE` and similar ones. Read `SLURM_GPUS_ON_NODE` instead. A rank can start steps of
its own with `srun --overlap …`.

In a [plain style](../styles.md), ranks also have:

{styles}

`echelon.world.detect` returns the rank of a process and the number of ranks. It reads these
variables, and those of Lightning and of Slurm itself.

## What your own commands see
The command of `--notify` also has `ECHELON_RUN_DIR` and the variables of the job.

{commands}

## Internal variables
{private}
"""


def render_environment() -> str:
    """Return the reference of environment variables."""
    private = sorted((set(PRIVATE) | variables.PRIVATE.keys()) - variables.COMMANDS.keys())
    return _ENVIRONMENT.format(
        made=_MADE,
        users=_variables(variables.USERS),
        ranks=_variables(variables.RANKS),
        styles=_variables(variables.STYLES),
        commands=_variables(variables.COMMANDS),
        private=_wrap(
            "Echelon sets these for its own processes. They may change in any version: "
            f"{', '.join(f'`{name}`' for name in private)}."
        ),
    )


def _variables(known: Mapping[str, str]) -> str:
    return _table(["variable", "meaning"], [[f"`{name}`", about] for name, about in known.items()])


# --- markdown ---------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _wrap(text: str) -> str:
    """Return a paragraph in lines of at most 100 characters."""
    return textwrap.fill(
        " ".join(text.split()), 100, break_long_words=False, break_on_hyphens=False
    )


def _cell(text: str) -> str:
    """Escape text for a table cell."""
    return " ".join(re.sub(r"<(\w+)>", r"`<\1>`", text).replace("|", "\\|").split())


def main() -> int:
    """Write the pages that have changed, or only check them."""
    stale, made = out_of_date(), pages()
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"docs/reference/{name} is out of date: make docs", file=sys.stderr)
        return 1 if stale else 0
    FOLDER.mkdir(exist_ok=True)
    for name in stale:
        (FOLDER / name).write_text(made[name])
        print(f"docs/reference/{name} is renewed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
