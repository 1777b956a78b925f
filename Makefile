# make demo    the tour: no key and no network at run time
# make test    every test that is not slow, with branch coverage
# make check   ruff, mypy, pyright
#
# Everything lives in .venv; PYTHON=python3.12 picks the interpreter that makes it.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
COVERAGE := $(BIN)/python -m coverage

.PHONY: demo test check docs clean
.DEFAULT_GOAL := test

demo: $(VENV)/.installed
	$(BIN)/refold demo
	@if $(BIN)/python -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("xllamacpp"))'; \
	then $(BIN)/refold demo --engine; \
	else echo "The extra 'engine' is not installed here, so the tour on a real engine is left out."; \
	fi

test: $(VENV)/.installed-dev
	$(COVERAGE) run -m pytest -m "not slow"
	$(COVERAGE) report --skip-covered --skip-empty

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/pyright

docs: $(VENV)/.installed-dev
	$(BIN)/python docs/generate.py

clean:
	rm -rf dist build .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# The engine has wheels for the common platforms only; the rest of refold does not need it.
$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) install --only-binary xllamacpp -c constraints.txt -e '.[chat,engine]' \
		|| $(PIP) install -c constraints.txt -e '.[chat]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install --upgrade 'pip>=25.1'
	$(PIP) install -c constraints.txt --group dev
	touch $@
