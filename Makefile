# make run · make test · make test-browser · make test-deployment · make mutate · make check · make install · make clean
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
# What is imported is compiled once, not by each of the hundreds of processes that the tests start.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install run test test-browser test-deployment mutate check format clean

install: $(INSTALLED)

# Made again when what it was made from changes. Compiled when it is first imported: most of it never is.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

run: install
	$(BIN)/fedseca demo

test: install
	$(BIN)/python -m pytest -n 2

# The report's page in a real browser, which has to be there.
test-browser: install
	@$(BIN)/python -m tests.browser.chromium
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/browser

# A federation of Flower on this machine, in processes of its own and over TLS; and a grid on Ray. Takes minutes; needs Linux and openssl.
test-deployment: install
	$(BIN)/python -m pytest tests/deployment

# Puts faults into the modules that decide something: the tests have to notice. Takes hours on two cores; stopped, it goes on.
# Some modules: make mutate ONLY="screening.py 'attacks/*.py'"
mutate: .venv/.mutation
	$(BIN)/python -m tests.mutation $(ONLY)

.venv/.mutation: $(INSTALLED)
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e ".[mutation]"
	@touch $@

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .mutation out runs build .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
