# PopuLoRA Pipeline. `make run` and `make test` set up everything they need; both are quick to start when nothing changed.
# Pass more to a command with ARGS: make run ARGS="--set generations=8", make test ARGS="-k reward".

.DEFAULT_GOAL := help
.PHONY: help setup run test test-all check docs bench vllm up down stack logs link images
VENV := .venv/bin
SETUP := bash infra/setup/setup.sh
BENCHMARKS := sandbox update rollout evolve population orchestration storage scoring
NAME ?= $(BENCHMARKS)
ARGS ?=
# The environment is installed uncompiled: where Python may not keep what it compiles, every stage would compile torch anew.
unexport PYTHONDONTWRITEBYTECODE

help: ## what there is to make
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

setup: ## .venv, Docker and the sandbox image
	@$(SETUP)

run: setup ## the main job: the default run, to runs/smoke
	@$(VENV)/populora run $(ARGS)

test: setup ## the everyday tests
	@$(VENV)/python -m pytest -m "not slow and not gpu and not rgw and not vllm" $(ARGS)

test-all: setup ## every test that this machine can run
	@$(VENV)/python -m pytest $(ARGS)

check: ## lint, format, types
	@$(SETUP) venv
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/mypy

docs: ## the documentation site, to build/docs; fails on a link or a name that leads nowhere
	@$(SETUP) venv
	@$(VENV)/python -m sphinx -q -W --keep-going -E -a -b html -c docs . build/docs $(ARGS)
	@echo "site       build/docs/index.html"

bench: setup ## our measurements, JSON lines; NAME=sandbox for one of them
	@set -e; for name in $(NAME); do $(VENV)/populora bench $$name $(ARGS); done

vllm: ## the vLLM environment .venv-vllm (Linux with an NVIDIA GPU)
	@test -f infra/setup/vllm.sh || { echo "make vllm: infra/setup/vllm.sh is not in this version" >&2; exit 3; }
	@bash infra/setup/vllm.sh

up: ## Prefect server, storage and workers on this machine
	@$(SETUP)
	@bash infra/setup/compose.sh up $(ARGS)

down: ## stop what `make up` started; its data stay unless ARGS=--volumes
	@bash infra/setup/compose.sh down $(ARGS)

stack: ## a command of populora inside the stack: make stack ARGS="run --detach"
	@bash infra/setup/compose.sh populora $(ARGS)

logs: ## what the stack's services print; ARGS="--follow worker"
	@bash infra/setup/compose.sh logs $(ARGS)

link: ## an address that opens the stack's UI once, without its password
	@bash infra/setup/compose.sh link

images: ## every image under containers/
	@$(SETUP) image
	@set -e; for file in containers/*/Dockerfile; do \
		name=$$(basename $$(dirname $$file)); \
		[ $$name = sandbox ] || docker build -f $$file -t populora-$$name:local .; \
	done
