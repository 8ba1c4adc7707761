"""E406: secrets in scripts."""

import re
from collections.abc import Iterator

from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.rule import WARNING, Hit, rule
from echelon.lint.script import Script

_NAME = pattern(
    r"(?:.*_)?(?:API_KEY|API_TOKEN|ACCESS_TOKEN|AUTH_TOKEN|SECRET|SECRET_KEY|SECRET_ACCESS_KEY|"
    r"PASSWORD|PASSWD)|(?:HF|HUGGINGFACE|HUGGING_FACE_HUB|HUB|GITHUB|GH|GITLAB|COMET|NEPTUNE|"
    r"CLEARML|SLACK|KAGGLE)_TOKEN|WANDB_KEY|KAGGLE_KEY"
)
_NO_SECRET = pattern(
    r"(?i)[<\[{$*/~.].*|.*\s.*|x+|your.*|.*(xxx|\.\.\.|…).*|true|false|none|\d+|.{0,7}|"
    r".*(?:dummy|example|placeholder|change|fake|here|insert|token-|not-|redacted).*"
)
_TOKEN = pattern(
    r"\b(hf_[A-Za-z0-9]{30,}|[0-9a-f]{40}|AKIA[0-9A-Z]{16}|gh[pos]_[A-Za-z0-9]{30,}|"
    r"sk-[A-Za-z0-9_-]{32,}|wandb_v1_\w{30,})\b"
)
_HASH = pattern(r"COMMIT|SHA|HASH|REV")
_DEFAULT = pattern(r"^(?!\s*#).{0,200}?\$\{(\w+):?[-=]([\w+/=.-]{20,200})\}")
"""A variable with a long literal as its default."""


@rule("E406", WARNING)
def secret(script: Script) -> Iterator[Hit]:
    """Secret in the script.

    Scripts are copied, shared and committed, and Slurm stores every submitted script.

    Example:
         #!/bin/bash
         #SBATCH --nodes=1
        -export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567    # <- here
        +export WANDB_API_KEY="$(cat ~/.secrets/wandb_api_key)"
         python train.py
    """
    told = set[str]()
    for assignment in script.assignments:
        name, text = assignment.name, assignment.value.text
        if not assignment.value.known or assignment.value.uses or text == name:
            continue
        named = _NAME.fullmatch(name) and not _NO_SECRET.fullmatch(text)
        if named or (_TOKEN.fullmatch(text) and not _HASH.search(name)):
            told.add(text)
            yield _hit(Place(assignment.path, assignment.line), f"`{name}`", name)
    for command in script.commands:
        given = _TOKEN.search(command.text)
        if given and (given[0] not in told or given[0] in script.line_at(command)):
            hexadecimal = re.fullmatch(r"[0-9a-f]{40}", given[0])
            if not hexadecimal or "login" in command.text:
                yield _hit(Place(command.path, command.line), "the token", "token")
    for path in dict.fromkeys(shell.path for shell in script.shells):
        for number, line in enumerate(script.lines_of(path), start=1):
            found = _DEFAULT.match(line) if "${" in line else None
            if found and _NAME.fullmatch(found[1]) and not _NO_SECRET.fullmatch(found[2]):
                yield _hit(Place(path, number), f"the default of `{found[1]}`", found[1])


def _hit(at: Place, what: str, name: str) -> Hit:
    return Hit(
        at=at,
        what=f"Everyone who can read the script can read {what}. Slurm also stores a copy of each "
        "job script.",
        fix=f'"$(cat ~/.secrets/{name.lower()})"  # a file with mode 600',
    )
