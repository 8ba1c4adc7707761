#!/usr/bin/env bash
# Builds a release in dist/: the sdist, and the wheel built from it, which proves that the sdist can be installed.
set -euo pipefail
cd "$(dirname "$0")/.."

rm -rf dist build
# An environment of its own: .venv stays as it is, or need not exist.
trap 'rm -rf build src/echelon.egg-info' EXIT
"${1:-${PYTHON:-python3}}" -m venv build/env
python=build/env/bin/python
# As in setup.sh, constraints.txt pins the build back-end.
"$python" -m pip install -qq --disable-pip-version-check -c constraints.txt setuptools
"$python" -c 'from setuptools import build_meta; build_meta.build_sdist("dist")' >/dev/null
"$python" -m pip wheel -qq --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist dist/*.tar.gz
ls -l dist
