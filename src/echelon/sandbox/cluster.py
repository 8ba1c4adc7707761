"""A running sandbox: run commands in it, read its nodes' states, inject and repair faults."""

import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from echelon.core.frozen import frozen
from echelon.core.shell import Result, Shell
from echelon.core.slurm import scrub
from echelon.core.waiting import wait_until
from echelon.errors import NotFoundError, NotPermittedError, UnavailableError
from echelon.sandbox import accounting, ssh
from echelon.sandbox.config import LOGIN, SandboxState
from echelon.sandbox.hosts import Hosts
from echelon.sandbox.layout import Layout
from echelon.sandbox.loopback import LoopbackHosts
from echelon.sandbox.namespaces import NamespaceHosts
from echelon.sandbox.processes import HOST, Process, find_processes, mark

Progress = Callable[[str], None]


_COMPLAINT = re.compile(r"fatal|error", re.IGNORECASE)
# Logged at every start: there is no state to recover yet, and no PMIx.
_NOISE = re.compile(r"state save file|pmix|recover|No such file or directory|hwloc", re.IGNORECASE)


@frozen
class NodeStatus:
    """State of a node, from Slurm and from the process table."""

    name: str
    address: str
    state: str
    """Slurm's node state: idle, allocated, mixed, down, …; with '*' if it does not respond."""
    running: bool
    """Whether its slurmd runs."""
    cut: bool
    """Whether it is disconnected from the network."""


class Sandbox:
    """A running sandbox."""

    def __init__(
        self, layout: Layout, state: SandboxState, shell: Shell, environ: Mapping[str, str]
    ) -> None:
        self.layout = layout
        self.state = state
        self._shell = shell
        self._environ = environ
        self._hosts: Hosts = (
            NamespaceHosts(layout, state.network, shell, environ)
            if state.network.kind == "namespaces"
            else LoopbackHosts(layout)
        )

    @property
    def name(self) -> str:
        return self.state.config.name

    @property
    def ssh_config(self) -> Path | None:
        """The file with which ssh(1) logs in to the login host; None without sshd."""
        return self.layout.ssh_config if self.state.config.ssh else None

    # Running programs inside

    def environment(self, host: str = LOGIN) -> dict[str, str]:
        """Return a process's environment inside, without variables of a surrounding Slurm job."""
        outer = scrub(self._environ)
        variables = {
            **outer,
            **mark(self.layout, host),
            "SLURM_CONF": str(self.layout.slurm_conf),
            # Debian installs daemons in directories that are not in an ordinary user's PATH.
            "PATH": f"{outer.get('PATH', os.defpath)}:/usr/sbin:/sbin",
        }
        if host == LOGIN:
            del variables[HOST]
        return variables

    def run(
        self,
        argv: Sequence[str],
        *,
        host: str = LOGIN,
        stdin: str = "",
        timeout_s: float | None = 120,
    ) -> Result:
        """Run a program on a host and return its result."""
        done = self._shell.run(
            [*self._hosts.enter(host), *argv],
            env=self.environment(host),
            stdin=stdin,
            timeout_s=timeout_s,
        )
        return replace(done, argv=tuple(argv))  # errors name the program, not nsenter

    def start(self, argv: Sequence[str], *, log: str, host: str = LOGIN) -> None:
        """Start a program in the background on a host."""
        self._shell.start(
            [*self._hosts.enter(host), *argv],
            log=self.layout.logs / log,
            env=self.environment(host),
        )

    def become(self, argv: Sequence[str], *, cwd: Path) -> NoReturn:
        """Replace this process with a program on the login host.

        Raises:
            NotPermittedError: only root can enter root's sandbox.
        """
        self._check_owner()
        enter = self._hosts.enter(LOGIN)
        # Entering a mount namespace resets the working directory.
        back = ["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(cwd)] if enter else []
        self._shell.replace([*enter, *back, *argv], env=self.environment())

    def _check_owner(self) -> None:
        if self.layout.root.stat().st_uid != os.geteuid():
            raise NotPermittedError(
                f"the sandbox '{self.name}' belongs to another user",
                hint="use sudo, or submit jobs from outside: "
                f'eval "$(echelon sandbox env{self.layout.option})"',
            )

    # State

    def nodes(self) -> list[NodeStatus]:
        """Query Slurm for the current state of every node.

        Raises:
            UnavailableError: slurmctld does not respond.
        """
        self._check_owner()
        if not (states := self._slurm_states()):
            raise UnavailableError(
                f"the slurmctld of sandbox '{self.name}' does not respond",
                hint=f"check its log: tail {self.layout.logs}/slurmctld.log; "
                f"or remove the sandbox: echelon sandbox down{self.layout.option}",
            )
        alive = {process.host for process in self._daemons("slurmd")}
        cut = self._hosts.cut_hosts()
        return [
            NodeStatus(
                name=name,
                address=self.state.network.addresses[name],
                state=states.get(name, "unknown"),
                running=name in alive,
                cut=name in cut,
            )
            for name in self.state.config.node_names
        ]

    def await_ready(self, names: Sequence[str], *, timeout_s: float) -> None:
        """Wait until Slurm can schedule jobs on these nodes.

        Raises:
            UnavailableError: a node was not ready in time; the hint has the last error logged.
        """

        def waiting() -> list[str]:
            states = self._slurm_states()
            return [
                name for name in names if states.get(name) not in ("idle", "mixed", "allocated")
            ]

        if not wait_until(lambda: not waiting(), timeout_s=timeout_s, interval_s=0.1):
            late = waiting()
            raise UnavailableError(
                f"nodes not ready after {timeout_s:g} s: {', '.join(late)}",
                hint=self.last_complaint(*(f"slurmd-{name}.log" for name in late), "slurmctld.log"),
            )

    def _slurm_states(self) -> dict[str, str]:
        """Return node → state; empty while slurmctld does not respond."""
        shown = self.run(["sinfo", "--Node", "--noheader", "--format=%N|%T"])
        lines = shown.stdout.split() if shown.code == 0 else []
        return dict(line.split("|", 1) for line in lines)

    def last_complaint(self, *logs: str) -> str:
        """Return the last error from the first of these logs that contains one."""
        for log in (self.layout.logs / name for name in logs):
            lines = log.read_text(errors="replace").splitlines() if log.exists() else []
            bad = [line for line in lines if _COMPLAINT.search(line) and not _NOISE.search(line)]
            if bad:
                return f"{log.name} says: {bad[-1]}"
        return f"no error in {self.layout.logs}; check whether the machine is overloaded"

    # Daemons

    def _start_slurmd(self, node: str) -> None:
        """Start a node's slurmd; it daemonizes once it listens."""
        argv = ["slurmd", "-N", node, "-f", str(self.layout.slurm_conf)]
        self.run(argv, host=node).check()

    def start_slurmctld(self) -> None:
        """Start slurmctld; it daemonizes once it listens."""
        self.run(["slurmctld", "-f", str(self.layout.slurmctld_conf)]).check()

    def start_all(self, progress: Progress) -> None:
        """Start the hosts and the Slurm daemons, and wait until every node is idle."""
        layout, nodes = self.layout, self.state.config.node_names
        progress(f"starting {len(nodes)} nodes")
        self._hosts.start([LOGIN, *nodes])
        self.run(
            [
                "munged",
                f"--key-file={layout.munge}/key",
                f"--socket={layout.munge_socket}",
                f"--pid-file={layout.run}/munged.pid",
                f"--log-file={layout.logs}/munged.log",
                f"--seed-file={layout.munge}/seed",
                "--num-threads=4",
            ]
        ).check()
        if self.state.config.accounting:
            progress("starting MariaDB and slurmdbd")
            accounting.start_accounting(self.state, layout, self)
        self.start_slurmctld()
        for node in nodes:
            self._start_slurmd(node)
        self.await_ready(nodes, timeout_s=30 + len(nodes))
        if self.state.config.ssh:
            progress("starting sshd")
            sshd = self._shell.which("sshd")
            assert sshd is not None, "looked for before anything was started"
            ssh.start_sshd(self.state, layout, self, sshd)

    # Faults

    def kill(self, node: str) -> None:
        """Turn a node off: kill its slurmd and all its jobs' processes."""
        self._hosts.stop(self._known(node))

    def cut(self, node: str) -> None:
        """Disconnect a node from the network; its processes keep running."""
        self._hosts.cut(self._known(node))

    def heal(self, node: str) -> None:
        """Reconnect a node and have it register at once, not only at Slurm's next ping."""
        self._hosts.heal(self._known(node))
        self._report(node)

    def restore(self, node: str) -> None:
        """Make a node ready again after kill, cut or a drain, and wait until it accepts jobs."""
        self._known(node)
        status = next(status for status in self.nodes() if status.name == node)
        if status.state.startswith("drain"):
            self.run(["scontrol", "update", f"nodename={node}", "state=resume"]).check()
        if status.running:
            if node in self._hosts.cut_hosts():
                self.heal(node)
        else:
            self._hosts.stop(node)
            # A rebooted machine reports a new boot time, which tells Slurm that its jobs are lost.
            # This node cannot, so mark it down.
            update = ["scontrol", "update", f"nodename={node}", "state=down", "reason=rebooted"]
            self.run(update).check()
            self._hosts.start([node])
            self._start_slurmd(node)
        self.await_ready([node], timeout_s=30)

    def signal_slurmctld(self, number: signal.Signals) -> None:
        """Pause (SIGSTOP), continue (SIGCONT) or end (SIGTERM, SIGKILL) slurmctld."""
        self._check_owner()
        pids = [process.pid for process in self._daemons("slurmctld")]
        for pid in pids:
            os.kill(pid, number)
        if number in (signal.SIGTERM, signal.SIGKILL):
            wait_until(lambda: not self._daemons("slurmctld"), timeout_s=20)

    def _report(self, node: str) -> None:
        """Make a node's slurmd register again, with SIGHUP."""
        for process in self._daemons("slurmd"):
            if process.host == node:
                os.kill(process.pid, signal.SIGHUP)

    def _daemons(self, program: str) -> list[Process]:
        found = find_processes(self.layout)
        return [process for process in found if process.trusted and process.program == program]

    def _known(self, node: str) -> str:
        self._check_owner()
        names = self.state.config.node_names
        if node not in names:
            raise NotFoundError(
                f"the sandbox '{self.name}' has no node '{node}'",
                hint=f"available nodes: {', '.join(names)}",
            )
        return node
