PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
BIN := .venv/bin
STAMP := .venv/.installed

unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test coverage lint format docs dist clean fuzz soak

demo: $(STAMP)
	$(BIN)/fairmp demo --out demo --overwrite

# One thread per test process: threads that wait for each other are slower than none; three of them for
# two cores, since some tests wait. Files in their order: by their numbers of tests, the few and long
# ones would come last, and alone.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# Which lines the tests run; compiled kernels and the processes that tests start are not counted.
coverage: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder \
		--cov=fairmp --cov-report=term:skip-covered --cov-report=xml

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A strict build checks every link and anchor; formulas are set by the KaTeX in node_modules.
docs: $(STAMP) node_modules
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site

# axe-core for tests of the pages, KaTeX for the documentation; what needs them is skipped without npm.
node_modules: package.json
	@if command -v npm >/dev/null; then npm install --no-audit --no-fund --ignore-scripts --silent && touch node_modules; \
	else echo "npm is not installed: accessibility tests and formulas of the documentation need it"; fi

# The wheel must work in an environment that has nothing else of this checkout.
dist: $(STAMP)
	rm -rf dist build/dist
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) build
	$(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv build/dist/env
	build/dist/env/bin/python -m pip install --quiet --no-compile -c $(CONSTRAINTS) dist/*.whl
	cd build/dist && env/bin/fairmp --version && env/bin/fairmp demo --nodes 2000 --splits 1 --out demo

# Long runs: make fuzz SEED=7 TABLES=20000 CONTENTS=20000 PROMISES=20000 MODELS=5000 KILLS=100 JOBS=2 RECORD=fuzz.json
SEED ?= 7
JOBS ?= 2
TABLES ?= 2000
CONTENTS ?= 2000
DAMAGED ?= $(TABLES)
NUMBERS ?= 2000
PROMISES ?= 2000
CORRECTIONS ?= 500
MODELS ?= 500
GRAPHS ?= 1000
CORRECTION_FILES ?= 1000
ARCHIVES ?= 200
URLS ?= 1000
AROUND ?= 1000
KILLS ?= 6
fuzz: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --seed $(SEED) --jobs $(JOBS) --tables $(TABLES) --contents $(CONTENTS) \
		--damaged $(DAMAGED) --numbers $(NUMBERS) --promises $(PROMISES) --corrections $(CORRECTIONS) --models $(MODELS) \
		--graphs $(GRAPHS) --correction-files $(CORRECTION_FILES) --archives $(ARCHIVES) --urls $(URLS) --around $(AROUND) \
		--kills $(KILLS) $(if $(RECORD),--out $(RECORD))

# Memory and results over many calls: make soak FITS=1000 CALLS=100000
FITS ?= 1000
CALLS ?= 100000
soak: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.soak --fits $(FITS) --calls $(CALLS) $(if $(RECORD),--out $(RECORD))

clean:
	rm -rf .venv demo site dist build node_modules .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage coverage.xml

# What is never imported need not be compiled: half the time of an installation. What is imported is
# compiled once and kept, also where the environment says not to.
$(STAMP): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --upgrade-strategy only-if-needed -c $(CONSTRAINTS) torch
	$(BIN)/python -m pip install --quiet --no-compile -c $(CONSTRAINTS) -e '.[dev]'
	touch $(STAMP)
