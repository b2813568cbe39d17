"""Schema that all recipes of group-relative training share.

`trainer:` passes through to the installed TRL `GRPOConfig`; what this project decides is refused.
"""

from typing import Annotated, Literal

from pydantic import Field

from posttrain.config.backend import REACHING, Rendering, Server
from posttrain.config.base import Strict, source
from posttrain.config.sft import OWNED_EVERYWHERE, PolicyRecipe, owned_fields
from posttrain.errors import ConfigError

_REFERENCE = source("NVIDIA's grpo_nanov3.yaml")
Overlong = Literal["mask", "train"]
Lag = Literal[0, 1]

OWNED_TRAINER_FIELDS = OWNED_EVERYWHERE | owned_fields({
    "set loss: instead": "beta epsilon epsilon_high num_iterations mask_truncated_completions",
    "this stage trains the clipped token-level loss over the global batch":
        "loss_type delta importance_sampling_level scale_rewards use_bias_correction_kl "
        "off_policy_mask_threshold top_entropy_quantile entropy_coef use_adaptive_entropy "
        "entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target sapo_temperature_neg "
        "sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg",
    "set sampling: instead":
        "max_completion_length temperature top_p top_k min_p repetition_penalty "
        "max_tool_calling_iterations",
    "set rollouts: instead":
        "generation_kwargs chat_template_kwargs cache_implementation use_vllm vllm_mode "
        "vllm_model_impl vllm_enable_sleep_mode vllm_structured_outputs_regex "
        "vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout "
        "vllm_group_port vllm_gpu_memory_utilization vllm_max_model_length "
        "vllm_tensor_parallel_size vllm_importance_sampling_correction "
        "vllm_importance_sampling_mode vllm_importance_sampling_clip_max "
        "vllm_importance_sampling_clip_min vllm_importance_sampling_cap "
        "use_transformers_continuous_batching transformers_continuous_batching_config "
        "use_transformers_paged ds3_gather_for_generation pad_to_multiple_of",
    "the reward judges whole groups, and its parts are in the recipe":
        "reward_weights multi_objective_aggregation",
    "set prompts_per_step, num_generations and loss.num_iterations instead":
        "gradient_accumulation_steps generation_batch_size steps_per_generation num_generations "
        "num_generations_eval",
    "every rollout is written to rollouts/":
        "log_completions log_multimodal num_completions_to_print log_unique_prompts "
        "log_completions_hub_repo",
    "the reference is the policy before step 1":
        "sync_ref_model ref_model_mixup_alpha ref_model_sync_steps",
    "measure the checkpoint with posttrain eval instead":
        "do_eval eval_strategy load_best_model_at_end metric_for_best_model",
    "every step has its row in log.jsonl":
        "logging_steps logging_strategy logging_first_step logging_nan_inf_filter",
    "a rollout is scored by the model that sampled it, without dropout": "disable_dropout",
    "set max_steps; max_epochs: bounds how often a prompt is drawn": "num_train_epochs",
    "set moe: instead": "router_aux_loss_coef",
    "prompts are drawn in keyed permutations, the same in every layout":
        "shuffle_dataset train_sampling_strategy group_by_length dataloader_drop_last",
})  # fmt: skip


class CompletionLimit(Strict):
    """Limit on the tokens of a completion, from some batch of rollouts on.

    from_batch: first batch that the limit holds for, counted from 1.
    tokens: tokens of all steps of a completion together.
    """

    from_batch: int = Field(ge=1)
    tokens: int = Field(ge=1)


class RolloutSampling(Strict):
    """Sampling of the policy's rollouts, from its whole distribution.

    temperature: 1 is the policy's own distribution.
    max_tokens: tokens of one step of a completion at most, reasoning included.
    max_turns: steps of a completion at most, where its prompt declares tools.
    max_completion: a schedule of limits on the tokens of all steps; null: none (Nano).
    """

    temperature: float = Field(default=1.0, gt=0, json_schema_extra=_REFERENCE)
    max_tokens: int = Field(default=1024, ge=1)
    max_turns: int = Field(default=8, ge=1)
    max_completion: tuple[CompletionLimit, ...] | None = Field(default=None, min_length=1)

    def completion_limit(self, batch: int) -> int | None:
        """Limit on the tokens of a whole completion in a batch, counted from 1; None: no limit."""
        begun = [limit for limit in self.max_completion or () if limit.from_batch <= batch]
        return begun[-1].tokens if begun else None

    def check(self) -> None:
        if self.max_completion is None:
            return
        starts = [limit.from_batch for limit in self.max_completion]
        if starts[0] != 1 or starts != sorted(set(starts)):
            raise ValueError("max_completion: from_batch begins with 1, and rises")
        most = max(limit.tokens for limit in self.max_completion)
        if most > self.max_tokens * self.max_turns:
            raise ValueError(
                f"max_completion {most} is never reached: max_tokens {self.max_tokens} in each of "
                f"max_turns {self.max_turns} is less"
            )


class InProcessRollouts(Strict):
    """Rollouts decoded in the training processes; weights that are sharded are gathered meanwhile.

    batch_size: rollouts decoded at a time in one process.
    lag: steps by which the sampling weights are behind; with 1 the numbers are those of a server
        that samples step k + 1 while step k trains, without its gain in time.
    """

    engine: Literal["in_process"]
    lag: Lag = 0
    batch_size: int = Field(default=256, ge=1)


class LoraServer(Server):
    """A vLLM server that holds the base model and loads the adapter before every batch.

    model: prefix of the names under which adapters are loaded.
    lag: 1: step k + 1 is sampled and judged while step k trains, by the weights before it.
    """

    engine: Literal["lora_server"]
    lag: Lag = 0
    model: str = "policy"


class WeightServer(Server):
    """A vLLM server that is sent all weights before every batch, by NCCL.

    group_port: port on which the main process waits for the server to join the transfer; replicas
        have the ports from it on.
    lag: 1: step k + 1 is sampled and judged while step k trains, by the weights before it.
    """

    engine: Literal["vllm_server"]
    lag: Lag = 0
    group_port: int = Field(default=51216, ge=1, lt=1 << 16)


class ColocatedVllm(Strict):
    """vLLM in each training process, on the same device.

    Its rollouts end together, turn by turn: verifiers run after each turn, not beside it.

    gpu_memory: share of the device's memory that vLLM takes.
    max_length: tokens of prompt and completion at most; null is the model's own limit.
    sleep: give up weights and cache between batches.
    lag: as that of `in_process`.
    """

    engine: Literal["vllm_colocate"]
    lag: Lag = 0
    gpu_memory: float = Field(default=0.3, gt=0, le=1)
    max_length: int | None = Field(default=None, ge=1)
    sleep: bool = True


RolloutEngine = Annotated[
    InProcessRollouts | LoraServer | WeightServer | ColocatedVllm, Field(discriminator="engine")
]
# keys that change nothing about the samples: a run may be resumed with other values
ENGINE_REACHING = REACHING | {"group_port", "gpu_memory", "sleep"}


class ImportanceConfig(Strict):
    """Importance sampling between the policy that sampled a token and the one that trains it.

    Defaults are the reference code's. A completion that is left out of the loss still counts in the
    loss's divisor.

    token_low, token_high: bounds of a token's ratio trainer / sampler, which scales its loss.
    outside: treatment of a token outside the bounds: `mask` takes it out of the loss (NeMo RL's
        icepop, 0.5 to 5); `truncate` (truncated importance sampling) moves its ratio to the bound
        (0 to 5 in Super, 0.2 to 5 in Ultra).
    sequence_limit: largest mean of exp |difference| of a completion; one above it is left out (NeMo
        RL's seq_logprob_error_threshold, 2 in Nano's public recipe).
    """

    token_low: float = Field(default=0.5, ge=0, lt=1, json_schema_extra=source("NeMo RL, icepop"))
    token_high: float = Field(default=5.0, gt=1, json_schema_extra=source("NeMo RL, icepop"))
    outside: Literal["mask", "truncate"] = "mask"
    sequence_limit: float = Field(default=2.0, gt=1, json_schema_extra=_REFERENCE)


class GrpoLossConfig(Strict):
    """Token-level clipped policy loss over the global batch.

    clip_low, clip_high: the ratio to the sampling policy is clipped to 1 − low … 1 + high.
    num_iterations: optimiser steps on each batch of rollouts; 1 is exactly on-policy.
    kl: weight of KL(policy ‖ initial policy), estimator k3, token by token. Above 0 a second copy
        of the model is kept (none with an adapter).
    overlong: treatment of truncated completions: `mask` leaves them in the baseline alone, `train`
        trains them.
    importance: importance sampling; null multiplies nothing and masks nothing.
    force_on_policy_ratio: the clipped ratio is 1 in every update of a batch, and importance
        sampling corrects for all that moved since (Super, Ultra; not Nano).
    advantage_clip: bound on the size of an advantage; null: none (Nano). 50 in Super, 20 in Ultra.
    """

    clip_low: float = Field(default=0.2, gt=0, lt=1, json_schema_extra=_REFERENCE)
    clip_high: float = Field(default=0.28, gt=0, json_schema_extra=_REFERENCE)
    num_iterations: int = Field(default=1, ge=1, json_schema_extra=source("paper, 3.2"))
    kl: float = Field(default=0.0, ge=0, json_schema_extra=_REFERENCE)
    overlong: Overlong = "mask"
    importance: ImportanceConfig | None = ImportanceConfig()
    force_on_policy_ratio: bool = False
    advantage_clip: float | None = Field(default=None, gt=0)

    def check(self) -> None:
        if self.force_on_policy_ratio and (self.num_iterations == 1 or self.importance is None):
            raise ValueError(
                "force_on_policy_ratio needs num_iterations above 1 (with one update the ratio is "
                "1 anyway) and importance, which then corrects for the updates"
            )


class MoeConfig(Strict):
    """Training of expert routers; without effect on a model that has none.

    freeze_router: leave the routers' weights untrained. `false` to study what training them does.
    bias_update_rate: amount by which, after every step, the score-correction bias of an expert
        falls if it had more tokens than the mean, and rises if it had fewer.
    """

    freeze_router: bool = True
    bias_update_rate: float = Field(default=1e-3, ge=0, json_schema_extra=_REFERENCE)


class Limit(Strict):
    """Limits of one sign.

    warn: value from which on a line is printed; null: never.
    stop: value from which on the run ends; null: never.
    """

    warn: float | None = Field(default=None, ge=0)
    stop: float | None = Field(default=None, ge=0)


class GuardConfig(Strict):
    """Signs that a run goes wrong, each as a mean over the last four batches of rollouts.

    The limits are ours, and may be changed when a stopped run is started again.

    zero_variance: share of the groups whose rewards are all equal.
    truncated: share of the completions that ran to a limit.
    unscored: share of the completions without a reward.
    masked: share of the completions in the loss that importance sampling leaves out.
    entropy: lower limits, as a share of the mean of the first four batches.
    length: of a completion, as a multiple of the mean of the first four batches.
    """

    zero_variance: Limit = Limit(warn=0.7, stop=1.0)
    truncated: Limit = Limit(warn=0.3, stop=0.9)
    unscored: Limit = Limit(warn=0.1, stop=0.5)
    masked: Limit = Limit(warn=0.05, stop=0.5)
    entropy: Limit = Limit(warn=0.3, stop=0.05)
    length: Limit = Limit(warn=2.0, stop=5.0)


class GroupTraining(Rendering, PolicyRecipe):
    """One run of group-relative policy optimisation.

    prompts_per_step: groups in a batch of rollouts, over all processes.
    num_generations: rollouts of a prompt.
    max_epochs: number of times that a prompt may be drawn.
    """

    owned = OWNED_TRAINER_FIELDS
    method = "grpo"

    prompts_per_step: int = Field(default=128, ge=1, json_schema_extra=source("paper, 3.2"))
    num_generations: int = Field(default=16, ge=2, json_schema_extra=source("paper, 3.2"))
    max_epochs: int = Field(default=1, ge=1)
    sampling: RolloutSampling = RolloutSampling()
    rollouts: RolloutEngine = InProcessRollouts(engine="in_process")
    loss: GrpoLossConfig = GrpoLossConfig()
    moe: MoeConfig = MoeConfig()
    guard: GuardConfig = GuardConfig()

    @property
    def rollout_urls(self) -> tuple[str, ...]:
        """Addresses of the servers that sample; () where training processes do."""
        return self.rollouts.urls if isinstance(self.rollouts, Server) else ()

    def check(self) -> None:
        engine = self.rollouts.engine
        if isinstance(self.rollouts, ColocatedVllm) and self.rollouts.max_length is not None:
            max_length = self.rollouts.max_length
            limits = [limit.tokens for limit in self.sampling.max_completion or ()]
            if max(limits, default=0) >= max_length:
                raise ValueError(
                    f"rollouts: sampling.max_completion {max(limits)} does not fit max_length "
                    f"{max_length}, which holds the prompt too, for the whole run: raise max_length"
                )
        if engine == "lora_server" and self.adapter is None:
            raise ValueError(
                "rollouts: engine lora_server holds the base and is sent the adapter: set "
                "adapter:, or engine: vllm_server, which is sent all weights"
            )
        takes_all_weights = engine in ("vllm_server", "vllm_colocate")
        if takes_all_weights and self.adapter and self.adapter.method == "qlora":
            raise ValueError(
                f"rollouts: engine {engine} is sent all weights, and those of adapter.method qlora "
                "are held in 4 bits: use engine: lora_server or in_process, or method: lora"
            )
        if engine == "lora_server":
            refuse_lora_server(self.launch.sharding)
        if self.rollouts.lag and self.loss.importance is None:
            raise ValueError(
                "rollouts.lag 1 trains on samples of older weights, which loss.importance corrects "
                "for: leave it at its default, or set rollouts.lag=0"
            )


def refuse_lora_server(sharding: str | None) -> None:
    """Raise ValueError for a sharding under which no process has the whole adapter to send."""
    if sharding in ("zero3", "fsdp2"):
        raise ValueError(
            f"rollouts.engine lora_server with sharding {sharding}: no process has the whole "
            "adapter to save; use engine: vllm_server, or sharding none or zero2"
        )


def refuse_simulated_sharding(sharding: str | None) -> None:
    """Refuse a sharding under which no process has whole weights to round.

    Raises:
        ConfigError: any sharding.
    """
    if sharding not in (None, "none"):
        raise ConfigError(
            f"simulate rounds whole weights, and sharding {sharding} splits them or their "
            "optimiser: start one process, or several with accelerate/ddp"
        )
