"""Run directories as the client prepares them, without a project."""

from dataclasses import replace
from pathlib import Path

from echelon.client.submit.pipeline import Checked, prepare
from echelon.clusters.local import LocalCluster
from echelon.core.shell import LocalShell
from echelon.run.directory import RunDir
from echelon.run.sweep import SweepDir, Table
from echelon.spec.job_spec import JobSpec


def prepare_run(spec: JobSpec, runs: Path, folder: Path, **environ: str) -> RunDir:
    """Prepare a run whose working directory is a given folder."""
    return _prepare(spec, runs, folder, None, environ)


def prepare_sweep(spec: JobSpec, table: Table, runs: Path, **environ: str) -> SweepDir:
    """Prepare a sweep likewise."""
    return SweepDir(files=_prepare(spec, runs, runs.parent, table, environ))


def _prepare(spec, runs, folder, table, environ):
    cluster = LocalCluster(LocalShell(), environ, runs)
    spec = replace(spec, chdir=str(folder / spec.chdir))
    checked = Checked(spec=spec, cluster=cluster, runs=runs, environ=environ, table=table)
    return prepare(checked).run
