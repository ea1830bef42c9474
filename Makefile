# Start with `make demo` or `make test`. Both create .venv first if it is missing.

PYTHON ?= python3
VENV   := .venv
OLDEST := .venv-oldest
INTEROP := .venv-interop
BIN    := $(VENV)/bin
PIP    := pip install --disable-pip-version-check --quiet
WORKERS ?= 2
RUST   := $(shell find crates -name '*.rs' -o -name Cargo.toml) Cargo.toml

.PHONY: help setup demo test test-oldest test-interop lint lint-python lint-rust format check-rust clean

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.installed  ## create .venv and install the package with its test dependencies

$(VENV)/bin/python:
	@echo "Creating $(VENV) with $$($(PYTHON) --version)."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Bytewright needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@command -v cargo >/dev/null || { echo "Bytewright needs a Rust toolchain (cargo), 1.88 or newer"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt $(RUST)
	@echo "Installing Bytewright and its tools into $(VENV) (the first time a few minutes and about 6 GB, mostly torch)."
	@$(BIN)/$(PIP) -c constraints.txt --editable '.[test]'
	@touch $@
	@echo "Installed. To have the command bytewright in this shell, run: . $(VENV)/bin/activate"

demo: setup  ## train a tokenizer and a model on generated stories: about four minutes on two cores
	@$(BIN)/bytewright demo

# The Rust checks run while lint-python installs the package.
test:  ## lint, Rust tests, Python tests; CI runs this
	@$(MAKE) --no-print-directory --jobs $(WORKERS) lint-python lint-rust check-rust
	@echo "Running the Python tests in $(WORKERS) processes."
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-oldest: $(OLDEST)/.installed  ## tests of the packages that use torch, with the oldest supported torch and numpy
	@$(OLDEST)/bin/python -m pytest -q -n $(WORKERS) --dist loadfile \
		$(addprefix tests/,account data generate model optim train)

$(OLDEST)/.installed: pyproject.toml constraints.txt $(RUST)
	@echo "Installing Bytewright and the oldest supported versions of its dependencies into $(OLDEST)."
	@$(PYTHON) -m venv $(OLDEST)
	@sed -n 's/^ *"\(.*\)>=\(.*\)",/\1==\2/p' pyproject.toml >$(OLDEST)/oldest.txt
	@grep -vE '^(torch|triton|cuda|nvidia|numpy)' constraints.txt >$(OLDEST)/others.txt
	@$(OLDEST)/bin/$(PIP) -c $(OLDEST)/others.txt -r $(OLDEST)/oldest.txt --editable '.[test]'
	@touch $@

test-interop: $(INTEROP)/.installed  ## tests with llama.cpp, which is compiled, and with lm-eval
	@$(INTEROP)/bin/python -m pytest -q tests/interop

$(INTEROP)/.installed: pyproject.toml constraints.txt $(RUST)
	@echo "Installing Bytewright, llama-cpp-python (compiled, about ten minutes) and lm-eval into $(INTEROP)."
	@$(PYTHON) -m venv $(INTEROP)
	@$(INTEROP)/bin/$(PIP) -c constraints.txt --editable '.[test,interop]'
	@touch $@

lint: lint-python lint-rust  ## ruff, mypy --strict, rustfmt, clippy

lint-python: setup
	@echo "Checking the Python code with ruff and mypy --strict."
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

lint-rust:
	@echo "Checking the Rust code with rustfmt and clippy."
	@cargo fmt --all --check
	@cargo clippy --quiet --workspace --all-targets -- -D warnings

check-rust:
	@echo "Running the Rust tests."
	@cargo test --quiet --package bpe --package worldbook

format: setup  ## format the sources
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@cargo fmt --all

clean:  ## remove build output and caches, but not the virtual environments
	rm -rf target .mypy_cache .ruff_cache .pytest_cache .hypothesis demo
