"""E121: values of options that sbatch rejects, tried with sbatch and read in its source."""

import re
from collections.abc import Iterator

from echelon.clusters.slurm.options import SBATCH
from echelon.lint.edits import Edit, replace_group
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.request import Directive
from echelon.lint.rule import ADVICE, ERROR, WARNING, Hit, Rule
from echelon.lint.rules.placeholders import is_placeholder
from echelon.lint.subject import Subject

_WORDS = {
    "exclusive": ("user", "mcs", "topo", "exclusive", "oversubscribe", "allocation"),
    "hint": ("compute_bound", "memory_bound", "multithread", "nomultithread", "help"),
    "kill-on-invalid-dep": ("yes", "no"),
    "wait-all-nodes": ("0", "1"),
}
"""Options with a few possible values, those of all versions together. Case does not count."""
_FORMS = {
    "open-mode": (pattern(r"(?i)[at].*"), "append or truncate", "append"),
    "distribution": (
        pattern(r"(?i)plane=\d+|(?:[*:]|block|cyclic|arbitrary).*|(?:no)?pack"),
        "block, cyclic, arbitrary, plane=SIZE, pack or nopack",
        "block",
    ),
}
_EVENTS = frozenset(
    {
        *("NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "INVALID_DEPEND", "STAGE_OUT"),
        *("TIME_LIMIT", "TIME_LIMIT_90", "TIME_LIMIT_80", "TIME_LIMIT_50", "ARRAY_TASKS"),
    }
)
"""Values of --mail-type."""
_SIGNAL = pattern(
    r"(?i)(?:[RB]{1,2}:)?(?:\d+|(?:SIG)?(?:HUP|INT|QUIT|ABRT|KILL|ALRM|TERM|CHLD|USR1|USR2|PIPE|URG|"
    r"CONT|STOP|TSTP|TTIN|TTOU|XCPU))(?:@(\d*))?"
)
_LONGEST = 65535
"""The most seconds before the time limit at which Slurm can send a signal."""
_INDEX = pattern(r"(\d+)(?:-(\d+)?(?::(\d+))?)?")
_GPUS_OF_TYPE = pattern(r"gpu:(\d+):([A-Za-z]\w*)")
_NO_NAME = pattern(r"\d+|gpus?\d+|GPUS?(?::.*)?|:.*|gpus:.*")
"""Resources that --gres cannot mean."""
_NO_NUMBER = pattern(r"[A-Za-z]\w*:(?:\D.*)?|:.*")
_FREE = frozenset({"job-name", "output", "error", "comment", "account", "qos", "wckey", "input"})
"""Options that accept a value with an equals sign in front."""
_SIGN = pattern(r"(?:(?P<short>-[A-Za-z])|(?P<long>--[\w-]+)\s+)(?P<sign>=)")


def find_bad_values(subject: Subject) -> Iterator[Hit]:
    for item in subject.directives.items:
        if "$" in item.value or is_placeholder(item):
            continue
        if item.value.startswith("="):
            yield _extra_sign(subject, item)
        elif item.option in SBATCH.switches and item.value:
            yield _rejected(subject, item, "The option takes no value", f"--{item.option}")
        elif not _names_gpu(item) and (problem := _problem(item)) is not None:
            yield _rejected(subject, item, *problem)
        elif item.option == "mail-type":
            yield from _unknown_events(subject, item)
        elif item.option == "gres" and re.fullmatch(r"[\w:.-]+=\d+", item.value):
            yield Hit(
                at=Place(subject.path, item.line),
                what=f"sbatch of older versions, such as 22.05, rejects '{item.value}': the number "
                "follows a colon.",
                fix=f"#SBATCH --gres={item.value.replace('=', ':')}",
                severity=WARNING,
            )
        elif _names_gpu(item):
            yield Hit(
                at=Place(subject.path, item.line),
                what=f"`--{item.option}` has no resource name in front, so Slurm takes 'gpu' for "
                "the type of the GPU. sbatch rejects the script unless there is such a type.",
                fix=f"#SBATCH --{item.option}={item.value.removeprefix('gpu:')}",
                severity=WARNING,
            )


def _names_gpu(item: Directive) -> bool:
    return item.option.startswith("gpus") and item.value.startswith("gpu:")


def _rejected(subject: Subject, item: Directive, what: str, fix: str) -> Hit:
    # A letter in the place of a number may be part of a form that the command line fills in.
    form = item.option == "array" and re.search(r"[A-Za-z]", item.value)
    return Hit(
        at=Place(subject.path, item.line),
        what=f"{what}. sbatch rejects the script.",
        fix=f"#SBATCH {fix}",
        severity=WARNING if form else None,
    )


def _extra_sign(subject: Subject, item: Directive) -> Hit:
    """Report `-p=gpu` and `--nodes =2`: the equals sign becomes part of the value."""
    value = item.value.removeprefix("=")
    takes = item.option in _FREE
    return Hit(
        at=Place(subject.path, item.line),
        what=f"sbatch takes the equals sign as part of the value, which is '{item.value}'"
        + ("." if takes else ", and rejects the script."),
        fix=f"#SBATCH --{item.option}={value}",
        severity=WARNING if takes else None,
        edits=_without_sign(subject, item),
    )


def _without_sign(subject: Subject, item: Directive) -> tuple[Edit, ...]:
    line = subject.text.split("\n")[item.line - 1]
    found = list(_SIGN.finditer(line))
    if len(found) != 1:
        return ()
    if found[0]["short"]:
        return (replace_group(item.line, found[0], " ", "sign"),)
    return (replace_group(item.line, found[0], f"{found[0]['long']}="),)


def _problem(item: Directive) -> tuple[str, str] | None:
    """Return what is wrong with a value, and a correct option; None if it may be valid."""
    option, value = item.option, item.value
    if option in _WORDS and value.lower() not in ("", *_WORDS[option]):
        valid = _WORDS[option]
        return _not_one_of(item, f"{', '.join(valid[:-1])} or {valid[-1]}", valid[0])
    if option in _FORMS and value and not _FORMS[option][0].fullmatch(value):
        return _not_one_of(item, *_FORMS[option][1:])
    if option.startswith("gpus") and _NO_NUMBER.fullmatch(value):
        return f"'{value}' is not a number of GPUs", f"--{option}=4"
    check = _CHECKS.get(option)
    return check(value) if check and value else None


def _not_one_of(item: Directive, listed: str, first: str) -> tuple[str, str]:
    what = f"'{item.value}' is not a valid value of `--{item.option}` ({listed})"
    optional = item.option in SBATCH.optional
    return what, f"--{item.option}" if optional else f"--{item.option}={first}"


def _bad_signal(value: str) -> tuple[str, str] | None:
    found = _SIGNAL.fullmatch(value)
    if found and int(found[1] or 0) <= _LONGEST:
        return None
    what = "is not a valid signal. The name of a signal comes first, and a number of seconds after"
    return f"'{value}' {what} `@`", "--signal=B:USR1@120"


def _bad_array(value: str) -> tuple[str, str] | None:
    """Return what is wrong with a job array; Slurm ignores what follows a percent sign."""
    for part in value.partition("%")[0].strip("[]").split(","):
        found = _INDEX.fullmatch(part)
        if part and not found:
            return f"'{value}' is not a list of indices", "--array=0-9"
        if found and found[2] and int(found[2]) < int(found[1]):
            return f"The range {found[0]} ends before it begins", f"--array={found[2]}-{found[1]}"
    return None


def _bad_gres(value: str) -> tuple[str, str] | None:
    for entry in value.split(","):
        if found := _GPUS_OF_TYPE.fullmatch(entry):
            return (
                "The type of a GPU comes before the number",
                f"--gres=gpu:{found[2]}:{found[1]}",
            )
        if _NO_NAME.fullmatch(entry):
            number = re.search(r"\d+", entry)
            return f"'{value}' names no resource", f"--gres=gpu:{number[0] if number else 1}"
    return None


_CHECKS = {"signal": _bad_signal, "array": _bad_array, "gres": _bad_gres}


def _unknown_events(subject: Subject, item: Directive) -> Iterator[Hit]:
    events = [event for event in item.value.split(",") if event]
    unknown = [event for event in events if event.upper() not in _EVENTS]
    if not unknown:
        return
    names = " and ".join(f"'{event}'" for event in unknown)
    are = "is not a valid event" if len(unknown) == 1 else "are not valid events"
    rejected = len(unknown) == len(events)
    yield Hit(
        at=Place(subject.path, item.line),
        what=f"{names} {are} for `--mail-type`. sbatch "
        + ("rejects the script." if rejected else "ignores it without a message."),
        fix="#SBATCH --mail-type=END,FAIL",
        severity=None if rejected else ADVICE,
    )


RULES = (
    Rule(
        code="E121",
        title="invalid value of an option",
        severity=ERROR,
        check=find_bad_values,
        why="sbatch checks values before it queues a job. The value of a long option follows `=` "
        "or a space, and that of a short option a space or nothing.",
        example="""\
 #!/bin/bash
-#SBATCH -N=1    # <- here
+#SBATCH -N 1
 #SBATCH --time=01:00:00
 python train.py
""",
    ),
)
