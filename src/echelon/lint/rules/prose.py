"""E212: text that bash runs as a command."""

import re
from collections.abc import Iterator

from echelon.clusters.slurm.options import SBATCH
from echelon.lint.bash import Command
from echelon.lint.facts import sources_others
from echelon.lint.patterns import pattern
from echelon.lint.rule import ADVICE, WARNING, Hit, Rule
from echelon.lint.rules.slips import find_aliases, find_misspelt_module
from echelon.lint.subject import Subject

_WORD = pattern(r"[A-Za-z][a-z]*[,.:;!?]?")
_LITTLE = frozenset(
    {
        *("the", "a", "an", "this", "that", "these", "from", "above", "below", "for", "of", "to"),
        *("and", "or", "is", "are", "with", "your", "you", "our", "we", "on", "in", "by", "as"),
    }
)
"""Words that a sentence has and a command line rarely."""
_PROGRAMS = frozenset(
    {
        *("echo", "printf", "say", "figlet", "wall", "mail", "module", "ml", "for", "case"),
        "select",
        *("git", "set", "read", "export", "alias", "make", "which", "type", "command", "logger"),
        *("conda", "mamba", "spack", "srun", "sudo", "exec", "eval", "time", "nohup", "grep"),
        "man",
    }
)

_OFTEN_USED = (
    *("source", "export", "module", "python", "python3", "torchrun", "conda", "mkdir"),
    "accelerate",
    *("deepspeed", "mpirun", "activate", "singularity", "apptainer", "unset", "sleep"),
)
_NAME = pattern(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)+")
_NAMED = pattern(r"(?:--|(?<![\w-])(?=\w{1,99}=))(\w{1,99})|\$\{?(\w{1,99})")
"""The name of an option, or of a variable that is assigned or read."""
_PROGRAM = pattern(
    r"\b(?:alias|which|type|hash|function|command -v|where(?:is)?)\s{1,9}([\w-]{1,99})|"
    r"(?<![\w-])(\w{1,99})\s{0,9}\(\)"
)
"""The name of an alias, a function, or a program that the script looks up."""
_SHORTEST = 5


def find_prose(subject: Subject) -> Iterator[Hit]:
    for shell in subject.shells:
        functions = {command.function for command in shell.commands}
        for command in shell.commands if not shell.suspect else ():
            if command.name not in functions and _is_sentence(command):
                shown = " ".join(word.text for word in command.words[:4])
                yield Hit(
                    at=command,
                    what=f"Bash runs this text as a command: '{command.name}: command not found'.",
                    fix=f"# {shown} …" if command.words[4:] else f"# {shown}",
                )
            elif command.name not in functions and (meant := _meant(command.name)):
                yield Hit(
                    at=command,
                    what=f"`{command.name}` is not a command: '{command.name}: command not found'.",
                    fix=f"{meant} …",
                )
            elif meant := _misspelt_function(command, functions):
                yield Hit(
                    at=command,
                    what=f"`{command.name}` is not a command: '{command.name}: command not found'. "
                    f"The script has a function `{meant}`.",
                    fix=meant,
                    severity=ADVICE,
                )
    yield from _names_in_backticks(subject)
    yield from find_misspelt_module(subject)
    yield from find_aliases(subject)
    yield from _bare_options(subject)
    yield from _stray_names(subject)


def _stray_names(subject: Subject) -> Iterator[Hit]:
    """Find the name of an option or variable, alone on a line."""
    batch = subject.batch
    if batch is None or not subject.is_job or batch.suspect or sources_others(subject):
        return
    alone = [c for c in batch.commands if _NAME.fullmatch(c.text) and not c.substituted]
    if not alone:
        return
    named = {found[1] or found[2].lower() for found in _NAMED.finditer(batch.text)}
    known = named - {found[1] or found[2] for found in _PROGRAM.finditer(batch.text)}
    for command in alone:
        name = command.text
        if command.words[0].uses or subject.line_at(command).strip() != name:
            continue
        if name in known:
            yield Hit(
                at=command,
                what=f"`{name}` is the name of an option or a variable. Bash runs it as a "
                f"command: '{name}: command not found'.",
                fix=f"# {name}",
                severity=ADVICE,
            )


def _bare_options(subject: Subject) -> Iterator[Hit]:
    """Find `--time=2:00:00` on a line of its own, without #SBATCH."""
    batch = subject.batch
    lines = batch.text.split("\n") if batch and subject.is_job and not batch.suspect else []
    for command in batch.commands if batch and lines else ():
        name = command.words[0].text.removeprefix("--").partition("=")[0] if command.words else ""
        before = lines[command.line - 2].strip() if command.line > 1 else ""
        alone = len(command.words) == 1 and (not before or before.startswith("#"))
        if alone and command.words[0].text.startswith("--") and name in SBATCH.known:
            yield Hit(
                at=command,
                what=f"`#SBATCH` is missing: bash runs this option as a command: '{command.text}: "
                "command not found'.",
                fix=f"#SBATCH {command.text}  # above the first command",
            )


def _misspelt_function(command: Command, functions: set[str]) -> str:
    """Return the function whose name differs in a full stop or in the case of its letters."""
    name = command.name.rstrip(".").lower()
    known = command.words[0].known and command.name not in functions
    return next((f for f in functions if known and f and f.lower() == name), "")


def _names_in_backticks(subject: Subject) -> Iterator[Hit]:
    """Find the names of variables in backticks, in a text for people."""
    batch = subject.batch
    if batch is None or "`" not in batch.text:
        return
    assigned = {assignment.name for assignment in batch.assignments}
    for command in batch.commands:
        line = subject.line_at(command)
        alone = command.substituted and len(command.words) == 1 and command.name in assigned
        if alone and re.match(r"\s*(?:echo|printf)\b", line) and f"`{command.name}`" in line:
            yield Hit(
                at=command,
                what=f"Backticks run `{command.name}` as a command: '{command.name}: command not "
                "found'.",
                fix=f"${command.name}  # or '{command.name}' without backticks",
                severity=ADVICE,
            )


def is_text(command: Command) -> bool:
    """Tell whether bash takes text, or a misspelled program, for a command."""
    name = command.words[0].text if command.words else "-"
    second = command.arguments[0].text if command.arguments else ""
    odd = name.startswith(("-", "{")) or second.startswith("=")
    return odd or _is_sentence(command) or bool(_meant(name))


def _meant(name: str) -> str:
    """Return the program whose letters a name has in another order; empty if there is none."""
    if len(name) < _SHORTEST or name in _OFTEN_USED:
        return ""
    return next((one for one in _OFTEN_USED if _differ_in_one(one, name)), "")


def _differ_in_one(one: str, other: str) -> bool:
    """Tell whether two words differ in one letter, or in the order of their letters."""
    pairs = [a for a, b in zip(one, other, strict=False) if a != b]
    letter = len(one) == len(other) and len(pairs) == 1 and other[-1].isalpha()
    return letter or sorted(one) == sorted(other)


def _is_sentence(command: Command) -> bool:
    texts = [word.text for word in command.words]
    if len(texts) < 3 or command.name.lower() in _PROGRAMS or command.substituted:
        return False
    if any(word.quoted or word.uses for word in command.words):
        return False
    little = {text.lower().rstrip(",.:;!?") for text in texts[1:]} & _LITTLE
    return bool(little) and all(_WORD.fullmatch(text) for text in texts)


RULES = (
    Rule(
        code="E212",
        title="text run as a command",
        severity=WARNING,
        check=find_prose,
        why="A comment starts with `#`. Without it, bash looks for a program with the name of the "
        "first word. The script continues, or stops if it uses `set -e`.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=1
-run script from above    # <- here
+# run script from above
 python train.py
""",
    ),
)
