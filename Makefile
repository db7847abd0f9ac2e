# make demo: train the embedded default, sample from it, say where to look.   make test: lint, types, tests on the CPU.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
STAMP := .venv/.installed
RUN := runs/demo-$(shell date +%Y%m%d-%H%M%S)

.PHONY: demo test types suite slow device everywhere docs docs-check papers clean

demo: $(STAMP)
	$(BIN)/idpgan train --out $(RUN)
	$(BIN)/idpgan sample $(RUN) --num 1000 --out $(RUN)/synthetic.npz
	$(BIN)/idpgan verify $(RUN)
	@echo "Look at $(RUN)/release/samples.png; 1,000 images for use are in $(RUN)/synthetic.npz"

test: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(MAKE) --no-print-directory --jobs=2 types suite

types: $(STAMP)
	$(BIN)/mypy

# Bytecode is kept wherever the environment forbids it: rewriting all assertions takes eight seconds of each process.
suite: $(STAMP)
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -q -n 2 --dist worksteal

slow: $(STAMP)
	$(BIN)/pytest -q -m slow

# Everything on the stand-in for a GPU (tools/standin/README.md): half an hour on two cores.
device: $(STAMP)
	$(BIN)/python tools/standin/drive.py check
	$(BIN)/python tools/standin/drive.py test -m gpu -q
	$(BIN)/python tools/standin/drive.py run --out runs/device

# What the five papers describe, each thing once on small data: at most 15 minutes (benchmarks/results/rows.md).
papers: $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[test,dev,survey]"
	$(BIN)/python benchmarks/papers/rows.py run

# The suite as other machines would run it; takes hours, and goes on where it stopped.
everywhere: $(STAMP)
	nice $(BIN)/python tools/everywhere.py

# The site, which needs no network.
docs: $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Look at .site/index.html; with the search: python -m http.server --directory .site"

# What a reader sees and tries: pages in a browser, the notebook, the wheel, every example of README, guide and methods.
docs-check: $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[test,dev,docs]"
	$(BIN)/pytest -q -m "browser or notebook or wheel or docs"

# One environment for everything; made anew when the dependencies change.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[test,dev]"
	touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
