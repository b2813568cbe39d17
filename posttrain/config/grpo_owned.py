"""The fields of TRL's `GRPOConfig` that are not a recipe's to set, each with what to do instead.

OWNED_TRAINER_FIELDS["beta"]  → "set loss: instead"
"""

from __future__ import annotations

from posttrain.config.sft import OWNED_TRAINER_FIELDS as OWNED_BY_SFT
from posttrain.config.trainer_fields import common

_LOSS = "set loss: instead"
_OTHER_LOSS = "this stage trains the clipped token-level loss over the global batch"
_SAMPLING = "set sampling: instead"
_ENGINE = "rollouts are made in process, or by the server of sampling.server"
_REWARD = "the reward judges whole groups, and its parts are in the recipe"
_BATCH = "set prompts_per_step, num_generations and loss.num_iterations instead"
_WRITTEN = "every rollout is written to rollouts/"
_REFERENCE = "the reference is the policy before step 1"
_EVALUATION = "measure the checkpoint with scripts/eval.py instead"
_LOGGED = "every step has its row in log.jsonl"

_GROUPS: dict[str, tuple[str, ...]] = {
    _LOSS: ("beta", "epsilon", "epsilon_high", "num_iterations", "mask_truncated_completions"),
    _OTHER_LOSS: (
        "loss_type", "delta", "importance_sampling_level", "scale_rewards",
        "use_bias_correction_kl", "off_policy_mask_threshold", "top_entropy_quantile",
        "entropy_coef", "use_adaptive_entropy",
        "entropy_coef_min", "entropy_coef_max", "entropy_coef_delta", "entropy_target",
        "sapo_temperature_neg", "sapo_temperature_pos", "vespo_k_pos", "vespo_lambda_pos",
        "vespo_k_neg", "vespo_lambda_neg",
    ),
    _SAMPLING: (
        "max_completion_length", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
        "max_tool_calling_iterations",
    ),
    _ENGINE: (
        "generation_kwargs", "chat_template_kwargs", "cache_implementation", "use_vllm",
        "vllm_mode", "vllm_model_impl", "vllm_enable_sleep_mode", "vllm_structured_outputs_regex",
        "vllm_server_base_url", "vllm_server_host", "vllm_server_port", "vllm_server_timeout",
        "vllm_group_port", "vllm_gpu_memory_utilization", "vllm_max_model_length",
        "vllm_tensor_parallel_size", "vllm_importance_sampling_correction",
        "vllm_importance_sampling_mode", "vllm_importance_sampling_clip_max",
        "vllm_importance_sampling_clip_min", "vllm_importance_sampling_cap",
        "use_transformers_continuous_batching", "transformers_continuous_batching_config",
        "use_transformers_paged", "ds3_gather_for_generation", "pad_to_multiple_of",
    ),
    _REWARD: ("reward_weights", "multi_objective_aggregation"),
    _BATCH: (
        "gradient_accumulation_steps", "generation_batch_size", "steps_per_generation",
        "num_generations", "num_generations_eval",
    ),
    _WRITTEN: (
        "log_completions", "log_multimodal", "num_completions_to_print", "log_unique_prompts",
        "log_completions_hub_repo",
    ),
    _REFERENCE: ("sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps"),
    _EVALUATION: ("do_eval", "eval_strategy", "load_best_model_at_end", "metric_for_best_model"),
    _LOGGED: ("logging_steps", "logging_strategy", "logging_first_step", "logging_nan_inf_filter"),
    "a rollout is scored by the model that sampled it, without dropout": ("disable_dropout",),
    "set max_steps; max_epochs: bounds how often a prompt is drawn": ("num_train_epochs",),
    "set moe: instead": ("router_aux_loss_coef",),
    "prompts are drawn in keyed permutations, the same in every layout": (
        "shuffle_dataset", "train_sampling_strategy", "group_by_length", "dataloader_drop_last",
    ),
}  # fmt: skip

OWNED_TRAINER_FIELDS: dict[str, str] = common(OWNED_BY_SFT) | {
    name: why for why, names in _GROUPS.items() for name in names
}
