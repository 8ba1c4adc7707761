"""How a program is started inside an image: the command lines of apptainer and podman. Pure.

The image supplies programs and libraries, and nothing is isolated: processes, shared memory,
network, user and devices are the node's own. Agent and ranks rely on that.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import PurePosixPath

from echelon.core.frozen import frozen
from echelon.errors import UsageError

APPTAINER = ("apptainer", "singularity")
"""Two names of one program: the older one is still that of some sites."""
PODMAN = "podman"
PYXIS = "pyxis"
"""A plugin of srun. It starts tasks inside an image, not programs of ours."""
STARTED = (*APPTAINER, PODMAN)
"""Runtimes that a program can call, in the order in which they are looked for."""

LIBRARY = "/opt/echelon-library"
"""Folder inside with the Echelon of the host, which scripts may import."""
HANDLE = 3
"""The file descriptor that podman passes on."""

_OF_HOST = re.compile(
    r"PATH|LD_.*|PYTHONHOME|VIRTUAL_ENV.*|CONDA_.*|CUDA_(HOME|PATH|ROOT)|HOSTNAME|SHLVL|PWD|OLDPWD|_"
)
"""Variables about the host's own programs, which an image has others of."""
_OF_PODMAN = re.compile(r"HOME|TMPDIR|(XDG|CONTAINERS?|STORAGE|DOCKER|DBUS)_.*")
"""Variables that podman itself reads, so that the image's values must not be in its environment."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_PROCESSES = 32768

AT_3 = 'if [ "$0" != 3 ]; then exec 3<&"$0"; eval "exec $0<&-"; fi; exec "$@"'
"""A program for `bash -c`: podman passes on descriptors from 3, whichever number ours has."""


@frozen
class Container:
    """An image, and how a program is started in it."""

    runtime: str
    """One of `STARTED`."""
    image: str
    """What the runtime opens: a file, or an image in its own storage."""
    mounts: tuple[str, ...] = ()
    """`/path`, `/path:/path/inside`, either with `:ro` at the end."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables to set inside."""
    workdir: str = ""
    """The working directory inside."""
    gpus: bool = False
    options: tuple[str, ...] = ()
    """More options of the runtime, for sites that need them."""
    rootless: bool = False
    """Whether an ordinary user runs podman."""


def render_command(
    container: Container, argv: Sequence[str], env: Mapping[str, str], *, handle: int = -1
) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs a program inside, and the variables to start it with.

    Args:
        container: the image.
        argv: the program.
        env: its variables; those that describe the host's programs stay outside.
        handle: a file descriptor that it inherits; inside it is `inner_handle`.
    """
    if container.runtime == PODMAN:
        command = [*_podman(container, env, handle), container.image, *argv]
        if handle >= 0:
            command = ["bash", "-c", AT_3, str(handle), *command]
        return command, {**env, **_select_named(container)}
    command = [*_apptainer(container), container.image, *argv]
    path = {"PATH": env["PATH"]} if "PATH" in env else {}  # to start with; inside is the image's
    prefix = f"{container.runtime.upper()}ENV_"
    ours = {f"{prefix}{name}": value for name, value in container.env.items()}
    return command, {**select_variables(env), **path, **ours}


def is_refusal(container: Container, code: int) -> bool:
    """Tell whether an exit code says that the runtime could not start the program."""
    return code in ((125, 126, 127) if container.runtime == PODMAN else (255,))


def inner_handle(container: Container, handle: int) -> int:
    """Return the number that an inherited descriptor has inside."""
    return HANDLE if container.runtime == PODMAN else handle


def select_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that also hold inside an image."""
    return {
        name: value
        for name, value in env.items()
        if _NAME.fullmatch(name) and not _OF_HOST.fullmatch(name)
    }


def _apptainer(container: Container) -> list[str]:
    command = [container.runtime, "exec", *container.options]
    command += ["--nv"] if container.gpus else []
    for mount in container.mounts:
        command += ["--bind", ":".join(split_mount(mount))]
    return command + (["--pwd", container.workdir] if container.workdir else [])


def _podman(container: Container, env: Mapping[str, str], handle: int) -> list[str]:
    command = [
        *(PODMAN, "run", "--rm", "--pull=never", "--log-driver=passthrough", "--entrypoint="),
        *("--network=host", "--pid=host", "--ipc=host", "--uts=host"),
        # It is not there to confine anything: debuggers and NUMA policies work as outside.
        *("--security-opt=label=disable", "--security-opt=seccomp=unconfined"),
    ]
    command += ["--userns=keep-id"] if container.rootless else []
    command += container.options
    command += ["--device=nvidia.com/gpu=all"] if container.gpus else []
    command += ["--preserve-fds=1"] if handle >= 0 else []
    for mount in container.mounts:
        command += ["--volume", ":".join(split_mount(mount))]
    # podman reads their values itself: other users could read those of its arguments.
    named = _select_named(container)
    for name in sorted(named.keys() | (select_variables(env).keys() - container.env.keys())):
        command += ["--env", name]
    for name, value in container.env.items():
        command += [] if name in named else ["--env", f"{name}={value}"]
    return command + (["--workdir", container.workdir] if container.workdir else [])


def _select_named(container: Container) -> dict[str, str]:
    """Return the image's variables that do not matter to podman itself."""
    found = select_variables(container.env)
    return {name: value for name, value in found.items() if not _OF_PODMAN.fullmatch(name)}


# --- what differs between sites ---------------------------------------------------------------


def list_variants(
    container: Container, *, open_files: int, processes: int, runtimes: Sequence[str]
) -> list[Container]:
    """Return the ways to try, in order, until a container starts.

    Args:
        container: as it should work.
        open_files: our own limit of open files.
        processes: our own limit of processes; -1 if there is none.
        runtimes: the OCI runtimes on this machine.
    """
    if container.runtime != PODMAN:
        # With an unprivileged namespace, where the setuid program is missing or not allowed.
        return [container, _with(container, "--userns")]
    most = _MOST_PROCESSES if processes < 0 else min(processes, _MOST_PROCESSES)
    # podman raises limits unless told otherwise, which some machines forbid even to root.
    limits = (f"--ulimit=nofile={open_files}:{open_files}", f"--ulimit=nproc={most}:{most}")
    found = [container, _with(container, *limits)]
    # crun refuses hybrid cgroups, and runc does not.
    return found + [_with(container, f"--runtime={one}", *limits) for one in runtimes]


def _with(container: Container, *options: str) -> Container:
    return replace(container, options=(*options, *container.options))


# --- mounts -----------------------------------------------------------------------------------


def split_mount(text: str) -> list[str]:
    """Return source, target and perhaps `ro` of a mount.

    Raises:
        UsageError: it is not a mount.
    """
    source, *rest = text.split(":")
    mode = [rest.pop()] if rest and rest[-1] in ("ro", "rw") else []
    target = rest.pop() if rest else source
    if rest or not source.startswith("/") or not target.startswith("/") or "," in text:
        raise UsageError(
            f"'{text}' cannot be mounted",
            hint="write /path, /path:/path/inside or /path:/path/inside:ro, without commas",
        )
    return [source, target, *mode]


def list_mounts(folders: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    """Return the mounts of folders that keep their paths, and others.

    A folder inside of another one is mounted with it. One that the user mounts something else
    on is left to the user.
    """
    taken = {split_mount(mount)[1] for mount in more}
    kept: list[str] = []
    for folder in sorted(dict.fromkeys(folders), key=lambda path: path.count("/")):
        above = {str(path) for path in (PurePosixPath(folder), *PurePosixPath(folder).parents)}
        if folder in ("", "/") or folder in taken or above & set(kept):
            continue
        kept.append(folder)
    return (*kept, *more)


# --- errors -----------------------------------------------------------------------------------

_REASONS = (
    (
        r"no space left on device|disk quota exceeded",
        "no space left for the image",
        "free some, or choose another folder with --image-cache",
    ),
    (
        r"exec format error|no image found in .*for architecture|does not match the .*architecture",
        "the image is for another architecture",
        "choose an image for this machine's: uname -m",
    ),
    (
        r"(manifest|name) unknown|not found: manifest|unauthorized|image not known|no such image",
        "the image was not found",
        "check its name and tag; for a private registry, log in first",
    ),
    (
        r"new[ug]idmap|/etc/sub[ug]id|insufficient [UG]IDs",
        "the runtime has no user ids for the owners of the image's files",
        "ask the site for newuidmap (Debian: uidmap) and entries in /etc/subuid and /etc/subgid",
    ),
    (
        r"user namespace|max_user_namespaces|unprivileged_userns",
        "this node does not allow user namespaces, which the runtime needs",
        "ask the site to allow them (sysctl user.max_user_namespaces), or for setuid apptainer",
    ),
    (
        r"executable.* not found|exec.*: no such file or directory",
        "the image has no such Python",
        "name the interpreter inside the image with --image-python",
    ),
)
"""What runtimes print, what it means, and what helps."""


def explain_failure(runtime: str, image: str, output: str) -> tuple[str, str]:
    """Return why a runtime failed, from what it printed, and what helps."""
    # The last ones first: messages of the log come before the error.
    lines = [line.strip() for line in output.splitlines() if line.strip()][::-1]
    for pattern, reason, hint in _REASONS:
        if found := next((one for one in lines if re.search(pattern, one, re.IGNORECASE)), ""):
            return f"{reason} ({image}): {found[:300]}", hint
    last = lines[0][:300] if lines else "it printed nothing"
    return f"{runtime} cannot start {image}: {last}", f"try it by hand: {runtime} --help"
