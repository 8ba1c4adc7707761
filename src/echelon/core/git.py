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
    folder: Path, words: Sequence[str], shell: Shell, *, settings: Sequence[str] = ()
) -> Result:
    """Run git in a folder.

    Args:
        folder: where it looks for a repository.
        words: the command and its arguments. If it may compare the content of files, name the
            filters with `list_filters`.
        shell: runs it.
        settings: more of its settings, as NAME=VALUE.
    """
    given = [word for one in (*_SETTINGS, *settings) for word in ("-c", one)]
    return shell.run(["git", *given, "-C", str(folder), *words], env={**os.environ, **_ENVIRONMENT})


def list_filters(folder: Path, shell: Shell) -> list[str]:
    """Return settings for `run_git` that turn off the filters of files' content.

    Those of the user's own configuration are off too, such as that of git-lfs. A file that it
    stores counts as changed if its size or time differ from what git knows.

    Raises:
        UsageError: one cannot be turned off.
    """
    words = ["config", "-z", "--name-only", "--get-regexp", r"^filter\."]
    names = [name for name in run_git(folder, words, shell).stdout.split("\0") if name]
    if strange := next((name for name in names if "=" in name), ""):
        raise UsageError(  # `git -c` would take the name for a shorter one
            f"the repository of {folder} has the setting '{strange}', which cannot be turned off",
            hint=f"remove it: git -C '{folder}' config --unset-all '{strange}'",
        )
    return [f"{name}=" for name in names]
