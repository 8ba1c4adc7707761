"""`echelon sandbox …`: a real Slurm cluster on this machine."""

import os
import shlex
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from echelon.cli import console
from echelon.cli.completion import offer
from echelon.cli.run_options import AsJson
from echelon.core.shell import LocalShell
from echelon.core.units import format_memory, parse_memory
from echelon.errors import EchelonError
from echelon.sandbox.cluster import Sandbox
from echelon.sandbox.config import SandboxConfig
from echelon.sandbox.layout import DEFAULT_NAME
from echelon.sandbox.lifecycle import (
    changing,
    list_sandboxes,
    open_sandbox,
    start_sandbox,
    stop_sandbox,
)
from echelon.sandbox.ssh import host_alias

app = typer.Typer(
    name="sandbox",
    help="Run a real Slurm cluster on this machine, for tests.",
    epilog="Example: echelon sandbox up",
    rich_markup_mode=None,
)


def _complete_name(incomplete: str) -> list[str]:
    return offer(list_sandboxes(os.environ, os.geteuid()))(incomplete)


def _complete_node(context: typer.Context, incomplete: str) -> list[str]:
    try:
        names = _open(context.params.get("name") or DEFAULT_NAME).state.config.node_names
    except EchelonError:
        return []  # completion must not print errors
    return offer(names)(incomplete)


Name = Annotated[str, typer.Option(help="Name of the sandbox.", autocompletion=_complete_name)]
Node = Annotated[
    str,
    typer.Argument(
        help="Node name, such as node2.", autocompletion=_complete_node, show_default=False
    ),
]


def _change(name: str, node: str, change: Callable[[Sandbox, str], None], done: str) -> None:
    """Change a node, and print what was done."""
    with changing(_open(name), os.geteuid()) as sandbox:
        change(sandbox, node)
        console.note(done.format(node=node, option=sandbox.layout.option))


def _open(name: str) -> Sandbox:
    return open_sandbox(name, shell=LocalShell(), environ=os.environ, uid=os.geteuid())


@app.command()
def up(
    *,
    name: Name = DEFAULT_NAME,
    nodes: Annotated[int, typer.Option(help="Number of nodes.")] = 4,
    gpus: Annotated[int, typer.Option(help="Simulated GPUs per node.")] = 4,
    gpu_type: Annotated[
        str, typer.Option(help="GPU type, also set as a feature of each node.")
    ] = "a100",
    cpus: Annotated[int, typer.Option(help="CPUs per node; may exceed what the machine has.")] = 16,
    mem: Annotated[
        str, typer.Option(help="Memory per node; may exceed what the machine has.")
    ] = "64G",
    accounting: Annotated[
        bool, typer.Option("--accounting", help="Also start MariaDB and slurmdbd, for sacct.")
    ] = False,
    ssh: Annotated[
        bool, typer.Option("--ssh", help="Also start sshd on the login host, to log in with ssh.")
    ] = False,
) -> None:
    """Start a cluster and wait until all its nodes are idle.

    Example: echelon sandbox up --nodes 2 --gpus 8 --gpu-type h100
    """
    began = time.monotonic()
    wanted = SandboxConfig(
        name=name,
        nodes=nodes,
        gpus=gpus,
        gpu_type=gpu_type,
        cpus=cpus,
        mem_mib=parse_memory(mem),
        accounting=accounting,
        ssh=ssh,
    )
    sandbox = start_sandbox(
        wanted,
        shell=LocalShell(),
        environ=os.environ,
        uid=os.geteuid(),
        progress=lambda text: console.note(f"sandbox: {text}"),
    )
    console.note(
        f"sandbox '{name}' is up after {time.monotonic() - began:.1f} s: {nodes} nodes with "
        f"{gpus} {gpu_type}, {cpus} CPUs and {format_memory(wanted.mem_mib)} each; "
        "partitions low and high"
    )
    if sandbox.state.network.kind == "loopback":
        console.note(
            "running without root: all nodes share this machine's host name, address and "
            "processes; 'cut' and 'heal' are not available, and node names do not resolve"
        )
    option = sandbox.layout.option
    console.note(f"  try it:         echelon sandbox exec{option} -- srun -N{nodes} hostname")
    console.note(f'  in this shell:  eval "$(echelon sandbox env{option})"; sinfo')
    if sandbox.ssh_config:
        console.note(f"  over ssh:       ssh -F {sandbox.ssh_config} {host_alias(name)}")
        console.note(f"  ~/.ssh/config:  Include {sandbox.ssh_config}")
    console.note(f"  shut down:      echelon sandbox down{option}")


@app.command()
def down(*, name: Name = DEFAULT_NAME) -> None:
    """Stop a cluster and remove all its files.

    Example: echelon sandbox down
    """
    stop_sandbox(name, shell=LocalShell(), environ=os.environ, uid=os.geteuid())
    console.note(f"sandbox '{name}' stopped and removed")


@app.command()
def status(
    *,
    name: Name = DEFAULT_NAME,
    as_json: AsJson = False,
) -> None:
    """Show the nodes' Slurm states and injected faults.

    Example: echelon sandbox status --json
    """
    sandbox = _open(name)
    nodes = sandbox.nodes()
    if as_json:
        console.print_json(
            {
                "name": name,
                "kind": sandbox.state.network.kind,
                "slurm_conf": str(sandbox.layout.slurm_conf),
                "ssh_config": str(sandbox.ssh_config) if sandbox.ssh_config else None,
                "config": asdict(sandbox.state.config),
                "nodes": [asdict(node) for node in nodes],
            }
        )
        return
    rows = [
        [
            node.name,
            node.address,
            node.state,
            "" if node.running else "killed",
            "cut" if node.cut else "",
        ]
        for node in nodes
    ]
    console.print_table(["node", "address", "state", "slurmd", "network"], rows)


@app.command()
def shell(*, name: Name = DEFAULT_NAME) -> None:
    """Open a shell on the login host.

    Example: echelon sandbox shell
    """
    _open(name).become([os.environ.get("SHELL", "/bin/bash")], cwd=Path.cwd())


@app.command(
    "exec",
    context_settings={"allow_interspersed_args": False},
)
def execute(
    *,
    name: Name = DEFAULT_NAME,
    command: Annotated[
        list[str], typer.Argument(metavar="CMD...", help="Command to run.", show_default=False)
    ],
) -> None:
    """Run a command on the login host and exit with its status.

    Example: echelon sandbox exec -- srun -N4 hostname
    """
    _open(name).become(command, cwd=Path.cwd())


@app.command()
def env(*, name: Name = DEFAULT_NAME) -> None:
    """Print the export line for using the cluster from a shell.

    Example: eval "$(echelon sandbox env)"
    """
    console.print_file(f"export SLURM_CONF={shlex.quote(str(_open(name).layout.slurm_conf))}")


@app.command()
def kill(node: Node, *, name: Name = DEFAULT_NAME) -> None:
    """Turn a node off: kill its slurmd and its jobs' processes.

    Example: echelon sandbox kill node2
    """
    done = "{node} is off; bring it back with: echelon sandbox restore{option} {node}"
    _change(name, node, Sandbox.kill, done)


@app.command()
def cut(node: Node, *, name: Name = DEFAULT_NAME) -> None:
    """Disconnect a node from the network; its processes keep running.

    Example: echelon sandbox cut node2
    """
    done = "{node} is disconnected; reconnect it with: echelon sandbox heal{option} {node}"
    _change(name, node, Sandbox.cut, done)


@app.command()
def heal(node: Node, *, name: Name = DEFAULT_NAME) -> None:
    """Reconnect a node to the network.

    Example: echelon sandbox heal node2
    """
    _change(name, node, Sandbox.heal, "{node} is connected")


@app.command()
def restore(node: Node, *, name: Name = DEFAULT_NAME) -> None:
    """Make a node ready again after kill, cut or a drain.

    Example: echelon sandbox restore node2
    """
    _change(name, node, Sandbox.restore, "{node} is ready")
