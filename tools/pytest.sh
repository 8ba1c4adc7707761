#!/usr/bin/env bash
# pytest, where it is fine that the arguments select no test (exit code 5): `make test` calls it twice.
cd "$(dirname "$0")/.." || exit
.venv/bin/pytest "$@" || { code=$?; [ "$code" = 5 ] || exit "$code"; }
