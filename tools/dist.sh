#!/usr/bin/env bash
# Builds a release in dist/: the sdist, and the wheel built from it, which proves that the sdist can be installed.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-.venv/bin/python}

rm -rf dist build
"$python" -c 'from setuptools import build_meta; build_meta.build_sdist("dist")' >/dev/null
# As in setup.sh, constraints.txt pins the build back-end.
"$python" -m pip wheel -qq --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist dist/*.tar.gz
ls -l dist
