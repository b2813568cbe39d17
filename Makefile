# Two commands do everything: `make quickstart` and `make test`. The rest is for developers.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
RUNS := runs/tiny
export HF_HUB_DISABLE_TELEMETRY := 1
# tests and the tiny recipe never need the hub
export HF_HUB_OFFLINE := 1
# matrices this small gain nothing from a second thread, and threads that wait for one another on a
# busy machine cost a hundredfold
export OMP_NUM_THREADS := 1
.PHONY: quickstart tiny test lint format bench clean

$(BIN)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[eval]'
	touch $@

$(BIN)/.installed-dev: $(BIN)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

quickstart: $(BIN)/.installed
	@echo "installed; the tiny recipe takes about 18 minutes of one core"
	@$(MAKE) --no-print-directory tiny
	@echo "done: open the reports in $(RUNS)/eval, $(RUNS)/eval_genrm, $(RUNS)/rlhf and $(RUNS)/eval_rlhf"

# Every stage is skipped when its output is complete and resumes when it was interrupted.
tiny: $(BIN)/.installed
	$(BIN)/python scripts/tiny_world.py --config recipes/tiny/world.yaml
	$(BIN)/python scripts/build_sft.py --config recipes/tiny/build_sft.yaml
	$(BIN)/accelerate launch --config_file recipes/accelerate/cpu.yaml scripts/sft.py --config recipes/tiny/sft.yaml
	$(BIN)/python scripts/sample.py --config recipes/tiny/sample.yaml
	$(BIN)/python scripts/build_dpo.py --config recipes/tiny/build_dpo.yaml
	$(BIN)/accelerate launch --config_file recipes/accelerate/cpu.yaml scripts/dpo.py --config recipes/tiny/dpo.yaml
	$(BIN)/python scripts/eval.py --config recipes/tiny/eval.yaml
	$(BIN)/python scripts/tiny_judgements.py --config recipes/tiny/judgements.yaml
	$(BIN)/python scripts/build_sft.py --config recipes/tiny/build_genrm_sft.yaml
	$(BIN)/accelerate launch --config_file recipes/accelerate/cpu.yaml scripts/sft.py --config recipes/tiny/genrm_sft.yaml
	$(BIN)/python scripts/build_genrm.py --config recipes/tiny/build_genrm.yaml
	$(BIN)/accelerate launch --config_file recipes/accelerate/cpu.yaml scripts/genrm.py --config recipes/tiny/genrm.yaml
	$(BIN)/python scripts/eval_genrm.py --config recipes/tiny/eval_genrm.yaml
	$(BIN)/accelerate launch --config_file recipes/accelerate/cpu.yaml scripts/rlhf.py --config recipes/tiny/rlhf.yaml
	$(BIN)/python scripts/eval.py --config recipes/tiny/eval_rlhf.yaml
	$(BIN)/python scripts/win_rate.py --config recipes/tiny/win_rate.yaml

test: $(BIN)/.installed-dev
	$(BIN)/python -m pytest

lint: $(BIN)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(BIN)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(BIN)/.installed-dev
	$(BIN)/python benchmarks/sft_throughput.py

clean:
	rm -rf $(VENV) runs *.egg-info .pytest_cache .ruff_cache .hypothesis
