"""Installs Echelon and its pure-Python dependencies on a login host.

The host only needs Python 3.11 or newer, and neither machine needs the internet. Each version has a
folder of its own, `~/.local/share/echelon/hosted/ID`. The ranks use the cluster's environment, and
never these files.
"""

import gzip
import hashlib
import io
import json
import re
import tarfile

from echelon.clusters.ssh.connection import Connection
from echelon.clusters.ssh.failures import explain_ssh, is_lost
from echelon.clusters.ssh.files import find_files
from echelon.errors import EchelonError, UnavailableError

OLDEST = (3, 11)
_INSTALL_S = 300
_START = """\
import os, sys
here = os.path.dirname(os.path.abspath(__file__))
os.utime(here)  # so that it is known as used
sys.path.insert(0, os.path.join(here, "lib"))
from pathlib import Path
from echelon.clusters.ssh.login_environment import enter
light = sys.argv[1] == "light"
enter(Path(here), light=light)
from echelon.cli.hosted import main
main("" if light else sys.argv[1])
"""
_PROGRAM = """\
#!/bin/sh
# Runs Echelon for a command that was given on another machine: with the environment of a login, or,
# if the argument is `light`, with what it needs of the last one.
if [ "$1" = light ]; then
    exec {python} -I -S "${{0%/*}}/start.py" light
fi
case $SHELL in
    */bash | */zsh | */ksh | */dash | */sh) shell=$SHELL ;;
    *) shell=/bin/sh ;;
esac
exec "$shell" -l -c 'exec "$0" -I "$1" "$2"' {python} "${{0%/*}}/start.py" "$1"
"""
_FIND = """\
case $SHELL in
    */bash | */zsh | */ksh | */dash | */sh) shell=$SHELL ;;
    *) shell=/bin/sh ;;
esac
exec "$shell" -l -c '
for name in "$@" python3 python3.15 python3.14 python3.13 python3.12 python3.11 python; do
    case $name in "~/"*) name=$HOME/${name#"~/"} ;; esac
    path=$(command -v "$name" 2>/dev/null) || continue
    found=$("$path" -I -c "import sys; print(sys.executable, *sys.version_info[:3])" 2>/dev/null) &&
        echo "python: $found"
done' sh """
_INSTALL = """\
import hashlib, io, os, shutil, sys, tarfile
def main(digest, home, program, start, room):
    os.umask(0o077)
    content = sys.stdin.buffer.read()
    if hashlib.sha256(content).hexdigest() != digest:
        sys.exit("the files did not arrive completely")
    folder = os.path.join(os.path.expanduser("~"), *home.split("/"))
    os.makedirs(folder, mode=0o700, exist_ok=True)
    target, new = os.path.join(folder, room), os.path.join(folder, ".new-%d" % os.getpid())
    try:
        os.mkdir(new, 0o700)
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            archive.extractall(os.path.join(new, "lib"), **safe)
        for name, text in ("echelon", program), ("start.py", start):
            with open(os.path.join(new, name), "w") as file:
                file.write(text)
        try:
            os.rename(new, target)
        except OSError:
            if not os.path.isfile(os.path.join(target, "echelon")):
                raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
    others = [entry for entry in os.scandir(folder) if entry.name != room]
    others.sort(key=lambda entry: entry.stat().st_mtime, reverse=True)
    for entry in others[3:]:
        shutil.rmtree(entry.path, ignore_errors=True)
try:
    main(*ARGUMENTS)
except OSError as error:
    sys.exit("%s: %s" % (error.filename or "the files", error.strerror))
"""


def build_archive() -> bytes:
    """Return the files as a compressed archive, the same each time."""
    content = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=content, mode="wb", mtime=0, compresslevel=6) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name, path in sorted(find_files().items()):
            data = path.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o600
            archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()


def install(connection: Connection, python: str, target: str) -> None:
    """Install Echelon on a host.

    Args:
        connection: the host.
        python: the Python to use there; empty to look for one.
        target: the folder to create, in the home directory there.

    Raises:
        EchelonError: there is no Python, or no disk space.
    """
    found = _find_python(connection, python)
    content = build_archive()
    folder, _, name = target.rpartition("/")
    arguments = (
        hashlib.sha256(content).hexdigest(),
        folder,
        _PROGRAM.format(python=_quote(found)),
        _START,
        name,
    )
    script = _INSTALL.replace("ARGUMENTS", json.dumps(arguments)).encode()
    line = f"import sys; exec(sys.stdin.buffer.read({len(script)}))"
    talk = connection.open(f'exec {_quote(found)} -I -c "{line}"')
    _, errors = talk.communicate(script + content, timeout=_INSTALL_S)
    if is_lost(talk.returncode):
        raise explain_ssh(connection.host, errors.decode(errors="replace"))
    if talk.returncode:
        raise explain_installation(connection.host, errors.decode(errors="replace"))


def explain_installation(host: str, stderr: str) -> EchelonError:
    """Return the error for files that could not be stored there. Pure."""
    message = (stderr.strip().splitlines() or ["no message"])[-1]
    full = "quota" in message or "No space" in message
    return UnavailableError(
        f"Echelon cannot be copied to {host}: {message}",
        hint=f"make room in your home directory there: ssh {host} du -sh '~/.[!.]*' '~/*'"
        if full
        else f"check the home directory there: ssh {host} ls -ld '~' '~/.local'",
    )


def _find_python(connection: Connection, python: str) -> str:
    done = connection.run("exec /bin/sh -s", stdin=f"{_FIND}{_quote(python) if python else ''}\n")
    return choose_python(connection.host, done.stdout, python)


def choose_python(host: str, listing: str, wanted: str) -> str:
    """Return the first Python in a host's listing that is new enough. Pure.

    Raises:
        UnavailableError: no Python is new enough.
    """
    found: dict[str, tuple[int, ...]] = {}
    for line in listing.splitlines():
        if match := re.fullmatch(r"python: (/.+) (\d+) (\d+) (\d+)", line):
            found.setdefault(match[1], tuple(map(int, match.groups()[1:])))
    for path, version in found.items():
        if version >= OLDEST:
            return path
    least = ".".join(map(str, OLDEST))
    named = [f"{path} is {'.'.join(map(str, version))}" for path, version in found.items()]
    raise UnavailableError(
        f"no Python {least} or newer on {host}: {', '.join(named) or 'no Python found'}"
        + (f" ('{wanted}' of the profile does not run there)" if wanted and not found else ""),
        hint='name one in the cluster\'s profile: python = "/path/to/python3.11" (on many '
        f"clusters a module or a conda environment has one: ssh {host} module avail python)",
    )


def _quote(path: str) -> str:
    """Quote a path for any login shell."""
    return "'" + path.replace("'", "'\\''") + "'"
