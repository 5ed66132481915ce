# Everything a person or CI does here is one verb; `make help` lists them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PORT ?= 8000
# Among so many processes the tests are shared out: one more than cores, as they wait much.
SHARES ?= $(shell echo $$(($$(nproc) + 1)))
BIN := .venv/bin

# PostgreSQL runs even where SQLite has failed: one run tells everything.
both_databases = failed=0; $(BIN)/python -m pytest -n $(SHARES) $(1) || failed=1; \
	$(BIN)/python -m pytest -n $(SHARES) $(1) --database=postgresql || failed=1; exit $$failed

.PHONY: help setup setup-dev agents run test test-all check audit bench chaos demo image migrations format lock

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## .venv and what running needs; nothing when nothing changed
	@scripts/setup base

setup-dev: ## setup, and what tests and checks need
	@scripts/setup dev

agents: ## published coding agents, for the tests that run them
	@scripts/setup agents

run: setup ## serve on http://kandev.localhost:$(PORT), with a demo on the first start
	@$(BIN)/python manage.py migrate --verbosity 0
	@$(BIN)/python manage.py create_demo --port $(PORT)
	@exec $(BIN)/python manage.py serve --port $(PORT)

test: setup-dev ## what proves the product, on SQLite and PostgreSQL; ARGS="tests/house -x" for a part
	@$(if $(ARGS),$(BIN)/python -m pytest $(ARGS),$(call both_databases,--tier=main))

test-all: setup-dev ## every test there is, on SQLite and again on PostgreSQL
	@$(call both_databases,)

check: setup-dev ## format, lint, types, imports, migrations, API schema, licences
	@scripts/check

audit: setup-dev ## known holes in what is used; asks services on the internet
	@$(BIN)/uv tool run pip-audit --disable-pip --require-hashes --requirement requirements/base.txt
	@npm audit --prefix frontend

bench: setup-dev ## each figure beside its floor, kept in bench.json; COMPARE=FILE with an earlier one, ARGS=--quick to see it run
	@$(BIN)/python -m tests.bench $(if $(COMPARE),--compare $(COMPARE)) $(ARGS)

chaos: setup-dev ## kill at every point and at random, and count what is lost; SEED=N repeats a walk
	@$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED)) $(ARGS)

soak: setup-dev ## hundreds of sessions and random deaths for SECONDS=300, on SQLite or DATABASE=postgresql; SEED=N repeats the choices
	@$(BIN)/python -m tests.soak --seconds $(or $(SECONDS),300) $(if $(SEED),--seed $(SEED)) $(if $(DATABASE),--database $(DATABASE)) $(ARGS)

demo: setup ## the restart story, in the terminal
	@$(BIN)/python manage.py demo

image: ## the image that sessions on Docker run in; BASE and IMAGE may be given
	@docker build --file Dockerfile.agentctl $(if $(BASE),--build-arg BASE=$(BASE)) --tag $(or $(IMAGE),kandev-agentctl) .

migrations: setup-dev ## write missing migrations
	@$(BIN)/python manage.py makemigrations

format: setup-dev ## format and fix what can be fixed, and write docs/openapi.yaml
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/python manage.py spectacular --validate --file docs/openapi.yaml

lock: setup-dev ## pin all requirements anew, with hashes
	@scripts/lock
