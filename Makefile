# Everything a person types. Each target builds .venv first when it is missing or older than the lock.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := runs/demo

.PHONY: help demo test test-all check format bench lock clean unsound

help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

# An environment that does not run (old Python, no pip, broken links) is as good as none.
SOUND := $(shell $(BIN)/python -c 'import pip, sys; print(sys.version_info >= (3, 10))' 2>/dev/null)

$(STAMP): requirements.lock pyproject.toml $(if $(filter True,$(SOUND)),,unsound)
	@echo "== building $(VENV) from requirements.lock (with uv; about a minute)"
	@$(PYTHON) -c 'import sys; sys.exit("attnmix needs Python 3.10 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 10) else None'
	@test "$(SOUND)" = True || { rm -rf $(VENV) && $(PYTHON) -m venv $(VENV); }
	@$(BIN)/python -m pip install -q --disable-pip-version-check uv
	@$(BIN)/uv pip install -q --python $(BIN)/python -r requirements.lock
	@$(BIN)/uv pip install -q --python $(BIN)/python --no-deps -e .
	@touch $@

unsound:

demo: $(STAMP)  ## train four methods on the embedded data and write the report (minutes, CPU)
	@echo "== training none, cutmix, transmix and smmix (all but none with Mixup half of the time); report in $(DEMO)"
	$(BIN)/attnmix compare quickstart --methods none,cutmix,transmix,smmix \
		--method_options.mixup_prob 0.5 --seeds 0 --out $(DEMO)

test: $(STAMP)  ## the quick tests: no network, no GPU needed
	@echo "== running the quick tests"
	$(BIN)/python -m pytest -m "not slow"

test-all: $(STAMP)  ## all tests: faults, several processes, fuzzing and long runs too (a quarter of an hour)
	@echo "== running all tests, the slow ones too"
	$(BIN)/python -m pytest

check: $(STAMP)  ## format, lint and types
	@echo "== checking format, lint and types"
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/mypy

format: $(STAMP)  ## put the code in shape
	$(BIN)/ruff format src tests benchmarks examples
	$(BIN)/ruff check --fix src tests benchmarks examples

bench: $(STAMP)  ## all tables of docs/performance.md and docs/scaling.md but the GPU's (half an hour)
	@echo "== timing training steps, interleaved, one thread"
	$(BIN)/attnmix bench step --models deit_tiny_patch16_224,deit_small_patch16_224 \
		--methods all,smmix:consistency=false:block=5 --rounds 15 --out benchmarks/results
	@echo "== timing what reads attention"
	$(BIN)/attnmix bench attention --out benchmarks/results
	@echo "== timing the loader"
	$(BIN)/attnmix bench data quickstart --workers_list 0,1,2 --out benchmarks/results
	@echo "== timing the accuracy question"
	$(BIN)/python benchmarks/evaluation.py
	@echo "== timing two processes"
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/publish.py

lock: $(STAMP)  ## renew requirements.lock: names and versions only
	$(BIN)/uv pip compile -q --universal --python-version 3.10 --no-annotate --no-header --no-emit-index-url \
		--no-emit-find-links --group dev --extra all pyproject.toml -c constraints.txt -o requirements.lock

clean:  ## remove what was built, keep runs/
	@echo "== removing $(VENV) and caches"
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache src/*.egg-info
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
