"""Runs git so that it executes nothing that a repository names: only here is it started.

A project may contain a repository that nobody checked: an unpacked archive, or files of another
host. Its configuration can name programs (a monitor, hooks, filters, `uploadpack` of a remote from
which git fetches missing objects), and git starts them even to list files.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from echelon.core.shell import Result, Shell
from echelon.errors import UsageError

_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",  # older versions of git do not know the next one
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",  # a written index would start a hook
    "GIT_TERMINAL_PROMPT": "0",
}
_SETTINGS = (
    *("core.fsmonitor=false", "core.hooksPath=/dev/null", "core.alternateRefsCommand=false"),
    *("safe.bareRepository=explicit", "submodule.recurse=false"),
)


def run_git(
    folder: Path,
    words: Sequence[str],
    shell: Shell,
    *,
    settings: Sequence[str] = (),
    is_root: bool = False,
) -> Result:
    """Run git in a folder.

    Args:
        folder: where it looks for a repository.
        words: the command and its arguments. If it may compare the content of files, name the
            filters with `list_filters`.
        shell: runs it.
        settings: more of its settings, as NAME=VALUE.
        is_root: whether to ignore repositories around the folder, if it is none itself.
    """
    environment = {**os.environ, **_ENVIRONMENT}
    if is_root:
        environment["GIT_CEILING_DIRECTORIES"] = str(folder.parent)
    given = [word for one in (*_SETTINGS, *settings) for word in ("-c", one)]
    return shell.run(["git", *given, "-C", str(folder), *words], env=environment)


def list_filters(folder: Path, shell: Shell) -> list[str]:
    """Return settings for `run_git` that turn off the filters of files' content.

    Those of the user's own configuration are off too, such as that of git-lfs. A file that it
    stores counts as changed if its size or time differ from what git knows.

    Raises:
        UsageError: one cannot be turned off.
    """
    words = ["config", "-z", "--name-only", "--get-regexp", r"^filter\."]
    names = [name for name in run_git(folder, words, shell).stdout.split("\0") if name]
    # `git -c` would take such a name for a shorter one, and one that is not UTF-8 for another.
    marks = ("=", "\N{REPLACEMENT CHARACTER}")
    if strange := next((name for name in names if any(mark in name for mark in marks)), ""):
        raise UsageError(
            f"the repository of {folder} has the setting '{strange}', which cannot be turned off",
            hint=f"remove it: git -C '{folder}' config --edit",
        )
    return [f"{name}=" for name in names]
