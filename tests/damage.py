"""Damage to files: what a crash, a full disk or a hostile user can do to them."""

import hashlib
import json
import os
import random
import shutil
from contextlib import contextmanager

ODD = [
    *(None, True, [], {}, "", "x", -1, 0, 10**8, 2**63, 10**400, 1e300, -1e300),
    *(float("nan"), float("inf"), -0.0, "9" * 5000, "\x1b[2J", "\ud800", "\0", "a/../../b"),
    *({"a": {"b": [1]}}, [[[]]], "-" * 300, "99999999999", "2024-13-45", "9999-12-31T23:59:59"),
    *("local:x:1:0", "ray:x-1@http://127.0.0.1:9", "ray:x-999999", "--help", "12_3", "line\nline"),
    *(1e11, 1 << 53, 16384, 0.1 + 0.2, "\u202e", "RUNNING", "2024-01-01T00:00:00+99:99"),
]
WORDS = [
    *(b"\0", b"\xff\xfe", b"\x1b]0;x\x07", b"NaN", b"Infinity", b"1e999", b"-1", b"9" * 5000),
    *(b"{", b"}", b"[" * 3000, b"]" * 3000, b'{"a":' * 3000, b"\n", b"\r\n", b'"', b"null", b""),
    *(b"99999999999999999999", b"[[x]]", b"x = [", b"=" * 50),
]
VAST = 1 << 40
"""The size of a file that nobody can read whole; it has holes, and takes no space."""


def list_files(folder):
    """Return the files in a folder, always in the same order."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


@contextmanager
def damaged(paths, rng, *, named=()):
    """Damage files, and restore them; the value is a list of what was done, one line for each.

    A file in `named` is one whose name users give: it stays a file, for a pipe may be meant.
    """
    kept = [(path, path.read_bytes(), path.stat().st_mode & 0o777) for path in paths]
    told = []
    try:
        for path, content, _ in kept:
            kinds = [how for how in WEIGHTS if path not in named or how.__name__ in CONTENT]
            (how,) = rng.choices(kinds, [WEIGHTS[kind] for kind in kinds])
            told.append(f"{how.__name__} {path}: {how(path, content, rng)}")
        yield told
    finally:
        for path, content, mode in kept:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            path.write_bytes(content)
            path.chmod(mode)


def change_bytes(path, kept, rng):
    """Put a few strange bytes in, or take some out."""
    content = bytearray(kept)
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(content) + 1)
        end = min(len(content), start + rng.choice([0, 0, 1, 3, 30, 3000]))
        content[start:end] = rng.choice([*WORDS, rng.randbytes(rng.randint(1, 8))])
    path.write_bytes(content)
    return f"{len(content)} bytes"


def change_field(path, kept, rng):
    """Put an odd value somewhere into one line of JSON or of TOML."""
    lines = kept.split(b"\n")
    at = rng.randrange(len(lines))
    try:
        record = json.loads(lines[at])
    except ValueError:
        name, _, _ = lines[at].partition(b"=")
        lines[at] = name + b"= " + json.dumps(rng.choice(ODD)).encode()
    else:
        lines[at] = json.dumps(_change_value(record, rng)).encode()
    path.write_bytes(b"\n".join(lines))
    return lines[at][:300]


def change_sealed(path, kept, rng):
    """Put odd values into a record with a checksum of its own, and compute that again."""
    try:
        record = json.loads(kept)
    except ValueError:
        record = None
    if not isinstance(record, dict) or "sha256" not in record:
        return change_field(path, kept, rng)
    del record["sha256"]
    for _ in range(rng.choice([1, 1, 2])):
        changed = _change_value(record, rng)
        record = changed if isinstance(changed, dict) else record
    record["sha256"] = hashlib.sha256(json.dumps(record).encode()).hexdigest()
    path.write_text(json.dumps(record))
    return json.dumps(record)[:1000]


def _change_value(record, rng):
    """Replace, remove or rename one value of a record, however deep it is."""
    value, holder, key = rng.choice(ODD), record, None
    while isinstance(holder, dict | list) and holder:
        key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        if not isinstance(holder[key], dict | list) or not holder[key] or rng.random() < 0.4:
            break
        holder, key = holder[key], None
    if key is None:
        return value
    chance = rng.random()
    if chance < 0.15:
        del holder[key]
    elif chance < 0.25 and isinstance(holder, dict):
        holder[str(value)] = holder.pop(key)
    else:
        holder[key] = value
    return record


def repeat_lines(path, kept, rng):
    """Write some lines again, many times, or all of them in another order."""
    lines = kept.splitlines(keepends=True) or [b"\n"]
    if rng.random() < 0.5:
        rng.shuffle(lines)
    else:
        at = rng.randrange(len(lines))
        lines[at : at + 1] = [lines[at]] * rng.choice([2, 50, 1000])
    path.write_bytes(b"".join(lines))
    return f"{len(lines)} lines"


def cut(path, kept, rng):
    """Cut a file off, as a full disk does."""
    size = rng.choice([0, 1, len(kept) // 2, max(0, len(kept) - 1), rng.randrange(len(kept) + 1)])
    os.truncate(path, size)
    return f"{size} bytes"


def grow(path, kept, rng):
    """Make a file far larger than memory."""
    os.truncate(path, VAST)
    return f"{VAST} bytes"


def replace(path, kept, rng):
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


WEIGHTS = {
    change_bytes: 30,
    change_field: 50,
    change_sealed: 10,
    repeat_lines: 4,
    cut: 8,
    replace: 6,
    grow: 0.2,
}
"""How often each kind of damage is done; a vast file takes seconds, and all others milliseconds."""
CONTENT = frozenset({"change_bytes", "change_field", "change_sealed", "repeat_lines", "cut"})
"""What leaves a regular file of an ordinary size: only who opens it sees a difference."""


def generator(seed):
    """Return the random numbers of one case."""
    return random.Random(seed)  # noqa: S311
