# make repro: the embedded default's tables; make test: the fast tests. Both make .venv first.
#   PYTHON=python3.12   the interpreter .venv is made from
#   KEEP_TORCH=1        keep the torch that PYTHON already has (a GPU build, say) instead of the lock's

PYTHON ?= python3.11
VENV := .venv
UV := uv==0.13.8
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export DVC_NO_ANALYTICS := 1
export MLFLOW_DISABLE_TELEMETRY := true
export UV_PYTHON_DOWNLOADS := never
# Every stage is a process of its own: compiling the same modules anew in each would take longer than some stages do.
unexport PYTHONPATH PYTHONDONTWRITEBYTECODE

# The report shows, and so needs, all of the embedded default; DVC reads its files anew for every target it is given.
repro: $(VENV)/.ready
	@echo "dvc repro --quiet report"
	@dvc repro --quiet report || { echo "make: where nothing above says why, 'dvc repro report' does" >&2; exit 1; }
	@echo
	@hetfl show digits-homogeneous digits-heterogeneous digits-fedtgp digits-fgpt
	@echo "tables:  tables/<name>/           figures: figures/<name>/"
	@echo "report:  report/index.html             runs:    make ui"

test: $(VENV)/.ready
	pytest -n 2 --dist worksteal

# docs/certificates.md: every method against its authors' code or its equations, played anew.
certificates: $(VENV)/.ready
	pytest tests/certificates --update-certificates

slow: $(VENV)/.ready
	pytest -m slow -s

ui: $(VENV)/.ready
	MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false mlflow ui --workers 1 --host 127.0.0.1 --port 5000 \
	  --backend-store-uri $${MLFLOW_TRACKING_URI:-sqlite:///mlruns/mlflow.db}

lint: $(VENV)/.ready
	ruff check .
	ruff format --check .
	mypy

lock: $(VENV)/.ready
	uv pip compile --quiet --universal --generate-hashes --all-extras --no-header pyproject.toml -o requirements.lock

PIP := $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet
LOCKED := --quiet --no-deps --require-hashes -r $(VENV)/requirements.lock

# uv installs several times faster than pip; where it cannot be had, pip does the same from the lock.
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
# In an exported tree, DVC refuses to work unless it is told that git is not missing by mistake.
	@test -e .git || $(VENV)/bin/dvc config --local core.no_scm true
	@touch $@

.PHONY: repro test certificates slow ui lint lock
