"""Start, find and stop sandboxes.

A sandbox's directory reserves its name. A lock on the directory lets one command change the sandbox
at a time, and `sandbox.json` in it records what was built. All other state is read from the kernel
and from Slurm.
"""

import fcntl
import os
import pwd
import shutil
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from echelon.core.atomic_file import write_atomic
from echelon.core.shell import Shell
from echelon.core.slurm_text import parse_version
from echelon.errors import (
    ConflictError,
    MissingProgramError,
    NotFoundError,
    NotPermittedError,
    UsageError,
)
from echelon.sandbox import accounting, config, ssh
from echelon.sandbox.cluster import Progress, Sandbox
from echelon.sandbox.config import SandboxConfig, SandboxState
from echelon.sandbox.layout import Layout, check_path, is_name
from echelon.sandbox.loopback import free_ports, plan_loopback
from echelon.sandbox.namespaces import can_make_namespaces, plan_namespaces, remove_uplink
from echelon.sandbox.processes import (
    MARK,
    end_sandbox_processes,
    find_processes,
    is_holder,
    own_network,
)

PROGRAMS = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sinfo": "slurm-client",
}
NAMESPACE_PROGRAMS = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
"""Program → Debian package."""

# --- locations ------------------------------------------------------------------------------


def home(environ: Mapping[str, str], uid: int) -> Path:
    """Return the directory of a user's sandboxes: on a local disk, with a short path."""
    if chosen := environ.get("ECHELON_SANDBOX_DIR"):
        # Processes are identified by this path, so it needs one canonical spelling.
        return Path(chosen).resolve()
    return Path("/var/lib/echelon/sandbox" if uid == 0 else f"/var/tmp/echelon-{uid}/sandbox")  # noqa: S108


def find_layout(name: str, environ: Mapping[str, str], uid: int) -> Layout:
    """Return the layout of an existing sandbox: this user's, or root's, which all users may use.

    Raises:
        UsageError: the name is invalid.
        NotFoundError: there is no such sandbox.
        NotPermittedError: another user could have created it.
    """
    if not is_name(name):
        raise UsageError(
            f"'{name}' is not a valid sandbox name",
            hint="use up to 31 letters, digits and '-', starting with a letter or digit",
        )
    for owner in (uid, 0):
        layout = Layout(root=home(environ, owner) / name)
        if layout.root.is_dir():
            _check_trust(layout, uid)
            return layout
    raise NotFoundError(
        f"there is no sandbox '{name}'",
        hint=f"start it: echelon sandbox up{Layout(root=Path(name)).option}",
    )


def _check_trust(layout: Layout, uid: int) -> None:
    """Check that only this user or root can write there: Slurm loads plugins from slurm.conf."""
    for folder in (layout.root, layout.root.parent, layout.root.parent.parent):
        status = folder.lstat()
        others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        shared = others_write and not status.st_mode & stat.S_ISVTX
        if status.st_uid not in (uid, 0) or not stat.S_ISDIR(status.st_mode) or shared:
            raise NotPermittedError(
                f"{folder} belongs to another user, or other users can write to it",
                hint="set ECHELON_SANDBOX_DIR to a directory of your own",
            )


def list_sandboxes(environ: Mapping[str, str], uid: int) -> list[str]:
    """Return the names of all sandboxes that this user can see."""
    homes = {home(environ, uid), home(environ, 0)}
    return sorted({entry.name for home in homes if home.is_dir() for entry in home.iterdir()})


# --- up, down -------------------------------------------------------------------------------


def open_sandbox(name: str, *, shell: Shell, environ: Mapping[str, str], uid: int) -> Sandbox:
    """Return a running sandbox.

    Raises:
        NotFoundError: there is no sandbox of that name, or its start did not finish.
    """
    layout = find_layout(name, environ, uid)
    state = _read_state(layout)
    if state is None or not state.ready:
        raise NotFoundError(
            f"the sandbox '{name}' is not up: its start did not finish",
            hint=f"remove it: echelon sandbox down{layout.option}",
        )
    return Sandbox(layout, state, shell, environ)


def start_sandbox(
    wanted: SandboxConfig,
    *,
    shell: Shell,
    environ: Mapping[str, str],
    uid: int,
    progress: Progress,
) -> Sandbox:
    """Start the cluster and wait until all nodes are idle.

    Raises:
        UsageError: a size or the name is invalid.
        ConflictError: it already runs, or another command is starting or stopping it.
        UnavailableError: a package is missing, or Slurm did not start; everything is removed again.
    """
    if problems := wanted.problems():
        raise UsageError("; ".join(problems), hint="see: echelon sandbox up --help")
    _check_programs(wanted, shell, uid=uid)
    namespaces = uid == 0 and can_make_namespaces(shell)
    layout = Layout(root=home(environ, uid) / wanted.name)
    check_path(layout)
    with _claim(layout, uid):
        state = _read_state(layout)
        if state is not None and state.ready and _is_alive(layout):
            raise ConflictError(
                f"the sandbox '{wanted.name}' is already running",
                hint=f"stop it: echelon sandbox down{layout.option}; or choose another --name",
            )
        if any(layout.root.iterdir()) or find_processes(layout):
            progress("removing leftovers of an earlier sandbox")
            _clear(layout, shell)
        # munged requires directories that all users can enter and no other user can write to.
        mask = os.umask(0o022)
        try:
            return _build(wanted, layout, shell, environ, progress, namespaces=namespaces)
        except BaseException:
            _remove(layout, shell)
            raise
        finally:
            os.umask(mask)


def _is_alive(layout: Layout) -> bool:
    """Tell whether slurmctld runs: after a reboot, the directory still exists."""
    return any(p.trusted and p.program == "slurmctld" for p in find_processes(layout))


def _build(
    wanted: SandboxConfig,
    layout: Layout,
    shell: Shell,
    environ: Mapping[str, str],
    progress: Progress,
    *,
    namespaces: bool,
) -> Sandbox:
    planned = (
        plan_namespaces(wanted, layout, shell)
        if namespaces
        else nullcontext(plan_loopback(wanted, socket.gethostname()))
    )
    with planned as network:
        state = SandboxState(
            config=wanted,
            network=network,
            user=pwd.getpwuid(os.geteuid()).pw_name,
            slurm=_slurm_version(shell),
            database_port=3306 if namespaces else free_ports(1)[0],
        )
        if not network.confined:
            progress(
                "Slurm's daemons listen on all network interfaces, because the host name "
                f"'{network.machine}' does not resolve to 127.0.0.1"
            )
        _write_files(layout, state)
        sandbox = Sandbox(layout, state, shell, environ)
        sandbox.start_all(progress)
    sandbox.state = replace(state, ready=True)
    write_atomic(layout.state, sandbox.state.render(), mode=0o644)
    return sandbox


def _slurm_version(shell: Shell) -> tuple[int, ...]:
    # Slurm's other commands need a configuration even to print their version.
    return parse_version(shell.run([str(shell.which("slurmctld")), "-V"]).stdout)


def stop_sandbox(name: str, *, shell: Shell, environ: Mapping[str, str], uid: int) -> None:
    """End all processes of the sandbox and remove its files, whatever its state.

    Raises:
        NotFoundError: there is no such sandbox.
        ConflictError: the command runs inside the sandbox.
        NotPermittedError: it belongs to another user.
    """
    try:
        layout = find_layout(name, environ, uid)
    except NotFoundError:
        # Only the directory may have been removed, with processes still running.
        layout = Layout(root=home(environ, uid) / name)
        if not find_processes(layout):
            raise
    hosts = [p.network for p in find_processes(layout) if is_holder(p, layout)]
    if environ.get(MARK) == str(layout.root) or own_network() in hosts:
        raise ConflictError(
            f"cannot stop the sandbox '{name}' from inside it",
            hint=f"exit this shell, then run: echelon sandbox down{layout.option}",
        )
    with _claim(layout, uid):
        _remove(layout, shell)


def _clear(layout: Layout, shell: Shell) -> None:
    """End all processes and empty the directory; its lock stays held.

    Raises:
        ConflictError: the directory is not a sandbox.
    """
    entries = [entry for entry in layout.root.iterdir() if not entry.name.endswith(".tmp")]
    if entries and not layout.state.exists():
        raise ConflictError(
            f"{layout.root} is not empty and is not a sandbox",
            hint=f"choose another --name, or check its contents and remove it: ls {layout.root}",
        )
    end_sandbox_processes(layout)
    if os.geteuid() == 0:
        remove_uplink(layout, shell)
    for entry in layout.root.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _remove(layout: Layout, shell: Shell) -> None:
    _clear(layout, shell)
    layout.root.rmdir()
    if layout.root.parent == home({}, os.geteuid()):  # the default location, created by us
        with suppress(OSError):  # other sandboxes are there
            layout.root.parent.rmdir()
            layout.root.parent.parent.rmdir()


@contextmanager
def changing(sandbox: Sandbox, uid: int) -> Iterator[Sandbox]:
    """Lock the sandbox while it is changed: a node restored during `down` would be left over."""
    with _claim(sandbox.layout, uid):
        if not sandbox.layout.state.exists():
            with suppress(OSError):  # not empty
                sandbox.layout.root.rmdir()
            raise NotFoundError(
                f"the sandbox '{sandbox.name}' no longer exists",
                hint=f"start it: echelon sandbox up{sandbox.layout.option}",
            )
        yield sandbox


@contextmanager
def _claim(layout: Layout, uid: int) -> Iterator[None]:
    """Create the sandbox's directory if needed, and hold its lock.

    Raises:
        ConflictError: another command holds the lock.
        NotPermittedError: it belongs to another user.
    """
    while True:
        for folder in (layout.root.parent.parent, layout.root.parent, layout.root):
            if not folder.exists():
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(0o755)
        _check_trust(layout, uid)
        if layout.root.lstat().st_uid != uid:
            raise NotPermittedError(
                f"{layout.root} belongs to another user",
                hint="use sudo, or set ECHELON_SANDBOX_DIR to a directory of your own",
            )
        handle = os.open(layout.root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(handle, layout.root):
                yield
                return
            # The last owner removed it between our open and our lock: create it again.
        except BlockingIOError as error:
            raise ConflictError(
                f"another command is starting or stopping the sandbox '{layout.root.name}'",
                hint="wait until it has finished, then try again",
            ) from error
        finally:
            os.close(handle)


def _is_still(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False


def _read_state(layout: Layout) -> SandboxState | None:
    try:
        return SandboxState.parse(layout.state.read_text())
    except FileNotFoundError:
        return None


def _write_files(layout: Layout, state: SandboxState) -> None:
    # Written first: it distinguishes an interrupted start from a foreign directory.
    write_atomic(layout.state, state.render(), mode=0o644)
    for folder in layout.folders():
        folder.mkdir(mode=0o755)
    write_atomic(layout.munge / "key", os.urandom(128), mode=0o600)
    texts = {
        layout.slurm_conf: config.render_slurm_conf(state, layout),
        layout.slurmctld_conf: config.render_slurm_conf(
            state, layout, message_timeout_s=config.CONTROLLER_MESSAGE_TIMEOUT_S
        ),
        layout.gres_conf: config.render_gres_conf(state.config, layout),
        layout.cgroup_conf: config.render_cgroup_conf(),
        layout.hosts: config.render_hosts(state.network),
        layout.boot: config.render_boot(layout),
    }
    for path, text in texts.items():
        write_atomic(path, text, mode=0o644)
    for number in range(state.config.gpus):
        # Slurm requires a character device; /dev/null is harmless and accessible to every user.
        (layout.devices / f"gpu{number}").symlink_to("/dev/null")


def _check_programs(wanted: SandboxConfig, shell: Shell, *, uid: int) -> None:
    needed = {
        **PROGRAMS,
        **(NAMESPACE_PROGRAMS if uid == 0 else {}),
        **(accounting.PROGRAMS if wanted.accounting else {}),
        **(ssh.PROGRAMS if wanted.ssh else {}),
    }
    missing = [program for program in needed if shell.which(program) is None]
    if missing:
        packages = " ".join(dict.fromkeys(needed[program] for program in missing))
        sudo = "" if uid == 0 else "sudo "
        raise MissingProgramError(
            missing[0], hint=f"{sudo}apt-get install --no-install-recommends {packages}"
        )
