# Two commands for a fresh machine: `make demo` and `make test`. Each makes .venv and installs
# what it needs; the stamp files remember what is installed, and setup.py outdates them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint clean

demo: $(VENV)/.installed
	$(BIN)/vit-jax demo $(if $(FRESH),--fresh)

test: $(VENV)/.installed-test lint
	$(BIN)/pytest -n 2

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean:
	rm -rf $(VENV) runs build *.egg-info .pytest_cache .ruff_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: setup.py | $(BIN)/python
	@echo "Installing vit_jax into $(VENV) (a minute or two, once) ..."
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-test: setup.py | $(BIN)/python
	@echo "Installing vit_jax and its test tools into $(VENV) (a minute or two, once) ..."
	$(BIN)/pip install --quiet --disable-pip-version-check -e .[test,tpu]
	@touch $@ $(VENV)/.installed
