# paramfleet's commands: `make help` lists them. GNU make 3.81 or newer, any POSIX sh.

VENV = .venv
BIN = $(VENV)/bin
TORCH ?= torch==2.13.0
export VENV TORCH

MODE = geo
MODEL = wide_deep
SERVERS = 2
WORKERS = 2
EPOCHS =
DATA = flights
DATA_DIR = $(PARAMFLEET_DATA)
ONLY =
QUICK =
DAYS =

CODE = client shared services tests deploy examples models benchmarks scripts
EXAMPLE = examples/wide_and_deep/train.py

# The last line of a demo is its result: make must not print "Leaving directory" after it
# (before 4.4 `make -C` does nevertheless, without -s).
MAKEFLAGS += --no-print-directory

.PHONY: help install demo online census test check lint unit docs screenshots dist bench bench-paddle bench-localsgd compose-test clean

help:
	@echo 'make install                 make $(VENV) and install paramfleet with its examples'
	@echo 'make demo                    train wide and deep on this machine; the last line is JSON'
	@echo '     MODE=sync|async|geo|gpubox SERVERS=2 WORKERS=2 EPOCHS=2 DATA=flights'
	@echo '     MODEL=wide_deep|two_tower|dlrm'
	@echo 'make online                  train day by day, and serve the model meanwhile; 4 minutes'
	@echo '     DAYS=365'
	@echo 'make census DATA_DIR=FOLDER  the same on the census, read from FOLDER'
	@echo 'make test                    every test, with branch coverage'
	@echo 'make check                   format, lint, types, layers and unit tests; under 3 minutes'
	@echo 'make docs                    write the generated pages, and the site to build/site'
	@echo 'make dist                    a wheel and a source distribution in dist/'
	@echo 'make bench                   the benchmarks that fit into ten minutes; the last line is JSON'
	@echo '     ONLY=transport,path QUICK=1'
	@echo 'make bench-paddle            the same work on Paddle 3.0.0, in its own .venv-paddle'
	@echo 'make bench-localsgd          workers that train apart, in twenty minutes'
	@echo '     DATA_DIR=FOLDER'
	@echo 'make compose-test            a cluster of containers on a real engine, with injected faults'
	@echo '     MODE=geo SERVERS=2 WORKERS=4'
	@echo 'make clean                   remove what make and the tools made'

install:
	@sh scripts/install.sh

demo:
	@test '$(DATA)' != census || test -n '$(DATA_DIR)' || \
		{ echo 'name the folder of adult.data: make census DATA_DIR=FOLDER' >&2; exit 2; }
	@sh scripts/install.sh
	@$(BIN)/paramfleet launch --server_num=$(SERVERS) --worker_num=$(WORKERS) \
		$(EXAMPLE) --mode $(MODE) --model $(MODEL) --data $(DATA) \
		$(if $(DATA_DIR),--data_dir '$(DATA_DIR)') $(if $(EPOCHS),--epochs $(EPOCHS))

online:
	@sh scripts/install.sh
	@$(BIN)/python examples/online/live.py $(if $(DAYS),--days $(DAYS))

census: DATA = census
census: demo

test:
	@sh scripts/install.sh test docs libraries
	@sh scripts/test_tools.sh
	@$(BIN)/python scripts/run_tests.py

check: lint unit

lint:
	@sh scripts/install.sh test lint docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports
	$(BIN)/codespell

unit:
	@sh scripts/install.sh test docs
	$(BIN)/python -m pytest -q --numprocesses=auto --maxprocesses=4 --dist=loadfile \
		-m 'not slow_machine' tests/unit tests/architecture

docs:
	@sh scripts/install.sh docs
	$(BIN)/python scripts/configuration_page.py
	$(BIN)/python scripts/api_page.py
	$(BIN)/python scripts/cli_page.py
	$(BIN)/python -m scripts.idioms_page
	$(BIN)/mkdocs build --strict

dist:
	@sh scripts/install.sh dist
	@rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*

# Pictures of the dashboard for docs/images, by a browser, of a job made for it.
screenshots:
	@sh scripts/install.sh
	DASHBOARD_SCREENSHOTS=docs/images $(BIN)/python -m pytest -q -n 0 \
		tests/processes/training/test_dashboard.py -k straggler_and_pauses

bench:
	@sh scripts/install.sh benchmark
	@$(BIN)/python benchmarks/run.py $(if $(QUICK),--quick) $(if $(ONLY),--only '$(ONLY)')

bench-paddle:
	@sh scripts/install.sh
	@sh scripts/paddle_env.sh
	@$(BIN)/python benchmarks/paddle.py --output=benchmarks/results/paddle.json

bench-localsgd:
	@test -n '$(DATA_DIR)' || \
		{ echo 'name the folder of MNIST and text8: make bench-localsgd DATA_DIR=FOLDER' >&2; exit 2; }
	@sh scripts/install.sh
	@$(BIN)/python benchmarks/localsgd.py --data_dir '$(DATA_DIR)' \
		--output benchmarks/results/localsgd.json

compose-test: WORKERS = 4
compose-test:
	@sh scripts/install.sh
	@bash tests/compose/run.sh --mode=$(MODE) --workers=$(WORKERS) --servers=$(SERVERS)

clean:
	rm -rf $(VENV) .venv-paddle build dist log .coverage .coverage.* .hypothesis .import_linter_cache
	rm -rf .mypy_cache .pytest_cache .ruff_cache
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
