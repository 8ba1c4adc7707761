"""A run is repeatedly stopped by its time limit, or preempted by a job with higher priority."""

import itertools
import time

from soaking.ground import (
    check_end,
    job_gaps,
    say,
    spread,
    step_gaps,
    undisturbed,
)

from echelon.core.nodes import expand

SHAPE = ("--nodes=2", "--procs=1")
SLURMS_OWN_REQUEUE_S = 143.8
"""From `scontrol requeue` of a sleeping job until it runs again: Slurm's defaults, idle cluster."""
GAP_S = 10.0


def soak_limit(here, asked, report):
    """Run several trainings at once to completion, with a time limit shorter than the training."""
    steps = round(asked.seconds / asked.pace_s)
    weights = undisturbed(here, *SHAPE, steps=steps)
    options = [*SHAPE, f"--time={asked.time}"]
    options += [f"--signal-lead={asked.lead}"] if asked.lead else []
    chains = []
    for number in range(asked.trainings):
        # Staggered, so that their restarts do not coincide.
        time.sleep(asked.apart_s if number else 0)
        say(f"training {number + 1} of {asked.trainings} begins")
        name = f"training-{number}"
        chains.append(here.chain(name, *options, steps=steps, pace_s=asked.pace_s))
    by_step, by_slurm, jobs, well = [], [], [], 0
    for number, chain in enumerate(chains):
        with report.trial(f"training {number + 1}"):
            check_end(chain, weights, steps=steps, timeout_s=10 * asked.seconds + 600)
            gaps = step_gaps(chain)
            assert gaps, "one job was enough: nothing was outlived"
            by_step += gaps
            by_slurm += job_gaps(here, chain)
            jobs.append(len(gaps) + 1)
            well += 1
            say(f"training {number + 1}: {len(gaps) + 1} jobs, gaps of {_seconds(gaps)}")
    with report.trial("the queue afterwards"):
        here.await_empty_queue()
    report.figures = {
        "finished, bit-identical, samples exact": f"{well} of {asked.trainings}",
        "jobs of each": jobs,
        "from a job's last step to the next one's first": spread(by_step),
        "from the end of a job to the start of the next, by Slurm": spread(by_slurm),
        "Slurm's own requeue, with its defaults, measured elsewhere": SLURMS_OWN_REQUEUE_S,
    }
    if asked.requeue:
        with report.trial("--hand-over requeue"):
            report.figures |= _try_requeue(here, options, weights, steps, asked)
    report.goals = {
        "trainings that were not finished exactly": (asked.trainings - well, "≤", 0),
        "longest gap between steps of two jobs, s": (max(by_step, default=None), "≤", GAP_S),
    }


def _try_requeue(here, options, weights, steps, asked):
    say("once more with --hand-over requeue")
    requeue = [*options, "--hand-over=requeue"]
    chain = here.chain("requeue", *requeue, steps=steps, pace_s=asked.pace_s)
    check_end(chain, weights, steps=steps, timeout_s=10 * asked.seconds + 600)
    times = sorted(at_s for at_s, *_ in chain.timed_records())
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    # It is a single job throughout, so its restarts are the longest gaps between steps.
    pauses = sorted(gaps)[-(len(chain.attempts()) - 1) :]
    return {"--hand-over requeue, where credentials expire after 10 s": spread(pauses)}


def soak_preempt(here, asked, report):
    """Repeatedly preempt the nodes of one training."""
    steps = round(asked.seconds_between * (asked.times + 1) / asked.pace_s)
    weights = undisturbed(here, *SHAPE, steps=steps)
    # Fixed nodes, so that it has to wait for them even if others are free.
    options = (*SHAPE, "--nodelist=node[1-2]")
    chain = here.chain("training", *options, steps=steps, pace_s=asked.pace_s)
    after_high, by_step, outlived = [], [], 0
    with report.trial("the training"):
        for number in range(asked.times):
            chain.await_turns(number + 1, timeout_s=180)
            time.sleep(asked.seconds_between)
            if chain.process.poll() is not None:
                break
            high = here.preempt("high", expand("node[1-2]"), asked.hold_s)
            here.cluster.await_job(high, "COMPLETED", timeout_s=120)
            chain.await_turns(number + 2, timeout_s=180)
            outlived += 1
            first_s = _first_steps(chain)[-1]
            _, ended_s = here.job_times(high)
            after_high.append(first_s - ended_s)
            say(f"preemption {number + 1}: stepping {after_high[-1]:.1f} s after the nodes' return")
        check_end(chain, weights, steps=steps, timeout_s=600)
        by_step = step_gaps(chain)
        here.await_empty_queue()
    exact = not report.failures
    report.figures = {
        "preemptions outlived": f"{outlived} of {asked.times}",
        "bit-identical, samples exact": exact,
        "from the end of the other job, by Slurm, to our first step": spread(after_high),
        f"from the last step to the next, {asked.hold_s} s of the other job included": spread(
            by_step
        ),
    }
    report.goals = {
        "preemptions not outlived": (asked.times - outlived, "≤", 0),
        "longest way back to a step, s": (max(after_high, default=None), "≤", GAP_S),
    }


def _first_steps(chain):
    """Return the time of the first step of each set of ranks."""
    first = {}
    for at_s, turn, _, _ in chain.timed_records():
        first.setdefault(turn, at_s)
    return sorted(first.values())


def _seconds(gaps):
    return ", ".join(f"{gap:.1f} s" for gap in gaps)
