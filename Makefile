# Every target makes and reuses .venv by itself.
PYTHON ?= python3
BIN := .venv/bin
# Tests run in parallel, all of them in one process more than there are cores: some wait for servers and clusters.
CORES := $(shell nproc 2>/dev/null || echo 2)
PYTEST := $(BIN)/python -m pytest --maxprocesses=8 --dist=worksteal

# Without compiled files, every process would compile the package and the tests anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo quick test bare lint style types tests quick-tests bench docs clean dist wheels lowest newest sbom

# PIP_CONSTRAINT, unlike --constraint, also holds for what a build environment installs. To compile,
# pip would take one core; what no Python of this version can compile is nothing that we import.
INSTALL := PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check --no-compile --editable
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '/tests?/' .venv/lib || true

# What the demo needs, which is far less than what the tests do.
.venv/bench: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) '.[bench]'
	$(COMPILE)
	touch $@

.venv/ready: .venv/bench
	$(INSTALL) '.[dev]'
	$(COMPILE)
	touch $@

demo: .venv/bench
	$(BIN)/lametta demo

# An answer while you work, in 100 s on two quiet cores and far more on busy ones: all but the tests that take a
# quarter of a second or more.
quick: .venv/ready
	$(MAKE) --jobs=3 style types quick-tests

# Every check there is.
test: .venv/ready
	$(MAKE) --jobs=4 style types docs tests

# The tests as on a machine without the programs and data that some of them need: those are skipped. The path has
# links to all that is there otherwise (but for pyenv's, which would find themselves). Examples are few: `test` has all.
bare: .venv/ready
	rm -rf build/bare && mkdir -p build/bare
	IFS=:; for folder in $$PATH; do \
		case $$folder in */shims) ;; *) ln -s "$$folder"/* build/bare 2>/dev/null;; esac; \
	done; cd build/bare && rm -f chromium chromium-browser google-chrome chrome redis-server nginx
	PATH=$(CURDIR)/build/bare WNSEARCHDIR=/nowhere LAMETTA_SHARED=/nowhere $(MAKE) tests \
		PYTEST='$(PYTEST) --hypothesis-profile=quick'

lint: style types

style: .venv/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: .venv/ready
	$(BIN)/mypy

tests: .venv/ready
	$(PYTEST) --numprocesses=$(shell expr $(CORES) + 1)

quick-tests: .venv/ready
	$(PYTEST) --numprocesses=$(CORES) -m 'not slow' --hypothesis-profile=quick

bench: .venv/ready
	$(BIN)/python benchmarks/lame.py
	$(BIN)/python benchmarks/networks.py --networks ResNet-18 --batch-size 16
	$(BIN)/python benchmarks/extract.py

# Warnings are errors, every link leads somewhere, and no page loads anything from the network.
docs: .venv/ready
	rm -rf docs/_build/html/_modules  # or Sphinx keeps those pages as they are
	$(BIN)/sphinx-build -W --keep-going --quiet docs docs/_build/html
	$(BIN)/python scripts/check_links.py docs/_build/html

# What is published, built with what is installed so that nothing is fetched.
dist: .venv/ready
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist
	$(BIN)/twine check --strict dist/*

# The wheel in empty environments, of every Python that is declared and found here.
wheels: dist
	$(BIN)/python scripts/check_wheel.py dist/*.whl --constraint constraints.txt

# The same with the lowest versions that are allowed, and with every extra: some 4 GB, since PyTorch's wheel of old for
# Linux brings CUDA. `make lowest EXTRAS=cli,serve` takes fewer.
EXTRAS := all
lowest: dist
	$(BIN)/python scripts/check_wheel.py dist/*.whl --constraint constraints-lowest.txt --python $(BIN)/python \
		--extras $(EXTRAS)

# The tests with the newest versions there are, in an environment of their own.
newest:
	$(PYTHON) -m venv --clear .venv-newest
	.venv-newest/bin/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	.venv-newest/bin/python -m pytest --numprocesses=$(CORES) --dist=worksteal

# The software bill of materials: what is installed, with versions and licenses, as CycloneDX.
sbom: .venv/ready
	test -x .venv-sbom/bin/cyclonedx-py || $(PYTHON) -m venv .venv-sbom
	.venv-sbom/bin/pip install --quiet --disable-pip-version-check 'cyclonedx-bom>=7'
	mkdir -p build
	.venv-sbom/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--output-file build/sbom.cdx.json $(BIN)/python

clean:
	rm -rf .venv .venv-newest .venv-sbom docs/_build dist build
