"""E207 and E208: command lines that do not do what they look like."""

from collections.abc import Iterator

from echelon.checks.lint.bash import Where
from echelon.checks.lint.rule import ERROR, Hit, Rule
from echelon.checks.lint.subject import Subject


def find_local_rank_argument(subject: Subject) -> Iterator[Hit]:
    for one in subject.started:
        launcher, python = one.launch.launcher, one.python
        if launcher is None or launcher.kind != "launch" or python is None:
            continue
        if "use-env" in launcher.options or not python.calls("parse_args"):
            continue
        if "--local-rank" in python.text or python.calls("parse_known_args"):
            continue
        yield Hit(
            path=one.launch.path,
            line=one.launch.line,
            what="torch.distributed.launch hands --local-rank=N to the script, which does not know "
            "it: 'unrecognized arguments'.",
            fix="torchrun   instead of python -m torch.distributed.launch, and "
            'int(os.environ["LOCAL_RANK"]) in the script',
        )


def find_broken_continuations(subject: Subject) -> Iterator[Hit]:
    for shell in subject.shells:
        if shell.where is Where.TASK and shell.path == subject.path:
            continue  # a part of a text that has been looked at
        lines = shell.text.split("\n")
        for number, line in enumerate(lines[:-1], start=1):
            after = lines[number].lstrip()
            if line.lstrip().startswith("#") or not after.startswith(("-", "#")):
                continue
            if (
                line.rstrip(" \t") != line
                and line.rstrip(" \t").endswith(" \\")
                and after[0] == "-"
            ):
                what = "A blank behind the \\ ends the command here, and the next line is run as "
                what += f"one of its own: '{after.split()[0]}: command not found'."
                fix = "take out the blanks behind the \\"
            elif line.endswith("\\") and after[0] == "#" and _option_follows(lines, number):
                what = "The comment on the next line ends the command, and the options behind it "
                what += "are run as a command of their own."
                fix = "move the comment above the command"
            else:
                continue
            yield Hit(path=shell.path, line=number, what=what, fix=fix)


def _option_follows(lines: list[str], comment: int) -> bool:
    rest = [line.strip() for line in lines[comment + 1 :]]
    following = next((line for line in rest if not line.startswith("#")), "")
    return following.startswith("-")


RULES = (
    Rule(
        code="E207",
        title="torch.distributed.launch, and a script without --local-rank",
        severity=ERROR,
        check=find_local_rank_argument,
        why="The old launcher tells the local rank by an argument, with a dash since PyTorch 2.0. "
        "torchrun sets LOCAL_RANK instead.",
        bad="""\
#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=2
#SBATCH --exclusive
python -m torch.distributed.launch --nproc_per_node=2 --master_port=29501 train.py    # <- here
--- train.py
import argparse
parser = argparse.ArgumentParser()
args = parser.parse_args()
""",
        good="""\
#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=2
torchrun --standalone --nproc_per_node=2 train.py
--- train.py
import argparse
parser = argparse.ArgumentParser()
args = parser.parse_args()
""",
    ),
    Rule(
        code="E208",
        title="a command that ends too early",
        severity=ERROR,
        check=find_broken_continuations,
        why="A \\ joins lines only as the last character of its line, and a comment between two "
        "lines ends what it stands in.",
        bad="#!/bin/bash\n#SBATCH --nodes=1\npython prepare.py \\ \n    --fast\n",
        good="#!/bin/bash\n#SBATCH --nodes=1\npython prepare.py \\\n    --fast\n",
    ),
)
