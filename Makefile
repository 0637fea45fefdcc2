# Every target sets up .venv by itself, and again when pyproject.toml or constraints.txt changed.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test check format bench clean

demo: $(READY)
	$(BIN)/apood demo --out demo

test: check
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n auto

check: $(READY)
	$(BIN)/ruff format --check src tests benchmarks docs/images
	$(BIN)/ruff check src tests benchmarks docs/images
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format src tests benchmarks docs/images
	$(BIN)/ruff check --fix src tests benchmarks docs/images

bench: $(READY)
	$(BIN)/python -m benchmarks

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	# the variable, unlike -c, also pins what the build itself needs
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(READY)

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
