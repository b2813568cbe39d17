# `make quickstart` shows what it does, `make test` that it works. The rest is for developers.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
TEST_WORKERS ?= 2
# for `make smoke`: recipes of your own, and the directory that their paths are relative to
RECIPES ?= recipes/tiny
AT ?= .
# stages at a time; the seed of what trains and samples (without it: the recipes' own)
JOBS ?= 2
SEED ?=
export HF_HUB_DISABLE_TELEMETRY := 1
# tests and the tiny recipes never need the hub
export HF_HUB_OFFLINE := 1
# matrices this small gain nothing from a second thread, and threads that wait for one another on a
# busy machine cost a hundredfold
export OMP_NUM_THREADS := 1
OPTIONS = --jobs $(JOBS) $(if $(SEED),--seed $(SEED))
# a part of the chain of recipes/tiny, by the stages that it ends in
TINY = $(BIN)/posttrain stages --config tiny logs=runs/tiny/logs $(if $(SEED),seed=$(SEED))
.PHONY: quickstart tiny tiny-rlvr tiny-mopd tiny-nemotron-3 tiny-eval tiny-augment smoke real test test-matrix test-ray test-quantize test-real lint format docs gpu-check clean

$(BIN)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all]'
	touch $@

$(BIN)/.installed-dev: $(BIN)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

quickstart: $(BIN)/.installed
	@exec $(BIN)/posttrain quickstart $(OPTIONS) --at "$(AT)"

tiny: $(BIN)/.installed
	@exec $(BIN)/posttrain quickstart $(OPTIONS) --size full --at runs/full

# the rest goes on from the models that `make quickstart` leaves (docs/guides/tiny-world.md)
tiny-rlvr: $(BIN)/.installed
	@exec $(TINY) targets=[eval_rlvr]

tiny-mopd: $(BIN)/.installed
	@exec $(BIN)/posttrain stages --config tiny/mopd logs=runs/tiny/logs jobs=$(JOBS) $(if $(SEED),seed=$(SEED))

# every kind of training in one line, with quantisation, and its page: 26 CPU minutes
tiny-nemotron-3: $(BIN)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[quantize]'
	@exec $(BIN)/posttrain stages --config tiny/nemotron-3 logs=runs/tiny/logs jobs=$(JOBS) $(if $(SEED),seed=$(SEED))
	@exec $(BIN)/posttrain report runs/tiny/nemotron-3

tiny-eval: $(BIN)/.installed-dev
	@exec $(TINY) targets=[eval_suite,eval_agentic,eval_sensitivity] jobs=$(JOBS)

tiny-augment: $(BIN)/.installed
	@exec $(TINY) targets=[eval_augmented] jobs=$(JOBS)

# Does every stage still run? A few steps of each, from nothing. Recipes of your own are run as they are
# written.
smoke: export ACCELERATE_USE_CPU := true
smoke: $(BIN)/.installed
ifeq ($(RECIPES),recipes/tiny)
	@exec $(BIN)/posttrain smoke $(OPTIONS)
else
	@recipes=$$(CDPATH= cd "$(RECIPES)" && pwd) && cd "$(AT)" && exec \
	"$(abspath $(BIN))/posttrain" smoke "$$recipes" --as-written $(OPTIONS)
endif

# SFT, DPO and RLVR of a real model of 0.1 to 0.5 B parameters on a CPU: make real MODEL=DIR DATA=DIR; the
# rule is in recipes/real/README.md, the rows that DATA has to hold in tests/real_chain/rows.py
REAL = runs/real-model
POSTTRAIN = $(abspath $(BIN))/posttrain
real: $(BIN)/.installed-dev
	@test -n "$(MODEL)" -a -n "$(DATA)" || { echo 'make real MODEL=DIR DATA=DIR'; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check reasoning-gym
	@mkdir -p $(REAL) && ln -sfn "$(abspath $(MODEL))" $(REAL)/model
	$(BIN)/python -m benchmarks real rows "$(DATA)" $(REAL)/data
	cd $(REAL) && $(POSTTRAIN) stages --config real targets=[profile] logs=runs/real/logs
	$(BIN)/python -m benchmarks real families $(REAL)/runs/real
	cd $(REAL) && $(POSTTRAIN) stages --config runs/real/chain.yaml jobs=$(JOBS) logs=runs/real/logs
	cd $(REAL) && $(POSTTRAIN) report runs/real
	@$(BIN)/python -m benchmarks real table $(REAL)/runs/real

# bytecode is kept, whatever the shell says: else each process that a test starts compiles all again.
# A file's tests stay together: they share what is slow to make. One that waits for ever ends its
# worker (pyproject.toml), which a new one would only repeat
test: export PYTHONDONTWRITEBYTECODE :=
test: $(BIN)/.installed-dev
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --max-worker-restart 0

# the cells of sharding × model × method that `make test` leaves out, for it has each value of each once
test-matrix: $(BIN)/.installed-dev
	$(BIN)/python -m pytest -m matrix

# Ray is no small thing to install, so the test of its builds skips without it
test-ray: $(BIN)/.installed-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]'
	$(BIN)/python -m pytest -k ray_pipeline tests/data_builders/sft/test_bytes.py

# ModelOpt pins what others do not, so the tests of quantisation skip without it
test-quantize: $(BIN)/.installed-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[quantize]'
	$(BIN)/python -m pytest tests/quantization

# what a stand-in cannot show, in half an hour on 2 cores that others use too: make test-real
# POSTTRAIN_REAL_MODEL=DIR (a small ChatML model, float32) POSTTRAIN_VLLM=ENVIRONMENT (or its executable);
# without one of them its tests skip
test-real: $(BIN)/.installed-dev
	$(BIN)/python -m pytest -rs -o faulthandler_timeout=2400 tests/real

lint: $(BIN)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(BIN)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# the pages of docs/ and the reference from the docstrings, as a site: open runs/site/index.html
docs: $(BIN)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open runs/site/index.html"

# what runs on this GPU, in eight minutes; without one the same at tiny size
gpu-check: $(BIN)/.installed-dev
	@mkdir -p runs
	$(BIN)/python -m benchmarks gpu --out runs/gpu.json

clean:
	rm -rf $(VENV) runs *.egg-info .pytest_cache .ruff_cache .hypothesis
