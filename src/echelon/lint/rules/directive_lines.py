"""E101 to E109: `#SBATCH` directives that Slurm ignores, rejects or misreads."""

import difflib
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from echelon.clusters.slurm.options import SBATCH, SRUN, parse_sbatch, split_directive
from echelon.core.nodes import expand
from echelon.core.units import counted
from echelon.errors import UsageError
from echelon.lint.edits import Edit, apply_edits, insert_line, replace_group
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.request import Directive
from echelon.lint.rule import ADVICE, ERROR, WARNING, Hit, Rule
from echelon.lint.rules.arguments import find_given_twice
from echelon.lint.rules.placeholders import placeholder_in
from echelon.lint.source import BYTE_ORDER_MARK
from echelon.lint.subject import Subject

_TWICE = 2
_GATHERED = frozenset({"mail-type", "licenses", "dependency", "export"})
"""Options that are often repeated; some versions of Slurm combine the values."""
_NEVER_EMPTY = frozenset(
    {
        *("nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "cpus-per-gpu"),
        *("mem", "mem-per-cpu", "mem-per-gpu", "time", "time-min", "gres", "partition"),
        *("nodelist", "mail-type", "distribution", "begin", "open-mode", "hint", "signal"),
    }
)
"""Options whose empty value sbatch 22.05 rejects, as tried; it ignores other empty options."""
_MISSPELT = pattern(
    r"#(?!SBATCH|sbatch)(?i:sbatch)\s+-|"
    r"#\s?(SBACTH|SBTACH|SBATH|SBATC|SBTCH|SABTCH|SBATHC|SBACH|BATCH|Sbatch)\s+-|"
    r"#sbatch\s+-(?!.*[\s/]\S+\.(sh|bash|sbatch|slurm|job)\b)"  # how to submit a script
)
_FILLED_IN = pattern(r"\s*(?:\{\{[^{}]*\}\}|\{%[^{}]*%\})\s*")
"""A line of a template, which another program replaces."""
_OF_FILE_NAMES = pattern(r"%\d*[AaJjNnstux](?![A-Za-z0-9])")
_SHEBANG = pattern(r"(?m)^[ \t]{0,80}#!\s?/")
_WITH_NOTE = pattern(r"#SBATCH\s+-\S+(?: [A-Za-z]+){2,}\s*$")
"""A directive with a sentence behind it."""
_WITHOUT_HASH = pattern(r"SBATCH\s+--?[a-zA-Z]")
_ONE_DASH = pattern(r"(?<=\s)(-)(\w[\w-]+)(?=[\s=]|$)")
_BLANKS = pattern(r"--[\w-]+(\s+=\s*|=\s+)(?=[\w/%'\"])")


def _end_of_head(text: str) -> int:
    """Return the number of the line where Slurm stops reading directives."""
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.lstrip().startswith("#") and not _FILLED_IN.fullmatch(line):
            return number
    return len(lines) + 1


def find_missing_shebang(subject: Subject) -> Iterator[Hit]:
    lines = subject.text.split("\n")
    comments = subject.batch.comments if subject.batch else []
    # Lines in a string or a here-document are directives of another script.
    late = any(text.startswith("#SBATCH -") and not column for _, text, column in comments)
    if not (subject.is_job or late) or lines[0].startswith("#!"):
        return
    later = next((n for n, line in enumerate(lines, 1) if _SHEBANG.match(line)), 0)
    if not later and any(line.startswith("#SBATCH") and placeholder_in(line) for line in lines):
        return  # a part from which another program makes a script
    if not later and _goes_through_another(lines, subject.path):
        return
    what = f"The `#!` line is line {later}, not line 1" if later else "There is no `#!` line"
    yield Hit(
        at=Place(subject.path, 1),
        what=f"{what}. sbatch rejects the script.",
        fix="make #!/bin/bash the first line of the file",
        edits=_first_line(lines, later) if subject.is_job else (),
    )


def _goes_through_another(lines: list[str], path: str) -> bool:
    """Tell whether a comment shows how to pass the script to another one, which may complete it."""
    name = path.rpartition("/")[2]
    for comment in (line for line in lines if line.startswith("#")):
        words = [word.rpartition("/")[2] for word in comment.split()]
        before = words[: words.index(name)] if name in words else []
        if any(word.endswith((".sh", ".bash", ".py")) for word in before):
            return True
    return False


def _first_line(lines: list[str], later: int) -> tuple[Edit, ...]:
    """Return the edits that put `#!` in line 1, if only blanks are before it."""
    if not later:
        return (insert_line(1, "#!/bin/bash"),)
    if any(line.strip() for line in lines[: later - 1]):
        return ()
    blanks = len(lines[later - 1]) - len(lines[later - 1].lstrip())
    return (Edit(line=1, column=1, end_line=later, end_column=blanks + 1, text=""),)


def find_late_directives(subject: Subject) -> Iterator[Hit]:
    if subject.batch is None:
        return
    end = _end_of_head(subject.text)
    comments = subject.batch.comments
    late = [line for line, text, column in comments if text.startswith("#SBATCH") and not column]
    lines = subject.text.split("\n")
    given = {
        line.split("#SBATCH", 1)[1].split("#")[0].strip()
        for line in lines[: end - 1]
        if line.startswith("#SBATCH")
    }
    late = [line for line in late if line > end]
    late = [n for n in late if lines[n - 1][7:].split("#")[0].strip() not in given]
    if late:
        rest = len(late) - 1
        more = f" It also ignores {counted(rest, 'later directive')}." if rest else ""
        yield Hit(
            at=Place(subject.path, late[0]),
            what="Slurm ignores this directive because it comes after a command (line "
            f"{end}).{more}",
            fix="move all #SBATCH lines directly below the #! line",
            # A file of several scripts, to choose from or to split, or a note for people.
            severity=WARNING
            if _SHEBANG.search("\n".join(lines[end - 1 : late[0]]))
            or all(_WITH_NOTE.match(lines[n - 1]) for n in late)
            else None,
        )


def find_lookalikes(subject: Subject) -> Iterator[Hit]:
    if subject.batch is None:
        return
    lines, end = subject.text.split("\n"), _end_of_head(subject.text)
    head = lines[: end - 1]
    if _WITHOUT_HASH.match("".join(lines[end - 1 : end])):
        yield Hit(
            at=Place(subject.path, end),
            what="`#` is missing, so bash runs this line as a command. Slurm ignores it and all "
            "later directives.",
            fix=f"#{lines[end - 1]}",
        )
    given = [line.split()[1:] for line in head if line.startswith("#SBATCH ")]
    for number, line in enumerate(head, 1):
        indented = re.match(r"[ \t]+#SBATCH\s+-", line)
        if indented or _MISSPELT.match(line.lstrip()):
            if line.split()[1:] in given:
                continue  # another line repeats it
            mistake = "indented" if indented else "misspelled"
            yield Hit(
                at=Place(subject.path, number),
                what=f"`#SBATCH` is {mistake}, so Slurm treats this line as a comment.",
                fix=re.sub(r"^\s*#\s?\w+", "#SBATCH", line),
                severity=WARNING if line.startswith("#sbatch") else None,  # may be switched off
            )


def find_unknown_options(subject: Subject) -> Iterator[Hit]:
    for item in subject.directives.items:
        if item.option in SBATCH.known or not (near := _nearest(item.option, SBATCH.known)):
            continue
        yield Hit(
            at=Place(subject.path, item.line),
            what=f"sbatch has no option `--{item.option}` and rejects the script.",
            fix=f"#SBATCH --{near}={item.value}" if item.value else f"#SBATCH --{near}",
            edits=_in_directive(subject, item.line, rf"--{re.escape(item.option)}(?![\w-])", near),
        )
    for command, options, _ in subject.sruns:
        for name in options:
            known = any(option.startswith(name) for option in SRUN.known)
            if name.startswith("-") or known or not (near := _nearest(name, SRUN.known)):
                continue
            yield Hit(
                at=Place(command.path, options[name].line or command.line),
                what=f"srun has no option `--{name}` and fails immediately.",
                fix=f"--{near}",
            )


def _in_directive(subject: Subject, line: int, pattern: str, option: str) -> tuple[Edit, ...]:
    """Return the edit that replaces the name of an option, if the line has it once."""
    found = list(re.finditer(pattern, subject.text.split("\n")[line - 1]))
    return tuple(replace_group(line, match, f"--{option}") for match in found[:1] if not found[1:])


def _nearest(name: str, known: frozenset[str]) -> str:
    """Return the most similar option; an empty string if the name may belong to a plugin."""
    dashed = name.replace("_", "-").lower()
    if dashed in known:
        return dashed
    found = difflib.get_close_matches(dashed, sorted(known), n=1, cutoff=0.8)
    return found[0] if found else ""


def find_broken_lines(subject: Subject) -> Iterator[Hit]:
    lines = subject.text.split("\n")
    for line, message in subject.directives.broken:
        if placeholder_in(lines[line - 1]):
            continue  # reported by E116
        edits = _repairs(line, lines[line - 1])
        repaired = apply_edits(lines[line - 1], (replace(e, line=1, end_line=1) for e in edits))
        yield Hit(
            at=Place(subject.path, line),
            what="sbatch rejects or misreads this directive: "
            f"{message.removeprefix(f'line {line}: ')}.",
            fix=repaired
            if edits
            else "write #SBATCH --option=value, with no spaces around = and all quotes closed",
            edits=edits,
        )
    for item in subject.directives.items:
        written = "=" in lines[item.line - 1]
        empty = item.value == "" or (item.option == "gres" and item.value.endswith(":"))
        if not empty or "=#" in lines[item.line - 1]:
            continue  # =#NAME# is a placeholder, which E116 reports
        if item.option in _NEVER_EMPTY if written else item.option in SBATCH.valued:
            yield Hit(
                at=Place(subject.path, item.line),
                what="The option has no value. sbatch rejects the script"
                + ("." if written else ", or takes the next directive as the value."),
                fix=f"#SBATCH --{item.option}=…",
                severity=WARNING if written else None,  # a form to fill in
            )


def _repairs(number: int, line: str) -> tuple[Edit, ...]:
    """Return the edits that remove blanks around `=` and add dashes, if it is then valid."""
    around = list(_BLANKS.finditer(line))
    edits = tuple(replace_group(number, match, "=", 1) for match in around)
    dashes = (m for m in _ONE_DASH.finditer(line) if m[2] in SBATCH.known)
    edits += tuple(replace_group(number, match, "--", 1) for match in dashes)
    shifted = (replace(e, line=1, end_line=1) for e in edits)
    _, _, directive = apply_edits(line, shifted).partition("#SBATCH")
    try:
        parse_sbatch(split_directive(directive, number))
    except UsageError:
        return ()
    return edits


def find_variables(subject: Subject) -> Iterator[Hit]:
    for item in subject.directives.items:
        if item.option == "comment":
            continue
        variable = re.search(r"\$(\{\w+[^{}]*\}|\w+)", item.value)
        home = item.value.startswith("~/")
        if variable or home:
            shown = variable[0] if variable else "~"
            better = "%j" if "JOB" in shown else "the value, or pass it to sbatch as an option"
            yield Hit(
                at=Place(subject.path, item.line),
                what="Slurm does not expand variables in directives. It uses the text literally.",
                fix=f"replace {shown} with {better}",
                # A plugin may expand it.
                severity=WARNING if item.option.startswith("container") else None,
            )
        elif item.option == "job-name" and (found := _OF_FILE_NAMES.search(item.value)):
            yield Hit(
                at=Place(subject.path, item.line),
                what=f"Slurm replaces {found[0]} only in file names. The job's name contains it "
                "literally.",
                fix=f"remove {found[0]}; squeue shows IDs in a column of their own",
                severity=ADVICE,
            )
        elif item.option == "mail-user" and (found := re.search(r"%[A-Za-z]", item.value)):
            yield Hit(
                at=Place(subject.path, item.line),
                what=f"Slurm replaces {found[0]} only in file names. Mail to this address does not "
                "arrive.",
                fix=f"replace {found[0]} with your user name",
                severity=WARNING,
            )


def find_repeated(subject: Subject) -> Iterator[Hit]:
    yield from find_given_twice(subject)
    if subject.directives.several:
        return
    seen: dict[str, Directive] = {}
    times = Counter(item.option for item in subject.directives.items)
    last = {item.option: _parts(item) for item in subject.directives.items}
    for item in subject.directives.items:
        before = seen.get(item.option)
        if item.option in _GATHERED:
            continue
        lost = before and not _parts(before) <= last[item.option]
        if before and lost and before.value != item.value:
            here = before.line == item.line
            where = "earlier in this line" if here else f"on line {before.line}"
            yield Hit(
                at=Place(subject.path, item.line),
                what=f"`--{item.option}` has another value {where}. Slurm uses the last one, "
                f"'{item.value}'.",
                fix=f"remove `--{item.option}={before.value}` or `--{item.option}={item.value}`"
                if here
                else f"remove line {before.line} or this line",
                # A file with several requests to choose from.
                severity=ADVICE if times[item.option] > _TWICE else None,
            )
        seen[item.option] = item


def _parts(item: Directive) -> frozenset[str]:
    """Return the parts of a value that lists several."""
    if item.option in ("exclude", "nodelist"):
        with suppress(UsageError):
            return frozenset(expand(item.value))
    return frozenset(re.split(r"[,&|]", item.value))


def find_dos_lines(subject: Subject) -> Iterator[Hit]:
    for path, text, effect in _shell_files(subject):
        if "\r\n" in text:
            yield Hit(
                at=Place(path, text[: text.index("\r\n")].count("\n") + 1),
                what=f"The script has Windows line endings (CRLF). {effect}.",
                fix=f"sed -i 's/\\r$//' {path}",
                edits=tuple(
                    replace_group(number, match, "")
                    for number, line in enumerate(text.split("\n"), start=1)
                    if (match := re.search(r"\r$", line))
                ),
            )


def find_byte_order_mark(subject: Subject) -> Iterator[Hit]:
    for path, text, effect in _shell_files(subject):
        if text.startswith(BYTE_ORDER_MARK):
            yield Hit(
                at=Place(path, 1),
                what=f"The script starts with an invisible byte order mark. {effect}.",
                fix=f"sed -i '1s/^\\xef\\xbb\\xbf//' {path}",
                edits=(Edit(line=1, column=1, end_line=1, end_column=2, text=""),),
            )


def _shell_files(subject: Subject) -> Iterator[tuple[str, str, str]]:
    """Yield path and unmodified text of each shell script, and what happens to a bad one."""
    if subject.batch is not None:
        effect = "sbatch rejects it" if subject.is_job else "Bash misreads it"
        yield subject.path, subject.raw_text, effect
    for path in dict.fromkeys(shell.path for shell in subject.shells):
        if path != subject.path and (text := subject.files.read(path)):
            yield path, text, "Bash misreads it"


RULES = (
    Rule(
        code="E101",
        title="missing or misplaced `#!` line",
        severity=ERROR,
        check=find_missing_shebang,
        why="sbatch accepts only scripts whose first two characters are `#!`. Nothing may come "
        "before them, not even a blank line.",
        example="""\
+#!/bin/bash
 #SBATCH --nodes=1    # <- here
 python train.py
""",
    ),
    Rule(
        code="E102",
        title="`#SBATCH` directive after the first command",
        severity=ERROR,
        check=find_late_directives,
        why="Slurm reads directives up to the first line that is neither blank nor a comment. It "
        "ignores later ones, and the job runs with default values.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=1
+#SBATCH --gres=gpu:1
 module load cuda
-#SBATCH --gres=gpu:1    # <- here
 python train.py
""",
    ),
    Rule(
        code="E103",
        title="misspelled or indented `#SBATCH` directive",
        severity=ERROR,
        check=find_lookalikes,
        why="A directive starts with `#SBATCH`, in capital letters and in the first column. Slurm "
        "treats anything else as a comment and does not warn about it.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=1
-#SBACTH --gres=gpu:1    # <- here
+#SBATCH --gres=gpu:1
+##SBATCH --time=10   (a second # disables a directive)
 python train.py
""",
    ),
    Rule(
        code="E104",
        title="unknown Slurm option",
        severity=ERROR,
        check=find_unknown_options,
        why="sbatch and srun exit with an error if they do not know an option. Lint reports only "
        "names that resemble a known option; others may belong to a plugin.",
        example="""\
 #!/bin/bash
-#SBATCH --ntask-per-nodes=1    # <- here
+#SBATCH --ntasks-per-node=1
+#SBATCH --container-image=pytorch.sqsh
 python train.py
""",
    ),
    Rule(
        code="E105",
        title="malformed `#SBATCH` directive",
        severity=ERROR,
        check=find_broken_lines,
        why="Common causes are a stray word, spaces around `=` and an unclosed quote.",
        example="""\
 #!/bin/bash
-#SBATCH --nodes = 2    # <- here
+#SBATCH --nodes=2    # two of them
 srun hostname
""",
    ),
    Rule(
        code="E106",
        title="variable in an `#SBATCH` directive",
        severity=ERROR,
        check=find_variables,
        why="The shell treats directives as comments, and Slurm does not expand variables. In "
        "file names, Slurm replaces only its own patterns, such as `%j` and `%x`.",
        example="""\
 #!/bin/bash
-#SBATCH --output=$HOME/run.%j    # <- here
+#SBATCH --output=run.%j
 python train.py
""",
    ),
    Rule(
        code="E107",
        title="option given twice",
        severity=WARNING,
        check=find_repeated,
        why="Slurm uses the last value. The earlier line has no effect and misleads readers. "
        "argparse does the same with the options of a Python script.",
        example="""\
 #!/bin/bash
-#SBATCH --mem=16G
 #SBATCH --mem=64G    # <- here
 python train.py
""",
    ),
    Rule(
        code="E108",
        title="Windows line endings",
        severity=ERROR,
        check=find_dos_lines,
        why="Editors on Windows end each line with CR and LF. sbatch rejects scripts with CR: "
        "'Batch script contains DOS line breaks'.",
        example="""\
 #!/bin/bash
-#SBATCH --nodes=1    # <- here\r
-python train.py\r
+#SBATCH --nodes=1
+python train.py
""",
    ),
    Rule(
        code="E109",
        title="byte order mark",
        severity=ERROR,
        check=find_byte_order_mark,
        why="Some editors on Windows put this character at the start of a file. sbatch then does "
        "not find `#!` there: 'This does not look like a batch script'.",
        example="""\
-\ufeff#!/bin/bash
+#!/bin/bash
 #SBATCH --nodes=1
 python train.py
""",
    ),
)
