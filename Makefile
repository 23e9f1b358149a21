# make help says what there is. Needs Python 3.11 or newer (PYTHON=...), nothing else installed.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; exit; }; done; echo python3)
VENV := .venv
BIN := $(VENV)/bin
STREAM ?=
export STREAM
ARGS ?=
SEED ?= 0
SECONDS ?= 10
RESULTS ?=
K ?=
TARGET ?= scanner

.DEFAULT_GOAL := help
.PHONY: help demo test campaign faults fuzz mutants lint format clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 10

demo: $(VENV)/.cli ## record a stream (STREAM=file.jsonl), kill the recorder in mid-message, show what came back, count the cost
	@$(BIN)/python -m scopelog.cli.demo "$$STREAM"

test: $(VENV)/.dev ## run the tests (ARGS="-k window")
	$(BIN)/python -m pytest $(ARGS)

campaign: $(VENV)/.dev ## the same at length, hours: 2,000 examples a property, every place of every fault (ARGS as above)
	SCOPELOG_HYPOTHESIS=long $(BIN)/python -m pytest --timeout=0 $(ARGS)

faults: $(VENV)/.dev ## every fault of the matrix with every rig that can run here, half an hour (SEED=n, SECONDS=s for each random part, RESULTS=file, K=expression)
	$(BIN)/python -m fuzz.faults --seed $(SEED) --seconds $(SECONDS) $(if $(RESULTS),--write $(RESULTS)) $(if $(K),-k "$(K)")

fuzz: $(VENV)/.fuzz ## let coverage guide a fuzzer through one target (TARGET=recovery, SECONDS=s; python -m fuzz.targets lists them)
	$(BIN)/python -m fuzz.atheris_run $(TARGET) -- -max_total_time=$(SECONDS) $(ARGS)

mutants: $(VENV)/.dev ## break the engine on purpose, one way after another: each must be caught by its tests
	$(BIN)/python -m fuzz.mutants $(ARGS)

lint: $(VENV)/.dev ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the virtual environment, caches and the demonstration's store
	rm -rf $(VENV) demo-store build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -maxdepth 1 -name '*.egg-info' -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.cli: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[cli]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"], sep="\n")' \
		> $(VENV)/dev.txt  # what pip 25.1 and newer call --group dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[cli]' --requirement $(VENV)/dev.txt
	@touch $@ $(VENV)/.cli

$(VENV)/.fuzz: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	@touch $@
