"""A slow and breakable network link, as ssh's ProxyCommand.

    ssh -o ProxyCommand='python slowlink.py %h %p --delay-ms 25 --control DIR' HOST

Everything arrives the given time later, in each direction; the delay does not limit the throughput.
Files in DIR break the link:

cut        close the connection at once, and refuse new ones while the file exists
stall      pass nothing on while the file exists; the connection stays open
cut-after  close the connection once this number of bytes (the file's content, counted from the
           connection's start) has gone to the client; whoever does so removes the file first
"""

import argparse
import asyncio
import collections
import sys
from pathlib import Path

CHUNK = 64 * 1024
IN_FLIGHT = 64 * 1024 * 1024
"""Bytes on their way in one direction; enough for 2.5 GB/s at 25 ms."""
POLL_S = 0.01

LOST = 1
"""Exit status of a link that was cut or refused."""


class Cut(Exception):  # noqa: N818  not an error: somebody wanted it
    """The link has been cut."""


class Control:
    """The files that break the link."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def has(self, name: str) -> bool:
        return self._folder is not None and (self._folder / name).exists()

    def limit(self) -> int | None:
        """Return the number of bytes in `cut-after`, or None."""
        if self._folder is None:
            return None
        try:
            return int((self._folder / "cut-after").read_text())
        except (FileNotFoundError, ValueError):  # not there, or only just being written
            return None

    def take_limit(self) -> bool:
        """Remove `cut-after`; of several connections, one succeeds."""
        try:
            (self._folder / "cut-after").unlink()
        except FileNotFoundError:
            return False
        return True

    async def watch(self) -> None:
        """Wait until the link is cut.

        Raises:
            Cut: it has been.
        """
        while not self.has("cut"):  # noqa: ASYNC110  a file has no event
            await asyncio.sleep(POLL_S)
        raise Cut


class Direction:
    """One direction of the link: what is read now is written the delay later."""

    def __init__(self, reader, writer, control: Control, delay_s: float) -> None:
        self._reader, self._writer = reader, writer
        self._control, self._delay_s = control, delay_s
        self._waiting: collections.deque[tuple[float, bytes]] = collections.deque()
        self._bytes = 0
        self._changed = asyncio.Condition()
        # drain() then waits until the kernel has everything, and a cut loses nothing before it.
        writer.transport.set_write_buffer_limits(high=0)

    async def read(self) -> None:
        """Take bytes until the sender closes; an empty piece marks the end."""
        clock = asyncio.get_running_loop().time
        data = b"start"
        while data:
            try:
                data = await self._reader.read(CHUNK)
            except ConnectionError:
                data = b""
            async with self._changed:
                self._waiting.append((clock() + self._delay_s, data))
                self._bytes += len(data)
                self._changed.notify_all()
                await self._changed.wait_for(lambda: self._bytes < IN_FLIGHT)

    async def write(self) -> None:
        """Hand over each piece when its time has come, until the end.

        Raises:
            ConnectionError: the receiver has closed.
            Cut: in this direction, after the last piece that was to arrive.
        """
        clock = asyncio.get_running_loop().time
        more = True
        while more:
            async with self._changed:
                await self._changed.wait_for(lambda: self._waiting)
                due = self._waiting[0][0]
            await asyncio.sleep(max(0.0, due - clock()))
            while self._control.has("stall"):  # noqa: ASYNC110  a file has no event
                await asyncio.sleep(POLL_S)
            # A sleep takes a millisecond at least: all that is due by now goes together.
            pieces = []
            async with self._changed:
                while more and self._waiting and self._waiting[0][0] <= clock():
                    pieces.append(self._waiting.popleft()[1])
                    more = bool(pieces[-1])
                self._bytes -= sum(map(len, pieces))
                self._changed.notify_all()
            await self._hand_over(b"".join(pieces))

    async def _hand_over(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()


class ToServer(Direction):
    """Ends with a half-closed connection: the server may still have something to send."""

    async def write(self) -> None:
        await super().write()
        self._writer.write_eof()


class ToClient(Direction):
    """Counts, for `cut-after`."""

    _passed = 0

    async def _hand_over(self, data: bytes) -> None:
        limit = self._control.limit()
        keep = len(data) if limit is None else max(0, limit - self._passed)
        await super()._hand_over(data[:keep])
        self._passed += len(data)
        if limit is not None and self._passed >= limit and self._control.take_limit():
            raise Cut
        await super()._hand_over(data[keep:])


async def standard_streams():
    """Return a reader of stdin and a writer to stdout, which are pipes or sockets."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=CHUNK)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    flow, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    return reader, asyncio.StreamWriter(flow, protocol, None, loop)


async def serve(host: str, port: int, control: Control, delay_s: float) -> int:
    """Pass bytes on until the server closes or the link is cut. Return the exit status."""
    if control.has("cut"):
        print("slowlink: the link is cut", file=sys.stderr)  # noqa: T201  a program's message
        return LOST
    await asyncio.sleep(2 * delay_s)  # TCP's handshake
    from_server, to_server = await asyncio.open_connection(host, port, limit=CHUNK)
    from_client, to_client = await standard_streams()
    upward = ToServer(from_client, to_server, control, delay_s)
    downward = ToClient(from_server, to_client, control, delay_s)
    # The connection is over when the server closes it, and everything has come to the client.
    decisive = [asyncio.ensure_future(do) for do in (downward.write(), control.watch())]
    others = [asyncio.ensure_future(do) for do in (downward.read(), upward.read(), upward.write())]
    try:
        done, _ = await asyncio.wait(decisive, return_when=asyncio.FIRST_COMPLETED)
        return LOST if any(task.exception() for task in done) else 0
    finally:
        for task in (*decisive, *others):
            task.cancel()
        await asyncio.gather(*decisive, *others, return_exceptions=True)
        to_server.transport.abort()
        to_client.transport.abort()


def main() -> int:
    parser = argparse.ArgumentParser(description="A slow and breakable link, for ProxyCommand.")
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("--delay-ms", type=float, default=0.0, help="each way")
    parser.add_argument("--control", type=Path, metavar="DIR", help="where files break the link")
    given = parser.parse_args()
    control = Control(given.control)
    try:
        return asyncio.run(serve(given.host, given.port, control, given.delay_ms / 1000))
    except OSError as error:
        print(f"slowlink: {error}", file=sys.stderr)  # noqa: T201  a program's message
        return LOST


if __name__ == "__main__":
    sys.exit(main())
