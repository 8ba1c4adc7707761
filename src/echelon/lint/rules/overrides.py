"""Overrides of a Hydra program that name no key of its configuration; part of E207."""

import difflib
from collections.abc import Iterator
from itertools import zip_longest

from echelon.lint.hydra import Config, read_config
from echelon.lint.patterns import pattern
from echelon.lint.rule import WARNING, Hit
from echelon.lint.subject import Subject

_OVERRIDE = pattern(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)=.*")
_KEY = pattern(r"[+~]{0,2}[\w./@-]+=")
_ALIKE = 0.8
_MOST = 5
"""Maximum number of fixes."""
_FOLDERS = ("--config-path", "-cp", "--config-dir", "-cd")
_NAMES = ("--config-name", "-cn")


def find_wrong_overrides(subject: Subject) -> Iterator[Hit]:
    for one in subject.started:
        if one.python is None or one.launch.elsewhere:
            continue
        words = one.launch.arguments
        given = [word.text for word in words]
        if not all(word.known or _KEY.match(word.text) for word in words):
            continue  # it may be any override
        if any(text.partition("=")[0] in _FOLDERS for text in given):
            continue
        config = read_config(one.python, subject.files, _chosen(given))
        if config is None or any(_names_group(text, config.elsewhere) for text in given):
            continue
        added = {_place(text) for text in given if text.startswith("+")}
        matches = [(word, _OVERRIDE.fullmatch(word.text)) for word in words]
        unknown = [(w, m[1]) for w, m in matches if m and _is_unknown(m[1], config, added)]
        if unknown:
            keys = [key for _, key in unknown]
            names = " or ".join(f"`{key}`" for key in keys)
            yield Hit(
                at=one.launch.place_of(unknown[0][0], subject.path),
                what=f"{config.path} and its defaults have no {names}: Hydra stops with 'Could "
                "not override'.",
                fix="\n".join(_fix(key, config) for key in keys[:_MOST]),
                severity=WARNING,
            )


def _chosen(given: list[str]) -> str:
    """Return the configuration that the command line names; empty if none."""
    for text, after in zip_longest(given, given[1:], fillvalue=""):
        name, equals, value = text.partition("=")
        if name in _NAMES:
            return value if equals else after
    return ""


def _names_group(text: str, groups: frozenset[str]) -> bool:
    """Tell whether an argument such as `+experiment=large` chooses from one of some groups."""
    return text.lstrip("+").partition("=")[0].partition("/")[0] in groups


def _place(text: str) -> str:
    """Return where `+group=option`, `+group@place=option` or `+key=value` adds keys."""
    name = text.lstrip("+").partition("=")[0]
    group, at, place = name.partition("@")
    return (place if at else group).replace("/", ".")


def _is_unknown(key: str, config: Config, added: set[str]) -> bool:
    names = key.split(".")
    above = {".".join(names[:length]) for length in range(1, len(names) + 1)}
    return names[0] != "hydra" and not above & added and config.lacks(key)


def _fix(key: str, config: Config) -> str:
    keys = config.all_keys()
    same = [one for one in keys if one.rpartition(".")[2] == key.rpartition(".")[2]]
    near = same or difflib.get_close_matches(key, keys, 1, _ALIKE)
    return f"{near[0]}=…" if len(near) == 1 else f"+{key}=…  # if the program reads it"
