"""Read and write checkpoints of torch.distributed.checkpoint (DCP), without a process group.

DCP's metadata is a pickle. Only its own classes are created from it; anything else is an error.
"""

import io
import pickle
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path, PosixPath
from typing import Any, ClassVar

import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint._nested_dict import flatten_state_dict, unflatten_state_dict

from echelon.core.records import open_regular
from echelon.core.terminal_escape import in_one_line
from echelon.train.checkpoints.layout import Box, byte_runs, whole
from echelon.train.checkpoints.manifest import CheckpointError
from echelon.train.checkpoints.safetensors_file import WIDTHS
from echelon.train.checkpoints.source import DCP_METADATA, Source
from echelon.train.state import flatten, unflatten
from echelon.train.tensor_block import DTYPES, type_of

_CLASSES: dict[tuple[str, str], Any] = {
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,  # noqa: SLF001
    ("pathlib", "PosixPath"): PosixPath,
    ("collections", "OrderedDict"): dict,
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): filesystem._StorageInfo,  # noqa: SLF001
    **{
        ("torch.distributed.checkpoint.metadata", name): getattr(dcp, name)
        for name in (
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        )
    },
    **{("torch", str(dtype).removeprefix("torch.")): dtype for dtype in DTYPES.values()},
}
"""All that the metadata may consist of."""
_FILE = "__0_0.distcp"


_InPython: Any = pickle._Unpickler  # noqa: SLF001  its methods can be replaced


class _Unpickler(_InPython):  # type: ignore[misc]
    """Creates the classes of DCP's metadata and nothing else.

    A pickle can also set attributes of the classes themselves, for the whole process.
    """

    dispatch: ClassVar = dict(_InPython.dispatch)

    def _build(self) -> None:
        target = self.stack[-2]
        if not is_dataclass(target) or isinstance(target, type):
            raise pickle.UnpicklingError(f"a state of {in_one_line(repr(target)[:100])}")
        self.load_build()

    dispatch[pickle.BUILD[0]] = _build

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _CLASSES[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is not part of such a file") from None


def open_dcp(path: Path) -> Source:
    """Open a checkpoint.

    Raises:
        CheckpointError: it is damaged, or has more in it than data.
    """
    try:
        with open_regular(path / DCP_METADATA) as file:
            found = _Unpickler(file).load()
        return _to_source(path, found)
    except CheckpointError:
        raise
    except Exception as error:  # whatever a damaged pickle leads to
        raise CheckpointError(
            f"{path / DCP_METADATA} cannot be read as DCP's metadata: {error}",
            hint="load it with torch.distributed.checkpoint, and save it with Echelon",
        ) from error


def _to_source(path: Path, found: Any) -> Source:
    flat: dict[str, Any] = {}
    keys: dict[int, str] = {}
    for key, entry in found.state_dict_metadata.items():
        if isinstance(entry, dcp.TensorStorageMetadata):
            flat[key] = torch.empty(entry.size, dtype=entry.properties.dtype, device="meta")
            keys[id(flat[key])] = key
        else:
            flat[key] = _load(path, found.storage_data[dcp.MetadataIndex(key)])
    paths = found.planner_data or {key: (key,) for key in flat}
    state, tensors = flatten(_restore_numbers(unflatten_state_dict(flat, paths)), "state")
    types = {name: type_of(name, tensor) for name, tensor in tensors.items()}

    def read(name: str) -> bytearray:
        key, kind = keys[id(tensors[name])], types[name]
        content, box = bytearray(kind.nbytes), whole(kind.shape)
        for chunk in found.state_dict_metadata[key].chunks:
            held = Box(tuple(chunk.offsets), tuple(chunk.sizes))
            if (part := held.overlap(box)) is None:
                continue
            piece = _load(path, found.storage_data[dcp.MetadataIndex(key, chunk.offsets)])
            if tuple(piece.shape) != held.shape or piece.dtype != DTYPES[kind.dtype]:
                raise CheckpointError(
                    f"{path}: '{key}' is not as its metadata says", hint="copy it again"
                )
            source = piece.contiguous().flatten().view(torch.uint8).numpy().data
            for begin, target, length in byte_runs(held, box, part, WIDTHS[kind.dtype]):
                content[target : target + length] = source[begin : begin + length]
        return content

    return Source(step=0, state=state, types=types, read=read)


def _load(path: Path, where: Any) -> Any:
    """Load one tensor or value; never runs code from the file."""
    with open_regular(path / Path(where.relative_path).name) as file:
        file.seek(where.offset)
        content = io.BytesIO(file.read(where.length))
    return torch.load(content, map_location="cpu", weights_only=True)


def _restore_numbers(value: Any) -> Any:
    """Turn keys into integers where all are: DCP has made strings of them, as of optimizers'."""
    if isinstance(value, Mapping):
        numbers = bool(value) and all(isinstance(k, str) and k.isdecimal() for k in value)
        return {(int(k) if numbers else k): _restore_numbers(v) for k, v in value.items()}
    return [_restore_numbers(one) for one in value] if isinstance(value, list) else value


def write_dcp(source: Source, folder: Path) -> None:
    """Write a checkpoint into an empty folder."""
    tensors = {
        name: torch.empty(kind.shape, dtype=DTYPES[kind.dtype], device="meta")
        for name, kind in source.types.items()
    }
    names = {id(tensor): name for name, tensor in tensors.items()}
    flat, paths = flatten_state_dict(unflatten(source.state, tensors))
    entries: dict[str, Any] = {}
    stored: dict[Any, Any] = {}
    with (folder / _FILE).open("wb") as file:
        for key, value in flat.items():
            is_tensor = isinstance(value, torch.Tensor)
            if is_tensor:
                entries[key] = dcp.TensorStorageMetadata(
                    properties=dcp.TensorProperties(dtype=value.dtype),
                    size=value.size(),
                    chunks=[
                        dcp.ChunkStorageMetadata(
                            offsets=torch.Size([0] * value.dim()), sizes=value.size()
                        )
                    ],
                )
                content = source.read(names[id(value)])
                value = _to_tensor(content, value)  # noqa: PLW2901
            else:
                entries[key] = dcp.BytesStorageMetadata()
            offset = [0] * value.dim() if is_tensor else None
            begin = file.tell()
            saved = io.BytesIO()
            torch.save(value, saved)
            file.write(saved.getbuffer())
            stored[dcp.MetadataIndex(key, offset)] = filesystem._StorageInfo(  # noqa: SLF001
                _FILE, begin, file.tell() - begin
            )
    metadata = dcp.Metadata(
        state_dict_metadata=entries,
        planner_data=paths,
        storage_data=stored,
        storage_meta=dcp.StorageMeta(),
        version=filesystem.CURRENT_DCP_VERSION,
    )
    (folder / DCP_METADATA).write_bytes(pickle.dumps(metadata))


def _to_tensor(content: bytearray, like: torch.Tensor) -> torch.Tensor:
    if not content:
        return torch.empty(like.shape, dtype=like.dtype)
    return torch.frombuffer(content, dtype=torch.uint8).view(like.dtype).reshape(like.shape)
