# The developer interface: `make demo` and `make test` need nothing but python3 (>= 3.11).
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# Where `make` looks for the judged datasets of the benchmarks (BEIR layout).
export RICCI_GPU_DATA ?= data

.PHONY: demo test check check-full kernels format bench-flow counts clean
.DEFAULT_GOAL := help

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

$(VENV)/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all,dev]'
	touch $@

demo: $(VENV)/.ready ## rerank a query log over the Python documentation, on this machine
	$(BIN)/python -m examples.python_docs.demo $(DEMO)

test: $(VENV)/.ready ## all tests that need minutes or less
	$(BIN)/python -m pytest -n 2 -q $(TESTS)

kernels: $(VENV)/.ready ## kernel tests: the interpreter, then ahead-of-time compilation
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -q tests/kernels -m interpreter
	$(BIN)/python -m pytest -q tests/kernels -m aot

check: $(VENV)/.ready ## format, lint, types, import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check-full: check test kernels ## everything, slow suites included
	$(BIN)/python -m pytest -q -m slow

format: $(VENV)/.ready ## let ruff rewrite the files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

counts: $(VENV)/.ready ## the published mean-kept table, reproduced
	$(BIN)/python -m benchmarks.mean_kept

clean: ## remove the environment and caches
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache
