"""Simulated hosts in namespaces of their own; needs root.

Each host has its own network, host name, hosts file and, for nodes, process table. Scripts from a
cluster's documentation run unchanged, a node can be disconnected, and turning it off ends all its
processes. The hosts are connected by a bridge inside the login host's network namespace, so this
machine's own network gets one additional link.
"""

import errno
import ipaddress
import json
import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from echelon.core.shell import Shell
from echelon.core.waiting import wait_until
from echelon.errors import NotFoundError, UnavailableError
from echelon.sandbox.config import LOGIN, SSHD, Network, SandboxConfig
from echelon.sandbox.layout import Layout
from echelon.sandbox.processes import end_processes, find_processes, is_holder, mark

# Reserved for network benchmarks (RFC 2544), so real networks do not use it.
TEST_NETWORK = ipaddress.IPv4Network("198.18.0.0/15")


class NamespaceHosts:
    """Hosts in namespaces of their own."""

    def __init__(
        self, layout: Layout, network: Network, shell: Shell, environ: Mapping[str, str]
    ) -> None:
        self._layout = layout
        self._network = network
        self._shell = shell
        self._environ = environ

    def start(self, hosts: Sequence[str]) -> None:
        for host in hosts:
            booted = self._layout.run / f"{host}.booted"
            booted.unlink(missing_ok=True)
            namespaces = ["--net", "--uts", "--ipc", "--mount", "--propagation", "slave"]
            if host != LOGIN:
                # A PID namespace ends with its first process, so no process of a job can survive
                # its node. The login host shares ours: commands inside see processes outside.
                namespaces += ["--pid", "--fork", "--kill-child", "--mount-proc"]
            self._shell.start(
                ["unshare", *namespaces, "bash", str(self._layout.boot), host],
                log=self._layout.logs / f"boot-{host}.log",
                env={**self._environ, **mark(self._layout, host)},
            )
        for host in hosts:
            self._await_boot(host)
        pids = self._pids()
        for host in hosts:
            if host == LOGIN:
                self._wire_login(pids)
            else:
                self._wire_node(host, pids)

    def _await_boot(self, host: str) -> None:
        log = self._layout.logs / f"boot-{host}.log"
        if not wait_until((self._layout.run / f"{host}.booted").exists, timeout_s=20):
            said = log.read_text(errors="replace").strip().splitlines()
            raise UnavailableError(
                f"the simulated host '{host}' did not start: {said[-1] if said else 'no output'}",
                hint="start the sandbox without root, which needs no namespaces",
            )

    def _wire_login(self, pids: Mapping[str, int]) -> None:
        address = self._network.addresses[LOGIN]
        self._ip(
            pids[LOGIN],
            # Otherwise the bridge takes the lowest address of its ports, which come and go.
            f"link add br0 address {hardware_address(address)} type bridge",
            f"addr add {address}/24 dev br0",
            "link set br0 up",
        )
        uplink = uplink_name(self._layout)
        self._ip(
            0,
            f"link add {uplink} type veth peer name uplink netns {pids[LOGIN]}",
            f"addr add {self._network.outside}/24 dev {uplink}",
            f"link set {uplink} up",
        )
        self._ip(pids[LOGIN], "link set uplink master br0 up")

    def _wire_node(self, host: str, pids: Mapping[str, int]) -> None:
        address = self._network.addresses[host]
        own = f"eth0 address {hardware_address(address)} netns {pids[host]}"
        self._ip(0, f"link add {host} netns {pids[LOGIN]} type veth peer name {own}")
        self._ip(
            pids[host],
            f"addr add {address}/24 dev eth0",
            "link set eth0 up",
        )
        self._ip(pids[LOGIN], f"link set {host} master br0 up")

    def enter(self, host: str) -> list[str]:
        own = [] if host == LOGIN else ["--pid"]
        return [
            "nsenter",
            f"--target={self._pid(host)}",
            "--net",
            "--uts",
            "--ipc",
            "--mount",
            *own,
        ]

    def stop(self, host: str) -> None:
        if (pid := self._pids().get(host)) is None:
            return
        end_processes([pid])
        # The kernel removes a dead namespace's links with a delay; restore needs the name now.
        self._shell.run(self._ip_argv(self._pid(LOGIN)), stdin=f"link del {host}\n")

    def cut(self, host: str) -> None:
        self._pid(host)  # raises if the host is off
        self._ip(self._pid(LOGIN), f"link set {host} down")

    def heal(self, host: str) -> None:
        self._pid(host)
        self._ip(self._pid(LOGIN), f"link set {host} up")

    def cut_hosts(self) -> set[str]:
        argv = [*self.enter(LOGIN), "ip", "-json", "link", "show", "type", "veth"]
        links = json.loads(self._shell.run(argv).check().stdout or "[]")
        return {link["ifname"] for link in links if "UP" not in link["flags"]}

    def _pids(self) -> dict[str, int]:
        """Return the pid that holds each running host's namespaces."""
        return {
            process.argv[2]: process.pid
            for process in find_processes(self._layout)
            if is_holder(process, self._layout)
        }

    def _pid(self, host: str) -> int:
        if (pid := self._pids().get(host)) is None:
            raise NotFoundError(
                f"the sandbox's host '{host}' is not running",
                hint=f"run: echelon sandbox {'down' if host == LOGIN else 'restore'}"
                f"{self._layout.option}{'' if host == LOGIN else f' {host}'}",
            )
        return pid

    def _ip_argv(self, pid: int) -> list[str]:
        enter = ["nsenter", f"--net=/proc/{pid}/ns/net"] if pid else []
        return [*enter, "ip", "-batch", "-"]

    def _ip(self, pid: int, *commands: str) -> None:
        """Run ip(8) commands in a host's network namespace; pid 0 means this machine's own."""
        batch = "".join(f"{command}\n" for command in commands)
        done = self._shell.run(self._ip_argv(pid), stdin=batch, timeout_s=20)
        # The last line of ip's output only gives the line number; the error is the one before.
        said = re.sub(r"^Command failed .*\n?", "", done.stderr, flags=re.MULTILINE)
        replace(done, argv=("ip", *commands), stderr=said).check()


def can_make_namespaces(shell: Shell) -> bool:
    """Tell whether the kernel allows namespaces; in a container it often does not, even to root."""
    kinds = ["--net", "--uts", "--ipc", "--mount", "--pid"]
    return shell.run(["unshare", *kinds, "--fork", "true"]).code == 0


def uplink_name(layout: Layout) -> str:
    """Return the name of the link added to this machine's own network."""
    return f"echelon-{layout.tag}"


def remove_uplink(layout: Layout, shell: Shell) -> None:
    """Remove this machine's end of the link, if it is left after its namespace has gone."""
    shell.run(["ip", "link", "del", uplink_name(layout)])


def hardware_address(address: str) -> str:
    """Return a host's MAC address, derived from its IP address so that a restart keeps it.

    With a new one, the other hosts would send to the old address until their ARP entries expire, up
    to a minute later.
    """
    # First byte 02: a locally administered address.
    return ":".join(f"{byte:02x}" for byte in b"\2\0" + ipaddress.IPv4Address(address).packed)


def choose_subnet(layout: Layout, routes: Iterable[str]) -> ipaddress.IPv4Network:
    """Return a /24 of the test range that no route of this machine covers.

    The search starts at a different place for each sandbox, so that a restarted one usually has the
    same addresses again.
    """
    networks = [ipaddress.IPv4Network(route, strict=False) for route in routes]
    # A VPN for all traffic routes two halves of the address space; treat them as default routes.
    taken = [network for network in networks if network.prefixlen >= 8]
    candidates = list(TEST_NETWORK.subnets(new_prefix=24))
    first = int(layout.tag, 16) % len(candidates)
    for candidate in candidates[first:] + candidates[:first]:
        if not any(candidate.overlaps(route) for route in taken):
            return candidate
    raise UnavailableError(
        f"no free /24 network is left in {TEST_NETWORK}",
        hint="stop another sandbox: echelon sandbox down --name NAME",
    )


@contextmanager
def plan_namespaces(config: SandboxConfig, layout: Layout, shell: Shell) -> Iterator[Network]:
    """Choose the addresses, and reserve them until the block ends and the hosts are connected.

    The ports are Slurm's defaults, since every host has its own.
    """
    with _reserve_subnet(layout, shell) as subnet:
        names = config.node_names
        addresses = {name: str(subnet[number]) for number, name in enumerate(names, start=1)}
        yield Network(
            kind="namespaces",
            addresses={**addresses, LOGIN: str(subnet[253])},
            ports={**dict.fromkeys(names, 6818), LOGIN: 6817, "slurmdbd": 6819, SSHD: 22},
            outside=str(subnet[254]),
            machine=socket.gethostname().partition(".")[0],
        )


@contextmanager
def _reserve_subnet(layout: Layout, shell: Shell) -> Iterator[ipaddress.IPv4Network]:
    """Choose a subnet that no sandbox chooses that starts at the same time.

    A sandbox's route shows what it uses only after its hosts are connected. Until then, it holds a
    socket with an abstract name, which the kernel gives out once per network namespace.
    """
    reserved: list[str] = []
    while True:
        subnet = choose_subnet(layout, [*_routes(shell), *reserved])
        with socket.socket(socket.AF_UNIX) as claim:
            try:
                claim.bind(f"\0echelon-sandbox-{subnet}")
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                reserved.append(str(subnet))
                continue
            # Its last owner may have connected its hosts and closed its socket in between.
            if str(subnet) not in _routes(shell):
                yield subnet
                return


def _routes(shell: Shell) -> list[str]:
    shown = shell.run(["ip", "-json", "-4", "route", "show", "table", "all"]).check().stdout
    return [entry["dst"] for entry in json.loads(shown or "[]") if entry["dst"] != "default"]
