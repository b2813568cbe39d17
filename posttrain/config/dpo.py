"""The recipe of the DPO stage: `scripts/dpo.py --config recipes/tiny/dpo.yaml`.

    data: out/tiny/dpo_data          # what build_dpo wrote
    out: out/tiny/dpo
    model: {path: out/tiny/sft}      # the policy, and the reference that it starts as
    batch: 128
    loss: {beta: 0.05, preference_weight: 1.0, sft_weight: 0.2, sft_form: sum}
    trainer: {learning_rate: 3.0e-6, max_steps: 50, per_device_train_batch_size: 8}

`trainer:` passes through to the installed TRL `DPOConfig` and is checked there field by field
(`posttrain.training.dpo.stage`); the fields that this project decides are refused here by name.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from posttrain.config.base import Strict
from posttrain.config.sft import OWNED_TRAINER_FIELDS as OWNED_BY_SFT
from posttrain.config.sft import TrainingRecipe, common

PairLayout = Literal["auto", "shared_prompt", "unpacked"]
SftForm = Literal["sum", "mean"]

_LOSS = "set loss: instead"
_BUILT = "pairs are rendered, tokenised and filtered by build_dpo; nothing is cut off here"
_LAYOUT = "set layout: instead"
_REFERENCE = "the reference is the policy before step 1; its log-probabilities are kept on disk"
_EVALUATION = "measure the checkpoint with scripts/eval.py instead"
_OTHER_LOSS = "this stage trains the paper's loss: sigmoid preference and SFT on the chosen"

_ORDER = "pairs are drawn in keyed permutations, the same in every layout"
OWNED_TRAINER_FIELDS: dict[str, str] = common(OWNED_BY_SFT) | {
    "beta": _LOSS,
    "loss_type": _LOSS,
    "loss_weights": _LOSS,
    "label_smoothing": _OTHER_LOSS,
    "ld_alpha": _OTHER_LOSS,
    "f_divergence_type": _OTHER_LOSS,
    "f_alpha_divergence_coef": _OTHER_LOSS,
    "use_weighting": _OTHER_LOSS,
    "discopop_tau": _OTHER_LOSS,
    "router_aux_loss_coef": _OTHER_LOSS,
    "max_length": _BUILT,
    "truncation_mode": _BUILT,
    "dataset_num_proc": _BUILT,
    "padding_free": _LAYOUT,
    "pad_to_multiple_of": _LAYOUT,
    "precompute_ref_log_probs": _REFERENCE,
    "precompute_ref_batch_size": _REFERENCE,
    "sync_ref_model": _REFERENCE,
    "disable_dropout": "policy and reference are compared without dropout",
    "gradient_accumulation_steps": "set batch: it follows from batch, micro-batch and processes",
    "num_train_epochs": "set max_steps; epochs follow one another, max_epochs: bounds them",
    "dataloader_drop_last": "every step has exactly batch: pairs",
    "logging_first_step": "its row, the loss before any update, is always there",
    "train_sampling_strategy": _ORDER,
    "group_by_length": _ORDER,
    "do_eval": _EVALUATION,
    "eval_strategy": _EVALUATION,
    "load_best_model_at_end": _EVALUATION,
}


class LossConfig(Strict):
    """preference_weight · mean[−log σ(β(r_c − r_r))] + sft_weight · SFT on the chosen.

    β is what the paper's "KL loss coefficient" 0.05 is in NVIDIA's code. Defaults are the paper's
    (Appendix C); the form of the SFT term is the default of NVIDIA's code.

    Args:
        sft_form: `sum` over a completion's tokens, averaged over pairs; `mean` over the chosen
            tokens of the whole batch. They differ by about the length of a completion.
        kl_weight: of a separate KL(reference ‖ policy) on the chosen tokens, normalised as
            `sft_form` says. Not in the paper. Above 0, the reference cache holds 4 bytes for each
            chosen token instead of two numbers a pair; no further forward pass.
    """

    beta: float = Field(default=0.05, gt=0)
    preference_weight: float = Field(default=1.0, gt=0)
    sft_weight: float = Field(default=0.2, ge=0)
    sft_form: SftForm = "sum"
    kl_weight: float = Field(default=0.0, ge=0)


class DpoConfig(TrainingRecipe):
    """One DPO run.

    Args:
        layout: how a pair lies in a batch; `shared_prompt` computes its prompt once, `unpacked`
            puts each completion in a row of its own.
        batch: pairs an optimiser step, over all processes.
        max_epochs: how often a pair may be drawn; `trainer.max_steps` × `batch` pairs are.
        chosen_floor: nats per token; a mean change of the chosen log-probability below it warns.
        reference_cache: a folder that several runs share; default: `reference/` in `out`.
    """

    owned = OWNED_TRAINER_FIELDS

    data: str
    layout: PairLayout = "auto"
    loss: LossConfig = LossConfig()
    batch: int = Field(default=128, ge=1)
    max_epochs: int = Field(default=1, ge=1)
    chosen_floor: float = Field(default=-0.02, lt=0)
    reference_cache: str | None = None

    @model_validator(mode="after")
    def _possible(self) -> DpoConfig:
        if self.model.path is None:
            raise ValueError("DPO starts from a trained policy: set model.path, not model.config")
        if self.adapter is not None and self.adapter.dropout:
            raise ValueError(
                "adapter.dropout must be 0: policy and reference are compared without dropout"
            )
        return self
