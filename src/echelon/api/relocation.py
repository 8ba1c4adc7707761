"""Where a run was made, and where it lies now: a folder may have been moved, renamed or copied.

Its script and its request name their own folder. Of a run that was moved they are renewed. A copy
beside its original stays one to look at: both would have the same jobs, and the script of the copy
would start the original's controller.
"""

import os
import re
import shlex
from dataclasses import replace
from pathlib import Path

from echelon.api.runs import check_files, may_be_named
from echelon.api.trust import seal_script
from echelon.core.atomic_file import encode, write_atomic
from echelon.core.records import read_bytes
from echelon.errors import ConflictError, UsageError
from echelon.run.directory import RunDir
from echelon.run.request import read_spec

_START = re.compile(r'^    controller (.+) "\$\{1:-\}" [0-9a-f]{64}$', re.MULTILINE)
_OUTPUT = "/logs/job-%j.out"
_PLAIN = re.compile(r"[A-Za-z0-9._/+,@=-]+")
"""What bash, Slurm and TOML all take for itself."""


def find_home(run: RunDir) -> Path:
    """Return the folder that a run's own files take for the run's."""
    try:
        found = _START.search(read_bytes(run.script).decode("utf-8", "surrogateescape"))
        if found:
            return Path(shlex.split(found[1])[0])
    except (OSError, ValueError):
        pass  # whoever needs the script will say what is wrong with it
    output = read_spec(run).output  # of a style without a controller it is all that names it
    home = Path(output.removesuffix(_OUTPUT).replace("%%", "%"))
    # A user may want output elsewhere, in a folder that looks like one of ours.
    if output.endswith(_OUTPUT) and may_be_named(home.name, read_spec(run)):
        return home
    return run.path.absolute()


def check_original(run: RunDir) -> None:
    """See whether a folder is the run itself, so that its jobs may be spoken for.

    Raises:
        ConflictError: it is a copy, or has another name than its jobs know.
    """
    home = find_home(run)
    if _is(home, run.path):
        return
    if _exists(home / run.spec.name):
        where = shlex.quote(str(home.parent))
        raise ConflictError(
            f"{run.path} is a copy: the run itself is in {home}",
            hint=f"name that one: --runs-dir {where}; a copy can only be looked at",
        )
    if home.name != run.run_id:
        mend = ["mv", str(run.path), str(run.path.with_name(home.name))]
        raise ConflictError(
            f"the run in {run.path} was called '{home.name}', and its jobs know no other name",
            hint=f"rename it: {shlex.join(mend)}",
        )


def settle_run(run: RunDir, script: bytes) -> tuple[bytes, Path | None]:
    """Have a run's files name the folder where it lies now.

    Args:
        run: which.
        script: its script, as it was checked (`trust.read_script`).

    Returns:
        the script, and the folder where the run was; None where it was not moved.

    Raises:
        ConflictError: it is a copy, or cannot go on from there.
        UsageError: its script is no longer where it was.
    """
    check_original(run)
    home, here = find_home(run), Path(os.path.normpath(run.path.absolute()))
    if _is(home, here):
        return script, None
    if not all(_PLAIN.fullmatch(str(path)) for path in (home, here)):
        raise ConflictError(
            f"the run was made in {home}, and cannot go on in {here}: one of the two names has "
            "letters that mean something to bash or to Slurm",
            hint=f"move it back: mv {shlex.quote(str(here))} {shlex.quote(str(home))}",
        )
    old = re.compile(rf"(?<![\w./-]){re.escape(str(home))}(?![\w.-])")
    spec = read_spec(run)
    spec = replace(spec, output=old.sub(str(here), spec.output))
    if problems := check_files(spec, Path(spec.chdir)):
        raise UsageError(
            f"the run was moved here from {home}, and {'; '.join(problems)}",
            hint="move what it needs back, or start anew: echelon submit",
        )
    request = read_bytes(run.spec).decode("utf-8", "surrogateescape")
    write_atomic(run.spec, old.sub(str(here), request))
    script = encode(old.sub(str(here), script.decode("utf-8", "surrogateescape")))
    script = seal_script(script, run)
    write_atomic(run.script, script, mode=0o700)  # the one that is asked comes last
    return script, home


def _is(home: Path, path: Path) -> bool:
    """Tell whether two names are one folder's: of a link, or of a mount, there are several."""
    return home == path.absolute() or (_exists(home) and home.samefile(path))


def _exists(path: Path) -> bool:
    """Tell whether something is there, as far as one may look."""
    try:
        return path.exists()
    except OSError:
        return False
