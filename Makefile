# On a fresh machine: `make audit` or `make test`, nothing before.
# JAX=cpu (default) | cuda12 | cuda13 | tpu     ARGS='sampler=uniform seed=1' for `make audit`
PYTHON ?= python3
VENV ?= .venv
JAX ?= cpu
CONSTRAINTS ?= constraints.txt
ARGS ?=
WORKERS ?= 2

BIN := $(VENV)/bin
extra = $(if $(filter-out cpu,$(JAX)),$(JAX))
comma := ,
install = $(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
BASE := $(VENV)/.base-$(JAX)
DEV := $(VENV)/.dev-$(JAX)

.PHONY: audit test test-slow devices lint format wheel bench clean

audit: $(BASE)
	$(BIN)/jaxaudit $(ARGS)

test: $(DEV)
	$(BIN)/python -m pytest -n $(WORKERS) jaxaudit tests

test-slow: $(DEV)
	$(BIN)/python -m pytest -n $(WORKERS) -m slow tests

devices: $(DEV)
	JAXAUDIT_TEST_DEVICES=4 $(BIN)/python -m pytest -m devices tests

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(DEV)
	$(BIN)/python -m pytest -m wheel tests/test_wheel.py

bench: $(DEV)
	$(install) -e '.[bench$(if $(extra),$(comma)$(extra))]'
	$(BIN)/python benchmarks/release_gen_lra.py
	$(BIN)/python benchmarks/graph_training.py
	$(BIN)/python benchmarks/bmp_posterior.py
	$(BIN)/python benchmarks/bmp_calibration.py

$(BASE): pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(install) -e '.$(if $(extra),[$(extra)])'
	touch $@

$(DEV): $(BASE)
	$(install) -e '.[test$(if $(extra),$(comma)$(extra))]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
