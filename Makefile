# Everything runs in .venv, made on first use from Python 3.11 or later.
PYTHON ?= python3
PORT ?= 8000
DOCS_PORT ?= 8001
BIN := .venv/bin
# Two processes of one thread each are quicker than one of two: most tensors of the tests are small.
WORKERS ?= 2
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile

# About the releases that are installed; PyPI knows no local versions (2.11.0+cpu).
AUDIT = $(BIN)/pip list --format=freeze --exclude-editable | sed 's/+.*//' > .venv/audited.txt \
	&& $(BIN)/pip-audit --disable-pip --no-deps --progress-spinner off --requirement .venv/audited.txt

.PHONY: help setup serve test test-all soak fuzz sweep peers bench methods docs docs-serve check audit format pictures notebook screens clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

setup: .venv/installed ## make .venv and install SeeWhy

serve: .venv/installed ## serve on 127.0.0.1:8000 (PORT=9000 for another port)
	$(BIN)/seewhy serve --port $(PORT)

test: .venv/installed-tests ## run the test suite
	$(PYTEST)

test-all: .venv/installed-tests ## run the test suite, long tests included
	$(PYTEST) -m ""

sweep: .venv/installed-tests ## compare every module of torchvision's classifiers with autograd; writes docs/sweep.md
	$(BIN)/python -m tests.sweep --write --bare 10

soak: .venv/installed-tests ## load and faults for an hour; writes docs/reliability.md
	$(BIN)/python -m tests.reliability --write

fuzz: .venv/installed-tests ## try hostile input for a quarter of an hour; writes docs/reliability.md
	$(BIN)/python -m tests.hostile --write

check: .venv/installed-tests ## lint, type-check, look for dangerous code and for known holes in what is installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive app explainers models
	@rm -f .venv/audited.json
	@$(AUDIT) --format json --output .venv/audited.json 2> .venv/audit.log || if [ -s .venv/audited.json ]; \
		then $(AUDIT); exit 1; else echo "The index could not be asked about known holes: make audit says why."; fi

audit: .venv/installed-tests ## look for known holes in what is installed; what the index tells nothing about is named
	$(AUDIT)

format: .venv/installed-tests ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

peers: .venv/installed-tests ## compare the methods with those of other libraries; writes docs/peers.md
	$(BIN)/python -m tests.peers --write

bench: .venv/installed-bench ## time SeeWhy beside other libraries and a plain Flask server; writes docs/performance.md
	$(BIN)/python -m benchmarks

methods: .venv/installed ## write docs/methods.md from the catalogue and draw its pictures
	$(BIN)/python -m docs.methods

pictures: .venv/installed ## draw the pictures of the documentation
	$(BIN)/python docs/pictures.py

docs: .venv/installed-docs ## build the documentation as a site, in site/; warnings are errors
	$(BIN)/python -m docs.settings
	$(BIN)/python -m docs.routes
	PYTHONPATH=. $(BIN)/zensical build --strict --clean
	@echo "The site is in site/; its search needs a server: make docs-serve."

docs-serve: .venv/installed-docs ## show the documentation while it is written, on port 8001 (DOCS_PORT=9001 for another)
	$(BIN)/python -m docs.routes
	PYTHONPATH=. $(BIN)/zensical serve --dev-addr localhost:$(DOCS_PORT)

notebook: .venv/installed-tests ## run examples/notebook.ipynb and keep what it shows
	$(BIN)/python -m docs.notebook

screens: .venv/installed-tests ## take the pictures of the page, with chromium
	$(BIN)/python -m docs.screens

clean: ## remove .venv and all caches
	rm -rf .venv .cache .pytest_cache .mypy_cache .ruff_cache build site *.egg-info

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "SeeWhy needs Python 3.11 or later; say make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv .venv || { rm -rf .venv; echo "Debian: apt-get install python3-venv" >&2; exit 1; }

.venv/installed: pyproject.toml | .venv/bin/python
	@echo "Installing SeeWhy and PyTorch into .venv: about 5 GB, a few minutes, this once."
	$(BIN)/pip install --quiet --editable .
	@touch $@

.venv/installed-tests: pyproject.toml tests/clients/requirements.txt | .venv/bin/python
	@echo "Installing SeeWhy, PyTorch and the test tools into .venv: over 5 GB, a few minutes, this once."
	$(BIN)/pip install --quiet --editable '.[test,check]'
	@command -v chromium >/dev/null || { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; } || \
		echo "No chromium: the browser tests will be skipped. Debian: apt-get install chromium"
	@$(BIN)/python -m venv .venv/clients && .venv/clients/bin/pip install --quiet -r tests/clients/requirements.txt || \
		{ rm -rf .venv/clients; echo "No clients of other servers: their tests will be skipped."; }
	@touch .venv/installed .venv/installed-docs $@

.venv/installed-docs: pyproject.toml | .venv/bin/python
	@echo "Installing SeeWhy, PyTorch and the tools of the documentation into .venv: about 5 GB, a few minutes, this once."
	$(BIN)/pip install --quiet --editable '.[docs]'
	@touch .venv/installed $@

.venv/installed-bench: pyproject.toml | .venv/bin/python
	@echo "Installing SeeWhy, PyTorch and the benchmarks' tools into .venv: over 5 GB, a few minutes, this once."
	$(BIN)/pip install --quiet --editable '.[bench]'
	@touch .venv/installed $@
