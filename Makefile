# Two commands matter: `make demo` and `make test`. Both set up everything they need.
PYTHON ?= python3
BIN := .venv/bin


.DEFAULT_GOAL := help
.PHONY: control-plane help setup lint types contract unit e2e test test-full demo bench lock clean

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-10s %s\n", $$1, $$2}'

.venv/.installed: locks/dev.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r locks/dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

setup: .venv/.installed ## a virtual environment with everything in it

lint: setup ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup ## mypy --strict
	$(BIN)/mypy

contract: setup ## who may import whom
	$(BIN)/lint-imports

unit: setup ## unit, property, contract and simulation tests
	$(BIN)/pytest tests/unit tests/property tests/contract tests/sim

control-plane: setup ## the binaries of the real control plane (built once, then cached)
	$(BIN)/python -m bench.cluster binaries --kubernetes 1.37.1

e2e: control-plane ## one end-to-end test per promise, on a real control plane
	$(BIN)/pytest tests/e2e -m "not full"

test: lint types contract unit e2e ## everything that has to pass

test-full: setup ## every test, on every supported version; goes on where it stopped
	@echo "about 25 minutes, and 12 more for each older control plane that has to be built first"
	$(BIN)/python -m bench.cluster binaries --kubernetes 1.37.1
	$(BIN)/python -m bench.cluster binaries --kubernetes 1.36.4
	$(BIN)/python -m bench.cluster binaries --kubernetes 1.35.4
	$(BIN)/pytest tests --stepwise

demo: control-plane ## a cluster of 100 nodes with gangs coming and going
	$(BIN)/python -m bench.demo

bench: control-plane ## the numbers of the README
	$(BIN)/python -m bench.throughput --readme
	$(BIN)/python -m bench.latency
	$(BIN)/python -m bench.jobs
	-$(BIN)/python -m bench.planner
	$(BIN)/python -m bench.placement

lock: setup ## resolve the dependencies anew
	$(BIN)/uv pip compile -q pyproject.toml --generate-hashes --no-header --no-emit-index-url --no-annotate \
	  --python-version 3.11 -o locks/runtime.txt
	$(BIN)/uv pip compile -q pyproject.toml --group dev --generate-hashes --no-header --no-emit-index-url \
	  --no-annotate --python-version 3.11 -o locks/dev.txt

clean: ## remove what setup made
	rm -rf .venv
