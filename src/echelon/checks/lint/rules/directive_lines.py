"""E101 to E109: whether Slurm reads the #SBATCH lines, and as they are meant."""

import difflib
import re
from collections.abc import Iterator

from echelon.checks.lint.directives import SBATCH_OPTIONS, SRUN_OPTIONS, Directive
from echelon.checks.lint.rule import ERROR, WARNING, Hit, Rule
from echelon.checks.lint.source import BYTE_ORDER_MARK
from echelon.checks.lint.subject import Subject

_GATHERED = frozenset({"mail-type", "licenses", "dependency", "export"})
"""Options that people repeat, and some versions of Slurm gather."""
_MISSPELT = re.compile(r"#\s?(SBACTH|SBTACH|SBATH|SBATC|SBTCH|SABTCH|SBATHC|sbatch|Sbatch)\s+-")


def _end_of_head(text: str) -> int:
    """Return the line at which Slurm stops to look for #SBATCH lines."""
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            return number
    return len(lines) + 1


def find_missing_shebang(subject: Subject) -> Iterator[Hit]:
    lines = subject.text.split("\n")
    if not subject.is_job or lines[0].startswith("#!"):
        return
    later = next((n for n, line in enumerate(lines, 1) if line.strip().startswith("#!/")), 0)
    what = (
        f"the #! line is line {later}, and has to be the first" if later else "there is no #! line"
    )
    yield Hit(
        path=subject.path,
        line=1,
        what=f"sbatch refuses the script, because {what}.",
        fix="#!/bin/bash   as the first line, with nothing before it",
    )


def find_late_directives(subject: Subject) -> Iterator[Hit]:
    if subject.batch is None:
        return
    end = _end_of_head(subject.text)
    comments = subject.batch.comments
    late = [line for line, text, column in comments if text.startswith("#SBATCH") and not column]
    late = [line for line in late if line > end]
    if late:
        more = f" So are {len(late) - 1} more behind it." if late[1:] else ""
        yield Hit(
            path=subject.path,
            line=late[0],
            what=f"Slurm ignores this line, because a command stands before it (line {end}).{more}",
            fix="move the #SBATCH lines up, right below the #! line",
        )


def find_lookalikes(subject: Subject) -> Iterator[Hit]:
    if subject.batch is None:
        return
    for number, line in enumerate(subject.text.split("\n")[: _end_of_head(subject.text) - 1], 1):
        indented = re.match(r"[ \t]+#SBATCH\s+-", line)
        if indented or _MISSPELT.match(line.lstrip()):
            reason = "it does not begin in the first column" if indented else "of its spelling"
            yield Hit(
                path=subject.path,
                line=number,
                what=f"Slurm takes this line for a comment, because {reason}.",
                fix=re.sub(r"^\s*#\s?\w+", "#SBATCH", line),
            )


def find_unknown_options(subject: Subject) -> Iterator[Hit]:
    for item in subject.directives.items:
        if item.option in SBATCH_OPTIONS or not (near := _nearest(item.option, SBATCH_OPTIONS)):
            continue
        yield Hit(
            path=subject.path,
            line=item.line,
            what=f"sbatch refuses the script: it has no option --{item.option}.",
            fix=f"#SBATCH --{near}={item.value}" if item.value else f"#SBATCH --{near}",
        )
    for command, options, _ in subject.sruns:
        for name in options:
            known = any(option.startswith(name) for option in SRUN_OPTIONS)
            if len(name) == 1 or known or not (near := _nearest(name, SRUN_OPTIONS)):
                continue
            yield Hit(
                path=command.path,
                line=options[name].line or command.line,
                what=f"srun fails at once: it has no option --{name}.",
                fix=f"--{near}",
            )


def _nearest(name: str, known: frozenset[str]) -> str:
    """Return the option that was meant; nothing when it may be a plugin's."""
    dashed = name.replace("_", "-").lower()
    if dashed in known:
        return dashed
    found = difflib.get_close_matches(dashed, sorted(known), n=1, cutoff=0.8)
    return found[0] if found else ""


def find_broken_lines(subject: Subject) -> Iterator[Hit]:
    for line, message in subject.directives.broken:
        yield Hit(
            path=subject.path,
            line=line,
            what=f"sbatch does not read this as it is meant: {message}.",
            fix="#SBATCH --option=value, without blanks around the = and with its quotes closed",
        )


def find_variables(subject: Subject) -> Iterator[Hit]:
    for item in subject.directives.items:
        if item.option == "comment":
            continue
        variable = re.search(r"\$\{?\w+", item.value)
        home = item.value.startswith("~/")
        if variable or home:
            shown = variable[0] if variable else "~"
            better = "%j" if "JOB" in shown else "the value itself, or give it to sbatch as a flag"
            yield Hit(
                path=subject.path,
                line=item.line,
                what=f"Slurm takes '{shown}' as it stands: nothing is expanded in #SBATCH lines.",
                fix=f"write {better}",
            )


def find_repeated(subject: Subject) -> Iterator[Hit]:
    if subject.directives.several:
        return
    seen: dict[str, Directive] = {}
    for item in subject.directives.items:
        before = seen.get(item.option)
        if item.option in _GATHERED:
            continue
        if before and before.value != item.value and before.line != item.line:
            yield Hit(
                path=subject.path,
                line=item.line,
                what=f"--{item.option} stands on line {before.line} too, with another value: only "
                f"this one, '{item.value}', counts.",
                fix=f"take out line {before.line}, or this one",
            )
        seen[item.option] = item


def find_dos_lines(subject: Subject) -> Iterator[Hit]:
    for path, text, who in _shell_files(subject):
        if "\r\n" in text:
            yield Hit(
                path=path,
                line=text[: text.index("\r\n")].count("\n") + 1,
                what=f"{who} the script: it has the line ends of Windows.",
                fix=f"sed -i 's/\\r$//' {path}",
            )


def find_byte_order_mark(subject: Subject) -> Iterator[Hit]:
    for path, text, who in _shell_files(subject):
        if text.startswith(BYTE_ORDER_MARK):
            yield Hit(
                path=path,
                line=1,
                what=f"{who} the script: three bytes that no editor shows, a byte order mark, "
                "stand before its #!.",
                fix=f"sed -i '1s/^\\xef\\xbb\\xbf//' {path}",
            )


def _shell_files(subject: Subject) -> Iterator[tuple[str, str, str]]:
    """Yield path and text of all shell scripts, as they are on the disk, and who refuses them."""
    if subject.batch is not None:
        refuses = "sbatch refuses" if subject.is_job else "Bash stumbles over"
        yield subject.path, subject.raw_text, refuses
    for path in dict.fromkeys(shell.path for shell in subject.shells):
        if path != subject.path and (text := subject.files.read(path)):
            yield path, text, "Bash stumbles over"


RULES = (
    Rule(
        code="E101",
        title="no shebang, or a late one",
        severity=ERROR,
        check=find_missing_shebang,
        why="sbatch asks for a script, and knows one by the #! at the very beginning.",
        bad="""\
#SBATCH --nodes=1    # <- here
python train.py
""",
        good="""\
#!/bin/bash
#SBATCH --nodes=1
python train.py
""",
    ),
    Rule(
        code="E102",
        title="#SBATCH behind the first command",
        severity=ERROR,
        check=find_late_directives,
        why="Slurm reads #SBATCH lines up to the first line that is neither blank nor a comment. "
        "The others are comments, and the job runs with defaults.",
        bad="""\
#!/bin/bash
#SBATCH --nodes=1
module load cuda
#SBATCH --gres=gpu:1    # <- here
python train.py
""",
        good="""\
#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gres=gpu:1
module load cuda
python train.py
""",
    ),
    Rule(
        code="E103",
        title="a line that only looks like #SBATCH",
        severity=ERROR,
        check=find_lookalikes,
        why="The word has to be #SBATCH, in capitals and in the first column. Anything else is a "
        "comment, and nobody says so.",
        bad="""\
#!/bin/bash
#SBATCH --nodes=1
#SBACTH --gres=gpu:1    # <- here
python train.py
""",
        good="""\
#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gres=gpu:1
##SBATCH --time=10   (a second # is the usual way to turn one off)
python train.py
""",
    ),
    Rule(
        code="E104",
        title="an option that Slurm does not have",
        severity=ERROR,
        check=find_unknown_options,
        why="Names that are near to a real option are reported; others may belong to a plugin.",
        bad="""\
#!/bin/bash
#SBATCH --ntask-per-nodes=1    # <- here
python train.py
""",
        good="""\
#!/bin/bash
#SBATCH --ntasks-per-node=1
#SBATCH --container-image=pytorch.sqsh
python train.py
""",
    ),
    Rule(
        code="E105",
        title="an #SBATCH line that cannot be read",
        severity=ERROR,
        check=find_broken_lines,
        why="A stray word, blanks around the =, or a quote that is not closed.",
        bad="""\
#!/bin/bash
#SBATCH --nodes = 2    # <- here
srun hostname
""",
        good="""\
#!/bin/bash
#SBATCH --nodes=2    # two of them
srun hostname
""",
    ),
    Rule(
        code="E106",
        title="a variable in an #SBATCH line",
        severity=ERROR,
        check=find_variables,
        why="#SBATCH lines are comments to the shell. Slurm reads them, and expands nothing but "
        "its own %j, %x and the like, in file names.",
        bad="""\
#!/bin/bash
#SBATCH --output=$HOME/run.%j    # <- here
python train.py
""",
        good="""\
#!/bin/bash
#SBATCH --output=run.%j
python train.py
""",
    ),
    Rule(
        code="E107",
        title="the same option twice",
        severity=WARNING,
        check=find_repeated,
        why="The last one counts; the other is read by people only.",
        bad="""\
#!/bin/bash
#SBATCH --mem=16G
#SBATCH --mem=64G    # <- here
python train.py
""",
        good="""\
#!/bin/bash
#SBATCH --mem=64G
python train.py
""",
    ),
    Rule(
        code="E108",
        title="line ends of Windows",
        severity=ERROR,
        check=find_dos_lines,
        why="An editor on Windows ends lines with two characters; sbatch refuses the first.",
        bad="#!/bin/bash\n#SBATCH --nodes=1    # <- here\r\npython train.py\r\n",
        good="#!/bin/bash\n#SBATCH --nodes=1\npython train.py\n",
    ),
    Rule(
        code="E109",
        title="a byte order mark",
        severity=ERROR,
        check=find_byte_order_mark,
        why="Editors of Windows write it in front of a text. sbatch then finds no #! at the "
        "beginning: 'This does not look like a batch script'.",
        bad="\ufeff#!/bin/bash\n#SBATCH --nodes=1\npython train.py\n",
        good="#!/bin/bash\n#SBATCH --nodes=1\npython train.py\n",
    ),
)
