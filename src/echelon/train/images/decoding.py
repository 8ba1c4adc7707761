"""Decode image files in several processes, keeping their order.

An executor's processes could outlive their parent. Here each process holds only its end of one
pipe, so all of them exit when the parent ends, even by SIGKILL.
"""

import hashlib
import io
import os
import signal
import warnings
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path

from PIL import Image, ImageOps, UnidentifiedImageError

from echelon.core.frozen import frozen
from echelon.errors import UnavailableError

_AHEAD = 4
"""Blocks per process that may be decoded ahead of the next one in order."""
_DEEP = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
"""Pillow's modes with more than 8 bits per channel, which a conversion to RGB would clip."""


class BrokenImageError(Exception):
    """The file is not an image, or is a damaged one."""


@frozen
class Form:
    """The common form of all images."""

    height: int
    width: int
    fit: bool
    """Resize and crop images of another size; otherwise they count as flaws."""


@frozen
class Flaw:
    """Why an image of a block is missing."""

    place: int
    """Index in the block."""
    kind: str
    """`broken`, `size`, or `unreadable`."""
    text: str


@frozen
class Block:
    """Several images in sequence, without those that have a flaw."""

    images: bytes
    digests: bytes
    """The SHA-256 of each image."""
    flaws: tuple[Flaw, ...]
    files: int
    """Number of files, with and without a flaw."""


def load(path: str | Path) -> Image.Image:
    """Return an image as RGB; orientation tags are not applied.

    Raises:
        BrokenImageError: it cannot be decoded, or has more than 8 bits per channel.
        OSError: the file cannot be read.
    """
    content = Path(path).read_bytes()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # unusual metadata is irrelevant here
            with Image.open(io.BytesIO(content)) as image:
                mode, converted = image.mode, image.convert("RGB")
    except UnidentifiedImageError as error:
        raise BrokenImageError("not an image") from error
    except MemoryError:
        raise
    except Exception as error:  # Pillow's readers may raise anything
        raise BrokenImageError(str(error) or type(error).__name__) from error
    if mode in _DEEP:
        raise BrokenImageError(f"more than 8 bits per channel ({mode})")
    return converted


def decode_block(paths: list[str], form: Form) -> Block:
    """Decode some files into images of one form."""
    images, digests, flaws = [], [], []
    for place, path in enumerate(paths):
        try:
            image = load(path)
        except BrokenImageError as error:
            flaws.append(Flaw(place=place, kind="broken", text=str(error)))
            continue
        except OSError as error:
            flaws.append(Flaw(place=place, kind="unreadable", text=error.strerror or str(error)))
            continue
        wanted = (form.width, form.height)
        if image.size != wanted:
            if not form.fit:
                text = f"{image.height}×{image.width}"
                flaws.append(Flaw(place=place, kind="size", text=text))
                continue
            image = ImageOps.fit(image, wanted, Image.Resampling.BILINEAR)
        content = image.tobytes()
        images.append(content)
        digests.append(hashlib.sha256(content).digest())
    return Block(
        images=b"".join(images),
        digests=b"".join(digests),
        flaws=tuple(flaws),
        files=len(paths),
    )


def decode_blocks(
    blocks: Iterable[list[str]], form: Form, workers: int
) -> Generator[Block, None, None]:
    """Decode blocks of files, in order. Close the generator to stop early.

    Raises:
        UnavailableError: a process was killed.
    """
    if workers <= 1:
        for paths in blocks:
            yield decode_block(paths, form)
        return
    with _workers(workers, form) as pipes:
        yield from _collect(iter(blocks), pipes)


def _collect(blocks: Iterator[list[str]], pipes: list[Connection]) -> Iterator[Block]:
    idle, busy = list(pipes), dict[Connection, int]()
    done: dict[int, Block] = {}
    given = taken = 0
    try:
        while True:
            for paths in islice(blocks, min(len(idle), taken + _AHEAD * len(pipes) - given)):
                pipe = idle.pop()
                pipe.send(paths)
                busy[pipe], given = given, given + 1
            if not busy:
                return
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                done[busy.pop(ready)] = ready.recv()
                idle.append(ready)
            while taken in done:
                yield done.pop(taken)
                taken += 1
    except (EOFError, ConnectionError) as error:
        raise UnavailableError(
            "an image decoding process was killed",
            hint="if memory ran out (dmesg), use fewer --workers; "
            "the same command continues where it stopped",
        ) from error


@contextmanager
def _workers(count: int, form: Form) -> Iterator[list[Connection]]:
    """Run worker processes during the block; yield our ends of their pipes."""
    # Spawned, because a forked process would keep the others' pipes and our lock open.
    context = get_context("spawn")
    pipes, processes = [], []
    # Ctrl-C and a batch system's signals reach all processes of a group. Blocked signals are
    # inherited, so workers only exit when their pipe closes, and print nothing.
    resource_tracker.ensure_running()  # otherwise the first spawn starts it and unblocks signals
    ours = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ours)
    try:
        try:
            for _ in range(count):
                pipe, theirs = context.Pipe()
                process = context.Process(target=_work, args=(theirs, form), daemon=True)
                process.start()
                theirs.close()
                pipes.append(pipe)
                processes.append(process)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield pipes
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join()


def _work(pipe: Connection, form: Form) -> None:
    """Decode what arrives through the pipe until its other end is closed."""
    with suppress(EOFError, ConnectionError):
        while True:
            pipe.send(decode_block(pipe.recv(), form))


def available_cpus() -> int:
    return len(os.sched_getaffinity(0))
