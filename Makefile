# Two commands for a fresh machine: `make demo` and `make test`. Each makes a virtual environment
# of its own and installs what it needs; a stamp remembers that, until setup.py changes.
# `make demo FRESH=1` starts the demo over; `make PYTHON=python3.12 ...` chooses the Python.

PYTHON ?= python3
USE := .venv
TEST := .venv-test

.PHONY: demo test lint clean

demo: $(USE)/.installed
	$(USE)/bin/vit-jax demo $(if $(FRESH),--fresh)

test: lint
	$(TEST)/bin/pytest -n 2

lint: $(TEST)/.installed
	$(TEST)/bin/ruff check .
	$(TEST)/bin/ruff format --check .

clean:
	rm -rf $(USE) $(TEST) build *.egg-info .pytest_cache .ruff_cache

# The tests compile for TPUs, which needs the compiler (libtpu) but no TPU.
$(TEST)/.installed: EXTRAS := [test,tpu]
%/.installed: setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Installing into $* (a minute or two, once) ..."
	$(PYTHON) -m venv $*
	$*/bin/pip install --quiet --disable-pip-version-check -e '.$(EXTRAS)'
	@touch $@
