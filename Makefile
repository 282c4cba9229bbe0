# Two commands matter: `make demo` runs the main job, `make test` runs all tests. Both set up what they need first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
READY := $(VENV)/.ready
PREPARED := $(VENV)/.prepared
LOCKS := $(wildcard locks/*/*.txt)
# A network is many Python processes: with this set, as images for containers have it, each would compile all it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup prepare system demo test check format bench-check clean

help: ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## prepare .venv, the pinned dependencies and Java

$(RUNS): pyproject.toml constraints.txt $(LOCKS) scripts/setup.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" UNLOCKED="$(UNLOCKED)" sh scripts/setup.sh
	@touch $(RUNS)

# All that $(RUNS) has and more: not after it, because installing in two steps takes longer than in one.
$(READY): pyproject.toml constraints.txt $(LOCKS) scripts/setup.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" UNLOCKED="$(UNLOCKED)" sh scripts/setup.sh dev
	@touch $(RUNS) $(READY)

prepare: $(PREPARED) ## keep what Java has loaded once Spark runs: each later start takes half the time

$(PREPARED): constraints.txt | $(READY)
	@echo "tocsin setup: preparing Spark for quick starts (about a minute, once)"
	@$(BIN)/tocsin prepare >/dev/null 2>$(VENV)/prepare.log || { cat $(VENV)/prepare.log; echo "tocsin setup: it goes on without"; }
	@touch $(PREPARED)

system: ## install the optional system parts some tests use (Debian, Ubuntu)
	@sh scripts/system.sh

demo: $(RUNS) ## the main job: an emergency city on a whole network, with a dashboard and a report
	@$(BIN)/tocsin demo

test: $(READY) $(PREPARED) ## all tests; says what it skipped and why
	@$(BIN)/python scripts/test.py $(PYTEST_ARGS)

check: $(READY) ## ruff, mypy --strict and the architecture test
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q tests/test_architecture.py

bench-check: $(READY) $(PREPARED) ## a short form of each benchmark; fails if a ratio is worse than its bar (about 20 minutes)
	@$(BIN)/tocsin bench check $(BENCH_ARGS)

format: $(READY) ## rewrite the sources in the project's format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## remove everything that make made
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
