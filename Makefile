# Every target makes and reuses .venv by itself.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint bench docs clean

# PIP_CONSTRAINT, unlike --constraint, also holds for what a build environment installs.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: .venv/ready
	$(BIN)/lametta demo

test: lint
	$(BIN)/python -m pytest

lint: .venv/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/ready
	$(BIN)/python benchmarks/lame.py
	$(BIN)/python benchmarks/networks.py --networks ResNet-18 --batch-size 16
	$(BIN)/python benchmarks/extract.py

docs: .venv/ready
	$(BIN)/sphinx-build -W --keep-going docs docs/_build/html

clean:
	rm -rf .venv docs/_build dist build
