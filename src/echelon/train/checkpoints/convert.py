"""Convert checkpoints to and from the formats of other programs, one tensor at a time in memory.

| format | what it is |
| --- | --- |
| echelon | a checkpoint of this library |
| safetensors | a model as Hugging Face stores it: one file, or several with an index |
| dcp | a checkpoint of torch.distributed.checkpoint |
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from echelon.core.atomic_file import sync_folder
from echelon.core.records import open_regular, read_record
from echelon.errors import ConflictError, NotFoundError, UsageError
from echelon.train.checkpoints.layout import replicated, whole
from echelon.train.checkpoints.manifest import (
    MANIFEST,
    CheckpointError,
    Laid,
    Manifest,
    PartIndex,
    checkpoint_path,
    part_path,
    step_of,
)
from echelon.train.checkpoints.reading import Reader
from echelon.train.checkpoints.safetensors_file import (
    Stored,
    TensorType,
    read_header,
    write_file,
)
from echelon.train.checkpoints.source import DCP_METADATA, Source

FORMATS = ("safetensors", "dcp", "echelon")
MODEL_FILE = "model.safetensors"
MODEL_INDEX = "model.safetensors.index.json"
MOST_BYTES = 5_000_000_000
"""Size of a file from which on a model is divided, as Hugging Face's libraries do."""
_METADATA = {"format": "pt"}
"""Libraries of Hugging Face load no file without it."""


def open_source(path: Path) -> Source:
    """Open a checkpoint of any of the formats.

    Raises:
        NotFoundError: there is none.
        CheckpointError: it is damaged.
    """
    if path.is_dir():
        if (path / MANIFEST).exists() or step_of(path) is not None:
            return _open_checkpoint(path)
        if (path / DCP_METADATA).exists():
            from echelon.train.dcp import open_dcp  # noqa: PLC0415  it needs torch

            return open_dcp(path)
        if (path / MODEL_INDEX).exists() or (path / MODEL_FILE).exists():
            return _open_model(path)
    elif path.is_file():
        return _open_model(path)
    raise NotFoundError(
        f"{path} is not a checkpoint",
        hint=f"expected a checkpoint of Echelon, a safetensors file, or a directory with "
        f"{MODEL_FILE}, {MODEL_INDEX} or {DCP_METADATA}",
    )


def _open_checkpoint(path: Path) -> Source:
    reader = Reader(path)
    types = {name: laid.type for name, laid in reader.manifest.tensors.items()}

    def read(name: str) -> bytearray:
        content = bytearray(types[name].nbytes)
        reader.read({name: (whole(types[name].shape), memoryview(content))})
        return content

    return Source(step=reader.manifest.step, state=reader.manifest.state, types=types, read=read)


# --- Hugging Face's layout ----------------------------------------------------------------------


def _open_model(path: Path) -> Source:
    found: dict[str, tuple[Path, Stored]] = {}
    for file in _list_files(path):
        try:
            with open_regular(file) as content:
                stored = read_header(content.fileno())[1]
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{file} is not a safetensors file: {error}", hint="copy it again"
            ) from error
        found |= {name: (file, one) for name, one in stored.items()}

    def read(name: str) -> bytearray:
        file, one = found[name.removeprefix("state/model/")]
        content = bytearray(one.type.nbytes)
        with open_regular(file) as opened:
            opened.seek(one.begin)
            opened.readinto(content)
        return content

    names = {name: f"state/model/{name}" for name in found}
    return Source(
        step=0,
        state={"model": {name: {"$tensor": names[name]} for name in found}},
        types={names[name]: one.type for name, (_, one) in found.items()},
        read=read,
    )


def _list_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not (path / MODEL_INDEX).exists():
        return [path / MODEL_FILE]
    try:
        weights = read_record(path / MODEL_INDEX)["weight_map"]
        # Only names in this directory: an index from elsewhere must not lead to other files.
        return [path / Path(str(name)).name for name in sorted(set(weights.values()))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path / MODEL_INDEX} is not an index of safetensors files: {error}",
            hint="copy it again",
        ) from error


def write_model(
    source: Source, target: Path, *, key: str = "model", most_bytes: int = MOST_BYTES
) -> None:
    """Write one entry of a state as a safetensors file, or into a directory with several.

    Raises:
        CheckpointError: the state has no tensors there.
        ConflictError: the target exists.
    """
    prefix = f"state/{key}/"
    names = {name.removeprefix(prefix): name for name in source.types if name.startswith(prefix)}
    if not names:
        entries = ", ".join(source.state) if isinstance(source.state, Mapping) else "none"
        raise CheckpointError(f"the state has no tensors in '{key}'", hint=f"there are: {entries}")
    types = {short: source.types[name] for short, name in names.items()}

    def write(path: Path, part: Mapping[str, TensorType]) -> None:
        write_file(path, part, lambda short: source.read(names[short]), metadata=_METADATA)

    with _creating(target) as temporary:
        if target.suffix == ".safetensors":
            write(temporary, types)
            return
        temporary.mkdir()
        groups = list(_group(types, most_bytes))
        if len(groups) == 1:
            write(temporary / MODEL_FILE, types)
            return
        index: dict[str, str] = {}
        for number, group in enumerate(groups, start=1):
            file = f"model-{number:05}-of-{len(groups):05}.safetensors"
            write(temporary / file, group)
            index |= dict.fromkeys(group, file)
        total = sum(one.nbytes for one in types.values())
        record = {"metadata": {"total_size": total}, "weight_map": index}
        (temporary / MODEL_INDEX).write_text(json.dumps(record, indent=2) + "\n")


def _group(types: Mapping[str, TensorType], most_bytes: int) -> Iterator[dict[str, TensorType]]:
    group: dict[str, TensorType] = {}
    size = 0
    for name, one in types.items():
        if group and size + one.nbytes > most_bytes:
            yield group
            group, size = {}, 0
        group[name] = one
        size += one.nbytes
    yield group


# --- checkpoints of this library, and of torch --------------------------------------------------


def write_checkpoint(source: Source, folder: Path, *, step: int) -> Path:
    """Write a checkpoint with one part into a folder of checkpoints.

    Raises:
        ConflictError: there is a checkpoint of this step.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    target = checkpoint_path(folder, step)
    with _creating(target) as temporary:
        temporary.mkdir(mode=0o700)
        path = part_path(temporary, 0)
        stored, size, header = write_file(path, source.types, source.read)
        index = PartIndex(
            rank=0,
            world_size=1,
            bytes=size,
            header=header,
            tensors=stored,
            offsets={name: (0,) * len(one.shape) for name, one in source.types.items()},
            own=None,
        )
        path.with_suffix(".json").write_text(index.render())
        layout = replicated(1)
        manifest = Manifest(
            step=step,
            world_size=1,
            metrics={},
            state=source.state,
            tensors={
                name: Laid(type=one, layout=layout, copy=0) for name, one in source.types.items()
            },
        )
        (temporary / MANIFEST).write_text(manifest.render())
    return target


def write_dcp(source: Source, target: Path) -> None:
    """Write a checkpoint of torch.distributed.checkpoint.

    Raises:
        ConflictError: the target exists.
    """
    from echelon.train import dcp  # noqa: PLC0415  it needs torch

    with _creating(target) as temporary:
        temporary.mkdir()
        dcp.write_dcp(source, temporary)


def convert(path: Path, target: Path, *, to: str = "", step: int | None = None, key: str) -> Path:
    """Convert a checkpoint; return what was written.

    Raises:
        UsageError: the format of the target is not known.
        CheckpointError: the checkpoint is damaged.
        ConflictError: the target exists.
    """
    form = to or ("safetensors" if target.suffix == ".safetensors" else "")
    if to and to not in FORMATS:
        raise UsageError(
            f"invalid value for --to: '{to}'", hint=f"use one of: {', '.join(FORMATS)}"
        )
    if not form:
        raise UsageError(
            f"cannot tell the format of {target}",
            hint=f"use a file name ending in .safetensors, or --to {'|'.join(FORMATS)}",
        )
    source = open_source(path)
    if form == "echelon":
        return write_checkpoint(source, target, step=source.step if step is None else step)
    if form == "dcp":
        write_dcp(source, target)
    else:
        write_model(source, target, key=key)
    return target


@contextmanager
def _creating(target: Path) -> Iterator[Path]:
    """Yield a path that becomes the target at the end of the block, unless that raises."""
    if target.exists():
        raise ConflictError(f"{target} already exists", hint="remove it, or choose another name")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.rename(target)
        sync_folder(target.parent)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)
