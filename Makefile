# Two commands matter: `make demo` and `make test`. Both set up everything they need.
PYTHON ?= python3
BIN := .venv/bin
THROUGHPUT = $(BIN)/python -m bench.throughput --queue full
RATES = $(THROUGHPUT) --only plain native serried plain-isolated bindings
LATENCY = $(THROUGHPUT) --repetitions 1 --only serried plain-isolated
# Three processes on two cores: stories wait now and then, and more than three of them would only wait for a core.
WORKERS ?= 3
# Some environments forbid it: every process would then compile what it runs anew, and pytest all tests.
export PYTHONDONTWRITEBYTECODE :=
# What `make test` tells of: marks of pytest, in pyproject.toml. UNCHANGED= tells also of what has not changed.
UNCHANGED ?= --leave-out-unchanged
# The folders and files of tests/e2e of which `make e2e` tells the stories.
E2E ?= tests/e2e
IN_GROUPS = --numprocesses $(WORKERS) --dist loadgroup --no-loadscope-reorder
SHORT = -m "not full and not tools" $(UNCHANGED)


.DEFAULT_GOAL := help
.PHONY: browser cast checks fuzz oracle control-plane control-planes helm help picture setup lint types contract unit e2e test test-full tools demo soak soak-tight soak-steady bench throughput numbers pages lock site sbom release-dry release-files changelog audit clean

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

.venv/.installed: locks/dev.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r locks/dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

setup: .venv/.installed ## a virtual environment with everything in it

lint: setup ## style, dead code, links, tables, and whether the numbers of README and docs are those of bench/results
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/vulture
	$(BIN)/python -m bench.quotes
	$(BIN)/python -m bench.links

types: setup ## mypy --strict
	$(BIN)/mypy

contract: setup ## who may import whom
	$(BIN)/lint-imports

unit: setup ## unit, property, contract and simulation tests
	$(BIN)/pytest tests/unit tests/property tests/contract tests/sim $(SHORT) --numprocesses $(WORKERS) --hypothesis-profile short

fuzz: setup ## the properties and the bad input once more, with other examples each time: an hour
	-$(BIN)/python -m bench.oracle
	$(BIN)/pytest tests/property tests/contract --numprocesses $(WORKERS) --hypothesis-profile wide

browser: setup ## the page in a real browser: any Chromium in PATH, or that of SERRIED_CHROMIUM; pictures in build/page
	$(BIN)/pytest tests/browser $(SHORT) -rs --numprocesses $(WORKERS) || [ $$? = 5 ]  # 5: all of them are left out

oracle: setup ## kube-scheduler's filters as a program, which tests/property/test_upstream_filters.py asks (needs Go)
	$(BIN)/python -m bench.oracle

control-plane: setup ## the binaries of the real control plane (built once, then cached)
	$(BIN)/python -m bench.cluster binaries --kubernetes 1.37.1

control-planes: control-plane ## those of every supported version, and the kube-scheduler of the next minor
	$(BIN)/python -m bench.cluster binaries --scheduler 1.38.0-beta.0
	$(BIN)/python -m bench.cluster binaries --kubernetes 1.36.4
	$(BIN)/python -m bench.cluster binaries --kubernetes 1.35.4

helm: setup ## Helm 4 and 3, for the tests of the chart (built once, then cached)
	$(BIN)/python -m bench.cluster helm

e2e: control-plane ## one end-to-end test per promise, on a real control plane
	$(BIN)/pytest $(E2E) $(SHORT) $(IN_GROUPS)

tools: control-plane helm ## the tests of bench, tests/chaos, the chart, the demo and the image: run them when something there has changed
	$(BIN)/pytest tests -m "tools and not full" $(IN_GROUPS)

checks: setup
	@$(MAKE) --no-print-directory --jobs 3 --output-sync lint types contract
	@$(MAKE) --no-print-directory unit browser e2e

test: ## everything that has to pass
	@begun=$$(date +%s); $(MAKE) --no-print-directory checks; code=$$?; took=$$(($$(date +%s) - begun)); \
	echo "make test: took $$((took / 60)) min $$((took % 60)) s, exit code $$code"; exit $$code

test-full: lint types contract control-planes helm ## every test, on every supported version, in one piece
	@begun=$$(date +%s); $(BIN)/pytest tests -m "not again" --durations=10 $(IN_GROUPS); code=$$?; took=$$(($$(date +%s) - begun)); \
	if [ $$code = 0 ]; then $(BIN)/python -m tests.unchanged --note; fi; \
	echo "make test-full: all tests took $$((took / 60)) min $$((took % 60)) s, exit code $$code"; exit $$code

demo: control-plane ## a cluster of 100 nodes with gangs coming and going
	$(BIN)/python -m bench.demo

# The page tells also of a run that has failed.
soak: control-plane ## faults of all kinds for an hour; SOAK="--minutes 10 --seed 2 --faults kills proxy" for others
	@$(BIN)/python -m tests.chaos $(SOAK); code=$$?; $(BIN)/python -m bench.reliability --write && exit $$code

soak-tight: control-plane ## the same with as many plain pods as gangs on full nodes, in an isolated installation
	@$(BIN)/python -m tests.chaos --mix tight --shape isolated --name soak-tight $(SOAK); code=$$?; \
	$(BIN)/python -m bench.reliability --write && exit $$code

soak-steady: control-plane ## the same, but nobody is killed: whether memory grows
	@$(BIN)/python -m tests.chaos --faults proxy cluster --name soak-steady --minutes 30 $(SOAK); code=$$?; \
	$(BIN)/python -m bench.reliability --write && exit $$code

picture: setup ## the picture of the live page in README, in a real browser
	$(BIN)/python -m bench.picture

# A file for each name that README and docs quote; a missed bound ends no measuring.
bench: control-plane ## the numbers of README and docs: an hour and more, on a machine that does nothing else
	$(MAKE) throughput
	$(BIN)/python -m bench.throughput --nodes 5000 --name throughput-plain-5000 --only plain plain-isolated plain-asked
	$(BIN)/python -m bench.throughput --name throughput-beside --only native serried serried-beside
	-$(BIN)/python -m bench.replay
	$(BIN)/python -m bench.latency
	$(BIN)/python -m bench.jobs --only steady flood
	$(BIN)/python -m bench.jobs --only running --name jobs-running
	$(BIN)/python -m bench.jobs --api native --only steady --rate 80 --seconds 30 --name jobs-native-80
	$(BIN)/python -m bench.jobs --only steady --rate 40 --seconds 30 --own-core --name jobs-own-core
	-$(BIN)/python -m bench.planner
	-$(BIN)/python -m bench.loop
	-$(BIN)/python -m bench.held
	-$(BIN)/python -m bench.events
	$(BIN)/python -m bench.questions
	$(BIN)/python -m bench.questions --only nobody cache --name questions-cache
	$(BIN)/python -m bench.readers
	$(BIN)/python -m bench.advice
	$(BIN)/python -m bench.cycle
	$(BIN)/python -m bench.rules
	$(BIN)/python -m bench.placement --only offline --small-seeds 0 --mixed 0
	$(BIN)/python -m bench.placement --only offline --seeds 0 --large-seeds 0 --name placement-small
	$(BIN)/python -m bench.placement --only live --name placement-live
	$(BIN)/python -m bench.preemption
	-$(BIN)/python -m bench.victims
	-$(BIN)/python -m bench.failover
	-$(BIN)/python -m bench.cold_start
	$(BIN)/python -m bench.http_client
	$(BIN)/python -m bench.kubeconfig
	$(BIN)/python -m bench.stored
	$(BIN)/python -m bench.page
	-$(BIN)/python -m bench.autoscaler
	$(MAKE) numbers

throughput: control-plane ## the ratios and the plot of README: 40 minutes on a machine that does nothing else
	-$(RATES) --repetitions 2 --nodes 5000 --name throughput-5000 --loads plain gangs racks ports
	-$(RATES) --repetitions 1 --nodes 5000 --filled 70 --name throughput-filled-5000 --loads plain gangs racks
	-$(RATES) --repetitions 2 --loads plain gangs racks ports
	-$(RATES) --repetitions 1 --filled 70 --name throughput-filled --loads plain gangs racks
	-$(LATENCY) --nodes 5000 --name throughput-latency-5000 --loads thousand beside
	-$(LATENCY) --name throughput-latency --loads turns steady thousand beside
	$(MAKE) numbers

cast: control-plane ## what the demo tells, as docs show it
	$(BIN)/python -m bench.demo --cast docs/images/demo.cast

numbers: setup ## write the newest results into README and docs, and say what has changed: read those sentences again
	$(BIN)/python -m bench.quotes --write

pages: setup ## write what is made from the code: the pages of the command line, the API and the metrics, and the chart
	$(BIN)/python -m bench.chart --write
	$(BIN)/python -m bench.commands --write
	$(BIN)/python -m bench.reference --write
	$(BIN)/python -m bench.metrics --write

lock: setup ## resolve the dependencies anew
	$(BIN)/uv pip compile -q pyproject.toml --generate-hashes --no-header --no-emit-index-url --no-annotate \
	  --python-version 3.11 -o locks/runtime.txt
	$(BIN)/uv pip compile -q pyproject.toml --group dev --generate-hashes --no-header --no-emit-index-url \
	  --no-annotate --python-version 3.11 -o locks/dev.txt

	$(BIN)/uv pip compile -q pyproject.toml --extra traces -c locks/runtime.txt --generate-hashes --no-header --no-emit-index-url \
	  --no-annotate --python-version 3.11 -o locks/traces.txt

	$(BIN)/uv pip compile -q manifests/cli/pyproject.toml --universal --generate-hashes --no-header --no-emit-index-url \
	  --no-annotate --python-version 3.11 -o locks/cli.txt

	$(BIN)/uv pip compile -q --group supply --generate-hashes --no-header --no-emit-index-url \
	  --no-annotate --python-version 3.11 -o locks/supply.txt

	$(BIN)/uv pip compile -q --group site --generate-hashes --no-header --no-emit-index-url \
	  --no-annotate --python-version 3.11 -o locks/site.txt

# Tools of their own, so that what they need is in nobody's way.
build/supply/.installed: locks/supply.txt
	$(PYTHON) -m venv build/supply
	build/supply/bin/pip install --quiet --disable-pip-version-check --require-hashes -r locks/supply.txt
	@touch $@

build/site/.installed: locks/site.txt
	$(PYTHON) -m venv build/site
	build/site/bin/pip install --quiet --disable-pip-version-check --require-hashes -r locks/site.txt
	@touch $@

site: build/site/.installed ## the pages of docs as a site: build/site/html/index.html
	NO_MKDOCS_2_WARNING=1 build/site/bin/mkdocs build --quiet

sbom: build/supply/.installed ## what the image is made of, as CycloneDX: build/sbom.cdx.json
	build/supply/bin/python -m bench.supply sbom

release-dry: release-files ## a release without a registry: its files in build/release, and all pushes into one in memory
	$(BIN)/python -m bench.push dry

# What is pushed then: .github/workflows/release.yaml.
release-files: setup helm sbom site ## the files of a release in build/release
	$(BIN)/python -m bench.publish

changelog: setup ## before a release: give what is unreleased in CHANGELOG.md the version and the day
	$(BIN)/python -m bench.publish date

audit: build/supply/.installed ## known vulnerabilities in it; says so where the advisory service is not reached
	build/supply/bin/python -m bench.supply audit

clean: ## remove what setup made
	rm -rf .venv build/supply build/site build/release build/image
