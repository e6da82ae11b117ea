# Two commands do everything on a machine with Python 3.11 or newer:  make demo   and   make test
PYTHON ?= python3
# Test processes; files are not split between them, because a file's tests share brokers and Spark sessions.
WORKERS ?= 2
# Of `make fuzz` in all, and doors at a time (default: cores).
MINUTES ?= 120
VENV := .venv
BIN := $(VENV)/bin
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile
SAMPLE := captures/samples/codecs-franzgo-4.3/capture.pcap
DEMO := out/demo

# Groups of tests (tests/groups.py) that `make test` leaves out, but for one test of each.
GROUPS := spark broker browser fuzz kill growth compiler sweep
space := $(subst ,, )
ANY_GROUP := $(subst $(space), or ,$(strip $(GROUPS)))

.PHONY: help demo test test-all test-rest test-group test-for nightly lint types imports pytest fuzz bench wheel audit docs lock clean

help:
	@echo "make demo   install into .venv, analyse a shipped capture, show some of its exchanges, report on it"
	@echo "make test   install into .venv, then linters, types, import rules and most tests (under ten minutes on two cores)"
	@echo "make test-all    the same with all tests; make test-group GROUP=spark: one group of $(GROUPS)"
	@echo "make test-for FILE=analyzer/findings/groups.py    the tests that prove a module"
	@echo "make nightly     all tests, thousands of broken inputs, replays of every capture, incidents (hours)"
	@echo "make fuzz   broken captures, log files and answers at every door, for MINUTES=120 (tests/fuzz/README.md)"
	@echo "make bench  time kwire against tshark on generated captures (minutes; needs tshark)"
	@echo "make wheel  build dist/kwire-*.whl for any Python, its kernels compiled for x86-64-v3 and v2 (minutes; needs cc)"
	@echo "make audit  known vulnerabilities of the locked packages (needs pip-audit and a network; says so without)"
	@echo "make docs   build the documentation with its reference pages into out/docs/site (warnings are errors)"
	@echo "make lock   resolve the dependencies of pyproject.toml again into requirements.lock"

demo: $(VENV)/installed
	@echo "== kwire analyze: decoding $(SAMPLE)"
	@mkdir -p $(dir $(DEMO))
	$(BIN)/kwire analyze $(SAMPLE) -o $(DEMO)
	@echo "== kwire show: the first exchanges"
	$(BIN)/kwire show $(SAMPLE) | head -n 20
	@echo "== kwire report: the same as a page"
	$(BIN)/kwire report $(DEMO) -o $(DEMO).html
	@echo "== done: the dataset (Parquet) is in $(DEMO); open the page $(DEMO).html"
	@echo "== (! in the list is a request that failed; UNSUPPORTED_VERSION is how clients learn what an older broker speaks)"
	@echo "== look into it in a browser: $(BIN)/kwire view $(SAMPLE)"
	@echo "== next, with a capture of your own: $(BIN)/kwire story CAPTURE; docs/start/first-capture.md goes on from there"

test: lint types imports
	@echo "== pytest: warnings are errors; without the groups $(GROUPS), but for one test of each"
	$(PYTEST) -m 'not ($(ANY_GROUP)) or smoke' $(ARGS)
	@echo "== all checks passed; left out: $(GROUPS). make test-rest runs these, make test-all everything"

test-rest: $(VENV)/installed
	@echo "== pytest: what make test leaves out"
	$(PYTEST) -m '($(ANY_GROUP)) and not smoke' $(ARGS)

test-all: lint types imports pytest
	@echo "== all checks passed"

test-group: $(VENV)/installed
	@echo "== pytest: the group $(GROUP)"
	$(PYTEST) -m '$(GROUP)' $(ARGS)

test-for: $(VENV)/installed
	@test -n '$(FILE)' || { echo "make test-for FILE=analyzer/findings/groups.py"; exit 2; }
	$(BIN)/python -m tests.proofs $(FILE) | xargs $(PYTEST) $(ARGS)

nightly: test-all fuzz
	@echo "== replays: every capture at a broker of the tests, and healthy ones again and again"
	$(BIN)/python -m tests.replay.sweep
	$(BIN)/python -m tests.replay.healthy
	@echo "== incidents made with real brokers: does the first screen name the cause?"
	$(BIN)/python -m tests.incidents --minutes 10

lint: $(VENV)/installed
	@echo "== ruff: style, likely mistakes and formatting; codespell: spelling"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell captures analyzer replay reports kwire/__init__.py kwire/__main__.py tests tools *.md Makefile pyproject.toml

types: $(VENV)/installed
	@echo "== mypy: types, strict"
	$(BIN)/mypy

imports: $(VENV)/installed
	@echo "== import-linter: which package may import which"
	$(BIN)/lint-imports

pytest: $(VENV)/installed
	@echo "== pytest: warnings are errors (arguments: make pytest ARGS='tests/captures -k gap')"
	$(PYTEST) $(ARGS)

fuzz: $(VENV)/installed
	@echo "== fuzz: broken inputs at every door, several at a time, with bounds of memory and processor time"
	$(BIN)/python -m tests.fuzz.farm --minutes $(MINUTES) $(ARGS)
	$(BIN)/python -m tests.captures.chunks --count 1000
	$(BIN)/python -m tests.fuzz.scrubbing --copies 20

bench: $(VENV)/installed
	@echo "== bench: kwire against tshark on generated captures and real ones"
	$(BIN)/python -m tests.bench $(ARGS)

wheel: $(VENV)/installed
	@echo "== wheel: kwire with its kernels compiled, so that its first command does not (minutes)"
	$(BIN)/python tools/wheel.py $(ARGS)

audit: $(VENV)/installed
	@echo "== audit: known vulnerabilities of the packages in requirements.lock"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --target out/audit 'pip-audit>=2.7' || true
	PYTHONPATH=out/audit $(BIN)/python tools/audit.py $(ARGS)

docs: $(VENV)/installed out/docs-venv/installed
	@echo "== docs: reference pages from the code, then mkdocs, whose warnings are errors"
	$(BIN)/python tools/reference.py out/docs/pages
	NO_MKDOCS_2_WARNING=1 out/docs-venv/bin/mkdocs build --strict
	@echo "== done: out/docs/site/index.html"

out/docs-venv/installed: docs/requirements.txt
	@test -x out/docs-venv/bin/python || $(PYTHON) -m venv out/docs-venv
	out/docs-venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r docs/requirements.txt
	@touch $@

lock: $(VENV)/installed
	@echo "== uv: pyproject.toml -> requirements.lock, with the hashes of all files of each package"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.9'
	$(BIN)/uv pip compile --quiet --native-tls --extra dev --extra metrics --extra spark --extra sql --extra tls --extra urls --extra view --extra payloads --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-emit-find-links --no-header --upgrade \
		--output-file requirements.lock pyproject.toml
	@echo "== next: make test installs it; then $(BIN)/python tools/licenses.py writes LICENSES.md again"

$(VENV)/installed: pyproject.toml requirements.lock
	@echo "== installing kwire and its pinned dependencies into $(VENV) (once; some minutes on a slow line)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kwire needs Python 3.11 or newer, this is " \
		+ sys.version.split()[0] + "\nhint: make PYTHON=/path/to/python3.11 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# What builds packages comes first, from the same lock: pip would fetch it for each of them, whatever its hash.
	awk '/^[A-Za-z]/ { wanted = /^(setuptools|wheel|packaging)==/ } wanted' requirements.lock > $(VENV)/build.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r $(VENV)/build.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-build-isolation -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@# As pip does for what is not editable: else each start compiles all of kwire where Python may not write beside it.
	$(BIN)/python -m compileall -q captures analyzer replay reports kwire
	@touch $@

clean:
	rm -rf out build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
