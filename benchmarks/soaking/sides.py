"""The two sides of the storm test: Echelon, and torchrun under srun in a requeued job."""

import json
import sys
import time
from contextlib import suppress
from pathlib import Path

from soaking.ground import events, say
from soaking.ranks import last_step, living_ranks

from echelon.core.waiting import wait_until
from echelon.run.directory import RunDir
from echelon.run.history import newest_checkpoint

SAMPLES = 6000
FOREVER = 1_000_000
"""Number of steps: more than there is time for."""
PEER = Path(__file__).parents[1] / "soak_peer.py"
STUCK_S = 300.0
"""Time without a step after which a person would requeue the job."""


class _Side:
    """What both sides have in common."""

    programs: dict = {}  # noqa: RUF012
    """Kind of fault → part of the command line of the process to kill."""

    def __init__(self, here, folder):
        self.here, self.folder = here, folder

    def hosts(self):
        return sorted({rank.host for rank in living_ranks(self.folder)})

    def kill_rank(self, draw):
        """Kill a rank and return its node; None if there is none."""
        if ranks := living_ranks(self.folder):
            rank = ranks[int(draw * len(ranks))]
            if self.here.box.run(["kill", "-KILL", str(rank.pid)], host=rank.host).code == 0:
                return rank.host
        return None

    def kill_program(self, kind, draw):
        """Kill the process that starts a node's ranks, and return the node; None if not found."""
        hosts = self.hosts()
        if not hosts:
            return None
        host = hosts[int(draw * len(hosts))]
        found = self.here.box.run(["pgrep", "-f", self.programs[kind]], host=host).stdout.split()
        # The oldest one, because ranks may have their parent's command line.
        killed = found and self.here.box.run(["kill", "-KILL", found[0]], host=host).code == 0
        return host if killed else None


class EchelonSide(_Side):
    """`echelon submit`."""

    name = "echelon"
    # Not srun, whose command line contains an agent's.
    programs = {  # noqa: RUF012
        kind: rf"^\S*python\S* \S+ {kind} " for kind in ("agent", "zygote")
    }

    def __init__(self, here, name, asked):
        arguments = ("--samples", str(SAMPLES), "--save-every", str(asked.save_every))
        options = (f"--nodes={asked.nodes}", "--procs=1", "--restarts=1000")
        self.chain = here.chain(
            name, *options, steps=FOREVER, pace_s=asked.pace_s, arguments=arguments
        )
        super().__init__(here, self.chain.folder)

    def tend(self):
        if self.chain.process.poll() is not None:
            raise AssertionError(f"the run has ended: {self.chain.process.stdout.read()[-1500:]}")

    def halted_at(self):
        """Return the step from which it would resume."""
        last = max(number for number, _ in events(self.chain, "attempt"))
        stopped = [
            record["step"] for number, record in events(self.chain, "stopped") if number == last
        ]
        # If the controller's host has just died, it cannot answer: use the last checkpoint.
        return stopped[-1] if stopped else newest_checkpoint(RunDir.open(self.chain.run))

    def stop(self):
        """Stop it, and return its own report."""
        if self.chain.process.poll() is None:
            self.chain.command("stop", "last")
            with suppress(Exception):
                self.chain.wait(timeout_s=90)
        said = self.chain.command("status", "last", "--json").stdout
        status = json.loads(said) if said.strip() else {}
        return {
            "by its own accounting": status.get("effective"),
            "where the time went": status.get("time"),
            "attempts": len(self.chain.attempts()),
        }


SCRIPT = """\
#!/bin/bash
#SBATCH --nodes={nodes} --requeue --no-kill --open-mode=append
cd {folder}
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0 \\
    {python} -m torch.distributed.run --nnodes={elastic} --nproc-per-node=1 --max-restarts=1000 \\
    --rdzv-backend=c10d --rdzv-endpoint="$head:29500" \\
    --rdzv-id="$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}" {script} {pace_s} {save_every}
scontrol requeue "$SLURM_JOB_ID"
"""


class PeerSide(_Side):
    """Elastic torchrun, as documented for Slurm; the script requeues itself."""

    name = "torchrun"
    # There is no separate agent or zygote: torchrun starts the ranks of a node.
    programs = dict.fromkeys(("agent", "zygote"), "torch.distributed.run")

    def __init__(self, here, name, asked):
        super().__init__(here, here.place(name))
        self._script = SCRIPT.format(
            nodes=asked.nodes.replace(":", "-"),
            elastic=asked.nodes,
            folder=self.folder,
            python=sys.executable,
            script=PEER,
            pace_s=asked.pace_s,
            save_every=asked.save_every,
        )
        self._submitted = self._rescued = 0
        self._began_s = time.time()
        self._job = self._submit()

    def _submit(self):
        self._submitted += 1
        self._began_s = time.time()
        return self.here.cluster.sbatch(self.folder, self._script)

    def tend(self):
        """Do what an operator would do: resubmit, release or requeue the job."""
        job = self.here.cluster.job(self._job)
        state, reason = job["JobState"], job.get("Reason", "")
        if state not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED"):
            say(f"torchrun's job is {state}: it is submitted again")
            self._job = self._submit()
        elif "Held" in reason:
            self.here.box.run(["scontrol", "release", self._job])
            self._rescued += 1
        elif time.time() - max(self._began_s, last_step(self.folder)[0]) > STUCK_S:
            say("torchrun has not stepped for minutes: its job is requeued")
            self._rescued += 1
            self._began_s = time.time()
            self.here.box.run(["scontrol", "requeue", self._job])

    def stop(self):
        self.here.box.run(["scancel", self._job])
        wait_until(lambda: not self.here.queue(), timeout_s=30, interval_s=0.5)
        restarts = self.here.cluster.job(self._job).get("Restarts")
        return {
            "jobs submitted": self._submitted,
            "requeued": restarts,
            "helped by hand": self._rescued,
        }
