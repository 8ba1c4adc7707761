"""Renders a request as a complete sbatch script, in one of several styles. Pure.

The scripts are for people to read and keep, and the plain styles do not need Echelon on the nodes.
In all of them, the batch script runs on the node of rank 0 and chooses the address and the port
there. The address is that of the interface to the other nodes, independent of host names. If the
port is in use by the time rank 0 listens on it, the script tries another.
"""

import re
import shlex
from collections.abc import Callable
from dataclasses import replace

from echelon.clusters.slurm.bash import FREE_PORT, INTERFACE, PEER
from echelon.clusters.slurm.image_style import render_entry, render_exports, render_srun_options
from echelon.clusters.slurm.ray_style import CLUSTER, render_driver
from echelon.clusters.slurm.sbatch import render_directives
from echelon.core.frozen import frozen
from echelon.core.slurm import mark_tasks
from echelon.launch.roles import BOOTSTRAP
from echelon.run.sweep import INDEX_EXPRESSION
from echelon.spec.job_spec import KEYS, JobSpec

PLACEHOLDER = "{dist_file}"
"""Replaced in arguments by the path of the rendezvous file, in style `file`."""


@frozen
class Shipped:
    """The files of a run directory that its script executes."""

    run: str
    """The run directory."""
    launcher: str
    """SHA-256 of its launcher."""
    request: str
    """SHA-256 of its request."""
    role: str = "controller"
    """The program that its script starts: `task` in a job array of a sweep, `broker` in the one job
    of a packed sweep."""
    program: str = ""
    """The training script's copy; a module's name. Empty if the project itself is executed."""


def render_script(spec: JobSpec, *, shipped: Shipped | None = None, conda_exe: str = "") -> str:
    """Return the sbatch script of a request, in its style.

    Args:
        spec: the request.
        shipped: the run directory; None for a script without one, in which style `echelon` starts
            the `echelon` that is installed on the nodes.
        conda_exe: the conda of the user's shell, for jobs without conda on their PATH.
    """
    if spec.style == "echelon":
        head = _head(spec, shipped)
        return "\n".join([head, _environment(spec, conda_exe), _launch_echelon(spec, shipped)])
    copied = shipped.program if shipped else ""
    environment = _environment(spec, conda_exe)
    if shipped and copied:
        environment = f"{environment}\n{_find_code(shipped)}"
    if spec.style == "ray":
        driver = render_driver(" ".join(_program(spec, copied)))
        return "\n".join([_head(spec), environment, CLUSTER, driver])
    task = f"{_INTERFACES}{_inner_python(spec)}{_TASK[spec.style](spec)}"
    parts = [
        _head(spec),
        environment,
        _RENDEZVOUS_FILE if spec.style == "file" else _RENDEZVOUS,
        f"# Every task runs this before it becomes {_TASK_IS[spec.style]}.",
        f"task=$(cat <<'TASK'\n{task}TASK\n)\n",
        _launch(spec, copied),
    ]
    return "\n".join(parts)


# --- common parts -----------------------------------------------------------------------------


def _head(spec: JobSpec, shipped: Shipped | None = None) -> str:
    command = shlex.join(["echelon", "script", "--style", spec.style, spec.script, *spec.args])
    # A line break in an argument must not end the comment.
    shown = command.replace("\n", "\\n").replace("\r", "\\r")
    extra = _NO_KILL if spec.style == "echelon" else ""
    array = shipped is not None and shipped.role == "task"
    if array and spec.hand_over != "never":
        spec = replace(spec, hand_over="requeue")  # in its array; when is up to the controller
    if shipped:
        name = shipped.run.rpartition("/")[2]
        extra += _COMMENT.format(run=mark_tasks(name) if array else name)
    if shipped and spec.hand_over != "never":
        extra += _HAND_OVER if spec.hand_over == "requeue" else f"{_HAND_OVER}{_NO_REQUEUE}"
        extra += _ORIGINAL
    return f"#!/bin/bash\n# Made by: {shown}\n{render_directives(spec)}{extra}"


_NO_KILL = """\
# Without it, Slurm ends the whole job when a node fails.
#SBATCH --no-kill
"""

_COMMENT = """\
# The run of this job, even if the script is submitted by hand.
#SBATCH --comment=echelon:{run}
"""
_HAND_OVER = """\
# Keep the output of earlier jobs when the next one continues the run.
#SBATCH --open-mode=append
"""
_NO_REQUEUE = """\
# A standby job continues the run; with Slurm's own requeue there would be two.
#SBATCH --no-requeue
"""
_ORIGINAL = """\

# --- pass the environment and this script on to the job that continues the run
exec {ECHELON_ENVIRON}< <(env -0) {ECHELON_SCRIPT}< <(cat -- "$0")
export ECHELON_ENVIRON ECHELON_SCRIPT
"""


_MODULES = """\
if ! module load {names}; then
    echo {said} "on $(hostname); list them with: module avail" >&2
    exit 1
fi"""
_CONDA = """\
# Use conda from the shell that submitted the job, or else from the PATH of the job. If conda or the
# environment is missing, stop here instead of running another Python.
conda_exe={exe}
if [ ! -x "$conda_exe" ]; then conda_exe=$(type -P conda); fi
if [ -z "$conda_exe" ]; then
    echo "conda not found on $(hostname): load its module (--load), or set its path" \\
        "(export CONDA_EXE=/path/to/bin/conda) and submit again" >&2
    exit 1
fi
if ! source "$("$conda_exe" info --base)/etc/profile.d/conda.sh" || ! conda activate {name}; then
    echo {said} "$conda_exe on $(hostname); list environments with: $conda_exe env list" >&2
    exit 1
fi"""


def _environment(spec: JobSpec, conda_exe: str = "") -> str:
    lines = []
    if spec.modules:
        said = _quote(f"cannot load the environment modules {' '.join(spec.modules)}")
        lines.append(_MODULES.format(names=shlex.join(spec.modules), said=said))
    if spec.conda:
        lines.append(
            _CONDA.format(
                exe=_quote(conda_exe),
                name=_quote(spec.conda),
                said=_quote(f"cannot activate the conda environment '{spec.conda}' with"),
            )
        )
    if spec.venv:
        lines.append(f"source {shlex.quote(spec.venv + '/bin/activate')} || exit 1")
    lines += spec.prologue
    lines += [f"export {name}={_quote(value)}" for name, value in spec.env.items()]
    if spec.image and spec.style != "echelon":
        lines += render_exports(spec)
    # Style `echelon` sets it for the ranks, and Ray for its workers, unless it is already set.
    if "OMP_NUM_THREADS" not in spec.env and spec.style not in ("echelon", "ray"):
        lines.append(f"export OMP_NUM_THREADS={spec.omp_threads}")
    if spec.cpus_per_task and spec.style != "echelon":
        lines += [
            "# Slurm 22.05 to 23.02 does not pass this to srun.",
            'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"',
        ]
    lines.append(f"python={shlex.quote(spec.python or 'python3')}")
    return "# --- environment\n" + "\n".join(lines) + "\n"


_RENDEZVOUS = f"""\
# --- rendezvous
# This script runs on the first node, and so will rank 0. Use the address of the interface that
# leads to the last node: host names may not resolve, and there may be several interfaces.
{PEER}if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    MASTER_ADDR=$(address_towards "$PEER_ADDR")
else
    MASTER_ADDR=127.0.0.1 PEER_ADDR=127.0.0.1
fi
export MASTER_ADDR PEER_ADDR
export -f address_towards
{FREE_PORT}scratch=$(mktemp -d) || scratch=$(TMPDIR=/tmp mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
export PORT_TAKEN="$scratch/port-taken"
"""

_RENDEZVOUS_FILE = """\
# --- rendezvous
# A file in the directory of the job, which all nodes share. Each attempt gets a new one, because
# ranks could join those of an earlier attempt through a stale file.
PEER_ADDR=$(scontrol show node "$(scontrol show hostnames "$SLURM_JOB_NODELIST" | tail -n 1)" |
    sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p')
MASTER_ADDR=$(scontrol show node "$SLURMD_NODENAME" | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p')
export MASTER_ADDR PEER_ADDR
DIST_FILE=$(mktemp -u "$PWD/.rendezvous-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}-XXXXXX")
trap 'rm -f "$DIST_FILE"' EXIT
export DIST_FILE ECHELON_INIT_METHOD="file://$DIST_FILE"
"""

_INTERFACES = f"""\
# gloo and NCCL need the interface to the other nodes; host names may resolve to another one.
if [ "$SLURM_NODEID" = 0 ]; then towards=$PEER_ADDR; else towards=$MASTER_ADDR; fi
{INTERFACE}"""

_TRAPS = """\
trap : USR1 USR2 HUP  # for the rank, not for this shell
ended=
trap ended=1 TERM
"""
_EXIT = """\
# When a rank has failed, srun ends the others with SIGTERM, and then exits with the highest code.
# That must not be theirs, which is mostly 143.
if [ "$ended" ] && [ $code -gt 128 ]; then code=1; fi
exit $code
"""

_RUN = f"""\
{_TRAPS}"$@"
code=$?
{_EXIT}"""

_RUN_WATCHING_PORT = f"""\
{_TRAPS}if [ "$SLURM_PROCID" = 0 ]; then
    # The first task listens on the port. If another process took it, the batch script tries
    # another.
    "$@" 2> >(tee "$PORT_TAKEN.stderr" >&2)
    code=$?
    wait
    taken="port: $MASTER_PORT,.*EADDRINUSE"
    if [ $code != 0 ] && [ $SECONDS -lt 600 ] && grep -q "$taken" "$PORT_TAKEN.stderr"; then
        touch "$PORT_TAKEN"
    fi
else
    "$@"
    code=$?
fi
{_EXIT}"""

_RUN_LAUNCHER = """\
# The first task's launcher listens on the port. If another process took it, the batch script
# tries another.
if [ "$SLURM_PROCID" = 0 ]; then log=$PORT_TAKEN.stderr; else log=/dev/null; fi
"$@" 2> >(tee "$log" >&2) &
launcher=$! ended=
# If another node fails, torchrun may wait minutes for it before it stops. Kill it after ten
# seconds.
trap 'ended=1; kill -TERM $launcher; { sleep 10; kill -KILL $launcher; } &' TERM
while kill -0 $launcher 2>/dev/null; do
    wait $launcher
    code=$?
done
taken="port: $MASTER_PORT,.*EADDRINUSE"
if [ $code != 0 ] && [ $SECONDS -lt 600 ] && grep -q "$taken" "$log"; then touch "$PORT_TAKEN"; fi
"""


# --- the task of each style -------------------------------------------------------------------

_RANK_VARIABLES = """\
export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
export GROUP_RANK=$SLURM_NODEID GROUP_WORLD_SIZE=$SLURM_NNODES
"""


def _inner_python(spec: JobSpec) -> str:
    """Return the line that names the Python inside an image, if there is one."""
    return f"python={_quote(spec.image_python or 'python3')}\n" if spec.image else ""


def _task_srun(spec: JobSpec) -> str:
    return f"""\
{_RANK_VARIABLES}export LOCAL_WORLD_SIZE={spec.procs_per_node}
{render_entry(spec)}{_RUN_WATCHING_PORT}"""


def _task_file(spec: JobSpec) -> str:
    entry = render_entry(spec)
    return f"{_RANK_VARIABLES}export LOCAL_WORLD_SIZE={spec.procs_per_node}\n{entry}{_RUN}"


def _task_spawn(spec: JobSpec) -> str:
    return f"""\
# The script starts the ranks itself; these variables give the node and the number of ranks.
export NODE_RANK=$SLURM_NODEID LOCAL_WORLD_SIZE={spec.procs_per_node}
{render_entry(spec)}{_RUN_WATCHING_PORT}"""


def _task_static(spec: JobSpec) -> str:
    return f"""\
set -- "$python" -m torch.distributed.run --nnodes="$SLURM_NNODES" --node-rank="$SLURM_NODEID" \\
    --nproc-per-node={spec.procs_per_node} \\
    --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" "$@"
{render_entry(spec)}{_RUN_LAUNCHER}{_EXIT}"""


def _task_torchrun(spec: JobSpec) -> str:
    low = f"{spec.nodes.low}:" if spec.nodes.low != spec.nodes.high else ""
    return f"""\
# By default, torchrun uses host names to choose the rendezvous server and addresses of ranks.
if [ "$SLURM_NODEID" = 0 ]; then
    host=1 own=$MASTER_ADDR
else
    host=0 own=$(address_towards "$MASTER_ADDR")
fi
set -- "$python" -m torch.distributed.run --nnodes="{low}$SLURM_NNODES" \\
    --nproc-per-node={spec.procs_per_node} --rdzv-backend=c10d \\
    --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" --rdzv-conf="is_host=$host" \\
    --rdzv-id="$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}" --local-addr="$own" \\
    "$@"
{render_entry(spec)}{_RUN_LAUNCHER}{_EXIT}"""


_TASK: dict[str, Callable[[JobSpec], str]] = {
    "srun": _task_srun,
    "file": _task_file,
    "spawn": _task_spawn,
    "static": _task_static,
    "torchrun": _task_torchrun,
}
_TASK_IS = {
    "srun": "a rank",
    "file": "a rank",
    "spawn": "the script that spawns its node's ranks",
    "static": "its node's launcher",
    "torchrun": "its node's torchrun",
}


_START = f"""\
# Slurm stores this script at submission, but the run directory may have changed since then.
# The launcher is therefore read once, compared with its SHA-256, and executed from memory.
start=$(cat <<'START'
{BOOTSTRAP}START
)
"""


_WHAT = {
    "controller": "The controller starts an agent on every node, and the agents start the ranks.",
    "broker": "The broker starts a keeper on every node, and the sweep's tasks on their slots.",
}


def _find_code(shipped: Shipped) -> str:
    """Return the lines with which a style without a controller finds the copied code."""
    return f"""\
# --- code
{_START}# Compare the code with what was submitted, and have Python find modules of the
# project there. The last argument is the SHA-256 of spec.toml.
PYTHONPATH=$("$python" -c "$start" {shipped.launcher} {_quote(f"{shipped.run}/launcher")} \\
    code {_quote(shipped.run)} {shipped.request}) || exit 1
export PYTHONPATH
"""


def _launch_echelon(spec: JobSpec, shipped: Shipped | None) -> str:
    if shipped:
        run = shipped.run
        # Slurm changes to this directory itself; outside of a job nothing does.
        folder = f"cd -- {_quote(spec.chdir)} || exit 1\n" if spec.chdir else ""
        if shipped.role == "task":
            return f"""\
# --- start
{folder}{_START}\
# A task creates the directory of its run, and becomes its controller, which starts an agent on
# every node. $1 is what to add to the index of the array; the last argument is the SHA-256 of
# spec.toml.
exec "$python" -c "$start" {shipped.launcher} {_quote(f"{run}/launcher")} \\
    task {_quote(run)} {INDEX_EXPRESSION} {shipped.request}
"""
        return f"""\
# --- start
{folder}{_START}\
# {_WHAT[shipped.role]}
# $1 is the attempt; the last argument is the SHA-256 of spec.toml.
exec "$python" -c "$start" {shipped.launcher} {_quote(f"{run}/launcher")} \\
    {shipped.role} {_quote(run)} "${{1:-}}" {shipped.request}
"""
    flags = {
        "--nodes": str(spec.nodes),
        "--procs": str(spec.procs_per_node),
    }
    if spec.restarts is not None:
        flags["--restarts"] = str(spec.restarts)
    if spec.cpus_per_task:
        flags["--cpus-per-task"] = str(spec.cpus_per_task)
    options = [word for flag in flags.items() for word in flag]
    options += ["--module"] if spec.module else []
    prefixes = (*(["image"] if spec.image else []), *(["stage"] if spec.stage else []))
    if prefixes:
        keys = [key for key in KEYS.values() if key.name.startswith(prefixes) and key.is_set(spec)]
        settings = (f"{key.name}={key.show(spec)}" for key in keys)
        options += [word for text in settings for word in ("--set", _quote(text))]
    words = " ".join(_quote(word) for word in (spec.script, *spec.args))
    return f"""\
# --- start
# Inside an allocation, `echelon run` uses all its nodes.
exec "$python" -m echelon run {" ".join(options)} {words}
"""


def _program(spec: JobSpec, copied: str = "") -> list[str]:
    """Return the command line of a task, each word quoted for bash."""
    inner = _quote(spec.image_python or "python3") if spec.image else '"$python"'
    program = [] if spec.style in ("static", "torchrun") else [inner]
    if spec.module:
        # With -P, Python does not search the working directory, but PYTHONPATH.
        program += ["-P", "-m"] if copied else ["-m"]
    return [*program, *(_argument(word) for word in (copied or spec.script, *spec.args))]


def _launch(spec: JobSpec, copied: str) -> str:
    words = " ".join(_program(spec, copied))
    # With --ntasks and --overlap, it also works in a job of another size, and inside a step.
    tasks = f'--ntasks="$((SLURM_JOB_NUM_NODES * {spec.tasks_per_node}))"'
    inside = "".join(f"    {option} \\\n" for option in render_srun_options(spec))
    step = f"""\
srun --nodes="$SLURM_JOB_NUM_NODES" {tasks} \\
    --ntasks-per-node={spec.tasks_per_node} --overlap --kill-on-bad-exit=1 \\
{inside}    bash -c "$task" bash {words}"""
    if spec.style == "file":
        return f"# --- start\n{step}\n"
    return f"""\
# --- start
export python
start_ranks() {{
    {step}
}}
for try in 1 2 3 4 5; do
    MASTER_PORT=$(free_port)
    export MASTER_PORT
    code=0
    start_ranks || code=$?
    if [ ! -e "$PORT_TAKEN" ]; then break; fi
    rm -f "$PORT_TAKEN"
    echo "port $MASTER_PORT is already in use: trying another" >&2
done
exit "$code"
"""


def _quote(word: str) -> str:
    """Quote a word for bash.

    Carriage returns are escaped, because Slurm rejects scripts with Windows line endings.
    """
    if "\r" not in word:
        return shlex.quote(word)
    spelled = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r"}
    return "$'" + "".join(spelled.get(character, character) for character in word) + "'"


def _argument(word: str) -> str:
    """Quote an argument for bash, with the placeholder replaced by the path of the file."""
    pieces = re.split(f"({re.escape(PLACEHOLDER)})", word)
    if len(pieces) == 1:
        return _quote(word)
    return "".join(
        '"$DIST_FILE"' if piece == PLACEHOLDER else _quote(piece) for piece in pieces if piece
    )
