# PopuLoRA Pipeline. `make run` and `make test` set up everything they need; both start quickly if nothing has changed.
# Pass further options to a command with ARGS: make run ARGS="--set generations=16", make test ARGS="-k reward".

.DEFAULT_GOAL := help
.PHONY: help setup run test test-all check docs gpu-check bench vllm up down stack logs link images
VENV := .venv/bin
SETUP := bash infra/setup/setup.sh
BENCHMARKS := sandbox update rollout evolve population orchestration storage scoring pages
NAME ?= $(BENCHMARKS)
ARGS ?=
# Two at a time: much of a test is waiting. A file's tests share a process, for what they set up once. tests/conftest.py puts long
# ones first. Threads that wait for others sleep: they would take the cores from the other process.
WORKERS ?= 2
# The environment is installed uncompiled: if Python may not write bytecode, every stage compiles torch again.
unexport PYTHONDONTWRITEBYTECODE

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

setup: ## set up .venv, Docker and the sandbox image
	@$(SETUP)

run: setup ## the default run, stored in runs/quickstart
	@$(VENV)/populora run $(ARGS)

test: setup ## run the default tests
	@OMP_WAIT_POLICY=passive $(VENV)/python -m pytest -m "not slow and not gpu and not rgw and not vllm" -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-all: setup ## run every test that this machine supports
	@$(VENV)/python -m pytest $(ARGS)

check: ## check lint, format and types
	@$(SETUP) venv
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/mypy

docs: ## build the documentation site in build/docs; fails on a broken link or reference
	@$(SETUP) venv
	@$(VENV)/python -m sphinx -q -W --keep-going -E -a -b html -c docs . build/docs $(ARGS)
	@echo "site       build/docs/index.html"

gpu-check: ## what to run first on a new GPU machine; writes gpu-check.json; ARGS="-c paper" checks that configuration
	@$(SETUP) $(if $(findstring sandbox.kind=local,$(ARGS)),venv)
	@$(VENV)/populora gpu-check $(ARGS)

bench: setup ## run the benchmarks, JSON lines; NAME=sandbox runs one of them
	@set -e; for name in $(NAME); do $(VENV)/populora bench $$name $(ARGS); done

vllm: ## set up the vLLM environment .venv-vllm (Linux; without an NVIDIA GPU, its CPU build)
	@test -f infra/setup/vllm.sh || { echo "make vllm: infra/setup/vllm.sh is not in this version" >&2; exit 3; }
	@bash infra/setup/vllm.sh

up: ## start Prefect server, storage and workers on this machine
	@$(SETUP)
	@bash infra/setup/compose.sh up $(ARGS)

down: ## stop what `make up` started; data is kept unless ARGS=--volumes
	@bash infra/setup/compose.sh down $(ARGS)

stack: ## run a populora command inside the stack: make stack ARGS="run --detach"
	@bash infra/setup/compose.sh populora $(ARGS)

logs: ## show the logs of the stack's services; ARGS="--follow worker"
	@bash infra/setup/compose.sh logs $(ARGS)

link: ## print a one-time link to the stack's UI that needs no password
	@bash infra/setup/compose.sh link

images: ## build every image under containers/; ARGS="try worker" builds only these
	@$(SETUP)
	@bash infra/setup/images.sh $(ARGS)
