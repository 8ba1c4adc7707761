"""`echelon script` and `echelon config`: what would be asked for, without asking."""

import os
from typing import Annotated

import typer

from echelon.cli import console
from echelon.cli.help import PREPARE, SectionedCommand
from echelon.cli.options import takes_request
from echelon.errors import UsageError
from echelon.spec.job_spec import KEYS, show_value
from echelon.spec.merging import Merged

app = typer.Typer(rich_markup_mode=None)

# Everything after the script's name is the script's own.
UNTIL_SCRIPT = {"allow_interspersed_args": False}


@app.command(cls=SectionedCommand, context_settings=UNTIL_SCRIPT, rich_help_panel=PREPARE)
@takes_request
def script(*, request: Merged) -> None:
    """Print the sbatch script of a request.

    Example: echelon script --style torchrun --nodes 2 train.py > job.sh
    """
    from echelon.clusters.slurm.styles import render_script  # noqa: PLC0415

    if not request.spec.script:
        raise UsageError(
            "no training script is named", hint="echelon script --nodes 2 --gpus 4 train.py"
        )
    text = render_script(request.spec, conda_exe=os.environ.get("CONDA_EXE", ""))
    console.print_file(text)


@app.command(cls=SectionedCommand, context_settings=UNTIL_SCRIPT, rich_help_panel=PREPARE)
@takes_request
def config(
    *,
    request: Merged,
    everything: Annotated[
        bool, typer.Option("--all", help="Include keys with default values.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Output JSON.")] = False,
) -> None:
    """Show the merged request and the origin of each value.

    Example: echelon config --nodes 2 --gpus 4
    """
    rows = [
        [key, show_value(key, request.spec), request.origins[key]]
        for key in KEYS
        if everything or request.origins[key] != "default"
    ]
    spec = request.spec
    rows += [
        ["world size", str(spec.max_world_size), "derived"],
        ["tasks per node", str(spec.tasks_per_node), "derived"],
        ["OMP_NUM_THREADS", str(spec.omp_threads), "derived"],
        ["loader workers per rank", str(spec.loader_workers), "derived"],
    ]
    if as_json:
        console.print_json({key: {"value": value, "from": origin} for key, value, origin in rows})
    else:
        console.print_table(["key", "value", "from"], rows)
