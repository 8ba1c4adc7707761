#!/usr/bin/env bash
# Resolves everything that tools/setup.sh installs, in a new environment, and writes the versions to constraints.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip --disable-pip-version-check "$@"; }

# Chosen by hand: torch, whose build determines which CUDA version users get, and a typer that does not load pydantic,
# which would double the time that each command takes to start.
torch=$(grep -E '^torch==' constraints.txt || echo 'torch==2.13.0')
pip install --quiet --upgrade pip setuptools
pip install --quiet "$torch" "typer<0.29" --editable '.[train,data,dash,lint,ray,tensorboard]' \
    --group check --group docs --group test --group peers
{
    echo '# Exact versions of everything that tools/setup.sh installs. Made by `make constraints`.'
    # Drop the local build tag (+cpu), which depends on the machine.
    pip list --format=freeze --exclude-editable | sed -E 's/\+[a-z0-9.]+$//' | sort -f
} >"$work/constraints.txt"
mv "$work/constraints.txt" constraints.txt
