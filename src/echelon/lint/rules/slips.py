"""E315 and E316: slips that bash accepts; also parts of E212, E313 and E314."""

import re
from collections.abc import Iterator

from tree_sitter import Node

from echelon.lint.bash import Shell
from echelon.lint.facts import sources_others
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.reading import parse_bash
from echelon.lint.rule import WARNING, Hit, Rule
from echelon.lint.subject import Subject

_REDIRECTS = pattern(r"\[\s+(?:!\s+)?([^\s\[\]]+)\s+(>=?|<=?)\s+([^\s\[\]]+)\s+\]")
_OPERATORS = {">": "-gt", ">=": "-ge", "<": "-lt", "<=": "-le"}
_JOINED = pattern(r"(\[\[?)\s+(\"?\$\{?\w+\}?\"?)(==?|!=)([\w\"'.$-]+)\s+\]\]?")
_RANGE = pattern(r"\{(?:\d+|\$\{?\w+\}?)\.\.(?:\d+|\$\{?\w+\}?)\}")
_LISTS = frozenset({"PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "LIBRARY_PATH", "CPATH", "MANPATH"})
_SYSTEM = pattern(r"/usr/bin|\$\{?PATH\b|getconf|/s?bin:|:/bin\b")
_OF_SLURM = frozenset(
    {
        *("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NAME", "SLURM_ARRAY_TASK_ID", "SLURM_NODEID"),
        *("SLURM_ARRAY_JOB_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
    }
)
_MODULE_COMMANDS = ("load", "unload", "purge", "list", "avail", "swap", "use", "unuse", "reset")
_VARIABLE = pattern(r"\"?\$\{?\w+\}?\"?")
_USED = pattern(r"(?<!\\)\$\{?(\w+)")
_INCREMENT = pattern(r"\s*\(\(\s*([A-Za-z_]\w*)\+\+\s*\)\)\s*(?:#.*)?$")
_SET_OFF = pattern(
    r"\s*(?:export\s+)?([A-Za-z_]\w*)=[\"']?(?:\$\{\1:-)?[\"']?(?:false|False|0|no)[\"']?\}?[\"']?\s*$"
)
_IF_SET = pattern(r"\$\{([A-Za-z_]\w*):?\+\s*-[^}]{1,100}\}")
_OF_FILES = frozenset({"cd", "source", ".", "mkdir", "cp", "mv", "ln", "touch", "tee", "cat", "ls"})
_VARIABLES = {
    "A": "{SLURM_ARRAY_JOB_ID}",
    "a": "{SLURM_ARRAY_TASK_ID}",
    "j": "{SLURM_JOB_ID}",
    "J": "{SLURM_JOB_ID}",
    "N": "{SLURMD_NODENAME}",
    "u": "{USER}",
    "x": "{SLURM_JOB_NAME}",
}
_SLURM_PATTERN = pattern(r"(?<![^/_.-])%([AaJjNux])(?![A-Za-z0-9%])")
"""A pattern of Slurm's file names in a path, for which bash has a variable."""
_MADE = pattern(r"\$\(|`|://")
_DECLARES = pattern(
    r"\s*(?:export|local|declare|readonly)\s+((?:[A-Za-z_]\w*=\S*(?:[ \t]+|$)){2,20})(?:#.*)?$"
)
_PART = pattern(r"([A-Za-z_]\w*)=(\S*)")
_OF_BASH = pattern(r"#!.*\bbash\b(?!.*\s-\w*i)")
_OTHER_SHELL = pattern(r"#!.*\b(?:zsh|ksh|fish|t?csh)\b")


def find_constant_conditions(subject: Subject) -> Iterator[Hit]:
    batch = _plain(subject)
    tree = parse_bash(batch.text) if batch else None
    for node in _nodes(tree.root) if tree else ():
        if node.type != "test_command" or tree is None:
            continue
        text = " ".join(tree.source.text(node).split())
        at = Place(subject.path, tree.source.line(node.start_byte))
        if found := _REDIRECTS.fullmatch(text):
            left, operator, right = found.groups()
            way = "writes to" if operator[0] == ">" else "reads"
            effect = "The test is true" if operator[0] == ">" else "The test does not compare"
            yield Hit(
                at=at,
                what=f"In `[ … ]`, `{operator}` is a redirection: it {way} a file named "
                f"'{right if operator in '<>' else '='}'. {effect} whatever the value is.",
                fix=f"[ {left} {_OPERATORS[operator]} {right} ]",
            )
        elif found := _JOINED.fullmatch(text):
            bracket, left, operator, right = found.groups()
            yield Hit(
                at=at,
                what=f"Without spaces around `{operator}`, this is one word, so the test is always "
                "true.",
                fix=f"{bracket} {left} {operator} {right} {bracket.replace('[', ']')}",
            )


def _code(batch: Shell, *without: str) -> list[tuple[int, str]]:
    """Return the lines of a script with their numbers, without certain nodes of its tree.

    By default, these are here-documents.
    """
    tree = parse_bash(batch.text)
    inside = {
        number
        for body in _nodes(tree.root)
        if body.type in (without or ("heredoc_body",))
        for number in range(
            tree.source.line(body.start_byte), tree.source.line(max(0, body.end_byte - 1)) + 1
        )
    }
    lines = enumerate(batch.text.split("\n"), start=1)
    return [(number, line) for number, line in lines if number not in inside]


def find_always_true(subject: Subject) -> Iterator[Hit]:
    yield from find_constant_conditions(subject)
    yield from find_flags_that_are_set(subject)


def _plain(subject: Subject) -> Shell | None:
    """Return the job script, if it is bash that lint understands."""
    batch = subject.batch
    if batch is None or not subject.is_job or batch.suspect or batch.too_deep:
        return None
    return None if _OTHER_SHELL.match(batch.text) else batch


def _nodes(root: Node) -> Iterator[Node]:
    """Yield all nodes of a syntax tree, without the texts of here-documents."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        if node.type != "heredoc_body":
            waiting += reversed(node.named_children)


def find_ranges(subject: Subject) -> Iterator[Hit]:
    """Find `{1..$N}` in a loop. Part of E313."""
    batch = _plain(subject)
    tree = parse_bash(batch.text) if batch else None
    for node in _nodes(tree.root) if tree else ():
        if node.type != "for_statement" or tree is None:
            continue
        for child in node.named_children[1:-1]:
            text = tree.source.text(child)
            if _RANGE.fullmatch(text) and "$" in text:
                low, _, high = text.strip("{}").partition("..")
                yield Hit(
                    at=Place(subject.path, tree.source.line(node.start_byte)),
                    what=f"Bash expands braces before variables, so the loop runs once, with the "
                    f"text '{text}'.",
                    fix=f"$(seq {low} {high})",
                    severity=WARNING,
                )


def find_ending_arithmetic(subject: Subject) -> Iterator[Hit]:
    """Find `((n++))` of a variable that is 0, after `set -e`. Part of E511."""
    batch = _plain(subject)
    values: dict[str, set[str]] = {}
    for assignment in batch.assignments if batch else ():
        values.setdefault(assignment.name, set()).add(assignment.value.text)
    zero = {name for name, texts in values.items() if texts == {"0"}}
    if batch is None or not zero or "errexit" not in batch.settings:
        return
    if any(c.name == "set" and "+e" in c.text for c in batch.commands):
        return
    begin = min((c.line for c in batch.commands if c.name == "set"), default=0)
    for number, line in _code(batch, "heredoc_body", "function_definition"):  # perhaps a condition
        found = _INCREMENT.match(line)
        if found and found[1] in zero and number > begin:
            yield Hit(
                at=Place(subject.path, number),
                what=f"`(({found[1]}++))` has the status 1 if `{found[1]}` is 0. Because of "
                "`set -e`, the script ends here the first time.",
                fix=f"{found[1]}=$(({found[1]} + 1))",
                severity=WARNING,
            )
            return


def find_flags_that_are_set(subject: Subject) -> Iterator[Hit]:
    """Find `${FLAG:+--option}` of a variable that is `false`. Part of E315."""
    batch = _plain(subject)
    lines = _code(batch) if batch else []
    off = {m[1]: (n, ":-" in line) for n, line in lines if (m := _SET_OFF.match(line))}
    changed = {a.name for a in batch.assignments if a.value.text == ""} if batch else set()
    for number, line in lines:
        found = _IF_SET.search(line)
        if found is None or batch is None or line.lstrip().startswith("#"):
            continue
        unset = re.search(rf"\bunset\s[^\n]*\b{found[1]}\b", batch.text)
        at, keeps = off.get(found[1], (number, False))
        if at < number and found[1] not in changed and not unset:
            value = f"${{{found[1]}:-}}" if keeps else ""
            yield Hit(
                at=Place(subject.path, number),
                what=f"`{found[0]}` tests whether `{found[1]}` is empty. Its default (line {at}) "
                "is the text false or 0, so the option is always given.",
                fix=f'{found[1]}="{value}"  # in line {at}',
            )


def find_old_values(subject: Subject) -> Iterator[Hit]:
    """Find `export A=1 B=$A/b`, where `$A` is the value before. Part of E314."""
    batch = _plain(subject)
    for number, line in _code(batch) if batch else ():
        found = _DECLARES.match(line)
        parts = list(_PART.finditer(found[1])) if found else []
        for part in parts:
            earlier = {one[1] for one in parts if one.start() < part.start()}
            value = part[2].lstrip('"')
            used = set() if value[:1] == "'" else set(_USED.findall(value))
            if names := sorted(earlier & used):
                yield Hit(
                    at=Place(subject.path, number),
                    what=f"`${names[0]}` still has the value from before this line: bash expands "
                    f"all words of {line.split()[0]} before it assigns the first.",
                    fix=f"{line.split()[0]} {part[0]}  # on a line of its own",
                    severity=WARNING,
                )
                break


def find_names_in_lists(subject: Subject) -> Iterator[Hit]:
    """Find `LD_LIBRARY_PATH=/lib:LD_LIBRARY_PATH`. Part of E313."""
    for assignment in subject.assignments if _plain(subject) else ():
        parts = assignment.value.text.split(":")
        if assignment.name in _LISTS and assignment.name in parts:
            yield Hit(
                at=assignment,
                what=f"The list contains the text '{assignment.name}', not its previous value, "
                "because `$` is missing.",
                fix=f"${assignment.name}",
                severity=WARNING,
            )


def find_patterns_of_slurm(subject: Subject) -> Iterator[Hit]:
    """Find `cd /scratch/%u`, which only Slurm's own options replace. Part of E313."""
    for command in subject.commands if _plain(subject) else ():
        for word in command.arguments if command.name in _OF_FILES else ():
            found = [] if _MADE.search(word.text) else _SLURM_PATTERN.findall(word.text)
            if found:
                path = _SLURM_PATTERN.sub(lambda match: f"${_VARIABLES[match[1]]}", word.text)
                yield Hit(
                    at=Place(command.path, word.line or command.line),
                    what=f"Bash does not replace `%{found[0]}`: only options of Slurm such as "
                    f"--output do. {command.name} gets this text.",
                    fix=path,
                    severity=WARNING,
                )
                break


def find_lost_path(subject: Subject) -> Iterator[Hit]:
    batch = _plain(subject)
    for assignment in batch.assignments if batch else ():
        text = subject.line_at(assignment)
        written = re.match(r"\s*(?:export\s+)?PATH=(\S+)\s*(?:#.*)?$", text)
        if assignment.name != "PATH" or not written or _SYSTEM.search(written[1]):
            continue
        names = re.findall(r"\$\{?(\w+)", written[1])
        kept = (
            any(
                "PATH" in subject.line_at(a).partition("=")[2]
                for a in batch.assignments
                if a.name in names
            )
            if batch
            else True
        )
        if kept or "PATH" in "".join(names).upper() or _VARIABLE.fullmatch(written[1]):
            continue  # a variable that may contain the previous value
        if "`" in written[1] or "$(" in written[1]:
            continue
        yield Hit(
            at=assignment,
            what="PATH loses its previous value, so programs such as ls and srun are no longer "
            "found.",
            fix=f"export PATH={written[1]}:$PATH",
        )


def find_long_names(subject: Subject) -> Iterator[Hit]:
    """Find `$SLURM_JOB_ID_last`, which is not `${SLURM_JOB_ID}_last`. Part of E314."""
    batch = _plain(subject)
    if batch is None or sources_others(subject):
        return
    own = {a.name for a in batch.assignments}
    words = [w for c in batch.commands for w in (*c.words, *(a.value for a in c.assignments))]
    words += [a.value for a in batch.assignments]
    told = set[str]()
    for use in (use for word in words for use in word.uses):
        name = use.name
        if use.guarded or name in own or name in told or name.isupper():
            continue  # it may come from outside
        told.add(name)
        begins = (name[: end.start()] for end in re.finditer("_", name))
        begin = max((one for one in begins if one in _OF_SLURM or one in own), key=len, default="")
        if not begin or re.search(rf"(?<![$\w{{]){name}\b", batch.text):
            continue
        end = name.removeprefix(begin)
        yield Hit(
            at=Place(subject.path, use.line),
            what=f"Bash reads this as the variable `{name}`, which nothing sets, not as "
            f"`{begin}` with '{end}' behind it.",
            fix=f"${{{begin}}}{end}",
            severity=WARNING,
        )


def find_aliases(subject: Subject) -> Iterator[Hit]:
    """Find commands that are an alias. Part of E212."""
    batch = _plain(subject)
    if batch is None or not _OF_BASH.match(batch.text) or "expand_aliases" in batch.text:
        return
    for made in (c for c in batch.commands if c.name == "alias"):
        names = [word.text.partition("=")[0] for word in made.arguments if "=" in word.text]
        used = (c for c in batch.commands if c.line > made.line and c.name in names)
        for command in used:
            yield Hit(
                at=command,
                what=f"Bash expands no aliases in scripts, so this is not the alias of line "
                f"{made.line}.",
                fix=f'{command.name}() {{ … "$@"; }}  # a function, instead of the alias',
                severity=WARNING,
            )
            break


def find_misspelt_module(subject: Subject) -> Iterator[Hit]:
    """Find `module laod`. Part of E212."""
    for command in subject.commands if _plain(subject) else ():
        word = command.arguments[0] if command.arguments else None
        if command.name != "module" or word is None or not word.known:
            continue
        meant = [one for one in _MODULE_COMMANDS if sorted(one) == sorted(word.text)]
        if meant and meant[0] != word.text:
            yield Hit(
                at=command,
                what=f"`module` has no command '{word.text}', so nothing is loaded.",
                fix=f"module {meant[0]} …",
                severity=WARNING,
            )


RULES = (
    Rule(
        code="E315",
        title="condition that is always true",
        severity=WARNING,
        check=find_always_true,
        why="`[` is a command: `<` and `>` redirect its files, and its operators are words of "
        "their own. A single word is true if it is not empty.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=1
-if [ $SLURM_JOB_NUM_NODES > 1 ]; then    # <- here
+if [ $SLURM_JOB_NUM_NODES -gt 1 ]; then
     echo several nodes
 fi
 srun python train.py
""",
    ),
    Rule(
        code="E316",
        title="PATH without the system's programs",
        severity=WARNING,
        check=find_lost_path,
        why="Bash finds programs in the directories of PATH. Add a new directory to the existing "
        "value.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=1
-export PATH=$HOME/cuda/bin    # <- here
+export PATH=$HOME/cuda/bin:$PATH
 srun python train.py
""",
    ),
)
