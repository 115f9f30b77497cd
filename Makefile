# Everything needs only python3.11 and make; `make help` lists the targets.

PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable
PYTEST ?= $(BIN)/python -m pytest

# Bytecode of src/ and bench/ is kept, or each of the many interpreters that tests start would compile it.
unexport PYTHONDONTWRITEBYTECODE

PROJECTS := pyproject.toml bench/pyproject.toml
PARALLEL := -n 2 --dist loadgroup
QUICK := tests/unit tests/property tests/stateful tests/architecture tests/docs

FRAMEWORKS := mindspore paddlepaddle grain tensorflow
PROGRAMS := $(VENV)-programs

.PHONY: help demo bench check lint verify-types licences release test-matrix format test test-all test-frameworks test-programs test-cluster test-dashboard docs soak gpu system clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-demo  ## the built-in demonstration, from nothing
	$(BIN)/prefeed demo

bench: $(VENV)/.installed-demo  ## measure against reading the origin directly
	$(BIN)/prefeed bench

check: lint  ## format, lint, types, imports, pure tests, docs snippets
	$(PYTEST) -q $(PARALLEL) -m "quick and not whole" $(wildcard $(QUICK))

lint: $(VENV)/.installed-dev  ## format, lint, types, imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

verify-types: $(VENV)/.installed-dev  ## how much of the API has types that checkers know; fails below 95 %
	PATH="$(abspath $(BIN)):$$PATH" PYTHONPATH=src $(BIN)/pyright --ignoreexternal --verifytypes prefeed --outputjson \
	  | $(BIN)/python -c 'import json, sys; score = json.load(sys.stdin)["typeCompleteness"]["completenessScore"]; \
	    print(f"{100 * score:.1f} % of all symbols have known types"); sys.exit(score < 0.95)'

licences: $(VENV)/.installed-dev  ## write the page of the licences of dependencies
	$(BIN)/python .ci/licences.py

release: $(VENV)/.installed-dev  ## build wheel and source distribution, and use them in an environment of their own
	.ci/release $(BIN)/python

format: $(VENV)/.installed-dev  ## rewrite the code as the formatter and the linter want it
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

test: $(VENV)/.installed-dev system  ## every test, two at a time
	$(PYTEST) $(PARALLEL)

test-all: $(VENV)/.installed-dev system  ## every test, and every combination of parameters
	PREFEED_TESTS=all $(PYTEST) $(PARALLEL) -m ""

test-frameworks: $(FRAMEWORKS:%=$(VENV)-%/.installed)  ## the tests with MindSpore, Paddle, Grain and TensorFlow, each in an environment of its own
	@for name in $(FRAMEWORKS); do \
	  $(VENV)-$$name/bin/python -m pytest -q tests/frameworks/test_$$name.py || exit 1; \
	done

test-programs: $(PROGRAMS)/.installed system  ## unchanged programs of timm, datasets, MONAI, fastai and others: plain, cold, warm
	$(PROGRAMS)/bin/python -m pytest -q $(PARALLEL) tests/programs

test-matrix:  ## the pure tests with each Python and torch that can be had here (MATRIX="3.12:2.6 3.13:newest")
	.ci/matrix $(MATRIX)

test-cluster: $(VENV)/.installed-dev  ## documents and, with PREFEED_TEST_IMAGE, pods in a cluster of yours: KUBECONFIG
	@test -n "$$KUBECONFIG" || { echo "make test-cluster: no cluster: set KUBECONFIG to one of yours, such as kind's or k3d's" >&2; exit 1; }
	$(PYTEST) -q -n 0 -p no:cacheprovider -rs -o faulthandler_timeout=0 tests/on_cluster/documents.py tests/on_cluster/pods.py

test-dashboard: $(VENV)/.installed-dev system  ## the queries of the dashboard, answered by a Prometheus that scrapes a server (apt-get install prometheus)
	@command -v prometheus >/dev/null || { echo "make test-dashboard: no prometheus: apt-get install prometheus" >&2; exit 1; }
	$(PYTEST) -q -p no:cacheprovider tests/on_prometheus/acceptance.py

docs: $(VENV)/.installed-docs  ## the site, in build/site; fails for a broken link and for a public name without a docstring
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

soak: $(VENV)/.installed-dev system  ## ten minutes of kills, pauses and failures at random, every byte compared
	PYTHONPATH=tests $(BIN)/python -m soak $(SOAK)

gpu: $(VENV)/.installed-dev  ## the tests and the benchmark that need a CUDA device, figures in build/; fails without one
	@$(BIN)/python -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "make gpu: torch sees no CUDA device")'
	$(PYTEST) tests/gpu
	@mkdir -p build
	$(BIN)/prefeed bench device --json > build/device.json
	@cat build/device.json

system:  ## the servers that the tests talk to, from apt, when they are missing
	@sh tests/system-packages.sh

clean:  ## remove the virtual environment and everything that was generated
	rm -rf $(VENV) $(PROGRAMS) $(FRAMEWORKS:%=$(VENV)-%) build dist bench/dist demo-output bench-output .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src bench tests -name __pycache__ -type d -prune -exec rm -rf {} +

# ---------------------------------------------------------------- installation, once per change of a pyproject.toml

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-demo: $(PROJECTS) | $(VENV)/bin/python
	@echo "installing prefeed, its benchmarks and its demo into $(VENV): a few minutes and 6 GB, once"
	$(PIP) . --editable ./bench
	@$(MAKE) --no-print-directory check-torch
	@touch $@

$(VENV)/.installed-dev: $(PROJECTS) | $(VENV)/bin/python
	@echo "installing prefeed, its benchmarks and the tools for their development into $(VENV): a few minutes and 6 GB, once"
	$(PIP) '.[pack,dev,integrations]' --editable ./bench
	@$(MAKE) --no-print-directory check-torch
	@touch $@ $(VENV)/.installed-demo

$(VENV)/.installed-docs: $(PROJECTS) $(VENV)/.installed-demo
	$(PIP) '.[docs]' --editable ./bench
	@touch $@

# Frameworks do not agree on the versions of what they need; none of them needs torch, and neither does prefeed.
$(VENV)-%/.installed: pyproject.toml
	@echo "installing prefeed and $* into $(VENV)-$*: a minute and a few GB, once"
	$(PYTHON) -m venv $(VENV)-$*
	$(VENV)-$*/bin/python -m pip install --quiet --disable-pip-version-check --editable '$(if $(filter tensorflow,$*),.[pack],.)' $* hypothesis pillow pytest pytest-timeout
	@touch $@

# What $(VENV) has, torch above all, is seen from here and not installed twice; what this environment has of its own comes first.
$(PROGRAMS)/.installed: $(PROJECTS) $(VENV)/.installed-dev
	@echo "installing what public programs train with into $(PROGRAMS): a minute and 1 GB, once"
	$(PYTHON) -m venv $(PROGRAMS)
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$($(PROGRAMS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/shared.pth"
	$(PROGRAMS)/bin/python -m pip install --quiet --disable-pip-version-check --editable . --editable './bench[programs]'
	@touch $@

# A torch build of one kind (say +cpu, from a find-links folder) beside a torchvision of another installs and then
# fails at the first import; better to say so here.
.PHONY: check-torch
check-torch:
	@$(BIN)/python -c 'import torch, torchvision; print("torch", torch.__version__, "torchvision", torchvision.__version__)' \
	  || { echo "make: torch and torchvision do not fit together; pip took them from different places." \
	       "Look at 'pip config list' (find-links, index-url), then: make clean" >&2; exit 1; }
