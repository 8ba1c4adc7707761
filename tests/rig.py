"""What tests need of the machine."""

import os
import shutil

import pytest

SBIN = "/usr/sbin:/sbin"


def require(*programs):
    """Skip where a program is missing; in CI that is a failure."""
    path = f"{os.environ.get('PATH', '')}:{SBIN}"
    missing = [program for program in programs if shutil.which(program, path=path) is None]
    if missing:
        do_without(f"needs {', '.join(missing)}: run `make system`")


def require_root(reason):
    """Skip where the tests are not run by root; in CI that is a failure."""
    if os.geteuid() != 0:
        do_without(f"needs root: {reason}")


def do_without(reason):
    """Skip a test for want of something; in CI that is a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason} (CI=true: nothing may be missing)", pytrace=False)
    pytest.skip(reason)


_RECORDER = """\
import os, pathlib, secrets, sys

def record(size, draw=secrets.token_bytes):
    secrets.token_bytes = draw
    key = draw(size)
    pathlib.Path(os.environ["KEY_RECORD"]).write_bytes(key)
    return key

if "controller" in sys.orig_argv:
    secrets.token_bytes = record
"""
"""The first secret that a controller draws is the key of its run."""


def record_key(folder):
    """Return variables that have a run's controller leave its key in a file, for `recorded_key`.

    Nothing else gives it to a test: it is in no variable, argument or file.
    """
    recorder = folder / "recorder"
    recorder.mkdir()
    (recorder / "sitecustomize.py").write_text(_RECORDER)
    return {"PYTHONPATH": str(recorder), "KEY_RECORD": str(recorder / "key")}


def recorded_key(folder):
    return (folder / "recorder" / "key").read_bytes()
