"""The programs that run inside an allocation, and how one starts another."""

import sys

import echelon
from echelon.launch.archive import find_archive

ROLES = {
    "controller": "echelon.launch.controller.entrypoint",
    "agent": "echelon.launch.agent.agent",
    "zygote": "echelon.launch.zygote.zygote",
    "ray-driver": "echelon.launch.backends.ray.driver",
    "ray-call": "echelon.launch.backends.ray.orders",
    "telemetry": "echelon.launch.telemetry.telemetry",
    "doctor": "echelon.launch.doctor.preflight_process",
    "doctor-probe": "echelon.launch.doctor.probe",
}
"""Who one can be, and where that is written."""

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
"""A program for `python -c`: start a launcher, but only the one that has this digest.

What is compared is what is executed, so nobody can exchange it in between.
"""


def launcher_command(python: str, digest: str, launcher: object, role: str) -> list[str]:
    """Return what starts a program of a launcher that has this digest."""
    assert role in ROLES, role
    return [python, "-c", BOOTSTRAP, digest, str(launcher), role]


def role_command(role: str, *arguments: object) -> list[str]:
    """Return what starts another program of the launcher that we are of, in the same Python."""
    assert role in ROLES, role
    archive = find_archive(echelon)
    if archive is None:  # of an installed Echelon
        own = [sys.executable, "-m", "echelon.launch", role]
    else:
        own = launcher_command(sys.executable, archive.digest, archive.path, role)
    return [*own, *map(str, arguments)]
