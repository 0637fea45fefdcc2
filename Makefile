# Every target sets up .venv by itself, and again after a change of pyproject.toml or constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
DEMO_READY := .venv/.demo-ready
READY := .venv/.ready
# The variable, unlike pip's option -c, also pins what a build itself needs.
INSTALL := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -e
# Debian's packages of the programs that tests marked `partners` need.
PARTNERS := texlive-latex-base texlive-latex-recommended prometheus chromium

.PHONY: demo test test-partners break check format bench clean

demo: $(DEMO_READY)
	$(BIN)/apood demo --out demo

test: check
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n auto

test-partners: $(READY)
	(command -v pdflatex && command -v promtool && command -v chromium) || (apt-get update && apt-get install -y --no-install-recommends $(PARTNERS))
	$(INSTALL) '.[dev,browser]'
	$(BIN)/pytest -q -m partners

# The attacks in their long form: an hour or more.
break: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python tests/breaking/run.py

check: $(READY)
	$(BIN)/ruff format --check src tests benchmarks docs/images
	$(BIN)/ruff check src tests benchmarks docs/images
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format src tests benchmarks docs/images
	$(BIN)/ruff check --fix src tests benchmarks docs/images

bench: $(READY)
	$(BIN)/python -m benchmarks

$(BIN)/python:
	$(PYTHON) -m venv .venv

$(DEMO_READY): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[demo]'
	touch $@

# The development tools include everything that the demo needs.
$(READY): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[dev]'
	touch $@ $(DEMO_READY)

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
