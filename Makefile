# Two commands for a fresh machine: `make demo` and `make test`. Each makes a virtual environment
# of its own and installs what it needs; a stamp remembers that, until setup.py changes.
# `make demo FRESH=1` starts the demo over; `make PYTHON=python3.12 ...` chooses the Python.

PYTHON ?= python3
USE := .venv
TEST := .venv-test
INTEROP := .venv-interop
NEWEST := .venv-newest
BENCH := .venv-bench

.PHONY: demo test test-interop bench lint browser constraints check-newest configs-reference clean

demo: $(USE)/.installed
	$(USE)/bin/vit-jax demo $(if $(FRESH),--fresh)

test: lint browser
	$(TEST)/bin/pytest -n 2

# Against torch, transformers, timm and onnxruntime, in an environment of their own.
test-interop: $(INTEROP)/.installed
	$(INTEROP)/bin/pytest tests_interop

lint: $(TEST)/.installed
	$(TEST)/bin/ruff check .
	$(TEST)/bin/ruff format --check .
	$(TEST)/bin/mypy

# The tests look at reports with a real browser; without one they say so, and fail in CI.
BROWSERS := chromium chromium-browser google-chrome google-chrome-stable
browser:
	@for name in $(BROWSERS); do command -v $$name > /dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  echo "Installing chromium (once) ..."; \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium > /dev/null; \
	fi || true; \
	command -v chromium > /dev/null || \
	  echo "No browser: install chromium, or the tests of the report are skipped."

# Writes benchmarks/RESULTS.md, an hour or more; each program also runs alone. On real JPEG files
# with IMAGES=FOLDER; what is compiled for TPUs, hours of it, with TPU=1.
bench: $(BENCH)/.installed
	$(BENCH)/bin/python -m benchmarks.startup --write
	$(BENCH)/bin/python -m benchmarks.loop --write
	$(BENCH)/bin/python -m benchmarks.cpu_step --write
	$(BENCH)/bin/python -m benchmarks.fewshot --write
	$(BENCH)/bin/python -m benchmarks.checkpoint --write
	$(if $(IMAGES),$(BENCH)/bin/python -m benchmarks.input --images=$(IMAGES) --write)
	$(if $(TPU),$(BENCH)/bin/python -m benchmarks.tpu_step)
	$(if $(TPU),$(BENCH)/bin/python benchmarks/scaling.py)

# The versions that launchers install on all hosts: those that the tests ran with.
constraints: $(TEST)/.installed
	$(TEST)/bin/pip freeze --exclude-editable --disable-pip-version-check > constraints.txt

# By hand, now and then: the newest release of everything, in an environment
# of its own; what was newer than constraints.txt is listed first. Nothing is written.
check-newest:
	@echo "Installing the newest versions into $(NEWEST) ..."
	$(PYTHON) -m venv --clear $(NEWEST)
	$(NEWEST)/bin/pip install --quiet --disable-pip-version-check --upgrade \
	  -e '.[test,tpu,gcs,tfds,hub]'
	@$(NEWEST)/bin/pip freeze --exclude-editable --disable-pip-version-check | \
	  diff constraints.txt - | grep '^[<>]' || echo "All as in constraints.txt."
	$(NEWEST)/bin/pytest -n 2 -m 'not slow' $(TESTS)

# docs/configs.md, from the dataclasses and the shipped configs.
configs-reference: $(TEST)/.installed
	$(TEST)/bin/python -m docs.configs_reference

clean:
	rm -rf $(USE) $(TEST) $(INTEROP) $(NEWEST) $(BENCH) build *.egg-info .pytest_cache .ruff_cache .mypy_cache

# The tests compile for TPUs, which needs the compiler (libtpu) but no TPU.
$(TEST)/.installed: EXTRAS := [test,tpu,gcs,tfds,hub]
# torch first, in its CPU build where pip finds one: nothing may choose another. timm without what
# it asks for: that is torchvision, which has no such build (tests_interop/conftest.py).
$(INTEROP)/.installed: EXTRAS := [hub,onnx,interop]
$(INTEROP)/.installed: FIRST := torch==2.13.0
$(INTEROP)/.installed: ALONE := timm==1.0.31
$(BENCH)/.installed: EXTRAS := [bench,tpu]
$(BENCH)/.installed: FIRST := torch==2.13.0
install = $(1)/bin/pip install --quiet --disable-pip-version-check $(2)
%/.installed: setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Installing into $* (a minute or two, once) ..."
	$(PYTHON) -m venv $*
	@$(if $(FIRST),$(call install,$*,$(FIRST)))
	$(call install,$*,$(FIRST) -e '.$(EXTRAS)')
	@$(if $(ALONE),$(call install,$*,--no-deps $(ALONE)))
	@touch $@
