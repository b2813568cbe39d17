"""The recipe of the DPO stage: `posttrain dpo --config tiny/dpo`.

`trainer:` passes through to the installed TRL `DPOConfig`; what this project decides is refused.
"""

from typing import Literal

from pydantic import Field

from posttrain.config.base import Strict, source
from posttrain.config.sft import OWNED_EVERYWHERE, PolicyRecipe, owned_fields

PairLayout = Literal["auto", "shared_prompt", "unpacked"]
SftForm = Literal["sum", "mean"]

OWNED_TRAINER_FIELDS = OWNED_EVERYWHERE | owned_fields({
    "set loss: instead": "beta loss_type loss_weights",
    "this stage trains the paper's loss: sigmoid preference and SFT on the chosen":
        "label_smoothing ld_alpha f_divergence_type f_alpha_divergence_coef use_weighting "
        "discopop_tau router_aux_loss_coef",
    "pairs are rendered, tokenised and filtered by build_dpo; nothing is cut off here":
        "truncation_mode dataset_num_proc",
    "nothing is cut off here; build_dpo drops pairs that are longer than its max_length":
        "max_length",
    "set layout: instead": "padding_free pad_to_multiple_of",
    "the reference is the policy before step 1; its log-probabilities are kept on disk":
        "precompute_ref_log_probs precompute_ref_batch_size sync_ref_model",
    "policy and reference are compared without dropout": "disable_dropout",
    "set batch: it follows from batch, micro-batch and processes": "gradient_accumulation_steps",
    "set max_steps; epochs follow one another, max_epochs: bounds them": "num_train_epochs",
    "every step has exactly batch: pairs": "dataloader_drop_last",
    "its row, the loss before any update, is always there": "logging_first_step",
    "pairs are drawn in keyed permutations, the same in every layout":
        "train_sampling_strategy group_by_length",
    "measure the checkpoint with posttrain eval instead":
        "do_eval eval_strategy load_best_model_at_end",
})  # fmt: skip


class LossConfig(Strict):
    """preference_weight · mean[−log σ(β(r_c − r_r))] + sft_weight · SFT on the chosen.

    beta: beta of the preference loss: in NVIDIA's code the paper's "KL loss coefficient" 0.05.
    preference_weight, sft_weight: weights of the two terms.
    sft_form: `sum` over a completion's tokens, averaged over pairs (NVIDIA's code); `mean` over the
        chosen tokens of the whole batch, smaller by about the length of a completion.
    """

    beta: float = Field(default=0.05, gt=0, json_schema_extra=source("paper, App. C"))
    preference_weight: float = Field(default=1.0, gt=0, json_schema_extra=source("paper, App. C"))
    sft_weight: float = Field(default=0.2, ge=0, json_schema_extra=source("paper, App. C"))
    sft_form: SftForm = "sum"


class DpoConfig(PolicyRecipe, stage="dpo"):
    """One DPO run.

    data: the directory that build_dpo wrote.
    layout: layout of a pair in a batch; `shared_prompt` computes its prompt once, `unpacked` puts
        each completion in a row of its own.
    batch: pairs of an optimiser step, over all processes.
    max_epochs: number of times that a pair may be drawn; `trainer.max_steps` × `batch` pairs are
        drawn in all.
    few_pairs: treatment of data with fewer pairs than are drawn: `refuse` stops and proposes
        settings that fit them; `fit` takes those settings, prints and records them.
    reference_cache: a folder for runs that differ in the loss or the optimizer alone, so that the
        reference is computed once; default: `reference/` in `out`.
    """

    owned = OWNED_TRAINER_FIELDS
    method = "dpo"

    data: str
    layout: PairLayout = "auto"
    loss: LossConfig = LossConfig()
    batch: int = Field(default=128, ge=1, json_schema_extra=source("paper, App. C"))
    max_epochs: int = Field(default=1, ge=1)
    few_pairs: Literal["refuse", "fit"] = "refuse"
    reference_cache: str | None = None
