"""E207: arguments that a program does not accept."""

import difflib
from collections.abc import Iterator
from itertools import pairwise

from echelon.lint.arguments import Option, Parser, read_parser
from echelon.lint.bash import Word
from echelon.lint.edits import replace_group
from echelon.lint.facts import runs_always
from echelon.lint.files import beside
from echelon.lint.launches import Launch
from echelon.lint.patterns import pattern
from echelon.lint.python_script import PythonScript
from echelon.lint.rule import ADVICE, ERROR, WARNING, Hit, Rule
from echelon.lint.rules.overrides import find_wrong_overrides
from echelon.lint.subject import Started, Subject

_OPTION = pattern(r"--?[A-Za-z][\w-]*")
_JOINED = pattern(r"(?<!\S)(--[A-Za-z][\w-]*\w)[\"']\$\{?([A-Za-z_]\w*)")
"""An option and a quoted variable without a space between them."""
_PASSED_ON = pattern(r"(?:\(|,\s?)(?:self\.)?\w{0,40}parser\s?[,)]|\(ArgumentParser\):")
_REQUIRED = ("requirements.txt", "environment.yml", "environment.yaml", "pyproject.toml")
_TORCH_2 = pattern(
    r"(?i)\b(?:py)?torch[\"' ]*(?:[=~>^/-]=?|==)[\"' =^~>]*(?:[2-9]|[1-9]\d)(?:\.|\b)"
)
_PLACEHOLDER = pattern(r"__|[<>{}@%$\[\]]")


_TORCHRUN = frozenset(
    {
        *("nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf"),
        *("standalone", "max-restarts", "monitor-interval", "start-method", "role", "module"),
        *("no-python", "run-path", "log-dir", "redirects", "tee", "local-ranks-filter", "help"),
        *("node-rank", "master-addr", "master-port", "local-addr", "logs-specs", "use-env"),
        *("numa-binding", "signals-to-handle", "virtual-local-rank", "shutdown-timeout"),
        *("event-log-handler", "duplicate-stdout-filters", "duplicate-stderr-filters"),
    }
)
"""The options of torchrun, of all versions, with dashes."""
_ACCELERATE = ("multi_gpu", "cpu", "tpu", "use_deepspeed", "use_fsdp")
"""Options of `accelerate launch`, which accepts one of them."""
_ALIKE = 0.85
_SUFFIX = pattern(r"\bbasename\s+(?:--\s+)?(\"\$\{?\w+\}?\")(\.[\w.]+)\s*[)`]")
_PIP = pattern(r"(?:\S*python[\d.]* -m |uv )?(?:\S*/)?pip[\d.]* install ")
_TAKES_PATH = {
    "-e": ".",
    "--editable": ".",
    "-r": "requirements.txt",
    "--requirement": "requirements.txt",
}
"""Options of `pip install` with a value that they often have."""
_NO_VALUES = frozenset({"none", "null", "no", "off", "false", "default"})
"""Values that usually mean that an option has no effect."""


def find_wrong_arguments(subject: Subject) -> Iterator[Hit]:
    yield from _of_torchrun(subject)
    yield from _of_accelerate(subject)
    yield from _local_rank(subject)
    yield from _joined_value(subject)
    yield from _joined_suffix(subject)
    yield from _pip_without_path(subject)
    yield from find_wrong_overrides(subject)
    for one in subject.started:
        python = one.python
        if python is None or one.launch.elsewhere or not _is_only(subject, one):
            continue
        parser = read_parser(python)
        for word, what, fix in _refused(one.launch, parser) if parser else ():
            yield Hit(
                at=one.launch.place_of(word, subject.path),
                what=f"{python.path} {what}",
                fix=fix,
                # The file may differ from the one on the cluster.
                severity=ADVICE if _is_slot(subject, one.launch, word) else WARNING,
            )


def find_given_twice(subject: Subject) -> Iterator[Hit]:
    """Find `train.py --lr 0.1 --lr 0.2`. Part of E107."""
    for one in subject.started:
        parser = read_parser(one.python) if one.python and not one.launch.elsewhere else None
        if parser is None or not _is_only(subject, one):
            continue
        seen: dict[Option, str] = {}
        for word, option, value in _values(one.launch, parser):
            before = seen.get(option, value)
            if before != value:
                yield Hit(
                    at=one.launch.place_of(word, subject.path),
                    what=f"The command gives `{option.names[-1]}` twice. argparse uses the last "
                    f"value, '{value}', not '{before}'.",
                    fix="remove one of them",
                )
            seen[option] = value


def _values(launch: Launch, parser: Parser) -> Iterator[tuple[Word, Option, str]]:
    """Yield the options with a known value that a later one replaces."""
    if any(word.line < launch.command.line for word in launch.arguments):
        return  # an array, whose values the command may replace
    for word, after in pairwise((*launch.arguments, None)):
        if word is None or word.text == "--":
            return
        name, equals, value = word.text.partition("=")
        plain = word.known and not word.uses and _OPTION.fullmatch(name)
        found = [option for option in parser.find(name) if name in option.names] if plain else []
        known = equals or (after is not None and after.known and not after.uses)
        if len(found) == 1 and found[0].takes_value and not found[0].gathers and known:
            yield word, found[0], value if equals else after.text if after else ""


def _of_torchrun(subject: Subject) -> Iterator[Hit]:
    """Find misspelled options of torchrun, which accepts abbreviations."""
    for one in subject.started:
        launcher = one.launch.launcher
        if launcher is None or launcher.kind not in ("torchrun", "launch"):
            continue
        for name, word in launcher.options.items():
            short = len(name) == 1 or any(option.startswith(name) for option in _TORCHRUN)
            near = [] if short else difflib.get_close_matches(name, _TORCHRUN, 1, _ALIKE)
            if near:
                yield Hit(
                    at=one.launch.place_of(word, subject.path),
                    what=f"{launcher.name} has no option `--{name}`: 'unrecognized arguments'.",
                    fix=f"--{near[0]}",
                    severity=None if runs_always(one.launch) else WARNING,
                )


def _of_accelerate(subject: Subject) -> Iterator[Hit]:
    """Find options of `accelerate launch` that exclude each other."""
    for one in subject.started:
        launcher = one.launch.launcher
        if launcher is None or launcher.kind != "accelerate":
            continue
        kinds = [
            f"`--{name}`" for name in _ACCELERATE if name.replace("_", "-") in launcher.options
        ]
        processes = launcher.option("num-processes")
        few = "`--multi_gpu`" in kinds and processes is not None and processes.text == "1"
        if few or len(kinds) > 1:
            refused = "`--multi_gpu` with one process" if few else " with ".join(kinds)
            yield Hit(
                at=one.launch,
                what=f"accelerate does not accept {refused}. It exits with a ValueError.",
                fix=f"remove {kinds[0]}",
                severity=None if runs_always(one.launch) else WARNING,
            )


def _is_slot(subject: Subject, launch: Launch, option: Word | None) -> bool:
    """Tell whether the value of an option is a variable that a person fills in, as in NAME=""."""
    after = next((b for a, b in pairwise(launch.arguments) if a is option), None)
    given = [a for use in after.uses for a in subject.assigned(use.name)] if after else []
    return len(given) == 1 and given[0].certain and given[0].value.text == ""


def _joined_value(subject: Subject) -> Iterator[Hit]:
    """Find options that form one word with the variable after them."""
    for one in subject.started:
        for word in one.launch.arguments if not one.launch.elsewhere else ():
            at = one.launch.place_of(word, subject.path)
            joined = word.uses and word.text.startswith("--")
            for match in _JOINED.finditer(subject.line_at(at)) if joined else ():
                option, name = match[1], match[2]
                if not word.text.startswith(option) or name not in word.names:
                    continue
                yield Hit(
                    at=at,
                    what=f"`{option}` and `${name}` are one word, because there is no space "
                    "between them. The program gets an option that it does not know.",
                    fix=f'{option} "${name}"',
                    severity=WARNING,
                    edits=(replace_group(at.line, match, f"{option} ", 1),),
                )


def _joined_suffix(subject: Subject) -> Iterator[Hit]:
    """Find `basename "$FILE".json`, which adds the suffix instead of removing it."""
    for command in subject.commands if subject.is_job else ():
        found = _SUFFIX.search(subject.line_at(command)) if command.name == "basename" else None
        if found and len(command.arguments) == 1:
            path, suffix = found.groups()
            yield Hit(
                at=command,
                what=f"Without a space, basename adds '{suffix}' to the name instead of removing "
                "it.",
                fix=f"basename {path} {suffix}",
                severity=ADVICE,  # it may be meant
            )


def _pip_without_path(subject: Subject) -> Iterator[Hit]:
    """Find `pip install -e` without the path behind it."""
    for command in subject.commands if subject.is_job else ():
        option = command.words[-1].text
        if option in _TAKES_PATH and _PIP.match(command.text):
            yield Hit(
                at=command,
                what=f"pip needs a value for `{option}`: '{option} option requires 1 argument'. It "
                "installs nothing.",
                fix=f"{option} {_TAKES_PATH[option]}",
                severity=WARNING,
            )


def _is_only(subject: Subject, one: Started) -> bool:
    """Tell whether no other file can be meant by the name of the script."""
    name = one.launch.program.text if one.launch.program else ""
    places = {beside(base, name) for base in (one.launch.command.path, one.launch.path, "")}
    if one.launch.module or sum(subject.files.read(place) is not None for place in places) > 1:
        return one.launch.module
    repository = subject.files.repository(subject.path)
    if repository is None or name.startswith(("/", "~", "$")):
        return True
    beside_job = subject.files.read(beside(subject.path, name)) is not None
    return beside_job or len(repository.folders_with(name)) <= 1


def refuses(python: PythonScript, launch: Launch) -> bool:
    """Tell whether a script does not accept the arguments of a launch."""
    parser = read_parser(python)
    return parser is not None and any(_refused(launch, parser))


def _refused(launch: Launch, parser: Parser) -> Iterator[tuple[Word | None, str, str]]:
    """Yield the words that the parser refuses, why, and what to do."""
    given, unknown, words = set[str](), list[Word](), list(launch.arguments)
    for number, word in enumerate(words):
        name, equals, value = word.text.partition("=")
        if word.text == "--":
            return
        if not _OPTION.fullmatch(name):
            continue
        found = parser.find(name)
        given |= {other for option in found for other in option.names}
        unknown += [] if found or not name.startswith("--") else [word]
        if len(found) == 1 and name in found[0].names:
            after = words[number + 1] if number + 1 < len(words) else None
            yield from _bad_value(word, found[0], value if equals else None, after)
    if unknown:
        names = ", ".join(f"`{word.text.partition('=')[0]}`" for word in unknown)
        fix = _without([word.text.partition("=")[0] for word in unknown], parser)
        yield unknown[0], f"does not define {names}: 'unrecognized arguments'.", fix
    if any(not word.known or word.uses or word.text[:1] == "@" for word in words):
        return  # a variable may contain the others
    missing = [o.names[-1] for o in parser.options if o.required and not given & set(o.names)]
    if missing:
        names = ", ".join(f"`{name}`" for name in missing)
        yield None, f"requires {names}, which the command does not give.", f"{missing[0]} …"


def _without(options: list[str], parser: Parser) -> str:
    """Return what may be meant by options that a parser does not define, or their removal."""
    meant = {option: near for option in options if (near := _similar(option, parser))}
    others = [option for option in options if option not in meant]
    questions = [f"is {near} meant?" for near in meant.values()]
    return "\n".join([*questions, *([f"remove {', '.join(others)}"] if others else [])])


def _similar(option: str, parser: Parser) -> str:
    """Return the option of a parser that differs least; empty if none is similar."""
    names = [name for known in parser.options for name in known.names]
    same = [name for name in names if name.replace("_", "-") == option.replace("_", "-")]
    near = same or difflib.get_close_matches(option, names, 1, _ALIKE)
    return near[0] if near else ""


def _bad_value(
    word: Word, option: Option, value: str | None, after: Word | None
) -> Iterator[tuple[Word, str, str]]:
    """Yield an option whose value is missing or not accepted."""
    name = option.names[-1]
    if option.flag and value is not None:
        yield word, f"takes no value for `{name}`: 'ignored explicit argument'.", name
    if not option.takes_value:
        return
    if value is None:
        dropped = after is not None and after.known and not after.quoted and after.text == ""
        if after is None or dropped or after.text.startswith("--"):
            uses = after.uses if after and dropped else ()
            empty = f", and `${uses[0].name}` is empty" if uses else ""
            yield word, f"needs a value for `{name}`{empty}: 'expected one argument'.", f"{name} …"
            return
        value = after.text if after.known else ""
    if value and word.known and not _PLACEHOLDER.search(value) and not option.accepts(value):
        yield word, f"does not accept '{value}' for `{name}`.", _better_value(option, value)


def _better_value(option: Option, value: str) -> str:
    """Return how to correct a value that the parser refuses."""
    name = option.names[-1]
    if not option.choices:
        return f"{name} with a number"
    if value.lower() in _NO_VALUES and not option.required:
        return f"remove {name}"
    return f"is one of {', '.join(option.choices)} meant?"


def _local_rank(subject: Subject) -> Iterator[Hit]:
    for one in subject.started:
        launcher, python = one.launch.launcher, one.python
        if launcher is None or launcher.kind != "launch" or python is None:
            continue
        if "use-env" in launcher.options or not python.calls("parse_args"):
            continue
        if python.mentions("--local-rank") or python.calls("parse_known_args"):
            continue
        old = python.mentions("--local_rank")
        fixed = old and not _needs_torch_2(subject, python)
        # Another parser, or a function that gets this one, may know the option.
        other = "ArgumentParser(" not in python.text or _PASSED_ON.search(python.text)
        yield Hit(
            at=one.launch,
            what="Since PyTorch 2.0, torch.distributed.launch passes `--local-rank`, but the "
            "script defines `--local_rank`. It exits with 'unrecognized arguments'."
            if old
            else "torch.distributed.launch passes `--local-rank`, which the script does not "
            "define. It exits with 'unrecognized arguments'.",
            severity=ADVICE if fixed else WARNING if old or other else None,
            fix="torchrun …  # instead of python -m torch.distributed.launch\n"
            'local_rank = int(os.environ["LOCAL_RANK"])  # in the Python script',
        )


def _needs_torch_2(subject: Subject, python: PythonScript) -> bool:
    """Tell whether the job script, or a file beside it or its Python, asks for torch >= 2."""
    places = {beside(base, name) for base in (subject.path, python.path, "") for name in _REQUIRED}
    texts = (subject.text, *(subject.files.read(place) or "" for place in sorted(places)))
    return any(map(_TORCH_2.search, texts))


RULES = (
    Rule(
        code="E207",
        title="argument that the script does not accept",
        severity=ERROR,
        check=find_wrong_arguments,
        why="argparse exits if an argument is unknown or missing, or if its value is wrong. Lint "
        "compares the command with the parser of the script, which is a warning. Hydra stops if an "
        "override names a key that no file of the configuration has. "
        "torch.distributed.launch passes the local rank as an argument, spelled `--local-rank` "
        "since PyTorch 2.0. If the script defines the older `--local_rank`, the finding is advice, "
        "unless a file of requirements asks for PyTorch 2. torchrun sets the variable `LOCAL_RANK` "
        "instead. accelerate fails if options exclude each other, and "
        "pip if an option has no value.",
        example="""\
 #!/bin/bash
 #SBATCH --cpus-per-gpu=8
 #SBATCH --nodes=1
 #SBATCH --gpus-per-node=2
-#SBATCH --exclusive
-python -m torch.distributed.launch --nproc_per_node=2 --master_port=29501 train.py    # <- here
+torchrun --standalone --nproc_per_node=2 train.py
 --- train.py
 import argparse
 parser = argparse.ArgumentParser()
 args = parser.parse_args()
""",
    ),
)
