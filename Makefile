# The one set of commands; CI runs the same (.ci/run). `make` alone lists them.
#
#   PYTHON=python3.12 make install    the interpreter that .venv is made with (3.11 or newer)
#   MODEL=gemma3-270m make serve      another model; SERVE_FLAGS="--max-model-len 4k" adds flags
#   PYTEST_FLAGS="-x tests/core"      passed on by make test

PYTHON ?= python3
PORT ?= 8000
MODEL ?= smollm2-135m
SERVE_FLAGS ?=
PYTEST_FLAGS ?=

VENV := .venv
BIN := $(VENV)/bin
# Written last, so that an installation that broke off is done again, and one that is whole costs nothing.
STAMP := $(VENV)/.octavo-installed

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
export PIP_NO_INPUT := 1

.DEFAULT_GOAL := help
.PHONY: help install serve test lint types imports format fuzz soak sanitizers bench wheel constraints pictures figures screenshots clean

help: ## what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(STAMP) ## set up .venv with Octavo and all that its tests need

$(STAMP): pyproject.toml constraints.txt setup.py $(shell find octavo/kernels/csrc -type f)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Octavo needs Python 3.11 or newer; name one with PYTHON=/path/to/python3.11 make $(MAKECMDGOALS)" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) \
		|| { echo "$(PYTHON) cannot make a virtual environment: install its venv package (python3-venv on Debian)" >&2; exit 1; }
	@echo "Setting up $(VENV): downloads and compiles for some minutes, takes 1.4 GB" >&2
	@# compat: a plain path, so that a folder called octavo beside a script does not hide the package. no-compile: of
	@# 13,000 files most are never imported, and compiling all of them takes over a minute; Python does so when it must
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --config-settings editable_mode=compat \
		--editable '.[test]'
	@touch $@

serve: install ## serve the built-in model on port 8000
	@$(BIN)/octavo serve $(MODEL) --port $(PORT) $(SERVE_FLAGS) # not shown: a key may be among the flags

test: lint types imports ## the whole test suite: lint, types, import contracts, tests
	@# a process a core, each with one thread for the kernels; in the order of tests/conftest.py, not most tests first
	OCTAVO_THREADS=1 $(BIN)/python -m pytest -m "not soak" --numprocesses auto --dist loadgroup --no-loadscope-reorder \
		$(PYTEST_FLAGS)

lint: install ## style and likely mistakes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install ## static types, strict
	$(BIN)/mypy

imports: install ## who may import whom
	$(BIN)/lint-imports

format: install ## rewrite the files in the one style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

soak: install sanitizers ## the long runs: sanitizers, soak, fuzz, heavy clients
	$(BIN)/python -m pytest -m soak --timeout 0 $(PYTEST_FLAGS)

fuzz: install ## 5,000 requests made up from the server's own OpenAPI document
	OCTAVO_THREADS=1 $(BIN)/python -m pytest -m soak --timeout 0 tests/server/test_fuzz.py $(PYTEST_FLAGS)

sanitizers: install ## the native kernels under AddressSanitizer, UBSan and ThreadSanitizer
	PYTHON=$(BIN)/python tests/native/run.sh address
	PYTHON=$(BIN)/python tests/native/run.sh thread

bench: install ## the benchmarks of docs/benchmarks.md
	@set -e; for name in startup scheduler memory skipping fairness admission latency interference speculation "throughput --against transformers"; do \
		echo "octavo bench $$name"; $(BIN)/octavo bench $$name; done
	@set -e; for script in bench/[a-z]*.py; do name=$$(basename $$script .py); \
		echo "bench: $$name"; $(BIN)/python -m bench.$$name; done

wheel: install ## a wheel in dist/, and which manylinux tag it meets
	$(BIN)/python -m pip wheel . --no-deps --no-build-isolation --wheel-dir dist
	$(BIN)/auditwheel show dist/octavo-*.whl

constraints: install ## write the versions in .venv to constraints.txt
	{ sed -n '/^#/p' constraints.txt; \
	  $(BIN)/python -m pip freeze --all --exclude octavo --exclude pip | sed 's/^torch==\([^+]*\).*/torch==\1/'; } > constraints.new
	mv constraints.new constraints.txt

pictures: install ## draw the pictures of the docs again
	$(BIN)/python docs/pictures/draw.py

figures: install ## the paper's figures in docs/pictures, simulated anew (most of an hour)
	for name in waste batched sharing blocks; do \
		$(BIN)/octavo simulate --figure $$name --plot docs/pictures/paper-$$name.svg || exit 1; done
	for name in rate prefix; do \
		$(BIN)/octavo simulate --figure $$name --figure-seconds 120 --plot docs/pictures/paper-$$name.svg || exit 1; done

screenshots: install ## the dashboard's pictures in docs/pictures, from a server under load (needs /usr/bin/chromium)
	$(BIN)/python docs/pictures/dashboard.py

clean: ## remove what was built, .venv too
	rm -rf $(VENV) build dist *.egg-info octavo/kernels/*.so
