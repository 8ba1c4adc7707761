"""`ray-step PLAN`: brings up agents on nodes of a Ray cluster, and stays as long as they do.

What srun is on Slurm, this process is on Ray: a child of the controller, with the agents' variables
as its own. It alone imports ray. The nodes are a placement group, one bundle each, and on each an
actor starts the agent as a child of its own: when the actor goes, whatever the reason, the kernel
ends the agent, and its guard the ranks.
"""

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

from echelon.core.rundir import write_atomic
from echelon.launch.contract import NAME, NODE
from echelon.launch.journal import write_error
from echelon.launch.rayplan import (
    NODES,
    PREFIX,
    Place,
    Plan,
    Standing,
    choose_count,
    describe_wait,
    is_current,
    name_places,
    parse_plan,
    read_standing,
)

OLDEST = (2, 52)
"""The first that can keep strangers out."""
LOOK_S = 1.0
"""How often Ray is asked which nodes live."""
_TELL_S = 10.0
"""After how long it is said what is waited for."""
_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_INSTALL = "pip install 'ray[default]'"


class StepError(Exception):
    """Why agents do not come, in a line."""


def main(arguments: list[str]) -> int:
    """Carry a plan out; the agents' variables are our own."""
    plan, parent = parse_plan(arguments[0]), os.getppid()
    # To stop a job, Ray sends this to all processes of it: for us the controller decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ray = load_ray()
        environ = dict(os.environ)
        step = _Step(ray, plan, lambda: os.getppid() == parent)
        connect(ray, plan, environ)
        environ.pop(_JOB_CONFIG, None)  # between Ray and us: of a rank's own Ray it would be part
        try:
            step.carry_out(environ)
        finally:
            ray.shutdown()
    except StepError as error:
        write_error(f"{PREFIX}{error}")
        return 69
    return 0


def load_ray() -> ModuleType:
    """Import ray.

    Raises:
        StepError: it is not there, or too old.
    """
    try:
        found = version("ray")
    except PackageNotFoundError as error:
        raise StepError(f"the Python {sys.executable} has no ray: {_INSTALL}") from error
    if parse_version(found) < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise StepError(f"ray {found} is too old, it takes {needed}: {_INSTALL} --upgrade")
    return importlib.import_module("ray")


def parse_version(text: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())


def connect(ray: ModuleType, plan: Plan, environ: Mapping[str, str]) -> None:
    """Join the Ray cluster as one of its drivers.

    Raises:
        StepError: it does not answer, or is of another version.
    """
    if config := environ.get(_JOB_CONFIG):
        # Variables of the job's own would have Ray start a new worker for each actor.
        os.environ[_JOB_CONFIG] = json.dumps({**json.loads(config), "runtime_env": {}})
    try:
        ray.init(
            address=environ.get("RAY_ADDRESS", "auto"),
            namespace=f"echelon-{plan.group}",
            log_to_driver=False,
            logging_level="error",
        )
    except Exception as error:  # whatever it is, agents will not come
        said = " ".join(str(error).split()) or type(error).__name__
        raise StepError(f"cannot join the Ray cluster: {said[:400]}") from error


class _Step:
    """The agents of a plan."""

    def __init__(self, ray: ModuleType, plan: Plan, wanted: Callable[[], bool]) -> None:
        self._ray, self._plan, self._wanted = ray, plan, wanted
        self._util: Any = None
        self._actors: dict[int, Any] = {}
        self._places: dict[int, Place] = {}

    def carry_out(self, environ: Mapping[str, str]) -> None:
        """Bring the agents up, and return when all of them have gone."""
        self._util = importlib.import_module("ray.util")
        for node in self._plan.nodes:
            self._remove(node)
        group, bundles = self._find_group()
        self._start_actors(group, bundles)
        self._look_around()
        self._start_agents(environ)
        self._tell()
        self._await_agents()

    # --- nodes ----------------------------------------------------------------------------------

    def _find_group(self) -> tuple[Any, dict[int, int]]:
        """Return nodes for the plan, and which bundle is for which of our places."""
        plan = self._plan
        everybody = list(plan.nodes) == list(range(plan.high))
        if everybody and read_standing(plan.folder) is None:  # nobody was before us
            count = choose_count(plan, self._free())
            return self._reserve(plan.group, count), {node: node for node in range(count)}
        (node,) = plan.nodes
        try:
            group = self._util.get_placement_group(plan.group)
        except ValueError:  # whoever had it is gone, and all its agents
            group = None
        if group and node < group.bundle_count:
            return group, {node: node}
        return self._reserve(f"{plan.group}-{node}-{os.getpid()}", 1), {node: 0}

    def _reserve(self, name: str, count: int) -> Any:
        """Have so many different nodes, as soon as there are."""
        bundles = [dict(self._plan.bundle)] * count
        group = self._util.placement_group(bundles, strategy="STRICT_SPREAD", name=name)
        told_s = time.monotonic()
        while not group.wait(timeout_seconds=LOOK_S):
            if not self._wanted():
                raise StepError("the controller is gone")
            if time.monotonic() - told_s > _TELL_S:
                told_s = float("inf")
                total = [dict(entry["Resources"]) for entry in self._living()]
                write_error(describe_wait(self._plan, total))
        return group

    def _living(self) -> list[Any]:
        return [entry for entry in self._ray.nodes() if entry["Alive"]]

    def _free(self) -> list[Mapping[str, float]]:
        """Return what living nodes have left; all they have, where this Ray does not tell."""
        try:
            state = importlib.import_module("ray._private.state")
            return list(state.available_resources_per_node().values())
        except (ImportError, AttributeError):
            return [entry["Resources"] for entry in self._living()]

    # --- actors ---------------------------------------------------------------------------------

    def _actor_name(self, node: int) -> str:
        return f"{self._plan.group}-{node}"

    def _remove(self, node: int) -> None:
        """End what an earlier step has left at a place: an agent that is only stopped, say."""
        try:
            self._ray.kill(self._ray.get_actor(self._actor_name(node)))
        except ValueError:
            return

    def _start_actors(self, group: Any, bundles: Mapping[int, int]) -> None:
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        bundle = dict(self._plan.bundle)
        options = {"num_cpus": bundle.pop("CPU", 0), "num_gpus": bundle.pop("GPU", 0)}
        options["memory"] = bundle.pop("memory", 0)
        for node, index in bundles.items():
            self._actors[node] = (
                self._ray.remote(make_host())
                .options(
                    **options,
                    name=self._actor_name(node),
                    max_restarts=0,
                    scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(
                        placement_group=group, placement_group_bundle_index=index
                    ),
                )
                .remote()
            )

    def _look_around(self) -> None:
        """Learn where the actors are, and that they see what they have to see.

        Raises:
            StepError: the run's folder, or the Python, is not on all of them.
        """
        plan = self._plan
        mark = str(plan.folder / "owner")
        said = Path(mark).read_text()
        looks = [
            actor.look.remote(mark, said, plan.argv[0], str(Path.cwd()))
            for actor in self._actors.values()
        ]
        found = dict(zip(self._actors, self._get(looks), strict=True))
        entries = {entry["NodeID"]: entry for entry in self._ray.nodes()}
        self._places = name_places({node: entries[where] for node, (where, _) in found.items()})
        blind = [
            f"{self._places[node].name} ({self._places[node].address}) {trouble}"
            for node, (_, trouble) in found.items()
            if trouble
        ]
        if blind:
            raise StepError("; ".join(blind))

    def _start_agents(self, environ: Mapping[str, str]) -> None:
        plan, starts = self._plan, []
        launcher = plan.argv[1]
        for node, actor in self._actors.items():
            own = {**environ, NODE: str(node), NAME: self._places[node].name}
            log = str(plan.folder / f"agent-{node}.log")
            starts.append(actor.start.remote(launcher, list(plan.argv), own, log))
        self._get(starts)

    def _get(self, references: Sequence[Any]) -> list[Any]:
        try:
            return list(self._ray.get(list(references)))
        except self._ray.exceptions.RayError as error:
            said = str(error).strip().splitlines()
            raise StepError(f"an actor failed: {said[-1] if said else error!r}") from error

    # --- until they have gone -------------------------------------------------------------------

    def _await_agents(self) -> None:
        waits = {actor.wait.remote(): node for node, actor in self._actors.items()}
        while waits and self._wanted():
            done, _ = self._ray.wait(list(waits), timeout=LOOK_S)
            for reference in done:
                self._take_leave(waits.pop(reference), reference)
            self._tell()

    def _take_leave(self, node: int, reference: Any) -> None:
        name = self._places[node].name
        try:
            code, said = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            write_error(f"{PREFIX}{name}: its actor is gone: {type(error).__name__}")
            return
        if code:
            write_error(f"{PREFIX}{name}: its agent ended with code {code}: {said}")
        self._ray.kill(self._actors.pop(node))

    def _tell(self) -> None:
        """Write down which nodes live, when that has changed."""
        folder = self._plan.folder
        old = read_standing(folder)
        places = {**old.places, **self._places} if old else dict(self._places)
        alive = frozenset(entry["NodeID"] for entry in self._living())
        new = Standing(pid=os.getpid(), places=places, alive=alive)
        known = old and (old.places, old.alive) == (new.places, new.alive)
        if not old or not known or not is_current(old):
            write_atomic(folder / NODES, new.render())


def make_host() -> type:
    """Return the actor's class.

    Made in a function so that it travels as a whole: its node may not see this very file. It uses
    the standard library alone, and ours only once it has seen that it is there.
    """

    class Host:
        """One node's agent, and that it ends with us."""

        def look(self, mark: str, said: str, python: str, folder: str) -> tuple[str, str]:
            """Return our node's id, and what it does not see.

            Args:
                mark: a file that is on all nodes.
                said: what is in it.
                python: the agents' Python.
                folder: where ranks run.
            """
            import os  # noqa: PLC0415
            from pathlib import Path  # noqa: PLC0415

            import ray  # noqa: PLC0415

            trouble = ""
            try:
                if Path(mark).read_text() != said:
                    trouble = "sees another folder under the name of the run's"
            except OSError as error:
                run = Path(mark).parents[2]
                trouble = f"does not see the run's folder {run}: {error.strerror}"
            if not trouble and not os.access(python, os.X_OK):
                trouble = f"does not have the Python {python}"
            if not trouble and not Path(folder).is_dir():
                trouble = f"does not have the folder {folder}, where ranks run"
            if not trouble:
                os.chdir(folder)
            return ray.get_runtime_context().get_node_id(), trouble

        def start(self, launcher: str, argv: list[str], env: dict[str, str], log: str) -> None:
            """Start the agent."""
            import os  # noqa: PLC0415
            import signal  # noqa: PLC0415
            import sys  # noqa: PLC0415
            from pathlib import Path  # noqa: PLC0415

            sys.path.insert(0, launcher)
            from echelon.core.shell import LocalShell  # noqa: PLC0415
            from echelon.launch.contract import TIED  # noqa: PLC0415

            self.log = Path(log)
            devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
            own = {**env, "CUDA_VISIBLE_DEVICES": devices, TIED: str(os.getpid())}
            # Ray blocks signals in its workers, and a child would inherit that.
            blocked = signal.pthread_sigmask(signal.SIG_SETMASK, [])
            try:
                self.pid = LocalShell().start(argv, log=self.log, env=own)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

        def wait(self) -> tuple[int, str]:
            """Wait for the agent's end; return its code, and what it said last."""
            import os  # noqa: PLC0415

            _, status = os.waitpid(self.pid, 0)
            lines = self.log.read_text(errors="replace").splitlines()
            return os.waitstatus_to_exitcode(status), (lines or [""])[-1]

    return Host
