# Each target first installs what it needs, into .venv, on a fresh Debian or Ubuntu with Python 3.11 or newer.
# `make help` lists the targets.
SHELL := bash
MAKEFLAGS += --no-print-directory
BIN := .venv/bin
export PYTHON
# Where Debian keeps the daemons.
export PATH := $(PATH):/usr/sbin:/sbin
# Most tests wait half of the time: two side by side, each file in one worker with its own sandbox.
PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder
# Where those are that need the machine for themselves: collecting all tests again would take longer.
ALONE := $$(grep -rl --include='*.py' 'mark\.alone' tests)
# Otherwise each of thousands of processes compiles it, where PYTHONDONTWRITEBYTECODE is set.
COMPILE := $(BIN)/python -m compileall -qq -j 0 src
THOROUGH := --hypothesis-profile=thorough
# Without mkdocs-material's notice about MkDocs 2.
SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: help setup peers system check format docs test test-quick test-all test-gpu test-suites demo bench soak constraints dist clean

help:  ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' Makefile | expand -t 14

setup:  ## install Echelon and PyTorch into .venv
	@tools/setup.sh user

system:  ## install the distribution's Slurm, MariaDB, OpenSSH and Chromium
	@tools/setup.sh system

check:  ## formatting, lint, types, layers, the documentation's links
	@tools/setup.sh user check docs
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(SITE)

format:  ## format the code
	@tools/setup.sh user check
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs:  ## renew docs/reference and docs/benchmarks.md, and build the site in build/site; ARGS=serve serves it
	@tools/setup.sh user docs
	@$(BIN)/python tools/reference.py
	@$(BIN)/python tools/figures.py
	@$(if $(filter serve,$(ARGS)),NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve,$(SITE))

test-quick: system  ## before a commit, in 3 minutes: the units, and one run of each kind
	@tools/setup.sh user docs test
	@$(COMPILE)
	@$(BIN)/pytest $(PARALLEL) -m "(unit or quick) and not full" $(ARGS)

test: system  ## everything that CI runs: unit, local, real Slurm, browser
	@tools/setup.sh user docs test
	@$(COMPILE)
	@$(if $(ARGS),$(BIN)/pytest -m "not full" $(ARGS),$(BIN)/pytest $(PARALLEL) -m "not full and not alone" --durations=25 && \
	    $(BIN)/pytest -m "alone and not full" --durations=10 $(ALONE))

peers:  ## install Lightning, Transformers and other frameworks into .venv-peers, for test-all and bench
	@tools/setup.sh peers

test-all: peers  ## the full matrices too
	@tools/setup.sh system full
	@tools/setup.sh user docs test
	@$(COMPILE)
	@$(if $(ARGS),$(BIN)/pytest $(THOROUGH) $(ARGS),$(BIN)/pytest $(THOROUGH) $(PARALLEL) -m "not alone" --durations=25 && \
	    $(BIN)/pytest $(THOROUGH) -m alone --durations=10 $(ALONE))

test-gpu:  ## tests/gpu, with the Python of PYTHON, which has torch and a GPU; NCCL=libnccl.so.2 if torch has none from 2.30
	@PYTHONPATH=$(abspath src):$(abspath tests) ECHELON_TEST_NCCL=$(abspath $(NCCL)) $(or $(PYTHON),python3) -m pytest \
	    -c /dev/null --rootdir . --import-mode=importlib -p no:cacheprovider tests/gpu $(ARGS)

test-suites:  ## tests/slurm on another Debian suite's Slurm and Python: SUITE=trixie or forky
	@tools/suite.sh $(or $(SUITE),trixie) $(ARGS)

demo: setup  ## train MNIST on two simulated nodes; one rank is killed, and the run recovers
	@$(BIN)/echelon run --nodes 2 --procs 2 examples/mnist/train.py \
	    --epochs 1 --samples 20000 --batch-size 32 --crash-at 115
	@echo; echo "The run's files are in $$(ls -td runs/train-* | head -1). Try next:"
	@echo "  $(BIN)/echelon logs last              show the output of all ranks"
	@echo "  $(BIN)/echelon report last            show how the time was spent"
	@echo "  sudo $(BIN)/echelon sandbox up        start a Slurm cluster on this machine"

bench: peers system  ## measure; results under benchmarks/results/
	@tools/setup.sh user test
	@set -e; for name in sandbox launch raylaunch restart nodeloss rendezvous strangers idle faultmatrix leftovers loader checkpoint shards snapshot sweep packed page lint remote; do \
	    echo "--- $$name"; $(BIN)/python benchmarks/$$name.py; done
	@echo "--- overhead"; .venv-peers/bin/python benchmarks/overhead.py

# One alone, or a short form: make soak ARGS="storm --minutes 3 --every 20"
soak: system  ## the long tests of survival on Slurm, about three hours; one alone with ARGS=
	@tools/setup.sh user test
	@$(BIN)/python benchmarks/soak.py $(or $(ARGS),all)

dist:  ## build the release in dist/: sdist and wheel
	@tools/dist.sh

constraints:  ## renew constraints.txt with the newest versions
	@tools/constraints.sh

clean:  ## remove the environment and every cache
	@rm -rf .venv .venv-peers build dist *.egg-info src/*.egg-info .*_cache .hypothesis
