PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint format docs clean

demo: $(STAMP)
	$(BIN)/fairmp demo --out demo --overwrite

# One thread a test process: threads that wait for each other are slower than none; three of them for
# two cores, since some tests wait. Files in their order: by their numbers of tests, the few and long
# ones would come last, and alone.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	$(BIN)/mkdocs build --strict --site-dir site

clean:
	rm -rf .venv demo site .mypy_cache .pytest_cache .ruff_cache .hypothesis

# What is never imported need not be compiled: half the time of an installation. What is imported is
# compiled once and kept, also where the environment says not to.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --upgrade-strategy only-if-needed -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[dev]'
	touch $(STAMP)
