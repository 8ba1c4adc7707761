"""Skips tests that need a program or a permission that is missing; in CI they fail."""

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
