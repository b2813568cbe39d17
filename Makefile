# `make quickstart` shows what it does, `make test` that it works. The rest is for developers.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
TEST_WORKERS ?= 2
# the recipes of the chain, the directory that their paths are relative to, and what they write there
RECIPES ?= recipes/tiny
AT ?= .
RUNS = $(AT)/runs/tiny
# by the shell, for a folder's name may have blanks
RECIPES_DIR := $(shell CDPATH= cd "$(RECIPES)" && pwd)
OWN := $(shell CDPATH= cd "$(RECIPES)" && ls | sed -n 's/[.]yaml$$//p')
# stages at a time; the seed of what trains and samples (without it: the recipes' own)
JOBS ?= 2
SEED ?=
export HF_HUB_DISABLE_TELEMETRY := 1
# tests and the tiny recipes never need the hub
export HF_HUB_OFFLINE := 1
# matrices this small gain nothing from a second thread, and threads that wait for one another on a
# busy machine cost a hundredfold
export OMP_NUM_THREADS := 1
STAGES = world build_sft sft sample build_dpo dpo eval judgements build_genrm_sft genrm_sft build_genrm \
	genrm eval_genrm rlhf eval_rlhf win_rate profile rlvr eval_rlvr \
	eval_suite eval_agentic eval_sensitivity build_sft_augmented sft_augmented eval_augmented
# what `accelerate launch --config_file recipes/accelerate/cpu.yaml` sets; not for the tests, which shard
$(STAGES) chain-rlvr: export ACCELERATE_USE_CPU := true
.PHONY: quickstart tiny tiny-rlvr tiny-eval tiny-augment smoke chain chain-rlvr $(STAGES) test test-ray lint \
	format docs gpu-check clean

$(BIN)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all]'
	touch $@

$(BIN)/.installed-dev: $(BIN)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

quickstart: $(BIN)/.installed
	@echo "16 stages, $(JOBS) at a time; what each prints goes to $(RUNS)/logs"
	@$(MAKE) --no-print-directory -j$(JOBS) chain
	@$(BIN)/python benchmarks/quickstart.py $(RUNS)

tiny: $(BIN)/.installed
	@$(MAKE) --no-print-directory -j$(JOBS) chain SIZE=full AT=runs/full
	@$(BIN)/python benchmarks/quickstart.py runs/full/runs/tiny

# the rest goes on from the models that `make quickstart` leaves (docs/guides/tiny-world.md)
tiny-rlvr: $(BIN)/.installed
	@$(MAKE) --no-print-directory chain-rlvr

tiny-eval: $(BIN)/.installed-dev
	@$(MAKE) --no-print-directory -j$(JOBS) eval_suite eval_agentic eval_sensitivity

tiny-augment: $(BIN)/.installed
	@$(MAKE) --no-print-directory -j$(JOBS) eval_augmented

# Does every stage still run? A few steps of each, from nothing. With RECIPES of your own the chain
# is run as they are written, and a stage that has no recipe there is left out.
smoke: $(BIN)/.installed
ifeq ($(RECIPES),recipes/tiny)
	@rm -rf runs/smoke
	@$(MAKE) --no-print-directory -j$(JOBS) chain eval_rlvr SIZE=smoke AT=runs/smoke
else
	@$(foreach name,$(filter-out $(STAGES),$(OWN)),echo '$(name).yaml: no stage has this name';)
	@$(if $(filter $(STAGES),$(OWN)),,echo 'nothing to run: no recipe in $(RECIPES) is named after a stage'; exit 1)
	@$(MAKE) --no-print-directory -j$(JOBS) chain eval_rlvr
endif

# The chain: a target a stage, named after its recipe, behind those whose output it reads. A finished
# stage is skipped and an interrupted one goes on, by their manifests: there are no stamps. The shell that
# waits for a stage ends it when make is ended: make itself signals only the shell.
#
# $(call stage,script,recipe,what it does,what to look at,more arguments); $(SIZE)_RECIPE are a size's
define stage
$(if $(filter $(2),$(OWN)),@echo "$(2): $(3)$(if $(4),; then look at $(RUNS)/$(4))"; \
	mkdir -p "$(RUNS)/logs" || exit; trap 'kill $$!; wait; exit 1' HUP INT TERM; \
	(cd "$(AT)" && exec "$(abspath $(BIN))/python" "$(CURDIR)/scripts/$(1).py" \
	--config "$(RECIPES_DIR)/$(2).yaml" $($(SIZE)_$(2)) $(5)) >> "$(RUNS)/logs/$(2).log" 2>&1 & wait $$! || \
	{ tail -n 12 "$(RUNS)/logs/$(2).log" | cut -c 1-2000; echo '$(2) stopped: $(RUNS)/logs/$(2).log'; exit 1; },\
	@echo '$(2): left out, $(RECIPES) has no $(2).yaml')
endef
include recipes/sizes.mk
seed = $(if $(SEED),seed=$(SEED))

chain: win_rate eval_genrm eval

world:
	$(call stage,tiny_world,world,generate questions and train a tokenizer)
build_sft: world
	$(call stage,build_sft,build_sft,filter and mix and mask and pack,sft_data/report.html: nothing is lost without a reason)
sft: build_sft
	$(call stage,sft,sft,train a model of 0.6 M parameters from scratch,sft/report.html: the held-out loss,$(seed))

# what the model calls that is not there, and DPO against it
sample: sft
	$(call stage,sample,sample,sample the model with tools and without,samples/report.html: its undeclared calls,$(seed))
build_dpo: sample
	$(call stage,build_dpo,build_dpo,grade and pair the samples,dpo_data/report.html: which is preferred and why,$(seed))
dpo: build_dpo
	$(call stage,dpo,dpo,train on the pairs,dpo/report.html: from ln 2 down,$(seed))
eval: dpo
	$(call stage,eval,eval,ask both models held-out questions,eval/report.html: calls and accuracy before and after DPO)

# a judge, and RLHF on its verdicts
judgements:
	$(call stage,tiny_judgements,judgements,generate pairs of answers with gold verdicts)
build_genrm_sft: world judgements
	$(call stage,build_sft,build_genrm_sft,build the data of the judge's warm-up)
genrm_sft: build_genrm_sft sft
	$(call stage,sft,genrm_sft,teach the SFT model to judge,genrm_sft/report.html: the held-out loss,$(seed))
build_genrm: judgements
	$(call stage,build_genrm,build_genrm,write judging prompts in both orders,genrm_data/report.html: what a judge is shown)
genrm: genrm_sft build_genrm
	$(call stage,genrm,genrm,train the judge on its own verdicts,genrm/report.html: its reward and its errors,$(seed))
eval_genrm: genrm
	$(call stage,eval_genrm,eval_genrm,judge held-out pairs,eval_genrm/report.html: accuracy and consistency)
rlhf: genrm
	$(call stage,rlhf,rlhf,train the SFT model on the judge's verdicts,rlhf/report.html: reward and length,$(seed))
eval_rlhf: rlhf
	$(call stage,eval,eval_rlhf,ask both models held-out questions,eval_rlhf/report.html: accuracy up and reasoning shorter)
win_rate: eval_rlhf
	$(call stage,win_rate,win_rate,judge their answers in both orders,win_rate/report.html: wins and ties and losses)

profile: sft
	$(call stage,profile_prompts,profile,measure each prompt's pass rate,profile/report.html: what is neither easy nor hopeless)
rlvr: profile
	$(call stage,rlvr,rlvr,train on answers that code can check,rlvr/report.html: pass rates rise,$(seed))
eval_rlvr: rlvr
	$(call stage,eval,eval_rlvr,ask each model held-out questions,eval_rlvr/report.html: accuracy stage by stage)

eval_suite: sft
	$(call stage,eval,eval_suite,give the model tasks of three kinds,eval_suite/report.html: figures of each task)
eval_agentic: sft
	$(call stage,eval,eval_agentic,give tasks with files and a shell to policies and the model,eval_agentic/report.html: how runs fail)

eval_sensitivity: sft
	$(call stage,eval,eval_sensitivity,ask the same in many templates,eval_sensitivity/report.html: what the words around a question change)

build_sft_augmented: world
	$(call stage,build_sft,build_sft_augmented,put questions into templates,sft_augmented_data/report.html: records by template)
	$(call stage,build_sft,build_sft_augmented,leave them in their own words,,out=runs/tiny/sft_plain_data sources.0.augment=null)
sft_augmented: build_sft_augmented sft
	$(call stage,sft,sft_augmented,train the SFT model on templates,,$(seed))
	$(call stage,sft,sft_augmented,train it without them,,data=runs/tiny/sft_plain_data out=runs/tiny/sft_plain $(seed))
eval_augmented: sft_augmented
	$(call stage,eval,eval_sensitivity,compare the models,eval_augmented/report.html: what augmentation changes,out=runs/tiny/eval_augmented \
		checkpoints.plain=runs/tiny/sft_plain checkpoints.augmented=runs/tiny/sft_augmented)

# one after another, and from artifacts that must be there
chain-rlvr:
	$(call stage,profile_prompts,profile,measure each prompt's pass rate,profile/report.html: what is neither easy nor hopeless)
	$(call stage,rlvr,rlvr,train on answers that code can check,rlvr/report.html: pass rates rise,$(seed))
	$(call stage,rlhf,rlhf,train on the judge's verdicts,rlvr_rlhf/report.html: reward and length,out=runs/tiny/rlvr_rlhf model.path=runs/tiny/rlvr $(seed))
	$(call stage,profile_prompts,profile_second,measure the pass rates again,profile_second/report.html: how they moved)
	$(call stage,rlvr,rlvr_second,train on verified answers again,rlvr_second/report.html: pass rates rise,$(seed))
	$(call stage,eval,eval_rlvr,ask each model held-out questions,eval_rlvr/report.html: accuracy stage by stage)

# a file's tests stay together: they share what is slow to make. One that waits for ever ends its
# worker (pyproject.toml), which a new one would only repeat
test: $(BIN)/.installed-dev
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --max-worker-restart 0

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

# what runs on this GPU, in eight minutes; without one the same at tiny size
gpu-check: $(BIN)/.installed-dev
	@mkdir -p runs
	$(BIN)/python benchmarks/gpu.py --out runs/gpu.json

clean:
	rm -rf $(VENV) runs *.egg-info .pytest_cache .ruff_cache .hypothesis
