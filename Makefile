# Everything needs Python 3.11 and pip, nothing else; the first target that is asked for makes .venv. Python 3.12 and 3.13
# do as well, without real engines where there is no CPU build of PyTorch for them.
# `make help` lists the targets.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
PYTHONS := 3.11 3.12 3.13
BIN := .venv/bin
READY := .venv/.ready
UV := $(BIN)/uv pip
PYTEST ?= $(BIN)/python -m pytest
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# A folder of wheels named for pip serves uv too. Where there is none, PyTorch's CPU build comes from PyTorch's own index.
ifdef PIP_FIND_LINKS
export UV_FIND_LINKS := $(PIP_FIND_LINKS)
TORCH :=
else
TORCH := --torch-backend cpu
endif

# The pins are complete: nothing else is resolved, and every file must have one of the hashes.
PINNED := --no-deps --require-hashes

export VLLM_CPU_OMP_THREADS_BIND ?= nobind
export VLLM_NO_USAGE_STATS ?= 1
export RAY_USAGE_STATS_ENABLED ?= 0

.PHONY: help setup demo serve test test-fast check-vllm lint format bench bench-parsing bench-policy bench-guard bench-streams bench-gateway bench-slots bench-goodput bench-limits bench-access bench-real-engine bench-conform models pins kuberay check-images clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(READY) ## make .venv with pinned packages

$(READY): pyproject.toml lab/pyproject.toml requirements/dev.txt requirements/dev-gateway.txt requirements/torch.txt
	@echo "specgate: setting up .venv (about 3.6 GB on disk, mostly PyTorch and vLLM; some minutes the first time)"
	@$(PYTHON) -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] not in "$(PYTHONS)".split() and "specgate needs one of Python $(PYTHONS); this is " + sys.version.split()[0] + ". Set PYTHON=/path/to/python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.8
	@if $(UV) install --quiet --python $(BIN)/python --no-deps $(TORCH) -r requirements/torch.txt; then \
	  $(UV) install --python $(BIN)/python $(PINNED) -r requirements/dev.txt; \
	elif $(BIN)/python -c 'import sys; sys.exit(sys.version_info[:2] == (3, 11))'; then \
	  echo "specgate: no CPU build of PyTorch for $$($(BIN)/python -V) here, so no real engines: 'make test-fast' and deploy/sim.yaml work, 'make demo' does not"; \
	  $(UV) install --python $(BIN)/python $(PINNED) -r requirements/dev-gateway.txt; \
	else exit 1; fi
	@$(UV) install --python $(BIN)/python --no-deps --editable . --editable ./lab
	@echo "specgate: writing bytecode, without which every process compiles torch and vLLM again"
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -W ignore -c 'import importlib.util as u, serve.cli, serve.app; u.find_spec("torch") and __import__("serve.engine.vllm.host") and __import__("vllm.v1.worker.cpu_worker")'
	@touch $@

demo: $(READY) ## start everything here, send the example requests, print what happened
	@$(BIN)/specgate demo

serve: $(READY) ## the same and keep it running on 127.0.0.1:8000 (SPECGATE_PORT changes the port)
	@exec $(BIN)/specgate serve --config deploy/laptop.yaml --stop-with-parent

# Agents and their libraries want versions of their own, apart from .venv and from one another: an environment each.
AGENTS := $(patsubst requirements/agents/%.in,build/agents/%/.ready,$(wildcard requirements/agents/*.in))

build/agents/%/.ready: requirements/agents/%.txt | $(READY)
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(@D)
	@$(UV) install --quiet --python $(@D)/bin/python $(PINNED) -r $<
	@touch $@

# A test of stopping has a cluster of its own, which mostly waits: two at a time.
STOPPING := tests/ray/test_stopping.py
test: test-fast $(AGENTS) ## every test on one node, the real engines included
	@$(PYTEST) tests/engine tests/ray --ignore $(STOPPING)
	@$(PYTEST) $(STOPPING) --numprocesses 2

# Component tests mostly wait, so that there are two for each core.
test-fast: $(READY) ## without Ray and without engines, on all cores
	@$(PYTEST) tests/unit --numprocesses logical --dist worksteal
	@$(PYTEST) tests/component --numprocesses $$((2 * $$(nproc))) --dist loadfile --no-loadscope-reorder

.PHONY: test-python
test-python: $(READY) ## what needs no real engine, on another Python: make test-python VERSION=3.12
	@.ci/test-python $(VERSION)

check-vllm: $(READY) ## the plug-ins against another vLLM: make check-vllm VERSION=0.33.0
	@$(BIN)/python tests/support/other_vllm.py $(VERSION)

.PHONY: test-up test-chaos
test-up: $(READY) ## `ray up` on loopback, with an sshd of the test's own; then updates, growth and deaths under load (7 minutes)
	@$(PYTEST) tests/up tests/chaos

test-chaos: $(READY) ## the latter with 5,000 requests for each rolling update (15 minutes)
	@SPECGATE_UPDATE_REQUESTS=5000 $(PYTEST) tests/chaos --timeout=1800 -rP

.PHONY: test-faults
test-faults: $(READY) ## clocks, disks, names, networks and more that fail under load, as a table (5 minutes; ARGS="--only NAME")
	@$(BIN)/python -m tests.faults $(ARGS)

.PHONY: test-agents agents
test-agents: $(READY) $(AGENTS) ## client libraries and the installed agents through whole tool loops, scripted engines
	@$(PYTEST) tests/agents --numprocesses logical --dist loadscope

KIMI_PYTHON ?= python3.13
agents: $(READY) ## install the agents that test-agents runs where they are installed (needs npm; 1.5 GB)
	@mkdir -p build/agents/npm
	@cp requirements/agents/package.json build/agents/npm
	@npm install --prefix build/agents/npm --no-audit --no-fund --loglevel=error
	@if $(BIN)/uv venv --quiet --clear --python $(KIMI_PYTHON) build/agents/kimi; then \
	  $(UV) install --quiet --python build/agents/kimi/bin/python kimi-cli==1.47.0; \
	else echo "Kimi CLI wants Python 3.13: set KIMI_PYTHON=/path/to/python3.13"; fi

.PHONY: test-page screenshots
test-page: $(READY) ## the dashboard in a headless Chromium; needs a browser (SPECGATE_BROWSER says which)
	@$(PYTEST) tests/page -rs

screenshots: $(READY) ## take the pictures of the page in docs/images again
	@$(BIN)/python -m tests.page.screenshots

.PHONY: trace-picture
trace-picture: $(READY) ## draw docs/images/trace.svg again, from a request to real engines
	@SPECGATE_TRACE_PICTURE=1 $(PYTEST) tests/engine/test_traces.py -rs

lint: $(READY) ## ruff, mypy --strict, import contracts, every import declared in pyproject.toml
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/deptry serve policies
	@$(BIN)/deptry lab bench models --optional-dependencies-dev-groups docs --ignore DEP002

format: $(READY) ## let ruff rewrite what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

.PHONY: recall
recall: $(READY) ## public hazards that the advisories keep drafts away from, and sound configurations that they ban
	@$(BIN)/python -m lab.recall

bench: bench-parsing bench-policy bench-guard bench-streams ## the benchmarks that end within minutes

bench-parsing: $(READY) ## parsers beside vLLM's own and re-parse-and-diff, 1,000 to 100,000 tokens (2 minutes)
	@$(BIN)/python -m bench.parsing

bench-policy: $(READY) ## features and decide() beside json.loads
	@$(BIN)/python -m bench.policy

bench-streams: $(READY) ## streamed beside whole answers of real engines, at draft lengths 1 to 5
	@$(BIN)/python -m bench.streams

bench-guard: $(READY) ## broken calls at the client, latency, cost of reruns, time to quarantine (minutes; ARGS=--quick for less)
	@$(BIN)/python -m bench.guard $(ARGS)

bench-gateway: $(READY) ## specgate beside other gateways, the same load (installs them; 10 minutes, 3 with ARGS=--quick)
	@$(BIN)/python -m bench.gateway $(ARGS)

bench-goodput: $(READY) ## pools under load: today's order, static rules, the load ranking, an oracle; virtual time (15 minutes; ARGS=--quick for 2)
	@$(BIN)/python -m bench.goodput $(ARGS)

bench-limits: $(READY) ## how well token limits and fair shares hold over replicas, and what they cost (3 minutes; ARGS="--part fairness")
	@$(BIN)/python -m bench.limits $(ARGS)

bench-access: $(READY) ## what access control costs a request: the look-up of a key, and refusals (1 minute)
	@$(BIN)/python -m bench.access

bench-slots: $(READY) ## what a slot on a replica costs a request (2 minutes)
	@$(BIN)/python -m bench.slots

bench-real-engine: $(READY) ## the gateway before vLLM's own server, beside that server itself (7 minutes; ARGS="--answers stream" for half)
	@$(BIN)/python -m bench.real_engine $(ARGS)

bench-conform: $(READY) ## how specgate and other gateways treat their neighbours (installs them; 20 minutes, mostly waiting)
	@$(BIN)/python -m bench.conform

.PHONY: bench-public
bench-public: $(READY) ## public suites through an engine alone and behind the gateway, clean and with faults (a minute; ARGS=--real for vLLM on the CPU with each tiny model, URL=http://host:8000 MODEL=name for any endpoint)
	@$(BIN)/python -m bench.public $(if $(URL),--arm endpoint=$(URL)) $(if $(MODEL),--model $(MODEL)) $(ARGS)

.PHONY: bench-k2vv bench-drafters
bench-k2vv: $(READY) ## K2-Vendor-Verifier's schema accuracy at the client: guard off, observe, heal, with live arguments
	@$(BIN)/python -m bench.k2vv $(ARGS)

bench-drafters: $(READY) ## tool calls and JSON of the tiny models with and without speculation: what `proven` rests on (20 minutes)
	@$(BIN)/python -m bench.drafters --models tiny-kimi,tiny-qwen
	@$(BIN)/python -m bench.drafters --models tiny-kimi --classes tools_auto --requests 600

models: $(READY) ## train the two tiny stand-in models again (an hour or so; their weights are committed)
	@$(BIN)/python -m models.vocabulary
	@$(BIN)/python -m models.train
	@$(BIN)/python -m models.train --draft
	@$(BIN)/python -m models.eagle
	@$(BIN)/python -m models.evaluate

.PHONY: fuzz
fuzz: $(READY) ## fuzz the listener, the engine side and the guard: make fuzz MINUTES=10
	@$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),10)

.PHONY: docs reference
docs: $(READY) ## the documentation as a site in build/docs; every warning is an error
	@$(BIN)/python -m docs._generate --check
	@$(BIN)/sphinx-build -W -n --keep-going -q -b html docs build/docs
	@echo "open build/docs/index.html"

reference: $(READY) ## write the generated pages of docs/reference again
	@$(BIN)/python -m docs._generate

.PHONY: monitoring
monitoring: $(READY) ## write the Grafana dashboard and the rules for Kubernetes again, after a change in deploy/monitoring
	@$(BIN)/python deploy/monitoring/generate.py

# Versions stay as they are, unless pyproject.toml asks for others or ARGS says so: ARGS="--upgrade-package NAME".
COMPILE := compile -q --generate-hashes --no-header --no-annotate --no-emit-index-url $(ARGS)
CPU_PINS := --python-version 3.11 --overrides requirements/overrides.txt --no-emit-package torch

pins: $(READY) ## resolve requirements/*.txt again, with hashes (ARGS="--upgrade-package NAME" for a newer one)
	@$(UV) $(COMPILE) $(CPU_PINS) --extra ray --extra lab pyproject.toml -o requirements/gateway.txt
	@$(UV) $(COMPILE) $(CPU_PINS) $(TORCH) --extra ray --extra lab --extra cpu pyproject.toml -o requirements/cpu.txt
	@$(UV) $(COMPILE) $(CPU_PINS) $(TORCH) --extra ray --extra lab --extra cpu --extra dev --extra docs pyproject.toml -o requirements/dev.txt
	@$(UV) $(COMPILE) $(CPU_PINS) --constraint requirements/dev.txt pyproject.toml -o requirements/front.txt # as tested
	@cp requirements/dev.txt requirements/dev-gateway.txt # the same versions
	@$(UV) $(COMPILE) $(CPU_PINS) --extra ray --extra lab --extra dev --extra docs pyproject.toml -o requirements/dev-gateway.txt
	@for name in $(basename $(notdir $(wildcard requirements/agents/*.in))); do \
	  $(UV) $(COMPILE) --python-version 3.11 requirements/agents/$$name.in -o requirements/agents/$$name.txt; done
	@$(UV) $(COMPILE) --python-version 3.12 --python-platform x86_64-manylinux_2_35 --extra ray --extra lab --extra gpu pyproject.toml -o requirements/gpu.txt # the Python of vLLM's image

.PHONY: sbom audit
sbom: $(READY) ## what is installed, as CycloneDX in build/sbom.json
	@.ci/sbom

audit: $(READY) ## known vulnerabilities of what is pinned (asks OSV, or a copy of it: OSV_DATABASE=all.zip)
	@.ci/audit

kuberay: $(READY) ## put the complete Serve configs into the KubeRay manifests, after a change in deploy/
	@.ci/write-kuberay

.PHONY: image
image: ## the demo's image with buildah, on a base of Debian's packages (BASE=IMAGE for another), and the demo in it (10 minutes)
	@.ci/image

.PHONY: image-gateway
image-gateway: ## the gateway's own image with buildah, as above, and the gateway in it (3 minutes)
	@.ci/image gateway

check-images: $(READY) ## what can be proven of the Dockerfiles without a Docker engine
	@.ci/check-images

.PHONY: check-chart
check-chart: $(READY) ## render the Helm chart with Helm's library, and check every object
	@.ci/check-chart

clean: ## remove .venv and every cache
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist run *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
