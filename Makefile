# make repro makes the embedded default's tables; make test runs the fast tests. Both create .venv first, as make install does.
#   PYTHON=python3.12   the interpreter for .venv
#   KEEP_TORCH=1        use the torch that PYTHON already has, e.g. a GPU build, instead of the locked one

PYTHON ?= python3.11
VENV := .venv
UV := uv==0.13.8
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export DVC_NO_ANALYTICS := 1
export NO_MKDOCS_2_WARNING := 1
export MLFLOW_DISABLE_TELEMETRY := true
export UV_PYTHON_DOWNLOADS := never
# Every stage is a process. Without cached bytecode each would compile the same modules, for longer than some stages run.
unexport PYTHONPATH PYTHONDONTWRITEBYTECODE

# The report depends on all of the embedded default. A single target is faster, since DVC reads its files per target.
repro: $(VENV)/.ready
	@echo "dvc repro --quiet report"
	@dvc repro --quiet report || { echo "make: where nothing above says why, 'dvc repro report' does" >&2; exit 1; }
	@echo
	@hetfl show digits-homogeneous digits-heterogeneous digits-fedtgp digits-fgpt
	@echo "tables:  tables/<name>/           figures: figures/<name>/"
	@echo "report:  report/index.html             runs:    make ui"

install: $(VENV)/.ready

test: $(VENV)/.ready
	pytest -n 2 --dist worksteal

# Writes docs/certificates.md: a comparison of every method with its authors' code or its equations.
certificates: $(VENV)/.ready
	pytest tests/certificates --update-certificates

docs: $(VENV)/.ready
	mkdocs build --quiet --strict
	@echo "docs:    build/docs/index.html; mkdocs serve has the search, too"

slow: $(VENV)/.ready
	pytest -m 'slow and not faults' -s

# Breaks everything on purpose and prints the table: fault, tries, survived, lost. QUICK=1: a few of each.
test-faults: $(VENV)/.ready
	QUICK=$(QUICK) pytest -m faults -n 2 --dist worksteal

# Clients in several processes on this machine.
test-distributed: $(VENV)/.ready
	pytest -m distributed -s

# Three rounds of every method on a GPU and on the processor. Elsewhere: make test-gpu HETFL_TEST_DEVICE=cuda:1
test-gpu: $(VENV)/.ready
	pytest -m gpu

# Of the papers' runs: make ui PROJECT=papers. Elsewhere: make ui HOST=0.0.0.0 PORT=8080. Behind a proxy:
# make ui UI="--allowed-hosts runs.example.org". Files of runs are named relative to the project's folder.
PROJECT := .
HOST := 127.0.0.1
PORT := 5000
ui: $(VENV)/.ready
	@case "$$MLFLOW_TRACKING_URI" in http*|databricks*) echo "MLFLOW_TRACKING_URI names a server of its own: open its address"; exit 1;; esac
	@echo "http://$(HOST):$(PORT)"
	cd $(PROJECT) && MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false mlflow ui --app-name hetfl --workers 1 --host $(HOST) --port $(PORT) \
	  --backend-store-uri $${MLFLOW_TRACKING_URI:-sqlite:///mlruns/mlflow.db} $(UI)

lint: $(VENV)/.ready
	ruff check .
	ruff format --check .
	mypy

lock: $(VENV)/.ready
	uv pip compile --quiet --universal --generate-hashes --all-extras --no-header pyproject.toml -o requirements.lock

PIP := $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet
LOCKED := --quiet --no-deps --require-hashes -r $(VENV)/requirements.lock

# uv is several times faster than pip; if uv is not available, pip installs from the lock.
$(VENV)/.ready: requirements.lock pyproject.toml
	@echo "making $(VENV) from requirements.lock"
	@$(PYTHON) -m venv --clear $(VENV)
ifdef KEEP_TORCH
	@awk '/^[^ ]/ {drop = /^(torch|torchvision|triton|nvidia-[a-z0-9-]+|cuda-[a-z]+)==/} !drop' requirements.lock \
	  > $(VENV)/requirements.lock
	@$(PYTHON) -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])' \
	  > $$($(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/keep-torch.pth
else
	@cp requirements.lock $(VENV)/requirements.lock
endif
	@{ $(PIP) $(UV) && uv pip install $(LOCKED) --python $(VENV)/bin/python; } || $(PIP) $(LOCKED)
	@$(PIP) --no-deps --no-build-isolation --no-index -e .
# In an exported tree without .git, DVC needs this setting to work.
	@test -e .git || for project in . papers; do $(VENV)/bin/dvc --cd $$project config --local core.no_scm true; done
	@touch $@

.PHONY: repro install test certificates docs slow test-distributed test-gpu ui lint lock test-faults
