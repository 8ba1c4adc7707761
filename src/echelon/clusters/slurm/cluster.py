"""Runs as Slurm jobs."""

import os
import re
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from echelon.core.nodes import compress, expand
from echelon.core.slurm import Slurm
from echelon.core.units import parse_duration
from echelon.errors import CommandError, UnavailableError

if TYPE_CHECKING:
    from echelon.spec.job_spec import JobSpec


class SlurmCluster(Slurm):
    """The cluster that the Slurm commands on PATH use."""

    def stop(self, job_id: str, *, run_id: str, interrupt: bool = False) -> None:
        # The batch script has become the controller, which signals the ranks.
        self.end(job_id, run_id, ["--batch", f"--signal={'INT' if interrupt else 'TERM'}"])

    def cancel(self, job_id: str, *, run_id: str) -> None:
        self.end(job_id, run_id)

    @cached_property
    def _config(self) -> str:
        return self.ask(["scontrol", "show", "config"]).stdout

    def array_size(self) -> int:
        """Return how many tasks a job array may have."""
        found = re.search(r"^MaxArraySize\s*=\s*(\d+)", self._config, re.MULTILINE)
        size = int(found[1]) if found else 0
        if size < 2:
            raise UnavailableError(
                "the cluster does not allow job arrays (MaxArraySize)",
                hint="ask its administrators, or submit runs one by one: echelon submit",
            )
        return size

    def end_waiting(self, arrays: Sequence[str]) -> None:
        """End the waiting tasks of job arrays."""
        self._scancel(["--state=PENDING"], arrays)

    def stop_tasks(self, jobs: Sequence[str]) -> None:
        """Ask running tasks to stop."""
        self._scancel(["--batch", "--signal=TERM"], jobs)

    def end_tasks(self, jobs: Sequence[str]) -> None:
        """End tasks immediately."""
        self._scancel([], jobs)

    def _scancel(self, options: Sequence[str], jobs: Sequence[str]) -> None:
        if not jobs:
            return
        try:
            self.ask(["scancel", *options, *jobs])
        except CommandError as error:
            if "Invalid job id" not in error.stderr and "already completing" not in error.stderr:
                raise

    def exclusions(self, request: "JobSpec") -> str:
        from echelon.clusters.slurm.survey import parse_cluster_name  # noqa: PLC0415
        from echelon.run.node_record import exclusions  # noqa: PLC0415

        return exclusions(
            parse_cluster_name(self._config),
            os.environ,
            nodelist=request.nodelist,
            exclude=request.exclude,
            now_s=time.time(),
        )

    def problems(self, spec: "JobSpec") -> list[str]:
        from echelon.spec.readers import nearest  # noqa: PLC0415

        shown = self.ask(["scontrol", "--oneliner", "show", "partition"]).stdout
        partitions = dict(parse_partition(line) for line in shown.splitlines() if line.strip())
        wanted = [name for name in spec.partition.split(",") if name] or [
            name for name, fields in partitions.items() if fields.get("Default") == "YES"
        ]
        found = []
        for name in wanted:
            if name not in partitions:
                found.append(f"unknown partition '{name}': {nearest(name, tuple(partitions))}")
            else:
                found += _limits(name, partitions[name], spec)
        return found + self._unknown_nodes(spec)

    def _unknown_nodes(self, spec: "JobSpec") -> list[str]:
        """Report nodes of `nodelist` and `exclude` that do not exist: Slurm does not name them."""
        found = []
        for key, hosts in (("nodelist", spec.nodelist), ("exclude", spec.exclude)):
            if not hosts:
                continue
            ask = ["sinfo", "--all", "--noheader", f"--nodes={hosts}", "--format=%N"]
            known = {name for line in self.ask(ask).stdout.split() for name in expand(line)}
            if unknown := [name for name in expand(hosts) if name not in known]:
                found.append(f"no partition has {compress(unknown)} (--{key}); all nodes: sinfo -N")
        return found


def parse_partition(line: str) -> tuple[str, dict[str, str]]:
    """Parse one line of `scontrol --oneliner show partition`."""
    fields = dict(field.split("=", 1) for field in line.split() if "=" in field)
    return fields["PartitionName"], fields


def _limits(name: str, fields: Mapping[str, str], spec: "JobSpec") -> list[str]:
    found = []
    if fields.get("State", "UP") != "UP":
        found.append(f"partition '{name}' is {fields['State']}")
    for limit in ("MaxNodes", "TotalNodes"):
        most = fields.get(limit, "")
        if most.isdecimal() and spec.nodes.low > int(most):
            found.append(f"partition '{name}' has at most {most} nodes, not {spec.nodes.low}")
            break
    longest = parse_duration(fields.get("MaxTime", "UNLIMITED"))
    asked = parse_duration(spec.time) if spec.time else 0
    if longest is not None and (asked is None or asked > longest):
        found.append(f"partition '{name}' allows at most {fields['MaxTime']}, not {spec.time}")
    return found
