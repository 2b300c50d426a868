# run: the server on the embedded model · bench: tokens/s over HTTP, of a server of its own · install, fmt, clean
# check: every static gate · test: the fast suite · heavy: the slow one · browser: the dashboard in Chromium · monitoring: the queries of monitoring/ on a Prometheus
# chaos: ten minutes of bad clients, on two models side by side · clients: other projects' clients of its API
# fleet: REPLICAS servers behind one address, on Ray Serve · fleet-test: what such a fleet has to show
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
CLIENTS ?= .venv-clients
ARGS ?=
PYTEST_ARGS ?=
WORKERS ?= 2
BENCH_ARGS ?=
CHAOS_SECONDS ?= 600
REPLICAS ?= 3
FLEET_INSTALLED := $(VENV)/.installed-fleet
SHARED := -n $(WORKERS) --dist loadfile

.PHONY: run test heavy chaos clients browser monitoring fleet fleet-test check fmt bench install clean

run: $(INSTALLED)
	$(BIN)/python -m inference_server $(ARGS)

test: $(INSTALLED)
	$(BIN)/python -m pytest -q $(SHARED) $(PYTEST_ARGS)

chaos: $(INSTALLED)
	$(BIN)/python -m pytest -q -rP -m heavy --timeout=1500 --chaos-seconds=$(CHAOS_SECONDS) $(SHARED) tests/chaos $(PYTEST_ARGS)

heavy: $(INSTALLED)
	$(BIN)/python -m pytest -q -m heavy --timeout=900 $(SHARED) $(PYTEST_ARGS)

clients: $(CLIENTS)/.installed
	$(CLIENTS)/bin/python -m pytest -q -m clients -rs -W ignore --timeout=600 tests/clients $(PYTEST_ARGS)

browser: $(INSTALLED)
	$(BIN)/python -m pytest -q -m browser -rs $(PYTEST_ARGS)

monitoring: $(INSTALLED)
	$(BIN)/python -m pytest -q -m monitoring -rs $(PYTEST_ARGS)

fleet: $(FLEET_INSTALLED)
	RAY_USAGE_STATS_ENABLED=0 $(BIN)/python -m control_plane --replicas $(REPLICAS) $(ARGS)

fleet-test: $(FLEET_INSTALLED)
	RAY_USAGE_STATS_ENABLED=0 $(BIN)/python -m pytest -q -m fleet -rs tests/control_plane tests/api $(PYTEST_ARGS)

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_style.py
	$(BIN)/python scripts/check_settings.py
	$(BIN)/python scripts/check_licences.py

fmt: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	$(BIN)/python scripts/bench/http_bench.py $(BENCH_ARGS)

install: $(INSTALLED)

# One install serves every target; it is repeated when what it was made from changes.
$(INSTALLED): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed; set PYTHON=/path/to/python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c requirements.lock -e '.[embedded,dev]'
	@touch $@

# The clients lie over the first environment, which stays as it is: some ask for other versions than it has.
$(CLIENTS)/.installed: $(INSTALLED)
	$(PYTHON) -m venv $(CLIENTS)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' > $(CLIENTS)/below.pth
	mv $(CLIENTS)/below.pth "$$($(CLIENTS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
	$(CLIENTS)/bin/python -m pip install -e '.[clients]'
	@touch $@

$(FLEET_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install -c requirements.lock -e '.[fleet]'
	@touch $@

clean:
	rm -rf $(VENV) $(CLIENTS) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
