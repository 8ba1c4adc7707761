# `make test` on a fresh Debian or Ubuntu with Python 3.11+ sets up all it needs. `make help` lists the rest.
SHELL := bash
MAKEFLAGS += --no-print-directory
BIN := .venv/bin
export PYTHON
# Where Debian keeps the daemons.
export PATH := $(PATH):/usr/sbin:/sbin
# What it says of its own future is not what was asked.
SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: help setup peers system check format docs test test-all demo bench soak constraints dist clean

help:  ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' Makefile | expand -t 14

setup:  ## .venv with Echelon, its extras and the development tools
	@tools/setup.sh venv

system:  ## the distribution's Slurm, MariaDB and chromium, for the tests that use them
	@tools/setup.sh system

check: setup  ## formatting, lint, types, layers, the documentation's links
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(SITE)

format: setup  ## put the code in form
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: setup  ## renew docs/reference and docs/benchmarks.md; the site, in build/site, or with ARGS=serve on this host
	@$(BIN)/python tools/reference.py
	@$(BIN)/python tools/figures.py
	@$(if $(filter serve,$(ARGS)),NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve,$(SITE))

test: setup system  ## everything that CI runs: unit, local, real Slurm, browser
	@$(BIN)/pytest -m "not full" --durations=10 $(ARGS)

peers: setup  ## .venv-peers with other people's frameworks, for test-all and bench
	@tools/setup.sh peers

test-all: setup peers system  ## the full matrices too
	@$(BIN)/pytest --durations=10 $(ARGS)

demo: setup  ## MNIST on two simulated nodes, and a crash that it survives
	@$(BIN)/echelon run --nodes 2 --procs 2 examples/mnist/train.py \
	    --epochs 1 --batch-size 32 --crash-at 230
	@echo; echo "What it left is in $$(ls -td runs/train-* | head -1). Try next:"
	@echo "  $(BIN)/echelon logs last              what each rank said"
	@echo "  $(BIN)/echelon status last            how it ended"
	@echo "  sudo $(BIN)/echelon sandbox up        a Slurm cluster on this machine, to do the same on"

bench: setup peers system  ## measure; results under benchmarks/results/
	@set -e; for name in sandbox launch raylaunch restart nodeloss rendezvous strangers idle faultmatrix leftovers loader checkpoint page lint; do \
	    echo "--- $$name"; $(BIN)/python benchmarks/$$name.py; done
	@echo "--- overhead"; .venv-peers/bin/python benchmarks/overhead.py

# One alone, or a short form: make soak ARGS="storm --minutes 3 --every 20"
soak: setup system  ## the long tests of survival on Slurm, about three hours; one alone with ARGS=
	@$(BIN)/python benchmarks/soak.py $(or $(ARGS),all)

dist: setup  ## the release: sdist and wheel, in dist/
	@tools/dist.sh

constraints:  ## resolve constraints.txt anew, at the newest versions
	@tools/constraints.sh

clean:  ## remove the environment and every cache
	@rm -rf .venv .venv-peers build dist *.egg-info src/*.egg-info .*_cache .hypothesis
