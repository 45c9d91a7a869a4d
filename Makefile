# Every target sets up what it needs: `make demo` and `make test` work in a fresh clone.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test coverage lint layout bench paper clean

demo: .venv/installed
	$(BIN)/python examples/demo.py

# A page on which to label drawn images; nothing is downloaded.
.PHONY: demo-label
demo-label: .venv/installed-label
	$(BIN)/python examples/label_drawn_images.py

test: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# Every pair of methods, every method on two processes, kills, small versions of the evidence in results/reliability.
.PHONY: test-slow
test-slow: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m slow

# The tests of `make test`, slower, and which lines none of them runs.
coverage: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --cov --cov-report=term:skip-covered

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Before a commit: linters, types, and the tests of what has changed.
.PHONY: check
check: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python tools/check.py

# What one run crosses, which may not grow (results/layout.md).
layout: .venv/installed-dev
	$(BIN)/python tools/layout.py --check

bench: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks all

# A few steps again: fails if one got 1.5 times slower than its ratio in results/bench.
.PHONY: bench-check
bench-check: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks check

# Every table at smoke scale: it shows that they run; the numbers mean nothing.
paper: .venv/installed
	$(BIN)/python -m paper all --scale smoke --seeds 1 --cells runs/cells --out runs/tables

# The documentation as a site without outside resources; `python -m http.server -d site` shows it, search included.
.PHONY: docs
docs: .venv/installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

.venv/bin/python:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip

.venv/installed: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[weights]'
	touch $@

.venv/installed-label: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[weights,label]'
	touch $@ .venv/installed

.venv/installed-dev: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@ .venv/installed

clean:
	rm -rf .venv build dist *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache site
