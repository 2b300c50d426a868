# run: the server on the embedded model · test: the fast suite · browser: the dashboard in Chromium · monitoring: its queries on a Prometheus · check: every static gate · bench: tokens/s of the running server
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
ARGS ?=
PYTEST_ARGS ?=
WORKERS ?= 2
BENCH_ARGS ?=
SHARED := -n $(WORKERS) --dist loadfile

.PHONY: run test heavy browser monitoring check fmt bench install clean

run: $(INSTALLED)
	$(BIN)/python -m inference_server $(ARGS)

test: $(INSTALLED)
	$(BIN)/python -m pytest -q $(SHARED) $(PYTEST_ARGS)

heavy: $(INSTALLED)
	$(BIN)/python -m pytest -q -m heavy --timeout=900 $(SHARED) $(PYTEST_ARGS)

browser: $(INSTALLED)
	$(BIN)/python -m pytest -q -m browser -rs $(PYTEST_ARGS)

monitoring: $(INSTALLED)
	$(BIN)/python -m pytest -q -m monitoring -rs $(PYTEST_ARGS)

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_style.py
	$(BIN)/python scripts/check_settings.py

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

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
