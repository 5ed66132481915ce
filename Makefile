# Every task of development and CI; `make help` lists them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PORT ?= 8000
# Number of test processes: one more than cores, because tests spend much time waiting.
SHARES ?= $(shell echo $$(($$(nproc) + 1)))
BIN := .venv/bin

# Test on PostgreSQL even if the tests on SQLite have failed, so that one run reports every failure.
both_databases = failed=0; scripts/run_tests -n $(SHARES) $(1) || failed=1; \
	scripts/run_tests -n $(SHARES) $(1) --database=postgresql || failed=1; exit $$failed

.PHONY: help setup setup-dev agents peers agent-matrix agent-drills run test test-all check audit sbom bench chaos soak mutations demo image test-cluster migrations docs format lock

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## create .venv and install what Kandev needs to run; does nothing if nothing changed
	@scripts/setup base

setup-dev: ## also install what the tests and checks need
	@scripts/setup dev

agents: ## install published coding agents, for the tests that run them
	@scripts/setup agents

peers: ## install DBOS and JupyterHub, which make bench compares with Kandev
	@scripts/setup peers

agent-matrix: setup-dev ## measure the installed coding agents and write docs/agent-matrix.md; ARGS=codex-acp prints one row
	@$(BIN)/python -m tests.agent_matrix $(ARGS)

agent-drills: setup-dev ## kill and resume the installed coding agents, and write the drills of docs/agent-matrix.md; ARGS=codex-acp prints one row
	@$(BIN)/python -m tests.agent_matrix --drills $(ARGS)

run: setup ## serve at http://kandev.localhost:$(PORT), with demo data on the first start
	@$(BIN)/python manage.py migrate --verbosity 0
	@$(BIN)/python manage.py create_demo --port $(PORT)
	@exec $(BIN)/python manage.py serve --port $(PORT)

test: setup-dev ## run the main tests on SQLite and PostgreSQL; ARGS="tests/house -x" runs a part
	@$(if $(ARGS),$(BIN)/python -m pytest $(ARGS),$(call both_databases,--tier=main))

test-all: setup-dev ## run every test, on SQLite and again on PostgreSQL
	@$(call both_databases,)

check: setup-dev ## check format, lint, types, imports, migrations, API schema, licences, documents
	@scripts/check

audit: setup-dev ## check dependencies for known vulnerabilities; queries services on the internet
	@$(BIN)/uv tool run pip-audit --disable-pip --require-hashes --requirement requirements/base.txt
	@npm audit --prefix frontend

sbom: setup ## write bills of materials (CycloneDX) of the control plane, agentctl and the pages to sbom/
	@scripts/sbom

bench: setup-dev ## run the benchmarks and write bench.json; COMPARE=FILE compares with an earlier one, ARGS=--quick is a trial
	@$(BIN)/python -m tests.bench $(if $(COMPARE),--compare $(COMPARE)) $(ARGS)

chaos: setup-dev ## kill processes at every crash point and at random, and count losses; SEED=N repeats a run
	@$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED)) $(ARGS)

ATTACK = tests.hostile_load --seconds $(or $(SECONDS),600)
SOAK = tests.soak --seconds $(or $(SECONDS),300) $(if $(SEED),--seed $(SEED)) $(if $(DATABASE),--database $(DATABASE))
soak: setup-dev ## run hundreds of sessions with random kills for SECONDS=300; DATABASE=postgresql, SEED=N repeats a run; HOSTILE=1 lets one team attack another for SECONDS=600 instead
	@$(BIN)/python -m $(if $(HOSTILE),$(ATTACK),$(SOAK)) $(ARGS)

mutations: setup-dev ## apply a fixed list of faults to a copy of the code, and require that the tests find each; ARGS="--only leases" tries a part
	@scripts/mutations $(ARGS)

demo: setup ## show in the terminal that agents survive restarts
	@$(BIN)/python manage.py demo

AGENTCTL_IMAGE = $(or $(IMAGE),kandev-agentctl)
image: ## build the container image for sessions on Docker and print its digest; BASE and IMAGE are optional
	@docker build --file deploy/Dockerfile.agentctl $(if $(BASE),--build-arg BASE=$(BASE)) --tag $(AGENTCTL_IMAGE) .
	@docker image inspect --format '$(AGENTCTL_IMAGE) {{index .Config.Labels "org.opencontainers.image.version"}} {{.Id}}' $(AGENTCTL_IMAGE)

test-cluster: setup-dev ## start a Kubernetes of two nodes for tests, built once from Debian's source; ARGS=down ends it, ARGS=status describes it
	@$(BIN)/python -m tests.kubernetes $(or $(ARGS),up)

migrations: setup-dev ## create missing migrations
	@$(BIN)/python manage.py makemigrations

docs: setup-dev ## write the documents that are generated from the code
	@$(BIN)/python -m scripts.documents

format: setup-dev ## format the code, fix lint where possible, and write docs/openapi.yaml
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/python manage.py spectacular --validate --file docs/openapi.yaml

lock: setup-dev ## upgrade and pin all requirements, with hashes
	@scripts/lock
