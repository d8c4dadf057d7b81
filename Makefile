# Everything a newcomer needs is `make demo` and `make test`; both create the environment.
PYTHON  ?= python3
WORKERS ?= 2

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.setup
# The engine is installed when the environment is made, and again when its sources change.
ENGINE := runtime/pyproject.toml runtime/CMakeLists.txt \
	$(wildcard runtime/src/* runtime/include/* runtime/python/surge_runtime/*.py)

.DEFAULT_GOAL := help
.PHONY: help setup lint format test coverage test-gpu demo docs figures tables clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv with the pinned versions

$(STAMP): pyproject.toml constraints.txt $(ENGINE)
	@$(PYTHON) -c 'import sys; sys.exit("constraints.txt needs Python 3.11 or newer, this is %d.%d: set PYTHON=" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]' ./runtime
# Beside site-packages, for the tests of detection alone: lightning would import it, and fail.
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps --upgrade --target $(VENV)/vision torchvision
	@touch $@

lint: setup  ## ruff format, ruff check, mypy --strict
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict src runtime/python

format: setup  ## let ruff put the files in order
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# One torch thread per worker and no compile pool: two workers fill two cores.
# Tracing every line costs a third of the time, so coverage has a target of its own.
test: lint  ## lint, then every test
	OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1 \
		$(BIN)/pytest -n $(WORKERS) --dist worksteal $(COVERAGE)

coverage: COVERAGE := --cov
coverage: test  ## the same with coverage, which must reach fail_under of pyproject.toml

# With PYTHON=... given, that interpreter runs the tests as it is; no environment is created.
ifeq ($(origin PYTHON),file)
test-gpu: setup
test-gpu: GPU_PYTHON := $(BIN)/python
else
test-gpu: GPU_PYTHON := $(PYTHON)
endif
# Most of their time is compiling: GPU_WORKERS=8 does as many at once (pytest-xdist).
test-gpu: ALONG := $(if $(GPU_WORKERS),-n $(GPU_WORKERS))
test-gpu:  ## the tests that need a CUDA GPU; PYTHON=python3 uses your own torch
	@if [ "$$($(GPU_PYTHON) -c 'import torch; print(torch.cuda.is_available())')" = False ]; then \
		echo "No CUDA GPU here: nothing was tested."; \
	else \
		PYTHONPATH="src:$$PYTHONPATH" $(GPU_PYTHON) -m pytest -m 'gpu and not slow' $(ALONG); \
	fi

demo: setup  ## the toy study, binary networks on real digits, a report page
	$(BIN)/surge demo

figures: setup  ## renew results/figures, and the pictures of docs/, from the runs in results/runs
	rm -rf results/figures
	$(BIN)/surge report results/runs/* --figures results/figures --out build/report.html
	$(BIN)/python -c 'from pathlib import Path; from surge.study.site import renew_pictures; renew_pictures(Path())'

docs: setup  ## build the documentation as a site in build/site; a warning is an error
	$(BIN)/mkdocs build --strict --site-dir build/site

tables: setup  ## renew the tables of README.md and of docs/ from results/
	$(BIN)/python -c 'from pathlib import Path; from surge.study.published.pages import renew_all; renew_all(Path())'
	$(BIN)/python -c 'from pathlib import Path; from surge.study.findings.claims import renew; renew(Path())'

clean:  ## remove the environment, caches and build outputs
	rm -rf $(VENV) build dist .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
