"""`echelon checkpoint …`: list, show, verify and convert checkpoints, without torch."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from echelon.cli import console
from echelon.cli.completion import complete_run
from echelon.cli.run_options import AsJson, RunsDir
from echelon.core.records import find_record
from echelon.core.units import counted
from echelon.errors import NotFoundError
from echelon.run.directory import RUNS
from echelon.run.listing import find_run
from echelon.train.checkpoints import convert as converting
from echelon.train.checkpoints.manifest import (
    MANIFEST,
    CheckpointError,
    Manifest,
    checkpoint_path,
    list_steps,
    read_manifest,
    step_of,
)
from echelon.train.checkpoints.reading import Reader
from echelon.train.checkpoints.source import DCP_METADATA

app = typer.Typer(
    name="checkpoint",
    help="List, verify and convert checkpoints.",
    epilog="Example: echelon checkpoint ls last",
    rich_markup_mode=None,
)

RunOrFolder = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Run id or a unique prefix, a job id, last, or a directory of checkpoints.",
        autocompletion=complete_run,
    ),
]
Step = Annotated[
    int | None, typer.Option(min=0, help="Step of the checkpoint.", show_default=False)
]


def _find_folder(place: str, runs: Path) -> Path:
    """Return the directory with a run's checkpoints; `place` may also be the directory itself."""
    path = Path(place)
    if path.is_dir():
        return path / "checkpoints" if (path / "checkpoints").is_dir() else path
    return find_run(runs, place).checkpoints


def find_checkpoints(place: str, runs: Path, step: int | None) -> list[Path]:
    """Return all checkpoints of a run, the oldest first, or only the one of a step.

    Raises:
        NotFoundError: there is no such checkpoint.
    """
    folder = _find_folder(place, runs)
    if step_of(folder) is not None and step in (None, step_of(folder)):
        return [folder]
    steps = list_steps(folder)
    if not steps:
        raise NotFoundError(
            f"there is no checkpoint in {folder}",
            hint="the script has not saved with echelon.Checkpointer or echelon.Trainer yet",
        )
    if step is not None and step not in steps:
        raise NotFoundError(
            f"there is no checkpoint of step {step} in {folder}",
            hint=f"there are: {', '.join(map(str, steps))}",
        )
    return [checkpoint_path(folder, one) for one in (steps if step is None else [step])]


@app.command("ls")
def list_checkpoints(
    run: RunOrFolder = "last", *, as_json: AsJson = False, runs_dir: RunsDir = RUNS
) -> None:
    """List the checkpoints of a run.

    Example: echelon checkpoint ls last
    """
    paths = find_checkpoints(run, runs_dir, None)
    best = find_record(paths[0].parent / "best.json").get("step")
    facts = [{**_describe(path), "best": best == step_of(path)} for path in paths]
    if as_json:
        console.print_json(facts)
        return
    rows = [
        [
            f"{fact['step']}{' (best)' if fact['best'] else ''}",
            fact["saved"],
            _show_mb(fact["bytes"]),
            str(fact["ranks"] or "?"),
            ", ".join(f"{name} {value:.4g}" for name, value in fact["metrics"].items())
            or fact["problem"],
        ]
        for fact in facts
    ]
    console.print_table(["step", "saved", "MB", "ranks", "metrics"], rows)


def _describe(path: Path) -> dict[str, Any]:
    """Return the facts of the manifest; the tensors are not read."""
    fact: dict[str, Any] = {"step": step_of(path), "saved": "", "bytes": None, "ranks": None}
    fact |= {"metrics": {}, "problem": "", "path": str(path)}
    try:
        found = read_manifest(path)
        written_s = (path / MANIFEST).stat().st_mtime
    except (CheckpointError, OSError) as error:
        return {**fact, "problem": str(error)}
    if isinstance(found, Manifest):
        size = sum(laid.type.nbytes for laid in found.tensors.values())
        fact |= {"bytes": size, "ranks": found.world_size, "metrics": dict(found.metrics)}
    else:
        fact |= {"ranks": found["world_size"], "metrics": found["metrics"]}
    return {**fact, "saved": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(written_s))}


def _show_mb(size: int | None) -> str:
    return "?" if size is None else f"{size / 1e6:,.1f}"


@app.command()
def show(
    run: RunOrFolder = "last",
    *,
    step: Step = None,
    as_json: AsJson = False,
    runs_dir: RunsDir = RUNS,
) -> None:
    """Show the tensors and other values of a checkpoint.

    Without --step, it is the newest one.

    Example: echelon checkpoint show last --step 1200
    """
    path = find_checkpoints(run, runs_dir, step)[-1]
    manifest = Reader(path).manifest
    tensors = _list_tensors(manifest)
    values = dict(_list_values(manifest.state, ""))
    if as_json:
        fact = {"path": str(path), "step": manifest.step, "ranks": manifest.world_size}
        metrics = dict(manifest.metrics)
        console.print_json({**fact, "metrics": metrics, "tensors": tensors, "values": values})
        return
    total = sum(one["bytes"] for one in tensors)
    console.print_result(
        f"{path}: step {manifest.step}, saved by {counted(manifest.world_size, 'rank')}, "
        f"{counted(len(tensors), 'tensor')}, {_show_mb(total)} MB"
    )
    rows = [
        [one["name"], one["dtype"], "×".join(map(str, one["shape"])) or "1", one["placements"]]
        for one in tensors
    ]
    console.print_table(["tensor", "type", "shape", "placements"], rows)
    if values:
        console.print_table(["value", ""], [[name, str(value)] for name, value in values.items()])


def _list_tensors(manifest: Manifest) -> list[dict[str, Any]]:
    return [
        {
            "name": name.removeprefix("state/"),
            "dtype": laid.type.dtype,
            "shape": list(laid.type.shape),
            "bytes": laid.type.nbytes,
            "placements": ", ".join(laid.layout.placements),
        }
        for name, laid in manifest.tensors.items()
    ]


def _list_values(state: Any, path: str) -> list[tuple[str, Any]]:
    """Return the paths and values of all entries that are not tensors."""
    match state:
        case {"$tensor": _}:
            return []
        case {"$tuple": entries}:
            return [(path, entries)]
        case {"$int keys": entries}:
            return [found for key, one in entries for found in _list_values(one, f"{path}/{key}")]
        case Mapping():
            entries = [(f"{path}/{key}".lstrip("/"), one) for key, one in state.items()]
        case list():
            if not any(isinstance(one, dict | list) for one in state):
                return [(path, state)]
            entries = [(f"{path}/{number}", one) for number, one in enumerate(state)]
        case _:
            return [(path, state)]
    return [found for entry, one in entries for found in _list_values(one, entry)]


@app.command()
def verify(
    run: RunOrFolder = "last",
    *,
    step: Step = None,
    as_json: AsJson = False,
    runs_dir: RunsDir = RUNS,
) -> None:
    """Read checkpoints completely and compare their checksums.

    Without --step, all checkpoints of the run are verified. Exits with 66 if one is damaged.

    Example: echelon checkpoint verify last
    """
    facts = []
    for path in find_checkpoints(run, runs_dir, step):
        problem, read = "", 0
        try:
            reader = Reader(path)
            reader.verify()
            read = reader.bytes_read
        except CheckpointError as error:
            problem = str(error)
        facts.append({"step": step_of(path), "path": str(path), "bytes": read, "problem": problem})
        if not as_json:
            console.print_result(problem or f"{path}: intact")
    if as_json:
        console.print_json(facts)
    if any(fact["problem"] for fact in facts):
        raise typer.Exit(CheckpointError.exit_code)


@app.command()
def convert(
    source: Annotated[
        str,
        typer.Argument(
            help="Run, directory of a checkpoint, safetensors file, or a directory with "
            "model.safetensors or a checkpoint of torch.distributed.checkpoint.",
            autocompletion=complete_run,
            show_default=False,
        ),
    ],
    target: Annotated[
        Path,
        typer.Argument(
            help="File ending in .safetensors, or a new directory. With --to echelon, a directory "
            "of checkpoints.",
            show_default=False,
        ),
    ],
    *,
    to: Annotated[
        str,
        typer.Option(
            metavar="safetensors|dcp|echelon",
            help="Format of the target [default: from its name].",
            show_default=False,
        ),
    ] = "",
    step: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Step to convert [default: the newest]; with --to echelon, the step to write.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        str, typer.Option(metavar="NAME", help="Entry of the state to write as safetensors.")
    ] = "model",
    runs_dir: RunsDir = RUNS,
) -> None:
    """Convert a checkpoint to or from another format.

    Formats are safetensors, torch.distributed.checkpoint (dcp), and Echelon's own. Only one tensor
    at a time is in memory. A directory gets model.safetensors, or several files with an index from
    5 GB on, as Hugging Face's libraries load them. To and from torch.distributed.checkpoint, all of
    the state is converted.

    Example: echelon checkpoint convert last model.safetensors
    """
    path = Path(source)
    foreign = path.is_file() or any(
        (path / name).exists()
        for name in (converting.MODEL_FILE, converting.MODEL_INDEX, DCP_METADATA)
    )
    if not foreign:
        path = find_checkpoints(source, runs_dir, step)[-1]
    written = converting.convert(path, target, to=to, step=step, key=key)
    console.print_result(f"{path} → {written}")
