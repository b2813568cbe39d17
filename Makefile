# Two commands do everything: `make quickstart` and `make test`. The rest is for developers.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
RUNS := runs/tiny
TEST_WORKERS ?= 2
export HF_HUB_DISABLE_TELEMETRY := 1
# tests and the tiny recipe never need the hub
export HF_HUB_OFFLINE := 1
# matrices this small gain nothing from a second thread, and threads that wait for one another on a
# busy machine cost a hundredfold
export OMP_NUM_THREADS := 1
.PHONY: quickstart tiny tiny-rlvr tiny-eval test test-ray lint format docs bench gpu-check clean

$(BIN)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
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
	@echo "[1/16] the tiny world (to the end about 18 min of one core)"
	$(BIN)/python scripts/tiny_world.py --config recipes/tiny/world.yaml
	@echo "[2/16] SFT data (to the end about 17 min of one core)"
	$(BIN)/python scripts/build_sft.py --config recipes/tiny/build_sft.yaml
	@echo "[3/16] SFT (to the end about 17 min of one core)"
	$(BIN)/accelerate launch --config_file recipes/accelerate/cpu.yaml scripts/sft.py --config recipes/tiny/sft.yaml
	@echo "[4/16] samples (to the end about 12 min of one core)"
	$(BIN)/python scripts/sample.py --config recipes/tiny/sample.yaml
	@echo "[5/16] preference pairs (to the end about 10 min of one core)"
	$(BIN)/python scripts/build_dpo.py --config recipes/tiny/build_dpo.yaml
	@echo "[6/16] DPO (to the end about 10 min of one core)"
	$(BIN)/accelerate launch --config_file recipes/accelerate/cpu.yaml scripts/dpo.py --config recipes/tiny/dpo.yaml
	@echo "[7/16] evaluation (to the end about 8 min of one core)"
	$(BIN)/python scripts/eval.py --config recipes/tiny/eval.yaml
	@echo "[8/16] judgements (to the end about 6 min of one core)"
	$(BIN)/python scripts/tiny_judgements.py --config recipes/tiny/judgements.yaml
	@echo "[9/16] data of the judge's warm-up (to the end about 6 min of one core)"
	$(BIN)/python scripts/build_sft.py --config recipes/tiny/build_genrm_sft.yaml
	@echo "[10/16] warm-up of the judge (to the end about 6 min of one core)"
	$(BIN)/accelerate launch --config_file recipes/accelerate/cpu.yaml scripts/sft.py --config recipes/tiny/genrm_sft.yaml
	@echo "[11/16] data of the judge (to the end about 5 min of one core)"
	$(BIN)/python scripts/build_genrm.py --config recipes/tiny/build_genrm.yaml
	@echo "[12/16] the judge's training (to the end about 5 min of one core)"
	$(BIN)/accelerate launch --config_file recipes/accelerate/cpu.yaml scripts/genrm.py --config recipes/tiny/genrm.yaml
	@echo "[13/16] evaluation of the judge (to the end about 3 min of one core)"
	$(BIN)/python scripts/eval_genrm.py --config recipes/tiny/eval_genrm.yaml
	@echo "[14/16] RLHF (to the end about 3 min of one core)"
	$(BIN)/accelerate launch --config_file recipes/accelerate/cpu.yaml scripts/rlhf.py --config recipes/tiny/rlhf.yaml
	@echo "[15/16] evaluation (to the end about 1 min of one core)"
	$(BIN)/python scripts/eval.py --config recipes/tiny/eval_rlhf.yaml
	@echo "[16/16] win rate (to the end about 1 min of one core)"
	$(BIN)/python scripts/win_rate.py --config recipes/tiny/win_rate.yaml

# SFT → RLVR → RLHF → RLVR, from the SFT model and the judge that `make quickstart` leaves
tiny-rlvr: $(BIN)/.installed
	@echo "[1/6] pass rates (to the end about 7 min of one core)"
	$(BIN)/python scripts/profile_prompts.py --config recipes/tiny/profile.yaml
	@echo "[2/6] RLVR (to the end about 6 min of one core)"
	$(BIN)/accelerate launch --config_file recipes/accelerate/cpu.yaml scripts/rlvr.py --config recipes/tiny/rlvr.yaml
	@echo "[3/6] RLHF (to the end about 4 min of one core)"
	$(BIN)/accelerate launch --config_file recipes/accelerate/cpu.yaml scripts/rlhf.py --config recipes/tiny/rlhf.yaml out=$(RUNS)/rlvr_rlhf model.path=$(RUNS)/rlvr
	@echo "[4/6] pass rates again (to the end about 3 min of one core)"
	$(BIN)/python scripts/profile_prompts.py --config recipes/tiny/profile_second.yaml
	@echo "[5/6] RLVR again (to the end about 2 min of one core)"
	$(BIN)/accelerate launch --config_file recipes/accelerate/cpu.yaml scripts/rlvr.py --config recipes/tiny/rlvr_second.yaml
	@echo "[6/6] evaluation (to the end about 1 min of one core)"
	$(BIN)/python scripts/eval.py --config recipes/tiny/eval_rlvr.yaml

# a suite of rows, RLVR environments and tasks of inspect on the SFT model of `make quickstart`
tiny-eval: $(BIN)/.installed-dev
	$(BIN)/python scripts/eval.py --config recipes/tiny/eval_suite.yaml

# a file's tests stay together: they share what is slow to make
test: $(BIN)/.installed-dev
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile

# Ray is no small thing to install, so the test of its builds skips without it
test-ray: $(BIN)/.installed-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]'
	$(BIN)/python -m pytest -k ray_pipeline tests/data_builders/sft/test_workers.py

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

bench: $(BIN)/.installed-dev
	$(BIN)/python benchmarks/sft_throughput.py

# what runs on this GPU, in eight minutes; without one the same at tiny size
gpu-check: $(BIN)/.installed-dev
	@mkdir -p runs
	$(BIN)/python benchmarks/gpu.py --out runs/gpu.json

clean:
	rm -rf $(VENV) runs *.egg-info .pytest_cache .ruff_cache .hypothesis
