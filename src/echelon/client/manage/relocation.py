"""Run directories that were moved, renamed or copied.

A run's script and request contain the path of the run directory. They are updated after a move. A
copy whose original still exists is read-only: both would have the same jobs, and the script of the
copy would start the original's controller.
"""

import os
import re
import shlex
from dataclasses import replace
from pathlib import Path

from echelon.client.submit.checks import check_files
from echelon.client.submit.run_files import may_be_named
from echelon.client.submit.trust import seal_script
from echelon.core.atomic_file import encode, write_atomic
from echelon.core.records import read_bytes
from echelon.errors import ConflictError, UsageError
from echelon.launch.program import find_program
from echelon.run.code import find_copy
from echelon.run.directory import RunDir
from echelon.run.request import read_code, read_spec

_START = re.compile(
    r'^    (?:(?:controller|task) (.+) "\$.*" [0-9a-f]{64}|code (.+) [0-9a-f]{64}\) .+)$',
    re.MULTILINE,
)
"""The line of a script that starts the launcher, with the run directory in one of its groups."""
_OUTPUT = "/logs/job-%j.out"
_PLAIN = re.compile(r"[A-Za-z0-9._/+,@=-]+")
"""Characters without a special meaning in bash, Slurm and TOML."""


def find_home(run: RunDir) -> Path:
    """Return the run directory according to the run's own files."""
    try:
        found = _START.search(read_bytes(run.script).decode("utf-8", "surrogateescape"))
        if found:
            return Path(shlex.split(found[1] or found[2])[0])
    except (OSError, ValueError):
        pass  # code that needs the script reports the problem
    output = read_spec(run).output  # without a controller, only the output contains the path
    home = Path(output.removesuffix(_OUTPUT).replace("%%", "%"))
    # The user may have chosen an output directory that looks like the one of a run.
    if output.endswith(_OUTPUT) and may_be_named(home.name, read_spec(run)):
        return home
    return run.path.absolute()


def own_output(run: RunDir) -> str:
    """Return the output file of a run's jobs if the user chose none, as the request has it."""
    return f"{str(find_home(run)).replace('%', '%%')}{_OUTPUT}"


def check_original(run: RunDir) -> None:
    """Check that a directory is the run itself, so that commands may control its jobs.

    Raises:
        ConflictError: the directory is a copy, or was renamed.
    """
    home = find_home(run)
    if _is_same(home, run.path):
        return
    if _exists(home / run.spec.name):
        where = shlex.quote(str(home.parent))
        raise ConflictError(
            f"{run.path} is a copy of the run in {home}, and can only be read",
            hint=f"use the original: --runs-dir {where}",
        )
    if home.name != run.run_id:
        fix = ["mv", str(run.path), str(run.path.with_name(home.name))]
        raise ConflictError(
            f"the run in {run.path} was renamed; its jobs know it as '{home.name}'",
            hint=f"rename it back: {shlex.join(fix)}",
        )


def settle_run(run: RunDir, script: bytes) -> tuple[bytes, Path | None]:
    """Update the paths in a run's files to its current directory.

    Args:
        run: the run.
        script: its script, as checked (`trust.read_script`).

    Returns:
        The script, and the previous run directory; None if the run was not moved.

    Raises:
        ConflictError: the directory is a copy, or the run cannot continue at its new path.
        UsageError: the training script is missing.
    """
    check_original(run)
    home, here = find_home(run), Path(os.path.normpath(run.path.absolute()))
    if _is_same(home, here):
        return script, None
    if not all(_PLAIN.fullmatch(str(path)) for path in (home, here)):
        raise ConflictError(
            f"the run was moved from {home} to {here}, and cannot continue there: one of the paths "
            "has characters that are special to bash or Slurm",
            hint=f"move it back: mv {shlex.quote(str(here))} {shlex.quote(str(home))}",
        )
    old = re.compile(rf"(?<![\w./-]){re.escape(str(home))}(?![\w.-])")
    spec = read_spec(run)
    spec = replace(spec, output=old.sub(str(here), spec.output))
    program = find_program(spec, find_copy(run, read_code(run), spec.chdir))
    if problems := check_files(replace(spec, script=program.argv[0]), Path(spec.chdir)):
        raise UsageError(
            f"the run was moved from {home}: {'; '.join(problems)}",
            hint="restore the missing files, or start a new run: echelon submit",
        )
    request = read_bytes(run.spec).decode("utf-8", "surrogateescape")
    write_atomic(run.spec, old.sub(str(here), request))
    script = encode(old.sub(str(here), script.decode("utf-8", "surrogateescape")))
    script = seal_script(script, run)
    write_atomic(run.script, script, mode=0o700)  # last, because find_home reads it
    return script, home


def _is_same(home: Path, path: Path) -> bool:
    """Tell whether two paths are the same directory, also through links and mounts."""
    return home == path.absolute() or (_exists(home) and home.samefile(path))


def _exists(path: Path) -> bool:
    """Tell whether a path exists and is accessible."""
    try:
        return path.exists()
    except OSError:
        return False
