"""Copy batches to a GPU ahead of the training loop, through pinned memory.

A thread takes batches from the host and copies each into one of a few pinned buffers, and from
there to the device on a separate stream. The loop's stream waits for a batch on the device; the
host does not wait, as long as batches arrive fast enough.
"""

import queue
import threading
from collections.abc import Iterator
from typing import Any

import torch

from echelon.train.batches import map_tensors

_AHEAD = 3
"""Number of batches copied ahead."""
_END = object()


def stream_to(device: torch.device, batches: Iterator[Any]) -> Iterator[Any]:
    """Yield batches that are on the device when the current stream uses them."""
    ready: queue.Queue[Any] = queue.Queue(_AHEAD)
    closed = threading.Event()
    carrier = _Carrier(device, ready, closed)
    thread = threading.Thread(target=carrier.carry, args=(batches,), name="to the GPU", daemon=True)
    thread.start()
    try:
        while (entry := ready.get()) is not _END:
            if isinstance(entry, Exception):
                raise entry
            batch, copied = entry
            _receive(batch, copied, torch.cuda.current_stream(device))
            yield batch
    finally:
        closed.set()
        thread.join()


def _receive(batch: Any, copied: Any, stream: torch.cuda.Stream) -> None:
    """Make a stream wait for a batch that another stream copies."""
    stream.wait_event(copied)
    # The memory belongs to the other stream, which must not reuse it too early.
    map_tensors(batch, lambda tensor: tensor.record_stream(stream))


class _Carrier:
    """The work of the thread."""

    def __init__(
        self, device: torch.device, ready: "queue.Queue[Any]", closed: threading.Event
    ) -> None:
        self._device, self._ready, self._closed = device, ready, closed
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._buffers = [_Pinned() for _ in range(_AHEAD)]

    def carry(self, batches: Iterator[Any]) -> None:
        try:
            for number, batch in enumerate(batches):
                buffer = self._buffers[number % _AHEAD]
                buffer.copied.synchronize()  # its previous content has reached the device
                held = buffer.hold(batch)
                with torch.cuda.stream(self._stream):
                    sent = map_tensors(held, lambda t: t.to(self._device, non_blocking=True))
                    copied = buffer.copied = self._stream.record_event()
                if not self._put((sent, copied)):
                    return
        except Exception as error:  # noqa: BLE001  raised again in the loop's thread
            self._put(error)
        self._put(_END)

    def _put(self, entry: Any) -> bool:
        """Put an entry into the queue; return False if the consumer has stopped."""
        while not self._closed.is_set():
            try:
                self._ready.put(entry, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False


class _Pinned:
    """A batch in pinned memory, which is reused if the next batch has the same shape."""

    def __init__(self) -> None:
        self.copied: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._kept: list[torch.Tensor] = []

    def hold(self, batch: Any) -> Any:
        before, self._kept = iter(self._kept), []

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            room = next(before, None)
            if room is None or (room.shape, room.dtype) != (tensor.shape, tensor.dtype):
                room = torch.empty_like(tensor, pin_memory=True)
            self._kept.append(room)
            return room.copy_(tensor)

        return map_tensors(batch, keep)
