"""Simulated run directory of a thousand ranks, for programs that only read runs.

125 nodes with 8 GPUs and ranks each have trained for twenty minutes. Rank 413 is slow: it is always
busy, and the others wait for it.
"""

import json
import math
import os
import random

from echelon.run.directory import RunDir
from echelon.run.event_log import Unknown, render_event
from echelon.run.series import Sample, render_sample

SLOW = 413
_GIB = 2.0**30
_FRESH = 150
"""Number of distinct samples per node; older samples repeat them."""


class SimulatedRun:
    """A simulated run directory; see the module."""

    def __init__(self, runs, name, *, now_s, nodes=125, procs=8, seconds=1200, gpus=True):
        self.run = RunDir.create(runs, name)
        self.nodes, self.procs, self.gpus = nodes, procs, gpus
        self._random = random.Random(7)  # noqa: S311
        self._began_s = now_s - seconds
        self._files = {}
        self.run.spec.write_text('script = "train.py"\n')
        self._write_events()
        self._write_telemetry(now_s, seconds)
        self._write_metrics(seconds)
        self._write_logs()
        self._write_checkpoints(seconds)

    @property
    def ranks(self):
        return self.nodes * self.procs

    # --- what its processes write ---------------------------------------------------------------

    def _event(self, at_s, kind, **data):
        return f"{render_event(at_s, Unknown(kind=kind, data=data))}\n"

    def _write_events(self):
        began_s, ranks = self._began_s, self.ranks
        lines = [self._event(began_s - 30, "attempt", attempt=1, job="4711", slots=ranks)]
        gpus = self.procs if self.gpus else 0
        for node in range(self.nodes):
            name = f"node{node + 1:03}"
            lines.append(self._event(began_s - 20, "joined", node=node, name=name, gpus=gpus))
        lines.append(self._event(began_s - 19, "slots", slots=ranks))
        lines.append(
            self._event(
                began_s - 18, "generation", generation=0, world_size=ranks, nodes=self.nodes
            )
        )
        dead = min(77, ranks - 1)
        where = f"node{dead // self.procs + 1:03}"
        killed = {"rank": dead, "node": where, "cause": "signal", "message": "killed by SIGKILL"}
        for rank in range(ranks):
            signal = 9 if rank == dead else 15
            lines.append(
                self._event(began_s + 60, "exited", generation=0, rank=rank, code=0, signal=signal)
            )
        spent = {"productive": 40.0 * ranks, "data wait": 6.0 * ranks, "warm-up": 8.0 * ranks}
        lines.append(
            self._event(
                began_s + 60, "spent", generation=0, again=True, ranks=ranks, known=ranks,
                first=0, last=200, steps_s=0.2, seconds=spent,
            )
        )  # fmt: skip
        lines.append(
            self._event(began_s + 61, "restart", generation=0, verdict={"failure": killed})
        )
        lines.append(
            self._event(
                began_s + 62, "generation", generation=1, world_size=ranks, nodes=self.nodes
            )
        )
        cold = "ranks start cold on this node: the zygote has ended"
        lines.append(self._event(began_s + 62, "note", node=dead // self.procs, text=cold))
        lines += [
            self._event(began_s + at, "alive", generation=1, step=200 + 5 * at)
            for at in range(70, 1200, 10)
        ]
        self.run.events_of("controller-1").write_text("".join(lines))

    def sample(self, node, at_s):
        """Return a node's sample at a given time."""
        draw, means, peaks, lasts = self._random, {}, {}, {}
        means |= {"cpu": 0.3 + 0.1 * draw.random(), "disk_read": 2e8 * draw.random()}
        means |= {"disk_written": 1e7, "received": 3e9 * draw.random(), "sent": 3e9 * draw.random()}
        peaks |= {"mem": (300 + 20 * draw.random()) * _GIB, "shm": 8 * _GIB}
        lasts |= {"mem_size": 1024 * _GIB, "shm_size": 512 * _GIB}
        step = int(5 * (at_s - self._began_s))
        for local in range(self.procs):
            rank = node * self.procs + local
            slow = rank == SLOW % self.ranks
            busy = 0.97 if slow else 0.62 + 0.06 * draw.random()
            data = 0.02 * draw.random()
            if self.gpus:
                name = f"gpu{local}"
                means |= {
                    f"{name}.util": busy, f"{name}.power": 600 * busy, f"{name}.temperature": 61.0,
                    f"{name}.clock": 1980.0 if not slow else 1120.0,
                    f"{name}.throttled": float(slow),
                }  # fmt: skip
                peaks[f"{name}.mem"] = 60 * _GIB
                lasts |= {f"{name}.mem_size": 80 * _GIB, f"{name}.power_limit": 700.0}
                lasts |= {f"{name}.clock_most": 1980.0, f"{name}.ecc": 0.0}
                lasts[f"rank{rank}.gpu"] = local
            means |= {
                f"rank{rank}.steps": 5.0, f"rank{rank}.data": data, f"rank{rank}.stall": 0.001,
                f"rank{rank}.comm": max(0.0, 1 - busy - data), f"rank{rank}.busy": busy,
            }  # fmt: skip
            peaks[f"rank{rank}.mem"] = (30 + draw.random()) * _GIB
            lasts |= {f"rank{rank}.step": step, f"rank{rank}.generation": 1}
        return Sample(time_s=at_s, means=means, peaks=peaks, lasts=lasts)

    def _write_telemetry(self, now_s, seconds):
        self.run.telemetry(1, 0, 0).parent.mkdir()
        for node in range(self.nodes):
            shift_s = self._random.random()  # nodes do not start at the same moment
            times = [now_s - ago - shift_s for ago in range(seconds, 0, -1)]
            fresh = [render_sample(self.sample(node, at_s)) for at_s in times[-_FRESH:]]
            rest = [line.partition(",")[2] for line in fresh]
            older = [
                f'{{"time":{at_s:.3f},{rest[place % len(rest)]}'
                for place, at_s in enumerate(times[:-_FRESH])
            ]
            self.run.telemetry(1, node, 0).write_text("\n".join([*older, *fresh, ""]))

    def prepare(self, at_s):
        """Return the samples of all nodes at a given time, for `advance`."""
        return [f"{render_sample(self.sample(node, at_s))}\n" for node in range(self.nodes)]

    def advance(self, now_s, lines=()):
        """Append one sample per node and one logged step."""
        for node, line in enumerate(lines or self.prepare(now_s)):
            with self.run.telemetry(1, node, 0).open("a") as file:
                file.write(line)
        with self.run.metrics.open("a") as file:
            file.write(self._metric(now_s))
        step = int(5 * (now_s - self._began_s))
        for rank in (0, SLOW % self.ranks):
            with self.run.rank_log(attempt=1, generation=1, rank=rank).open("a") as file:
                file.write(f"step {step}: loss {self._loss(step):.3f}\n")

    def _metric(self, at_s):
        step = int(5 * (at_s - self._began_s))
        rate = 160.0 * self.ranks * (1 + 0.02 * self._random.random())
        told = {"loss": self._loss(step), "rate": rate, "data_wait": 0.01, "lr": 3e-4}
        return self._event(at_s, "step", step=step, metrics=told)

    def _loss(self, step):
        return 2 + 6 * math.exp(-step / 2000) + 0.1 * self._random.random()

    def _write_metrics(self, seconds):
        self.run.metrics.write_text(
            "".join(self._metric(self._began_s + at) for at in range(1, seconds))
        )

    def _write_logs(self):
        for generation in (0, 1):
            for rank in range(self.ranks):
                log = self.run.rank_log(attempt=1, generation=generation, rank=rank)
                log.parent.mkdir(exist_ok=True)
                text = (
                    f"rank {rank} of {self.ranks} is here\nloading the data set took 3.{rank} s\n"
                )
                log.write_text(text)
                log.with_suffix(".times").write_text(
                    f"{self._began_s + rank / 100:.3f} {len(text)}\n"
                )
        with self.run.rank_log(attempt=1, generation=1, rank=0).open("a") as file:
            file.writelines(f"step {step}: loss {8 - step / 2000:.3f}\n" for step in range(6000))

    def _write_checkpoints(self, seconds):
        for step in range(1000, 5 * seconds, 1000):
            folder = self.run.checkpoint(step)
            folder.mkdir()
            shards = [{"file": f"shard-{rank:05}.safetensors", "bytes": 3 * 2**30, "own": None}
                      for rank in range(self.ranks)]  # fmt: skip
            record = {"format": "echelon checkpoint", "version": 1, "step": step, "shards": shards}
            record |= {"metrics": {"loss": self._loss(step)}, "world_size": self.ranks}
            manifest = folder / "manifest.json"
            manifest.write_text(json.dumps(record))
            os.utime(manifest, (self._began_s + step / 5,) * 2)
