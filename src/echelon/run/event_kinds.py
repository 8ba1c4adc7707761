"""Every kind of event in a run's directory, and its fields: what other programs may rely on.

Nothing looks here when an event is written. Tests hold the writers against it, and
docs/reference/events.md is made from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of event; `time`, in seconds since the epoch, and `kind` itself are in each."""

    about: str
    fields: Mapping[str, str]
    """Name → what it is."""
    sometimes: frozenset[str] = frozenset()
    """Fields that may be missing."""


_GENERATION = "of which set of ranks, counted from 0"
_NODE = "its place in the job, counted from 0"
_SLOTS = "for how many ranks there is room now"
_VERDICT = {
    "failure": (
        "what came first: `cause`, `message`, `rank`, `node`, `step`, `exit_code`, `error_type`, "
        "`traceback`, `log`, `generation`"
    ),
    "victims": "the same of those that failed because of it",
    "not_retried": "why ranks were not started again",
    "advice": "what to do",
    "stacks": "of a hang: rank → its Python stack",
}

CONTROLLER: Mapping[str, Kind] = {
    "attempt": Kind(
        about="A controller has begun.",
        fields={
            "attempt": "its number, counted from 1",
            "pid": "the controller's process",
            "job": "Slurm's id of the job, or Ray's; empty on one's own machine",
            "saved": "the step of the newest checkpoint; -1 where there is none",
            "slots": _SLOTS,
        },
    ),
    "joined": Kind(
        about="An agent has come.",
        fields={
            "node": _NODE,
            "name": "the node's name",
            "pid": "the agent's process",
            "gpus": "how many GPUs it was granted",
        },
    ),
    "bad node": Kind(
        about="A node has failed its check, or the preflight, and is not used.",
        fields={"node": _NODE, "name": "its name", "reason": "what is wrong with it"},
    ),
    "preflight": Kind(
        about="All nodes were examined before the first ranks.",
        fields={
            "seconds": "how long that took",
            "findings": "a list of objects, as `echelon doctor --json` prints them",
        },
    ),
    "slots": Kind(about="All agents have come that will.", fields={"slots": _SLOTS}),
    "waiting": Kind(
        about="A run on Ray waits for nodes, as a job does in a queue.",
        fields={"reason": "for which"},
    ),
    "departed": Kind(
        about="A node is not, or no longer, of the job.", fields={"node": _NODE, "slots": _SLOTS}
    ),
    "lost": Kind(
        about="An agent is gone, or was silent for too long.",
        fields={
            "node": _NODE,
            "name": "the node's name",
            "pid": "the agent's process",
            "reason": "how that was noticed",
        },
    ),
    "note": Kind(
        about="Something that an agent wants people to know.",
        fields={"node": _NODE, "text": "what"},
    ),
    "stranger": Kind(
        about="Somebody has connected who does not have the key, and was dropped.",
        fields={
            "address": "from where",
            "reason": "what was wrong",
            "count": "how many there were so far; the first and every thousandth are told",
        },
    ),
    "paused": Kind(
        about="The controller itself was stopped for a while.",
        fields={"seconds": "for how long"},
    ),
    "generation": Kind(
        about="A set of ranks is asked for.",
        fields={
            "generation": _GENERATION,
            "world_size": "how many ranks",
            "nodes": "on how many nodes",
        },
    ),
    "rank": Kind(
        about="A rank was started.",
        fields={
            "rank": "which one",
            "generation": _GENERATION,
            "pid": "its process, on its node",
            "warm": "whether it was forked from a process that has imported what it needs",
        },
    ),
    "exited": Kind(
        about="A rank is gone.",
        fields={
            "rank": "which one",
            "generation": _GENERATION,
            "code": "its exit code",
            "signal": "the signal that killed it, or 0",
            "step": "the last step that it told; -1 where it told none",
        },
    ),
    "alive": Kind(
        about="Once a minute.",
        fields={"generation": _GENERATION, "step": "the furthest step; -1 where none is told"},
    ),
    "hang": Kind(about="No rank has moved for `hang_timeout`.", fields=_VERDICT),
    "stopped": Kind(
        about="All ranks have stopped at one step, and saved.",
        fields={"generation": _GENERATION, "step": "which step"},
    ),
    "spent": Kind(
        about="A set of ranks is over: what its time was spent on.",
        fields={
            "generation": _GENERATION,
            "ranks": "how many there were",
            "known": "of how many their own account is known",
            "again": "whether ranks are started again",
            "seconds": "phase → seconds, of all ranks together",
            "first": "the step from which they came",
            "last": "the step to which all of them came",
            "steps_s": "seconds of a rank for each step",
        },
        sometimes=frozenset({"first", "last", "steps_s"}),
    ),
    "restart": Kind(
        about="A failure after which ranks start again, in this job or in the next one.",
        fields={"verdict": "as in the event `verdict`", "generation": _GENERATION},
        sometimes=frozenset({"generation"}),
    ),
    "standby": Kind(
        about="The job that is to go on after this one is queued, or could not be.",
        fields={
            "job": "Slurm's id of it",
            "attempt": "its number",
            "refused": "what Slurm said",
        },
        sometimes=frozenset({"job", "attempt", "refused"}),
    ),
    "mail": Kind(
        about="Slurm could not be told when to write mail.",
        fields={"types": "about what it was to write", "refused": "what Slurm said"},
    ),
    "verdict": Kind(about="Why it failed; `verdict.json` holds the same.", fields=_VERDICT),
    "ended": Kind(
        about="The attempt is over; `outcome.json` holds the same.",
        fields={
            "state": "a word of Slurm's: `COMPLETED`, `FAILED`, `CANCELLED`, `TIMEOUT`, …",
            "exit_code": "the job's",
            "next": "who goes on: `standby`, `requeue`, `wanted` (somebody has to), or nobody",
            "why": "what ended it, in a line; empty when the work is done",
        },
    ),
    "notified": Kind(
        about="The command of `--notify` was run.",
        fields={"state": "what it was told", "wrong": "what went wrong with it; mostly nothing"},
    ),
    "lost events": Kind(
        about="Storage was away for so long that the oldest events were given up.",
        fields={"count": "how many"},
    ),
}
"""In `events/controller-<attempt>.jsonl`."""

METRICS: Mapping[str, Kind] = {
    "step": Kind(
        about="What the training has counted since the last such line.",
        fields={
            "step": "after which step",
            "epoch": "in which epoch, counted from 0",
            "epochs": "of how many",
            "done": "how much of the epoch is done",
            "length": "of how much",
            "unit": "what these two count",
            "left_s": "seconds that are left, as it looks",
            "metrics": (
                "name → mean over all ranks; besides `rate` (units a second) and `data_wait` (the "
                "share of the time that was waiting for data)"
            ),
        },
    ),
    "validation": Kind(
        about="What a validation has found.",
        fields={
            "step": "after which step",
            "epoch": "after how many epochs",
            "metrics": "name → mean over all samples",
        },
    ),
}
"""In `metrics.jsonl`, by scripts that use the Trainer."""


def find_fault(kinds: Mapping[str, Kind], kind: str, fields: frozenset[str]) -> str:
    """Return in what an event is not as the table has it, or nothing."""
    if kind not in kinds:
        return f"there is no kind '{kind}'"
    known = kinds[kind]
    unknown = fields - known.fields.keys()
    missing = known.fields.keys() - known.sometimes - fields
    told = [f"unknown: {', '.join(sorted(unknown))}"] if unknown else []
    told += [f"missing: {', '.join(sorted(missing))}"] if missing else []
    return f"{kind}: {'; '.join(told)}" if told else ""
