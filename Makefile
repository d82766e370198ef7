# Every target makes .venv when it is missing and uses nothing else of the machine but Python 3.10 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test coverage lint score bench interop docs clean

$(VENV)/.ready: pyproject.toml hatch_build.py $(wildcard src/numprobe/native/*.[ch])
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.ready  # with what the tests need, PyTorch among it
	$(BIN)/pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(VENV)/.ready  ## NaN on 512 simulated ranks, from the dump to the root cause
	@code=0; $(BIN)/numprobe demo nan || code=$$?; test $$code -le 1

lint: $(VENV)/.dev  ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint  ## lint, types, layers, then pytest
	$(BIN)/pytest -n 2

coverage: $(VENV)/.dev  ## which lines the tests run
	$(BIN)/pytest -n 2 --cov --cov-report=term:skip-covered

score: $(VENV)/.ready  ## how often the skills are right, on dumps with known truth
	$(BIN)/python benchmarks/score_nan.py
	$(BIN)/python benchmarks/score_rl.py

bench: $(VENV)/.dev  ## speed and memory, as ratios of one run
	$(BIN)/python benchmarks/nan.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/collect.py
	$(BIN)/python benchmarks/rl.py

interop: $(VENV)/.dev  ## the RL skill on fresh dumps of Megatron-Core, transformers and vLLM; 5 GB of environments below .interop/
	$(BIN)/python benchmarks/engines/run.py

docs: $(VENV)/.dev  ## every command of the documents runs, every link leads somewhere
	$(BIN)/pytest tests/docs

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage dist demo
