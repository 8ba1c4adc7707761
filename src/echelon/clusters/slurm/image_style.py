"""The container image of styles without a controller, as bash that each task runs. Pure."""

import shlex

from echelon.launch.container.commands import PODMAN, PYXIS, split_mount
from echelon.launch.container.reference import DOCKER_HUB, Reference, parse_reference
from echelon.spec.job_spec import JobSpec

_COMMENT = """\
# The image supplies Python and its libraries; files and network are the node's own.
"""
_HOST_ONLY = "PATH | LD_* | PYTHONHOME | VIRTUAL_ENV* | CONDA_* | CUDA_HOME | HOSTNAME | PWD | _"


def render_entry(spec: JobSpec) -> str:
    """Return the lines that put a container's command before that of a task; empty without one."""
    if not spec.image or spec.image_runtime == PYXIS:
        return ""  # with pyxis, tasks start inside
    body = _podman(spec) if spec.image_runtime == PODMAN else _apptainer(spec)
    return f"{_COMMENT}{body}"


def render_srun_options(spec: JobSpec) -> list[str]:
    """Return the options with which srun starts tasks inside an image; none without pyxis."""
    if not spec.image or spec.image_runtime != PYXIS:
        return []
    # The batch script learns from a file in /tmp that a port is taken.
    own = ("$HOME", "$PWD", "/tmp")  # noqa: S108  where the batch script has mktemp create it
    mounts = [*(f'"{path}:{path}"' for path in own), *map(_quoted, spec.image_mounts)]
    found = [
        f"--container-image={shlex.quote(_pyxis_name(parse_reference(spec.image)))}",
        f"--container-mounts={','.join(mounts)}",
        f"--container-workdir={_workdir(spec)}",
    ]
    # By default the variables of the image win.
    return found + ([f"--container-env={','.join(spec.image_env)}"] if spec.image_env else [])


def render_exports(spec: JobSpec) -> list[str]:
    """Return the lines that set the image's variables."""
    runtime = spec.image_runtime
    prefix = "" if runtime in (PODMAN, PYXIS) else f"{runtime.upper()}ENV_"
    return [f"export {prefix}{name}={shlex.quote(v)}" for name, v in spec.image_env.items()]


def _apptainer(spec: JobSpec) -> str:
    reference = parse_reference(spec.image)
    name = reference.path or f"docker://{reference.pulled}"
    words = [spec.image_runtime, "exec", *map(shlex.quote, spec.image_options)]
    words += ["--nv"] if spec.gpus else []
    words += ['--bind "$HOME"', '--bind "$PWD"']
    words += [f"--bind {_quoted(mount)}" for mount in spec.image_mounts]
    words += [f"--pwd {_workdir(spec)}", shlex.quote(name)]
    return f"""\
unset {" ".join(_UNSET)}
inside=({_wrap(words)})
set -- "${{inside[@]}}" "$@"
"""


_UNSET = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "VIRTUAL_ENV")


def _podman(spec: JobSpec) -> str:
    reference = parse_reference(spec.image)
    name = f"oci-archive:{reference.path}" if reference.path else reference.pulled
    words = [
        *(PODMAN, "run", "--rm", "--entrypoint="),
        *("--network=host", "--pid=host", "--ipc=host", "--security-opt=label=disable"),
        *map(shlex.quote, spec.image_options),
        *(["--device=nvidia.com/gpu=all"] if spec.gpus else []),
        '--volume "$HOME:$HOME"',
        '--volume "$PWD:$PWD"',
        *(f"--volume {_quoted(mount)}" for mount in spec.image_mounts),
        f"--workdir {_workdir(spec)}",
    ]
    return f"""\
inside=({_wrap(words)})
if [ "$(id -u)" != 0 ]; then inside+=(--userns=keep-id); fi
for name in $(compgen -e); do
    case $name in
        {_HOST_ONLY}) ;;
        *) inside+=(--env "$name") ;;
    esac
done
set -- "${{inside[@]}}" {shlex.quote(name)} "$@"
"""


def _workdir(spec: JobSpec) -> str:
    return shlex.quote(spec.image_workdir) if spec.image_workdir else '"$PWD"'


def _quoted(mount: str) -> str:
    return shlex.quote(":".join(split_mount(mount)))


def _wrap(words: list[str]) -> str:
    """Break an array's words into lines of bash."""
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) > 84:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n    ".join(lines)


def _pyxis_name(reference: Reference) -> str:
    """Return an image as enroot writes it: `REGISTRY#NAME:TAG`."""
    if reference.path:
        return reference.path
    registry = "" if reference.registry == DOCKER_HUB else f"{reference.registry}#"
    ending = f":{reference.tag}" if reference.tag else f"@{reference.digest}"
    return f"{registry}{reference.repository}{ending}"
