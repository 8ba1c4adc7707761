#!/usr/bin/env bash
# What a release consists of, under dist/: the sdist, and the wheel that is made from it, so that an sdist from
# which nothing could be installed does not get far.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-.venv/bin/python}

rm -rf dist build
"$python" -c 'from setuptools import build_meta; build_meta.build_sdist("dist")' >/dev/null
# As in setup.sh, the build back-end is the one that constraints.txt pins.
"$python" -m pip wheel -qq --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist dist/*.tar.gz
ls -l dist
