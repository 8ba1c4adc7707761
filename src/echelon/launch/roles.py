"""The programs that run inside an allocation, and how one starts another."""

import sys

from echelon import _version
from echelon.launch.archive import find_archive

ROLES = {
    "controller": "echelon.launch.controller.entrypoint",
    "task": "echelon.launch.task",
    "broker": "echelon.launch.allocation.packed_sweep",
    "keeper": "echelon.launch.allocation.keeper",
    "fork-server": "echelon.launch.allocation.fork_server",
    "agent": "echelon.launch.agent.entrypoint",
    "zygote": "echelon.launch.zygote.zygote",
    "ray-driver": "echelon.launch.backends.ray.driver",
    "ray-call": "echelon.launch.backends.ray.orders",
    "code": "echelon.launch.code_path",
    "telemetry": "echelon.launch.telemetry.telemetry",
    "doctor": "echelon.launch.doctor.preflight",
    "doctor-probe": "echelon.launch.doctor.probe",
}
"""Role → the module that implements it."""

BOOTSTRAP = """\
import sys
if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # the current folder
import hashlib
digest, path = sys.argv[1:3]
try:
    with open(path, "rb") as file:
        data = file.read(1 << 27)
except OSError as error:
    sys.exit("cannot read the launcher of the run: %s" % error)
if hashlib.sha256(data).hexdigest() != digest:
    sys.exit("refused to start: %s is not what was submitted (its SHA-256 differs); "
             "nothing of it was executed" % path)
exec(compile(data[: data.index(b"PK\\3\\4")], path + "/__main__.py", "exec"))
run(path, digest, data)
"""
"""A program for `python -c`: start a launcher, but only if it has the expected digest.

The bytes that are compared are those that are executed, so the file cannot be replaced in between.
"""


def launcher_command(python: str, digest: str, launcher: object, role: str) -> list[str]:
    """Return the command that starts a program of a launcher with this digest."""
    assert role in ROLES, role
    return [python, "-c", BOOTSTRAP, digest, str(launcher), role]


def role_command(role: str, *arguments: object, python: str = "") -> list[str]:
    """Return the command that starts another program of this launcher.

    It runs in the same Python, unless another is named.
    """
    assert role in ROLES, role
    archive, python = find_archive(_version), python or sys.executable
    if archive is None:  # an installed Echelon
        own = [python, "-m", "echelon.launch", role]
    else:
        own = launcher_command(python, archive.digest, archive.path, role)
    return [*own, *map(str, arguments)]
