"""E411: variables of gloo and CUDA."""

from collections.abc import Iterator

from echelon.lint.rule import ADVICE, WARNING, Hit, Located, rule
from echelon.lint.script import Script


@rule("E411", WARNING)
def harmful_setting(script: Script) -> Iterator[Hit]:
    """Harmful setting in a training of several nodes.

    gloo has no `^` to exclude an interface, and looks for one with this name. With
    `CUDA_LAUNCH_BLOCKING=1`, the host waits for each kernel, so computation and communication do
    not overlap: it is for debugging. If the line has a comment, it is advice.

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
                fix="remove the line, and set the variable only for debugging",
                severity=ADVICE if _has_comment(script, assignment) else None,
            )


def _has_comment(script: Script, at: Located) -> bool:
    """Tell whether a comment is on a line or on the one before."""
    return any("#" in text for text in script.lines_of(at.path)[max(0, at.line - 2) : at.line])
