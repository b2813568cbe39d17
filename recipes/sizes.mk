# What `make tiny` and `make smoke` add to the recipes of recipes/tiny: $(SIZE)_RECIPE, key by key.

# full size: half as much data again for SFT, twice the samples and questions, the held-out questions that
# docs/evidence/benchmarks.md has figures of
full_world = heldout_seed=23 families.maths.train=36000 families.lists.train=10000 families.logs.train=24000 \
	families.steps.train=18000 families.plans.train=3000 families.recover.train=3000 families.stop.train=4000 \
	families.near_miss.train=4000 families.clarify.train=3000 families.safety.train=3000
full_build_sft = mixture.total=1640000 sources.0.share=0.13 sources.1.share=0.11 sources.2.share=0.12 \
	sources.3.share=0.19 sources.4.share=0.11 sources.5.share=0.12 sources.6.share=0.06 sources.7.share=0.16
full_sft = trainer.warmup_steps=300
full_sample = n=16 prompts.3.count=360 prompts.4.count=120 prompts.6.count=800
full_build_dpo = categories.no_tools=0.35 categories.with_tools=0.4
full_dpo = batch=128 trainer.max_steps=100 max_epochs=8 trainer.learning_rate=2.0e-4 trainer.warmup_steps=5 \
	trainer.lr_scheduler_type=constant_with_warmup
full_eval = prompts.0.count=400 prompts.1.count=200 prompts.2.count=300 'settings=[\
	{name: no_tools, thinking: both, sources: [maths, logs, steps, lookups]}, \
	{name: with_tools, tools: given, thinking: both, sources: [maths, logs, steps, lookups_tools]}, \
	{name: budget_24, reasoning_budget: 24, sources: [maths, logs, steps, lookups]}]'
full_judgements = heldout_seed=23 families.maths.train=1500 families.steps.train=2500
full_genrm = prompts_per_step=64 trainer.learning_rate=5.0e-4

# as little as lets every stage find what the next one needs: a model that calls tools, a judge whose
# verdicts can be read
SMOKE_GUARD = 'guard={truncated: {}, zero_variance: {}, unscored: {}}' loss.overlong=train
SMOKE_GROUPS = num_generations=4 trainer.max_steps=1 trainer.per_device_train_batch_size=8 $(SMOKE_GUARD)
smoke_world = 'families={maths: {train: 1600, heldout: 80, difficulties: [1, 2]}, \
	logs: {train: 800, heldout: 80, difficulties: [1]}, steps: {train: 1200, heldout: 80, difficulties: [1, 2]}, \
	lookups: {train: 2000, heldout: 160, difficulties: [1, 1, 2], tools_declared: 0.6}}'
smoke_build_sft = mixture.total=80000 held_out.rows=8 mixture.tolerance=0.05
smoke_sft = trainer.warmup_steps=30
smoke_sample = prompts.0.count=8 prompts.1.count=8 prompts.2.count=8 prompts.3.count=32 \
	prompts.4.count=8 prompts.5.count=8 prompts.6.count=8 \
	sampling.max_tokens=64
smoke_build_dpo = 'categories={hallucination_penalty: 1.0}'
smoke_dpo = batch=8 trainer.max_steps=2 trainer.per_device_train_batch_size=4 max_epochs=100
smoke_eval = prompts.0.count=8 prompts.1.count=8 prompts.2.count=8 prompts.3.count=8 prompts.4.count=8 \
	sampling.max_tokens=64
smoke_judgements = families.maths.warm_up=600 families.maths.train=40 families.maths.heldout=10 \
	families.steps.warm_up=0 families.steps.train=0 families.steps.heldout=0 drills=0
smoke_build_genrm_sft = held_out.rows=8 'sources=[{name: judgements, license: Apache-2.0, \
	path: runs/tiny/judgements/warm_up.jsonl}]'
smoke_genrm_sft = trainer.warmup_steps=10
smoke_genrm = prompts_per_step=4 $(SMOKE_GROUPS)
smoke_eval_genrm = pairs=4
smoke_rlhf = prompts_per_step=4 $(SMOKE_GROUPS) prompts.0.count=8 prompts.1.count=8 judge.max_failure_rate=0.99
smoke_eval_rlhf = prompts.0.count=8 prompts.1.count=8 sampling.max_tokens=64
smoke_win_rate = prompts=8 judge.max_failure_rate=0.99
smoke_profile = prompts.0.count=16 prompts.1.count=8 prompts.2.count=16 prompts.3.count=8 n=4 \
	drop_unsolved=false sampling.max_tokens=64
smoke_rlvr = prompts_per_step=16 $(SMOKE_GROUPS) max_epochs=100 sampling.max_tokens=64
smoke_eval_rlvr = 'checkpoints={sft: runs/tiny/sft, rlvr: runs/tiny/rlvr}' prompts.0.count=8 prompts.1.count=8 \
	prompts.2.count=8 prompts.3.count=8 sampling.max_tokens=64
