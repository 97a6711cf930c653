# Two commands matter: `make demo` and `make test`. Each target sets up .venv by itself, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PROJECT := pyproject.toml constraints.txt

.PHONY: demo test lint bench reproduce docs clean
.DEFAULT_GOAL := demo

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "exempla needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

# The core is all the demo needs.
$(VENV)/.core: $(BIN)/python $(PROJECT)
	@echo "installing exempla into $(VENV)"
	$(PIP) --editable .
	@touch $@

# Every extra, for tests, lint, benchmarks and docs.
$(VENV)/.all: $(VENV)/.core
	@echo "installing every extra into $(VENV)"
	$(PIP) --editable '.[hf,review,docs,dev]'
	@touch $@

demo: $(VENV)/.core
	$(BIN)/exempla demo --out demo-out

# One process a core; each keeps to one thread, or they would fight over the cores.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto
	@echo "all tests passed; the docs are built by 'make docs', the benchmarks run by 'make bench'"

lint: $(VENV)/.all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

bench: $(VENV)/.all
	$(BIN)/exempla bench

# Every experiment at reduced size; set EXEMPLA_DATA, or those that need data are skipped.
reproduce: $(VENV)/.all
	$(BIN)/exempla reproduce all --fast

docs: $(VENV)/.all
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) demo-out results-fast build dist site
