# Needs only Python 3.11 or newer: `make demo` and `make test` set up .venv themselves.
# PYTHON=... picks another interpreter, RUN=... another directory for the demo.

PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { echo $$p; break; }; done)
RUN ?= runs/demo
BIN := .venv/bin
# Twice quiet: errors only. A proxy or mirror can make pip warn once a package.
PIP := $(BIN)/python -m pip install -q -q --disable-pip-version-check

.PHONY: demo test test-quick check clean
.DELETE_ON_ERROR:

# An earlier demo is moved aside, never deleted: runs/demo, runs/demo.1, runs/demo.2.
demo: .venv/run.stamp
	@if [ -e "$(RUN)" ]; then n=1; while [ -e "$(RUN).$$n" ]; do n=$$((n + 1)); done; \
	mv "$(RUN)" "$(RUN).$$n"; echo "moved the earlier demo to $(RUN).$$n"; fi
	$(BIN)/python -m jigsaw_jax.main --gin configs/demo.gin --run_dir $(RUN)
	$(BIN)/python -m jigsaw_jax.report $(RUN)

test: .venv/dev.stamp
	$(BIN)/python -m pytest -n auto --nbmake tests docs/colab

# Compiling takes most of the time: here as fast as it goes, in `test` as users have it.
test-quick: .venv/dev.stamp
	JAX_DISABLE_MOST_OPTIMIZATIONS=1 $(BIN)/python -m pytest -n auto -m "not slow"

check: .venv/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/pydoclint --quiet jigsaw_jax
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/vulture
	$(BIN)/shellcheck -x launch/*/*.sh launch/slurm/run.sbatch .ci/run

# Environments, caches and build products; runs/ stays.
clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis \
	.import_linter_cache
	find jigsaw_jax tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@[ -n "$(PYTHON)" ] || { echo "make: Python 3.11 or newer was not found; install" \
	"it, or name it with make PYTHON=..." >&2; exit 1; }
	@echo "setting up .venv with $(PYTHON); about a minute"
	@$(PYTHON) -m venv .venv || { rm -rf .venv; echo "make: $(PYTHON) can't make an" \
	"environment; on Debian: apt-get install python3-venv" >&2; exit 1; }

.venv/run.stamp: pyproject.toml | .venv/bin/python
	@$(PIP) -e '.[cluster]'
	@touch $@

.venv/dev.stamp: pyproject.toml | .venv/bin/python
	@$(PIP) -e '.[dev]'
	@touch $@ .venv/run.stamp
