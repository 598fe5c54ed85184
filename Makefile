# Every target sets up what it needs. `make help` lists them.
PYTHON := .venv/bin/python
# On Linux the wheel of mlx links a slow reference BLAS; OpenBLAS is used where it is installed.
OPENBLAS := $(firstword $(wildcard /usr/lib/*/libopenblas.so.0 /usr/lib64/libopenblas.so.0))
FAST := $(if $(OPENBLAS),LD_PRELOAD=$(OPENBLAS))
# Two processes more than there are cores, since many tests wait for others; one that is done takes tests of another.
PARALLEL := -n $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2) --dist worksteal
TESTS := $(FAST) OPENBLAS_NUM_THREADS=1 $(PYTHON) -m pytest -q
DEMO := omlx/bundled/omlx-demo
# Some containers set it; each of the tests' processes would then compile omlx for itself.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help serve test test-quick test-full test-real test-lab compiled fixtures real fuzz fuzz-media fuzz-stalls fuzz-tokens soak check format lint types imports docs prices assets screenshots wheel lock templates train-demo train-head bench bench-spec clean setup-run setup-dev setup-train

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

serve: setup-run ## start the server on SmolLM2, brought once, or on MODEL= (DRAFT=, ARGS= change it)
	@$(FAST) MODEL="$(MODEL)" DRAFT="$(DRAFT)" scripts/serve $(ARGS)

test: setup-dev fixtures ## run the tests (ARGS= goes to pytest, such as ARGS="-n 0 tests/engine")
	$(TESTS) $(PARALLEL) $(ARGS)

test-quick: setup-dev ## run the unit tests: no sockets, no models beyond toys, under a minute
	$(TESTS) $(PARALLEL) --quick $(ARGS)

test-full: setup-dev fixtures ## run the tests, and the slow ones
	$(TESTS) $(PARALLEL) -m "slow or not slow" $(ARGS)

test-real: setup-dev real ## run the tests on SmolLM2 and MiniLM (ARGS='-m "slow or not slow"' runs the slow ones, too)
	$(TESTS) $(PARALLEL) tests/real $(ARGS)

test-lab: setup-dev ## run the tests of what lies in lab/ (ARGS='-m "slow or not slow"' runs the slow ones, too)
	$(TESTS) $(PARALLEL) lab/tests $(ARGS)

fuzz: setup-dev ## 5,000 requests of any shape to each operation (ARGS="--only /v1/messages --requests 500" is quicker)
	$(FAST) $(PYTHON) -m lab.fuzz $(ARGS)

fuzz-media: setup-dev ## 5,000 requests with images of any kind (ARGS="--requests 500" is quicker)
	$(FAST) OPENBLAS_NUM_THREADS=1 $(PYTHON) -m lab.fuzz.media $(ARGS)

fuzz-stalls: setup-dev ## 38 stalling requests: what another client notices, and which memory is kept
	$(FAST) OPENBLAS_NUM_THREADS=1 $(PYTHON) -m lab.fuzz.stalls $(ARGS)

fuzz-tokens: setup-dev ## 20,000 seeded requests, each answer compared with plain decoding (ARGS="--requests 2000" is quicker)
	$(FAST) OPENBLAS_NUM_THREADS=1 $(PYTHON) -m lab.fuzz.tokens $(ARGS)

soak: setup-dev ## ten minutes of mixed load, two models: no errors, memory and disk flat (ARGS="--minutes 60" is longer)
	$(FAST) OPENBLAS_NUM_THREADS=1 $(PYTHON) -m lab.soak $(ARGS)

check: lint types imports test ## what CI runs: format, lint, types, import contracts, tests

lint: setup-dev ## format and lint, changing nothing
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .

types: setup-dev ## mypy
	$(PYTHON) -m mypy

imports: setup-dev ## import contracts
	.venv/bin/lint-imports --no-cache

format: setup-dev ## format and fix what can be fixed
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .

docs: setup-dev ## write the documents that derive from the code
	$(PYTHON) -m lab.settings_page > docs/settings.md

prices: setup-dev ## write docs/prices.md: the lines of each feature
	$(PYTHON) -m lab.prices

assets: ## bring the dashboard's libraries from npm and bundle its scripts
	@scripts/assets

# CI fails without them; elsewhere, as on a machine without a network, their tests are skipped.
fixtures: setup-dev ## bring what tests read beyond this repository, once (280 MB): templates and real
	@for what in templates real; do \
		$(FAST) scripts/$$what && continue; \
		echo "Could not bring what tests read: make $$what tries again. Without it tests are skipped; the summary lists them." >&2; \
		[ -z "$$CI" ] || exit 1; \
	done

compiled: setup-dev ## compile what the tests import, once: else each of their processes would, when they begin
	-@$(TESTS) -n 0 --collect-only >/dev/null # what fails here is said by the tests

templates: setup-dev ## bring chat templates, recorded outputs and requests (100 MB)
	@scripts/templates

real: setup-dev ## bring SmolLM2 and MiniLM (180 MB)
	@$(FAST) scripts/real

screenshots: setup-dev ## take pictures of the dashboard into docs/screenshots
	$(FAST) $(PYTHON) -m lab.dashboard.screenshots

wheel: setup-dev assets ## build dist/*.whl
	mkdir -p dist && $(PYTHON) -c "from setuptools import build_meta; print(build_meta.build_wheel('dist'))"

lock: setup-dev ## pin the newest versions again (needs uv)
	scripts/lock --upgrade

train-demo: setup-train ## train the bundled models again (hours; an environment of its own)
	.venv-train/bin/python -m training.train $(ARGS)
	$(FAST) scripts/train-head

train-head: setup-train ## train the bundled head of SmolLM2 again (ARGS= goes to training.speak)
	$(FAST) scripts/train-head $(ARGS)

bench: setup-run ## compare the engine with mlx-lm (ARGS= goes to python -m lab.bench engine)
	$(FAST) $(PYTHON) -m lab.bench engine --model $(DEMO)/target --draft $(DEMO)/draft $(ARGS)

bench-spec: setup-dev ## measure speculation into docs/benchmarks.md (hours; ARGS="--trials 3" is quicker)
	OPENBLAS=$(OPENBLAS) scripts/bench-spec $(ARGS)

clean: ## remove what was built here
	rm -rf .cache build dist *.egg-info node_modules static/bundle static/vendor .venv .venv-train .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

setup-run:
	@scripts/setup run

setup-train: setup-run
	[ -x .venv-train/bin/python ] || .venv/bin/python -m venv .venv-train
	.venv-train/bin/python -m pip install --quiet -r training/requirements.txt

setup-dev:
	@scripts/setup dev
