"""Damage to a run's folder: what a crash, a full disk or a hostile hand can do to a file."""

import json
import os
import random
import shutil
from contextlib import contextmanager

ODD = [
    *(None, True, [], {}, "", "x", -1, 0, 10**8, 2**63, 10**400, 1e300, -1e300),
    *(float("nan"), float("inf"), -0.0, "9" * 5000, "\x1b[2J", "\ud800", "\0", "a/../../b"),
    *({"a": {"b": [1]}}, [[[]]], "-" * 300, "99999999999", "2024-13-45", "9999-12-31T23:59:59"),
]
WORDS = [
    *(b"\0", b"\xff\xfe", b"\x1b]0;x\x07", b"NaN", b"Infinity", b"1e999", b"-1", b"9" * 5000),
    *(b"{", b"}", b"[" * 3000, b"]" * 3000, b'{"a":' * 3000, b"\n", b"\r\n", b'"', b"null", b""),
    *(b"99999999999999999999", b"[[x]]", b"x = [", b"=" * 50),
]


def list_files(folder):
    """Return the files of a folder that a command may read, always in the same order."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


@contextmanager
def damaged(path, rng):
    """Damage one file, and put it back; the value says what was done."""
    kept, mode = path.read_bytes(), path.stat().st_mode & 0o777
    how = rng.choice([*[_change_bytes] * 3, *[_change_fields] * 6, _change_size, _replace])
    try:
        yield f"{how.__name__} {path.name}: {how(path, kept, rng)}"
    finally:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        path.write_bytes(kept)
        path.chmod(mode)


def _change_bytes(path, kept, rng):
    content = bytearray(kept)
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(content) + 1)
        end = min(len(content), start + rng.choice([0, 0, 1, 3, 30, 3000]))
        content[start:end] = rng.choice([*WORDS, rng.randbytes(rng.randint(1, 8))])
    path.write_bytes(content)
    return f"{len(content)} bytes"


def _change_fields(path, kept, rng):
    """Put an odd value somewhere into one JSON line, or TOML line."""
    lines = kept.split(b"\n")
    at = rng.randrange(len(lines))
    try:
        record = json.loads(lines[at])
    except ValueError:
        name, _, _ = lines[at].partition(b"=")
        value = rng.choice(ODD)
        lines[at] = name + b"= " + json.dumps(value).encode()
    else:
        holder, value = record, rng.choice(ODD)
        while isinstance(holder, dict | list) and holder:
            key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
            if not isinstance(holder[key], dict | list) or not holder[key] or rng.random() < 0.4:
                break
            holder = holder[key]
        else:
            key = None
        if key is None:
            record = value
        elif rng.random() < 0.15:
            del holder[key]
        elif rng.random() < 0.1 and isinstance(holder, dict):
            holder[str(value)] = holder.pop(key)
        else:
            holder[key] = value
        lines[at] = json.dumps(record).encode()
    path.write_bytes(b"\n".join(lines))
    return lines[at][:300]


def _change_size(path, kept, rng):
    size = rng.choice([0, 1, len(kept) // 2, max(0, len(kept) - 1), 1 << 40])
    os.truncate(path, size)
    return size


def _replace(path, kept, rng):
    """Put something in the file's place that is no file, or leads elsewhere."""
    kind = rng.choice(["pipe", "folder", "nowhere", "loop", "/dev/zero", "/dev/tty", "absent"])
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    elif kind != "absent":
        path.symlink_to("missing" if kind == "nowhere" else kind)
    return kind


def generators(seed, count):
    """Return so many random generators, each with its own seed to name when a case fails."""
    return ((one, random.Random(one)) for one in range(seed, seed + count))  # noqa: S311
