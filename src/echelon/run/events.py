"""The events of a run's controllers, in `events/controller-<attempt>.jsonl`.

docs/reference/events.md is generated from these classes. Other programs read the files: do not
rename a kind or a field, and give new fields a default.
"""

from dataclasses import field
from typing import Annotated

from echelon.core.codec import Figure, Index, Objects, RankCount, Seconds, SecondsByName, Texts
from echelon.core.frozen import frozen
from echelon.run.directory import RunDir
from echelon.run.event_log import Event, EventReader, Record
from echelon.run.verdict import Verdict

Generation = Annotated[int, "number of the generation, counted from 0"]
Node = Annotated[Index, "index of the node in the job, counted from 0"]
NodeName = Annotated[str, "name of the node"]
Rank = Annotated[Index, "global rank"]
Slots = Annotated[Index, "number of ranks that the nodes have room for"]


class ControllerEvent(Event):
    """What a controller writes."""

    __slots__ = ()


@frozen
class AttemptStarted(ControllerEvent):
    """The controller of an attempt started."""

    kind = "attempt"
    attempt: Annotated[int, "number of the attempt, counted from 1"]
    pid: Annotated[int, "process id of the controller"]
    job: Annotated[str, "job id from Slurm or Ray; empty on the local machine"]
    saved: Annotated[Index, "step of the newest checkpoint; -1 if there is none"]
    slots: Slots
    restarts: Annotated[int | None, "number of restarts that the run may have"] = None


@frozen
class AgentJoined(ControllerEvent):
    """The agent of a node connected."""

    kind = "joined"
    node: Node
    name: NodeName
    pid: Annotated[int, "process id of the agent"]
    gpus: Annotated[int, "number of GPUs that the job was granted on the node"]


@frozen
class NodeRejected(ControllerEvent):
    """A node failed its start check or the preflight and is not used."""

    kind = "bad node"
    node: Node
    name: NodeName
    reason: Annotated[str, "what is wrong with the node"]


@frozen
class NodesExamined(ControllerEvent):
    """The preflight examined all nodes before the first ranks started."""

    kind = "preflight"
    seconds: Annotated[Seconds, "duration in seconds"]
    findings: Annotated[Objects, "list of objects, as printed by `echelon doctor --json`"]


@frozen
class SlotsCounted(ControllerEvent):
    """The controller stopped waiting for further agents before the first ranks."""

    kind = "slots"
    slots: Slots


@frozen
class NodesAwaited(ControllerEvent):
    """A run on Ray waits for nodes."""

    kind = "waiting"
    reason: Annotated[str, "what it waits for"]


@frozen
class NodeDeparted(ControllerEvent):
    """A node left the job, or never was part of it."""

    kind = "departed"
    node: Node
    slots: Slots


@frozen
class AgentLost(ControllerEvent):
    """The connection to an agent broke, or the agent was silent for too long."""

    kind = "lost"
    node: Node
    name: NodeName
    pid: Annotated[int, "process id of the agent"]
    reason: Annotated[str, "how the loss was noticed"]


@frozen
class AgentNote(ControllerEvent):
    """A message from an agent to the user."""

    kind = "note"
    node: Node
    text: Annotated[str, "the message"]


@frozen
class NodesStaged(ControllerEvent):
    """With `--stage`: nodes have a copy of the environment or image on their own disks."""

    kind = "staged"
    nodes: Annotated[int, "number of nodes that have a copy"]
    found: Annotated[int, "number of those that had it from an earlier job"]
    copied: Annotated[int, "bytes that were copied to nodes, all together"]
    repaired: Annotated[int, "damaged files that were replaced"]
    seconds: Annotated[Seconds, "how long ranks had to wait for it"]
    without: Annotated[Texts, "nodes that continue without a copy: name → reason"]
    reader: Annotated[str, "name of the node that read the original; empty if none had to"] = ""
    changed: Annotated[bool, "whether the environment is not the one that was submitted"] = False


@frozen
class ModulesImported(ControllerEvent):
    """The process that ranks are forked from has imported their modules."""

    kind = "imported"
    node: Node
    seconds: Annotated[Seconds, "duration in seconds"]
    waited_s: Annotated[Seconds, "how much of that it waited, mostly for storage"]


@frozen
class StrangerRejected(ControllerEvent):
    """A connection without the run's key was closed."""

    kind = "stranger"
    address: Annotated[str, "IP address of the peer"]
    reason: Annotated[str, "what was wrong"]
    count: Annotated[int, "rejected so far; the first and every thousandth are recorded"]


@frozen
class ControllerPaused(ControllerEvent):
    """The controller's own process was suspended for a while."""

    kind = "paused"
    seconds: Annotated[Seconds, "duration in seconds"]


@frozen
class SignalIgnored(ControllerEvent):
    """The controller received a signal on which it does not act, SIGUSR1 or SIGUSR2."""

    kind = "warned"
    signal: Annotated[int, "number of the signal"]


@frozen
class GenerationStarted(ControllerEvent):
    """The controller ordered the agents to start a generation of ranks."""

    kind = "generation"
    generation: Generation
    world_size: Annotated[RankCount, "number of ranks"]
    nodes: Annotated[int, "number of nodes"]


@frozen
class RankStarted(ControllerEvent):
    """A rank started."""

    kind = "rank"
    rank: Rank
    generation: Generation
    pid: Annotated[int, "process id on its node"]
    warm: Annotated[bool, "whether it was forked from a process that had imported its modules"]


@frozen
class RankExited(ControllerEvent):
    """A rank exited."""

    kind = "exited"
    rank: Rank
    generation: Generation
    code: Annotated[int, "exit code"]
    signal: Annotated[int, "signal that killed it; 0 if none did"]
    step: Annotated[Index, "last step that it reported; -1 if it reported none"]


@frozen
class Heartbeat(ControllerEvent):
    """Written 5 s after the first step of a generation, and at least once a minute."""

    kind = "alive"
    generation: Generation
    step: Annotated[Index, "highest step of any rank; -1 if none was reported"]
    seconds: Annotated[SecondsByName, "phase → seconds so far, summed over all ranks"] = field(
        default_factory=dict
    )


@frozen
class HangDetected(ControllerEvent, Verdict):
    """No rank made progress for `hang_timeout`."""

    kind = "hang"


@frozen
class RanksStopped(ControllerEvent):
    """All ranks stopped after the same step."""

    kind = "stopped"
    generation: Generation
    step: Annotated[Index, "the step"]


@frozen
class GenerationEnded(ControllerEvent):
    """What the ranks of a generation spent their time on; written when all have exited."""

    kind = "spent"
    generation: Generation
    ranks: Annotated[RankCount, "number of ranks"]
    known: Annotated[int, "number of ranks that reported what they spent their time on"]
    again: Annotated[bool, "whether another generation follows in this job"]
    seconds: Annotated[SecondsByName, "phase → seconds, summed over all ranks"]
    first: Annotated[int | None, "step at which they started"] = None
    last: Annotated[int | None, "last step that all of them completed"] = None
    steps_s: Annotated[Seconds | None, "seconds per step of one rank"] = None


@frozen
class RestartDecided(ControllerEvent):
    """Ranks failed and are started again, in this job or the next one."""

    kind = "restart"
    verdict: Annotated[Verdict | None, "why they failed, as in the event `verdict`"]
    generation: Annotated[int | None, "number of the next generation, if it is in this job"] = None


@frozen
class StandbySubmitted(ControllerEvent):
    """The job that takes over after this one was submitted, or Slurm refused it."""

    kind = "standby"
    job: Annotated[str | None, "its Slurm job id"] = None
    attempt: Annotated[int | None, "number of its attempt"] = None
    refused: Annotated[str | None, "error message from Slurm"] = None


@frozen
class MailRefused(ControllerEvent):
    """Slurm did not accept a change of the job's mail types."""

    kind = "mail"
    types: Annotated[str, "the requested mail types"]
    refused: Annotated[str, "error message from Slurm"]


@frozen
class VerdictReached(ControllerEvent, Verdict):
    """Why the run failed; `verdict.json` holds the same object."""

    kind = "verdict"


@frozen
class AttemptEnded(ControllerEvent):
    """The attempt ended; `outcome.json` holds the same object."""

    kind = "ended"
    state: Annotated[str, "a Slurm job state: `COMPLETED`, `FAILED`, `CANCELLED`, `TIMEOUT`, …"]
    exit_code: Annotated[int, "exit code of the job"]
    next: Annotated[
        str,
        "what continues the run: `standby` (a queued job), `requeue` (the same job), `wanted` (a "
        "job that has to be submitted); empty if nothing does",
    ]
    why: Annotated[str, "what ended it, in one line; empty if the work is done"]
    progress: Annotated[
        str,
        "what shows progress: `checkpoint` (a new one), `files` (some were written, and no "
        "checkpoint was ever reported); empty if nothing does",
    ] = ""


@frozen
class NotifyCommandRun(ControllerEvent):
    """The `--notify` command was run."""

    kind = "notified"
    state: Annotated[str, "the state that it was given"]
    wrong: Annotated[str, "error message; empty if it succeeded"]


@frozen
class ClockSet(ControllerEvent):
    """The controller's clock was set, forward or back; the times of its events do not follow."""

    kind = "clock"
    seconds: Annotated[Figure, "how far the clock is now ahead of the times of events"]


@frozen
class EventsLost(ControllerEvent):
    """Storage was unavailable for so long that the oldest events were dropped."""

    kind = "lost events"
    count: Annotated[int, "number of dropped events"]


class RunEvents:
    """Follows the events of all of a run's controllers."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._readers: dict[int, EventReader[ControllerEvent]] = {}

    def read(self) -> list[tuple[int, Record[ControllerEvent]]]:
        """Return what was added since the last call, each with the number of its attempt."""
        found = []
        for number in self._run.begun_numbers():
            if number not in self._readers:
                path = self._run.events_of(f"controller-{number}")
                self._readers[number] = EventReader(path, ControllerEvent)
            found += [(number, record) for record in self._readers[number].read()]
        return found
