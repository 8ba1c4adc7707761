"""E207: arguments that a Python script does not accept."""

import difflib
from collections.abc import Iterator

from echelon.lint.bash import Word
from echelon.lint.files import beside
from echelon.lint.launches import Launch
from echelon.lint.parser import Parser, read_parser
from echelon.lint.patterns import pattern
from echelon.lint.rule import WARNING, Hit, rule
from echelon.lint.script import Script, Started

_OPTION = pattern(r"--?[A-Za-z][\w-]*")
_ALIKE = 0.85


@rule("E207", WARNING)
def refused(script: Script) -> Iterator[Hit]:
    """Argument that the script does not accept.

    argparse exits if an argument is unknown or missing. Lint compares the command with the parser
    of the script, if it can read it. torch.distributed.launch adds
    `--local-rank`.

    Example:
         #!/bin/bash
         #SBATCH --nodes=1
        -python train.py --epoch_count 3    # <- here
        +python train.py --epochs 3
         --- train.py
         import argparse
         parser = argparse.ArgumentParser()
         parser.add_argument("--epochs", type=int)
         args = parser.parse_args()
    """
    for one in script.started:
        parser = read_parser(one.python) if one.python else None
        if parser is None or one.launch.elsewhere or not _is_only(script, one):
            continue
        for word, what, fix in (*_refused(one.launch, parser), *_local_rank(one.launch, parser)):
            yield Hit(
                at=one.launch.place_of(word, script.path),
                what=f"{one.python.path if one.python else ''} {what}",
                fix=fix,
            )


def _is_only(script: Script, one: Started) -> bool:
    """Tell whether no other file can be meant by the name of the script."""
    name = one.launch.program.text if one.launch.program else ""
    places = {beside(base, name) for base in (one.launch.command.path, one.launch.path, "")}
    return one.launch.module or sum(script.files.read(place) is not None for place in places) == 1


def _refused(launch: Launch, parser: Parser) -> Iterator[tuple[Word | None, str, str]]:
    """Yield the words that the parser refuses, why, and what to do."""
    given, unknown, words = set[str](), list[Word](), list(launch.arguments)
    for word in words:
        name = word.text.partition("=")[0]
        if word.text == "--":
            return
        if not _OPTION.fullmatch(name):
            continue
        found = parser.find(name)
        given |= {other for option in found for other in option.names}
        unknown += [] if found or not name.startswith("--") else [word]
    if unknown:
        names = [word.text.partition("=")[0] for word in unknown]
        near = _similar(names[0], parser)
        shown = ", ".join(f"`{name}`" for name in names)
        fix = f"is {near} meant?" if near else f"remove {', '.join(names)}"
        yield unknown[0], f"does not define {shown}: 'unrecognized arguments'.", fix
    if any(not word.known or word.uses or word.text[:1] == "@" for word in words):
        return  # a variable may contain the others
    missing = [o.names[-1] for o in parser.options if o.required and not given & set(o.names)]
    if missing:
        shown = ", ".join(f"`{name}`" for name in missing)
        yield None, f"requires {shown}, which the command does not give.", f"{missing[0]} …"


def _local_rank(launch: Launch, parser: Parser) -> Iterator[tuple[Word | None, str, str]]:
    """Yield the option that torch.distributed.launch adds, if the parser does not define it."""
    launcher = launch.launcher
    adds = launcher is not None and launcher.kind == "launch" and "use-env" not in launcher.options
    if adds and not any(map(parser.find, ("--local-rank", "--local_rank"))):
        what = "does not define `--local-rank`, which torch.distributed.launch adds"
        yield None, f"{what}: 'unrecognized arguments'.", "torchrun …  # and read LOCAL_RANK"


def _similar(option: str, parser: Parser) -> str:
    """Return the option of a parser that differs least; empty if none is similar."""
    names = [name for known in parser.options for name in known.names]
    return "".join(difflib.get_close_matches(option, names, 1, _ALIKE))
