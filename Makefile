# `make demo` and `make test` do all the set-up they need. `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
TORCH := torch==2.13.0
# Sources whose change makes the extensions stale.
NATIVE := $(shell find csrc -name '*.cpp' -o -name '*.h' -o -name '*.inc') setup.py pyproject.toml

.PHONY: help setup demo test tiny lint format bench docs sweep clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(VENV)/installed: requirements/dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/dev.txt
	@touch $@

$(VENV)/built: $(VENV)/installed $(NATIVE)
	MAX_JOBS=$(JOBS) $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@echo 'import opentrn_names' > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/opentrn.pth"
	@touch $@

setup: $(VENV)/built ## make .venv, install pinned dependencies, build the extensions

demo: setup ## train a small Qwen3 on the virtual Trainium2, beside the CPU
	$(BIN)/python -m examples.demo

test: setup ## every test (about half an hour on 2 cores)
	$(BIN)/python -m pytest tests -n $(JOBS) --dist loadgroup -m "not slow"
	$(BIN)/python -m pytest tests -m slow  # the sweeps start worker processes of their own

tiny: setup ## the 30-second smoke test
	$(BIN)/python -m pytest tests/tiny

lint: setup ## ruff, mypy, clang-format, and the size table
	$(BIN)/ruff check src tests benchmarks examples tools
	$(BIN)/mypy
	find csrc -name '*.cpp' -o -name '*.h' | xargs $(BIN)/clang-format --dry-run --Werror
	$(BIN)/python tools/size_table.py

format: setup ## let ruff and clang-format rewrite
	$(BIN)/ruff format src tests benchmarks examples tools
	$(BIN)/ruff check --fix src tests benchmarks examples tools
	find csrc -name '*.cpp' -o -name '*.h' | xargs $(BIN)/clang-format -i

bench: setup ## every benchmark; the last line of each is its result
	@for name in eager_overhead eager_step import_time dry_run dry_world core_exec core_rate nki_speed eager_times; do \
		echo "== $$name"; $(BIN)/python -m benchmarks.$$name --json | tail -1; done

docs: setup ## write the generated parts of docs/
	$(BIN)/python tools/write_docs.py

sweep: setup ## the full operator sweep, also dry, with its report
	$(BIN)/opentrn quality ops
	$(BIN)/opentrn quality ops --dry

clean: ## remove what was built
	rm -rf build $(VENV) src/*.egg-info
	find src -name '*.so' -delete
