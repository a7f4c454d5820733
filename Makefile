# Kernel Lab. `make help` lists the targets. Nothing here needs a key, a GPU or a Trainium.
SHELL  := /bin/bash
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.made
PORT   ?= 8888
# more workers than the two cores of a small machine, because some tests wait for a browser or a process that starts: with six no core is idle
JOBS   ?= 4
# a slow test keeps a core busy by itself
SLOW_JOBS ?= 2
# of the tests that take seconds each a run does one part of six, by the commit that is checked out; TURN=all: all of them
TURN   ?= commit
# tests keep away from the person's own store
# (and keep bytecode: a run starts some three hundred processes, each of which would compile pandas or JupyterLab anew)
TESTENV = PYTHONDONTWRITEBYTECODE= KERNEL_LAB_STORE= KERNEL_LAB_HOME=$$(mktemp -d)
# without bytecode every process compiles the lab's modules anew, half a second of the processor; Python writes none where
# PYTHONDONTWRITEBYTECODE is set, and the sandbox's processes never do
BYTECODE = $(BIN)/python -m compileall -q kernel_lab
ROOT   := $(if $(filter 0,$(shell id -u)),--allow-root,)

.DEFAULT_GOAL := help
.PHONY: help env lab demo check test slow durations gpu-test views export number docs outputs pins picture clean distclean

help:            ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(STAMP)    ## make .venv from constraints.txt (a second call does nothing)

# torch is asked as torch==2.13.0 in constraints.txt. On Linux the public registry's wheel of that version brings gigabytes of CUDA
# libraries that the lab does not need; where pip knows an index with torch's CPU wheels (PIP_EXTRA_INDEX_URL), the smaller one is taken.
$(STAMP): constraints.txt pyproject.toml tools/lab_settings.json
	@py=; for p in python3.11 python3.12 python3.13 python3; do \
	  if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then py=$$p; break; fi; done; \
	if [ -z "$$py" ]; then echo "make env: no Python 3.11 or newer on PATH (looked for python3.11, python3.12, python3.13, python3)."; exit 1; fi; \
	if [ ! -x $(BIN)/python ]; then echo "make env: $$py -m venv $(VENV)"; $$py -m venv $(VENV) || \
	  { echo "make env: '$$py -m venv' failed; Debian and Ubuntu keep it in the package python3-venv."; exit 1; }; fi
	@echo "make env: installing from constraints.txt (some minutes the first time)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@$(BYTECODE)
	@echo "make env: compiling the clock that times kernels, and the comparison of their outputs (once)"
	@$(BIN)/python -c "from kernel_lab.nki.timing import scheduler; from kernel_lab.nki.explain import memory; from kernel_lab.evaluate.verification import verify; scheduler.warm(); memory.warm(); verify.warm()"
	@mkdir -p $(VENV)/share/jupyter/lab/settings && cp tools/lab_settings.json $(VENV)/share/jupyter/lab/settings/overrides.json
	@mkdir -p $(VENV)/etc/jupyter && cp kernel_lab/figures/static/jupyter_nbconvert_config.json $(VENV)/etc/jupyter/
	@touch $@

# git does not track my/: what is saved there stays the person's own, whatever a later checkout brings. Without a prerequisite: it is
# made once.
my/lab.ipynb:
	@mkdir -p my && cp nbs/lab.ipynb $@

lab: env my/lab.ipynb  ## open JupyterLab on my/lab.ipynb, your copy of nbs/lab.ipynb (PORT=8888; ARGS=--no-browser without one)
	@if [ nbs/lab.ipynb -nt my/lab.ipynb ]; then \
	  echo "make lab: nbs/lab.ipynb is newer than my/lab.ipynb, which is yours and stays as it is; move it away to get the newer one."; fi
	@echo "make lab: the browser opens by itself; otherwise open the link with ?token=… that appears below. Ctrl-C ends it."
	$(BIN)/jupyter lab --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/my/lab.ipynb --port $(PORT) $(ROOT) $(ARGS)

demo: env        ## optimise one kernel without a browser, and write report.html
	$(BIN)/kernel-lab demo $(ARGS)

check: env       ## lint, the house, unit tests and changed notebooks, in two minutes (ARGS=BASE compares with another base than main)
	@$(BYTECODE)
	$(TESTENV) $(BIN)/python tools/check.py $(ARGS)

test: env        ## what CI runs: notebooks, modules and README agree; notebooks; tests/; style (JOBS=4 workers; TURN=all: long tests too)
	@$(BYTECODE)
	$(TESTENV) $(BIN)/python -m pytest -n $(JOBS) --turn $(TURN) $(ARGS)

slow: env        ## tests and cells marked slow, two at a time (those that take turns: make test TURN=all)
	@$(BYTECODE)
	$(TESTENV) $(BIN)/python -m pytest -m slow -n $(SLOW_JOBS) $(ARGS)

durations: env   ## run all of `make test`, and write which tests are long
	@$(BYTECODE)
	$(TESTENV) $(BIN)/python -m pytest -n $(JOBS) --durations-file tests/long_tests.json $(ARGS)

gpu-test: env    ## what only a card can say, on a machine with one, in four minutes; without one it says so and fails (OUT=FILE.json keeps it)
	$(BIN)/python tools/gpu_test.py $(OUT)

views: env       ## make or refresh src_nbs/, the notebooks as text (the newer of a pair wins)
	$(BIN)/python tools/sync.py

export: env      ## nbs/ → kernel_lab/ and README.md
	@if [ -d src_nbs ]; then $(BIN)/python tools/sync.py; fi
	$(BIN)/python tools/export.py

number: env      ## number the notebooks of every room again, and link each to its neighbours; then export
	$(BIN)/python tools/number.py
	$(BIN)/python tools/export.py

docs: env        ## the documentation in _docs/site, from executed notebooks (ARGS=--changed executes only what differs from main)
	$(BIN)/python tools/docs.py $(ARGS)

outputs: env     ## execute the pages that carry their outputs in git, lessons, stories and the README's, and write these
	$(BIN)/python tools/outputs.py $(ARGS)

picture: env     ## draw the README's picture and its animation again (needs a chromium)
	$(BIN)/python tools/picture.py
	$(BIN)/python tools/animation.py

pins: env        ## write constraints.txt from what .venv holds now
	$(BIN)/python tools/pins.py

clean:           ## remove what builds and tests leave
	rm -rf build dist *.egg-info _proc _docs/site _docs/pages .pytest_cache .ruff_cache .hypothesis report.html
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## remove .venv, src_nbs/ and the outputs kept for the documentation too
	rm -rf $(VENV) src_nbs _docs
