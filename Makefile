# Each target makes .venv and installs what it needs: Python 3.11 and a C compiler are enough.
PYTHON ?= $(firstword $(shell command -v python3.11 python3))
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SOURCES := $(wildcard backends/hicache_backends/*.c backends/hicache_backends/csrc/*.[ch])
BENCH_DIR ?= build/bench
SGLANG_VENV := .venv-sglang
SGLANG_INSTALLED := $(SGLANG_VENV)/.installed
SGLANG_SOURCES := .ci/sglang-env tests/sglang/requirements.txt tests/sglang/cpu/pyproject.toml
SGLANG_RELEASES := build/sglang
# Tests wait more than they compute: these run beside all others.
BESIDE := tests/kvmanager tests/faults tests/threefs

.PHONY: demo test test-beside test-others test-sglang lint bench bench-sglang clean

demo: $(INSTALLED)
	$(BIN)/hicache-storage demo

test: lint
	.ci/debian-packages redis-server fio libibverbs1 libnuma1 libcurl4 chromium
	$(MAKE) --jobs=2 --keep-going --output-sync=target test-beside test-others
	$(MAKE) test-sglang

test-beside: $(INSTALLED)
	$(BIN)/pytest -o cache_dir=.pytest_cache/beside $(BESIDE)

test-others: $(INSTALLED)
	$(BIN)/pytest -o cache_dir=.pytest_cache/others $(BESIDE:%=--ignore=%)

test-sglang: $(INSTALLED) $(SGLANG_INSTALLED)
	HICACHE_TEST_SGLANG=1 $(SGLANG_VENV)/bin/pytest tests/sglang

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(INSTALLED)
	.ci/debian-packages fio
	mkdir -p $(BENCH_DIR)
	$(BIN)/hicache-storage bench storage --dir $(BENCH_DIR) --against fio,sglang-file --beside-spinner
	$(BIN)/hicache-storage bench registry --against mini3fs

bench-sglang: $(INSTALLED) $(SGLANG_INSTALLED)
	mkdir -p $(BENCH_DIR)
	PYTHONPATH=.:backends $(SGLANG_VENV)/bin/python -W ignore -m tests.sglang.bench --directory $(BENCH_DIR)
	.ci/debian-packages libibverbs1 libnuma1 libcurl4
	PYTHONPATH=.:backends $(SGLANG_VENV)/bin/python -W ignore -m tests.sglang.bench_mooncake

clean:
	rm -rf $(VENV) $(SGLANG_VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f backends/hicache_backends/*.so

$(INSTALLED): pyproject.toml constraints.txt $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
		|| { .ci/debian-packages python3-venv && $(PYTHON) -m venv --clear $(VENV); }
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

$(SGLANG_INSTALLED): $(SGLANG_SOURCES) constraints.txt
	.ci/debian-packages g++ ninja-build libssl-dev
	.ci/sglang-env $(SGLANG_VENV) $(SGLANG_RELEASES)
	touch $@
