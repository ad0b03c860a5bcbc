# The two commands (`make up`, `make test`) and the developer's habits. `make help` lists them.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help env up down test lint format types imports schemas schemas-check schemas-release dashboards kafka unit contract service e2e lock clean

help: ## this list
	@grep -hE '^[a-z0-9 -]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-26s %s\n", $$1, $$2}'

env: $(VENV)/.installed ## the Python environment, from the pinned and hashed lock

$(VENV)/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "gpuyard needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@echo "Preparing the environment in $(VENV) (once, about a minute)"
	@$(PYTHON) -m venv $(VENV) || { echo "The venv module is missing. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

up: env ## start everything on this machine; ARGS="--data-dir D --http 127.0.0.1:9000" sets where
	@exec $(BIN)/yard up $(ARGS)

down: env ## stop everything that `make up` started, tasks included
	@exec $(BIN)/yard down $(ARGS)

test: lint types imports schemas-check kafka unit contract service e2e ## everything: lint, types, import rules, all tests

lint: env ## ruff, format included
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: env ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: env ## pyright, strict on libs/
	$(BIN)/basedpyright --level error

imports: env ## the import rule between packages
	$(BIN)/lint-imports

schemas: env ## write schemas/ anew: JSON Schema, AsyncAPI, OpenAPI and golden events, from the code
	$(BIN)/python -m yard_allinone.schemas write

schemas-check: env ## is schemas/ what the code says, and does nothing break what was released?
	$(BIN)/python -m yard_allinone.schemas check

schemas-release: env ## hold later versions to what schemas/ says now
	$(BIN)/python -m yard_allinone.schemas release

dashboards: env ## write the dashboards and alerts in compose/ anew, from compose/grafana/boards
	$(BIN)/python compose/grafana/build.py

kafka: env ## fetch the Kafka that the tests run (into .cache/, once)
	@cd tests && ../$(BIN)/python -m support.kafka_cluster

# Two workers, a file each: most of a test's time is spent waiting for a commit, a process or a port.
unit contract service e2e: env ## one of the test suites
	$(BIN)/pytest tests/$@ -n 2 --dist loadfile $(ARGS)

UV_LOCK := uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header

lock: ## renew the locks from pyproject.toml (needs uv on the PATH); the image's two are parts of the first
	$(UV_LOCK) --extra dev -o requirements.lock pyproject.toml
	$(UV_LOCK) --no-annotate --extra control --extra agent --constraint requirements.lock -o requirements-runtime.lock pyproject.toml
	echo hatchling | $(UV_LOCK) --no-annotate --constraint requirements.lock -o requirements-build.lock -

clean: ## remove the environment and caches; data folders stay
	rm -rf $(VENV) .cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
