"""E405 and E411: variables of NCCL, gloo and CUDA."""

from collections.abc import Iterator

from echelon.lint.patterns import pattern
from echelon.lint.rule import ADVICE, WARNING, Hit, rule
from echelon.lint.script import Script

_INTERFACE = pattern(r"=?(?:eth|en[opsx]|em|ib|hsn|bond|mlx|team|br|p)\w*\d\w*")
_NAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


@rule("E405", ADVICE, off=True)
def interface(script: Script) -> Iterator[Hit]:
    """Hard-coded network interface.

    NCCL finds the right interface itself on most clusters. A full name fits only one type of node.
    `^name` excludes an interface, and a prefix such as `ib` matches all that start with it.

    Example:
         #!/bin/bash
         #SBATCH --nodes=2
        -export NCCL_SOCKET_IFNAME=eth0    # <- here
        +export NCCL_SOCKET_IFNAME=^lo,docker
         srun python train.py
    """
    for assignment in (one for name in _NAMES for one in script.assigned(name)):
        text = assignment.value.text
        if assignment.value.known and _INTERFACE.fullmatch(text):
            yield Hit(
                at=assignment,
                what=f"On a node without the interface '{text}', the ranks cannot connect.",
                fix="export NCCL_SOCKET_IFNAME=^lo,docker  # or remove the line",
            )


@rule("E411", WARNING)
def harmful_setting(script: Script) -> Iterator[Hit]:
    """Harmful setting in a training of several nodes.

    gloo has no `^` to exclude an interface, and looks for one with this name. With
    `CUDA_LAUNCH_BLOCKING=1`, the host waits for each kernel, so computation and communication do
    not overlap. It is meant to find errors.

    Example:
         #!/bin/bash
         #SBATCH --nodes=2
        -export GLOO_SOCKET_IFNAME=^lo,docker0    # <- here
         srun python train.py
    """
    for assignment in script.assigned("GLOO_SOCKET_IFNAME"):
        if assignment.value.text.startswith("^"):
            yield Hit(
                at=assignment,
                what=f"gloo looks for an interface named '{assignment.value.text}', and fails: it "
                "does not know `^`.",
                fix="remove the line, or name the interface",
            )
    for assignment in script.assigned("CUDA_LAUNCH_BLOCKING"):
        several = script.job.several_nodes and "CUDA_LAUNCH_BLOCKING" in script.exported
        if several and assignment.certain and assignment.value.text == "1":
            yield Hit(
                at=assignment,
                what="CUDA_LAUNCH_BLOCKING makes the host wait for each kernel. The training is "
                "slower on all nodes.",
                fix="remove the line when the error is found",
            )
