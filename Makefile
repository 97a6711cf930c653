# Two commands matter: `make demo` and `make test`. Each target sets up .venv by itself, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PROJECT := pyproject.toml constraints.txt

.PHONY: demo test lint fuzz mutants lowest bench reproduce docs dist clean
.DEFAULT_GOAL := demo

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "exempla needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

# The core is all the demo needs.
$(VENV)/.core: $(BIN)/python $(PROJECT)
	@echo "installing exempla into $(VENV)"
	$(PIP) --editable .
	@touch $@

# Every extra, for tests, lint, benchmarks and docs. What is imported is compiled then, not all now.
$(VENV)/.all: $(VENV)/.core
	@echo "installing every extra into $(VENV)"
	$(PIP) --no-compile --editable '.[hf,review,ray,docs,dev]'
	@touch $@

demo: $(VENV)/.core
	$(BIN)/exempla demo --out demo-out

# One process a core; each keeps to one thread, or they would fight over the cores. Tests of a group
# (those that share a Ray cluster) stay in one process.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadgroup -m "not slow"
	@echo "all tests passed; the docs are built by 'make docs', the benchmarks run by 'make bench'"

lint: $(VENV)/.all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/vulture
	$(BIN)/pyright

# Tests at full size (those marked slow); then strange input at every public call, a fault at every
# write, and kills, without sampling: about an hour. The last line says how much was tried.
fuzz: $(VENV)/.all
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadgroup -m slow
	OMP_NUM_THREADS=1 EXEMPLA_FUZZ=1 EXEMPLA_FUZZ_FILES=3000 EXEMPLA_FUZZ_RUNS=1000 \
	  EXEMPLA_FAULTS=100000 EXEMPLA_KILLS=250 EXEMPLA_SERVER_KILLS=40 EXEMPLA_RAY_KILLS=12 \
	  EXEMPLA_KILL_STRIDE=1 $(BIN)/python -m pytest -n auto --dist loadgroup \
	  tests/fuzz tests/faults tests/review/test_killed.py tests/distributed/test_ray.py

# Small changes to important lines, one at a time: the tests named for each must fail. The list is
# tests/mutants.py; the exit status is 1 if a change survives.
mutants: $(VENV)/.all
	$(BIN)/python -m tests.mutants

# The core at the lowest versions pyproject.toml allows, without torch, in an environment of its own.
LOWEST := .venv-lowest
SMOKE := tests/oracles/sklearn tests/selection tests/tables tests/test_estimator.py \
  tests/kernel/test_influence.py tests/test_metrics.py tests/kernel/test_query.py tests/test_explainer.py
# SciPy's own nnls, a reference there, is right since 1.16 only.
SMOKE += --deselect tests/selection/test_nnls.py::test_growing_nnls_equals_scipy_at_every_step
# (SCIPY_ARRAY_API: scikit-learn 1.6's own checks of estimators ask for it.)
lowest:
	$(PYTHON) -m venv --clear $(LOWEST)
	$(PYTHON) tests/lowest.py > $(LOWEST)/floors.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check \
	  -c $(LOWEST)/floors.txt --editable . pytest hypothesis
	OMP_NUM_THREADS=1 SCIPY_ARRAY_API=1 $(LOWEST)/bin/python -m pytest $(SMOKE)

# Selection, growth and whole jobs beside peers, whose environments are made once in .peers; the page
# is bench-out/bench.html.
bench: $(VENV)/.all
	$(BIN)/exempla bench --rounds 3 --out bench-out

# Every experiment at reduced size; set EXEMPLA_DATA, or those that need data are skipped.
reproduce: $(VENV)/.all
	$(BIN)/exempla reproduce all --fast

docs: $(VENV)/.all
	$(BIN)/mkdocs build --strict

# sdist and wheel, checked; then the wheel alone in an empty environment of each interpreter in
# DIST_PYTHONS that is installed: the demo and a smoke test, away from the source tree.
DIST := .venv-dist
DIST_PYTHONS ?= python3.11 python3.12 python3.13
dist:
	rm -rf dist && $(PYTHON) -m venv --clear $(DIST)/tools
	$(DIST)/tools/bin/python -m pip install --quiet --disable-pip-version-check build twine check-wheel-contents
	$(DIST)/tools/bin/python -m build --outdir dist .
	$(DIST)/tools/bin/twine check --strict dist/*
	$(DIST)/tools/bin/check-wheel-contents dist/*.whl
	for python in $(DIST_PYTHONS); do \
	  if ! $$python -c "" 2> /dev/null; then echo "$$python is not installed: skipped"; continue; fi; \
	  $$python -m venv --clear $(DIST)/$$python && \
	  $(DIST)/$$python/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl && \
	  $(DIST)/$$python/bin/exempla demo --out $(DIST)/$$python/demo && \
	  (cd $(DIST)/$$python && bin/python ../../tests/smoke.py) || exit 1; \
	done

clean:
	rm -rf $(VENV) $(LOWEST) $(DIST) demo-out bench-out results-fast build dist site
