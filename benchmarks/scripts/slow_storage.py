"""Shared storage as it is for a node of a busy cluster: `slow_storage.py SOURCE PLACE COUNTS`.

A read-only FUSE mount of SOURCE at PLACE. Each operation takes 2 ms, and all reads together get
50 MB/s. COUNTS has the number of operations and of bytes read, and is renewed all the time.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

from mfusepy import FUSE, FuseOSError, Operations

OPERATION_S = 0.002
BYTES_PER_S = 50e6


class SlowStorage(Operations):
    """See the module."""

    use_ns = True

    def __init__(self, source, counts):
        self.source, self.counts = source, counts
        self.operations = self.bytes = 0
        self._turn, self._free_s = threading.Lock(), 0.0
        threading.Thread(target=self._write_counts, daemon=True).start()

    def _write_counts(self):
        while True:
            part = self.counts.with_suffix(".part")
            part.write_text(json.dumps({"operations": self.operations, "bytes": self.bytes}))
            part.rename(self.counts)
            time.sleep(0.1)

    def _take(self, path):
        """Take the time of an operation; return where the original is."""
        with self._turn:
            self.operations += 1
        time.sleep(OPERATION_S)
        return self.source + path

    def getattr(self, path, fh=None):  # noqa: ARG002  the names are mfusepy's
        try:
            found = os.lstat(self._take(path))
        except OSError as error:
            raise FuseOSError(error.errno) from error
        names = ("mode", "nlink", "uid", "gid", "size")
        times = {f"st_{name}": getattr(found, f"st_{name}_ns") for name in ("mtime", "ctime")}
        return {**{f"st_{name}": getattr(found, f"st_{name}") for name in names}, **times}

    def readdir(self, path, fh):  # noqa: ARG002
        return [".", "..", *os.listdir(self._take(path))]  # noqa: PTH208  names

    def readlink(self, path):
        return os.readlink(self._take(path))  # noqa: PTH115

    def open(self, path, flags):  # noqa: ARG002
        return os.open(self._take(path), os.O_RDONLY)

    def release(self, path, fh):
        self._take(path)
        os.close(fh)

    def read(self, path, size, offset, fh):
        self._take(path)
        data = os.pread(fh, size, offset)
        with self._turn:
            self.bytes += len(data)
            now_s = time.monotonic()
            self._free_s = max(self._free_s, now_s) + len(data) / BYTES_PER_S
            wait_s = self._free_s - now_s
        time.sleep(wait_s)
        return data


if __name__ == "__main__":
    origin, place, told = sys.argv[1:]
    FUSE(SlowStorage(origin, Path(told)), place, foreground=True, ro=True)
