"""The program of an agent: builds it, and ends the job if the agent has lost its controller."""

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from echelon.core.proc import die_with
from echelon.core.shell import LocalShell, Shell
from echelon.errors import UsageError
from echelon.launch.agent.agent import Agent, Node
from echelon.launch.agent.background_tasks import BackgroundTasks
from echelon.launch.agent.controller_link import ControllerLink
from echelon.launch.agent.files import AgentFiles
from echelon.launch.agent.guard import Guard
from echelon.launch.agent.image import list_folders, open_image
from echelon.launch.agent.local_workers import LocalWorkers
from echelon.launch.agent.node_check import NodeCheck
from echelon.launch.agent.orphans import end_orphaned_job
from echelon.launch.agent.scratch import make_scratch
from echelon.launch.agent.staging import NodeStage
from echelon.launch.agent.telemetry_client import TelemetryClient
from echelon.launch.agent.zygote_client import ZygoteClient
from echelon.launch.code_path import VARIABLE, own_sites, search_path
from echelon.launch.container.commands import LIBRARY
from echelon.launch.program import Program, find_program
from echelon.launch.program_text import PACKAGE, read_imports
from echelon.launch.protocol.rank_environment import (
    CONTROLLER,
    FILES,
    NAME,
    NODE,
    REPLACES,
    STEP,
    TIED,
    ZYGOTE,
    common_environment,
    node_in_job,
    parse_candidates,
    receive_key,
)
from echelon.run.code import ProjectCopy, find_copy
from echelon.run.debug_log import DebugLog
from echelon.run.directory import RunDir
from echelon.run.request import (
    Environment,
    is_requeued,
    read_code,
    read_environment,
    read_spec,
)
from echelon.run.tracker import find_tracker
from echelon.spec.job_spec import JobSpec
from echelon.world import count_devices

_log = logging.getLogger(__name__)
_OWN_LINE = "/proc/self/cmdline"


def main(arguments: list[str]) -> int:
    """Run `agent RUN ATTEMPT REQUEST`; the rest is in variables, the key on standard input."""
    run, attempt = RunDir.open(Path(arguments[0])), int(arguments[1])
    environ = dict(os.environ)
    if CONTROLLER not in environ:
        raise UsageError(
            f"{CONTROLLER} is not set: only the controller starts agents", hint="use: echelon run"
        )
    key = receive_key(sys.stdin.buffer)
    node = node_in_job(environ)
    if parent := environ.get(TIED):
        die_with(int(parent), signal.SIGKILL)  # our guard ends the rest
    _limit_files(environ.get(FILES, ""))
    _replace(environ.get(REPLACES, ""))
    request = read_spec(run, arguments[2])
    copy = find_copy(run, read_code(run, arguments[2]), request.chdir)
    recorded = read_environment(run, arguments[2]) if request.stage else None

    files = AgentFiles()

    async def serve() -> int:
        # As late as possible: without a guard, nothing removes it if we are killed.
        scratch, lock = make_scratch()
        agent = build_agent(
            run,
            attempt,
            node=node,
            request=request,
            copy=copy,
            recorded=recorded,
            environ=environ,
            key=key,
            shell=LocalShell(),
            files=files,
            scratch=scratch,
            lock=lock,
        )
        # After the guard was forked: a thread writes the log.
        _log.info("agent of node %d, pid %d on %s", node, os.getpid(), os.uname().nodename)
        code = await agent.run()
        if agent.orphaned and STEP in environ:
            return os.EX_TEMPFAIL
        if agent.orphaned:
            end_orphaned_job(
                run,
                attempt,
                environ,
                LocalShell(),
                requeue=is_requeued(run, request),
                pid=os.getpid(),
                answers=agent.controller_answers,
            )
        return code

    path = run.debug_logs(attempt) / f"agent-{node}.log"
    with DebugLog(path, request.log_level, clock=files.now_s):
        return asyncio.run(serve())


def build_agent(
    run: RunDir,
    attempt: int,
    *,
    node: int,
    request: JobSpec,
    copy: ProjectCopy | None,
    recorded: Environment | None,
    environ: Mapping[str, str],
    key: bytes,
    shell: Shell,
    files: AgentFiles,
    scratch: Path,
    lock: int,
) -> Agent:
    """Return the agent of a node, with everything that it works with.

    Args:
        run: the run.
        attempt: its attempt.
        node: the node's number in the job.
        request: what to run.
        copy: the copy of the project's code, if there is one.
        recorded: what was recorded about the environment that is to be staged.
        environ: the agent's variables.
        key: proves that it belongs to the run.
        shell: starts programs.
        files: its access to the run directory.
        scratch: its folder.
        lock: the open, locked file that marks the folder as in use.
    """
    name = environ.get(NAME) or environ.get("SLURMD_NODENAME") or f"node{node}"
    gpus = count_devices(environ.get("CUDA_VISIBLE_DEVICES", ""))
    program = find_program(request, copy)
    common = _common_variables(run, request, program, environ)
    ranks_env = _rank_variables(common, request, copy, scratch)
    guard = Guard(scratch, lock)
    tasks = BackgroundTasks()
    controller = ControllerLink(parse_candidates(environ[CONTROLLER]), key, files.say)
    stage = NodeStage(request, recorded=recorded, node=name, environ=environ, shell=shell, key=key)
    zygote = ZygoteClient(
        program=program,
        preload=request.preload,
        env=ranks_env,
        log=run.logs / f"zygote-{attempt}-{node}.log",
        shell=shell,
        guard=guard,
        files=files,
        open_image=partial(
            open_image,
            request,
            list_folders(request, run.path, scratch, environ),
            environ=environ,
            shell=shell,
            gpus=gpus > 0,
            copy=lambda: stage.copy,
        )
        if request.image
        else None,
        python=request.image_python or "python3",
        mount=lambda: stage.mount,
        forked=socket.socket(fileno=int(environ[ZYGOTE])) if ZYGOTE in environ else None,
    )
    return Agent(
        run=run,
        request=request,
        node=Node(number=node, name=name, gpus=gpus),
        environ=environ,
        scratch=scratch,
        controller=controller,
        tasks=tasks,
        guard=guard,
        files=files,
        check=NodeCheck(
            shell=shell,
            guard=guard,
            env={**common, NODE: str(node)},
            log=run.logs / f"check-{attempt}-{node}.log",
            scratch=scratch,
        ),
        stage=stage,
        zygote=zygote,
        ranks=LocalWorkers(
            run=run,
            attempt=attempt,
            environ=ranks_env,
            scratch=scratch,
            zygote=zygote,
            guard=guard,
            files=files,
            say=controller.say,
            spawn=tasks.spawn,
        ),
        telemetry=TelemetryClient(
            run,
            attempt=attempt,
            node=node,
            scratch=scratch,
            env=common,
            shell=shell,
            guard=guard,
            files=files,
        ),
    )


def _common_variables(
    run: RunDir, request: JobSpec, program: Program, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of all processes that an agent starts."""
    allowed = request.allowed_restarts(uses_library=PACKAGE in read_imports(program))
    return common_environment(
        environ,
        run_id=run.run_id,
        run_dir=run.path,
        threads=request.omp_threads,
        cpus=request.cpus_per_task,
        restarts=allowed or 0,
        tracker=find_tracker(run),
    )


def _rank_variables(
    common: Mapping[str, str], request: JobSpec, copy: ProjectCopy | None, scratch: Path
) -> dict[str, str]:
    """Return the variables of ranks; our own processes look for modules as before."""
    ranks = dict(common)
    if copy is not None:
        path = search_path(
            common,
            copy,
            module=request.module,
            sites=[] if request.image else own_sites(),
            finders=scratch / "finders",
        )
        ranks |= {VARIABLE: path} if path else {}
    if request.image:
        ranks[VARIABLE] = os.pathsep.join(filter(None, (ranks.get(VARIABLE), LIBRARY)))
    return ranks


def _limit_files(most: str) -> None:
    """Restore the user's limit of open files, for the ranks too: the controller raised its own."""
    if most:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (int(most), hard))


def _replace(pid: str) -> None:
    """Kill the agent that this one replaces, if it still runs; its guard then ends its ranks."""
    with contextlib.suppress(OSError):
        if pid and Path("/proc", pid, "cmdline").read_bytes() == Path(_OWN_LINE).read_bytes():
            os.kill(int(pid), signal.SIGKILL)
