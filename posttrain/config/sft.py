"""Recipe of the SFT stage, `posttrain sft --config tiny/sft`, and the base of training recipes.

`trainer:` passes through to the installed TRL `SFTConfig`; what this project decides is refused.
"""

import ast
import functools
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

from pydantic import Field, field_validator

from posttrain.config.base import Strict
from posttrain.config.load import key_hint

DocumentMasking = Literal["auto", "varlen", "block_diagonal", "unpacked"]
Sharding = Literal["none", "zero2", "zero3", "fsdp2"]

_PACKED = "the shards are packed, truncated and labelled by build_sft"
_LAYOUT = "set document_masking: instead"
# YAML 1.1 reads a bare no or off as false, and transformers takes the word
_TAKES_NO = ("eval_strategy", "save_strategy", "logging_strategy")
_GLOBAL = "the loss is per trained token over the global batch"


def owned_fields(groups: Mapping[str, str]) -> dict[str, str]:
    """Collect the fields of a trainer's config that no recipe may set.

    Args:
        groups: reason, or what to set instead → names of fields, separated by blanks.

    Returns:
        Name of each field → its reason.
    """
    reasons: dict[str, str] = {}
    for reason, names in groups.items():
        for name in names.split():
            reasons[name] = reason
    return reasons


def trainer_fields(method: str) -> frozenset[str]:
    """Names of the fields of the installed TRL config of a method, "sft" for `SFTConfig`."""
    return frozenset(_declarations(method))


@functools.cache
def _declarations(method: str) -> dict[str, tuple[str, str]]:
    """Type and default of each field of a TRL config, as texts.

    They are read from the source of the classes, whose import takes seconds.
    """
    declarations: dict[str, tuple[str, str]] = {}
    # bases first: a later declaration of a field replaces an earlier one
    for package, file in (
        ("transformers", "training_args.py"),
        ("trl", "trainer/base_config.py"),
        ("trl", f"trainer/{method}_config.py"),
    ):
        spec = find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            module = ast.parse((Path(folder) / file).read_text("utf-8"))
            for definition in module.body:
                if not isinstance(definition, ast.ClassDef):
                    continue
                for node in definition.body:
                    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                        annotation = ast.unparse(node.annotation)
                        declarations[node.target.id] = (annotation, _default_text(node.value))
    return declarations


def _default_text(value: ast.expr | None) -> str:
    if isinstance(value, ast.Call):  # field(default=…, metadata=…)
        arguments = {keyword.arg: keyword.value for keyword in value.keywords}
        value = arguments.get("default") or arguments.get("default_factory")
    if value is None or isinstance(value, ast.Lambda):
        return ""
    text = ast.unparse(value)
    return "[]" if text == "list" else text  # a factory


# trackers that `report_to` names → the extra of ours that installs each
_TRACKERS = {"tensorboard": "train", "trackio": "trackio", "wandb": "wandb"}
# defaults of ours that differ from those of the trainer's config
DEFAULTS: dict[str, Any] = {
    "report_to": "none",
    "save_total_limit": 1,
    # all parameters take part in every step, even fused experts: a search for others costs a pass
    "ddp_find_unused_parameters": False,
}
_BY_THE_MACHINE = ("bf16", "use_cpu", "dataloader_pin_memory", "optim")
# fields that every trainer has
OWNED_EVERYWHERE = owned_fields({
    "set out: instead": "output_dir",
    "set the recipe's seed: instead": "seed data_seed",
    "set the recipe's pad_token: instead": "pad_token",
    "the columns are those that the build wrote": "label_names remove_unused_columns",
    _GLOBAL: "label_smoothing_factor average_tokens_across_devices",
    "it would change the global batch while the run goes on": "auto_find_batch_size",
    "set model: instead": "model_init_kwargs",
    "set model: instead; remote code is never run": "trust_remote_code",
    "every run resumes exactly from its own output directory":
        "resume_from_checkpoint overwrite_output_dir ignore_data_skip save_only_model",
    "publish the finished artifact directory instead":
        "push_to_hub hub_model_id hub_token hub_private_repo hub_strategy",
    "sharding comes from the accelerate config (recipes/accelerate/) and launch.sharding":
        "deepspeed fsdp fsdp_config parallelism_config",
    "this stage trains": "do_train do_predict",
})  # fmt: skip
OWNED_TRAINER_FIELDS = OWNED_EVERYWHERE | owned_fields({
    _PACKED:
        "packing packing_strategy eval_packing truncation_mode completion_only_loss "
        "assistant_only_loss dataset_text_field dataset_kwargs dataset_num_proc "
        "chat_template_path",
    "set end_token: instead": "eos_token",
    _LAYOUT: "padding_free pad_to_multiple_of",
    "set packing.max_length in build_sft": "max_length",
    "the order of packs is a keyed permutation of seed and epoch, the same in every layout":
        "shuffle_dataset train_sampling_strategy group_by_length",
    "an incomplete last batch is filled with empty packs, none is dropped": "dataloader_drop_last",
    _GLOBAL: "loss_type",
    "set balance.coefficient: TRL's term fails on sigmoid routers": "router_aux_loss_coef",
    "set keep_epochs: to name the checkpoints that stay": "load_best_model_at_end",
    "set eval_strategy: instead": "do_eval",
})  # fmt: skip


_PLAIN_TYPES = {"int": "a whole number", "float": "a number", "bool": "true or false"}


def _check_type(key: str, value: Any, annotation: str) -> None:
    """Refuse a word where a number belongs, before the trainer's own types can be loaded.

    Raises:
        ValueError: the field's annotation consists of plain types, and text is none of them.
    """
    types = set(re.findall(r"\w+", annotation)) - {"None", "Optional", "Union"}
    if types <= _PLAIN_TYPES.keys() and types and isinstance(value, str):
        wanted = " or ".join(_PLAIN_TYPES[name] for name in sorted(types))
        raise ValueError(f"trainer.{key}: takes {wanted}, found {value!r}")


def _check_trackers(report_to: Any) -> None:
    """Raise ValueError for a tracker in `report_to` that is not installed."""
    names = cast(list[Any], report_to) if isinstance(report_to, list) else [report_to]
    for name in names:
        if name in _TRACKERS and find_spec(name) is None:
            raise ValueError(
                f"trainer.report_to {name}: it is not installed: pip install "
                f"'posttrain[{_TRACKERS[name]}]', or leave trainer.report_to out"
            )


class ModelConfig(Strict):
    """Source of the weights: a checkpoint (`path`) or a random initialisation (`config`).

    path: a checkpoint's directory, or a hub id.
    revision: commit of a hub id.
    config: fields of a transformers config, `model_type` among them, for random weights.
    dtype: precision of the weights in memory; `bfloat16` only for weights that an adapter leaves
        frozen.
    attention: `auto`, or an implementation that transformers knows.
    """

    path: str | None = None
    revision: str | None = None
    config: dict[str, Any] | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    attention: str = "auto"

    def check(self) -> None:
        if (self.path is None) == (self.config is None):
            raise ValueError("give one of path (a checkpoint or hub id), config (random weights)")
        if self.revision is not None and self.path is None:
            raise ValueError("revision belongs to path; a model from config has none")


class AdapterConfig(Strict):
    """LoRA (Hu et al. 2021) or QLoRA (Dettmers et al. 2023) on a checkpoint.

    method: `qlora` holds the frozen base in 4 bits.
    preset: modules that are adapted: `attention`, `attention_mlp`, or `nemotron_h` (attention,
        Mamba projections, shared and routed experts).
    modules, parameters: further names, matched as suffixes.
    rank, alpha: rank of the update, which is scaled by alpha / rank.
    dropout: dropout on the adapter's input, against overfitting where rows are few.
    """

    method: Literal["lora", "qlora"] = "lora"
    preset: Literal["attention", "attention_mlp", "nemotron_h", "none"] = "attention_mlp"
    modules: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    rank: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)

    def check(self) -> None:
        if self.preset == "none" and not self.modules and not self.parameters:
            raise ValueError("preset none adapts nothing; name modules: or parameters:")
        reaches_parameters = self.preset == "nemotron_h" or bool(self.parameters)
        if self.dropout and reaches_parameters:
            raise ValueError("dropout must be 0 where expert parameters are adapted (peft)")


class BalanceConfig(Strict):
    """Sequence-wise expert balance (DeepSeek-V3, Eq. 17–20).

    coefficient: coefficient of the term; 0 leaves it out.
    """

    coefficient: float = Field(default=0.0, ge=0)


class LaunchConfig(Strict):
    """Requirements on the launch; a run that was launched differently stops.

    world_size: number of processes; null: unchecked.
    sharding: sharding of weights and optimiser, by the accelerate config; null: unchecked.
    gpu: the recipe's sizes are for a GPU; without one the run is refused.
    """

    world_size: int | None = Field(default=None, ge=1)
    sharding: Sharding | None = None
    gpu: bool = False


class TrainingRecipe(Strict):
    """Keys that the recipes of all training stages share.

    end_token: token that ends a turn; null: the tokenizer's, `<|im_end|>` before eos.
    pad_token: a token other than the end token; null: the tokenizer's, or one that is used nowhere.
    """

    owned: ClassVar[Mapping[str, str]]  # fields of the TRL config that no recipe sets → reason
    method: ClassVar[str]  # method of the TRL config, "sft" for `SFTConfig`

    out: str
    model: ModelConfig
    adapter: AdapterConfig | None = None
    end_token: str | None = None
    pad_token: str | None = None
    launch: LaunchConfig = LaunchConfig()
    seed: int = Field(default=0, ge=0)
    trainer: dict[str, Any] = Field(default_factory=dict)

    @field_validator("trainer")
    @classmethod
    def _check_trainer(cls, trainer: dict[str, Any]) -> dict[str, Any]:
        declarations = _declarations(cls.method)
        for key, value in trainer.items():
            if key in cls.owned:
                raise ValueError(f"trainer.{key} cannot be set here: {cls.owned[key]}")
            if key not in declarations and find_spec("trl") is not None:
                unknown = f"trainer.{key}"
                hint = key_hint(cls, unknown.split("."), unknown, cls.free_fields())
                hint = "" if "(valid: " in hint else hint  # over a hundred names help nobody
                raise ValueError(f"{unknown} is not a field of the installed trl's config{hint}")
            annotation, _ = declarations.get(key, ("", ""))
            _check_type(key, value, annotation)
        _check_trackers(trainer.get("report_to"))
        values: dict[str, Any] = {}
        for key, value in trainer.items():
            annotation, _ = declarations.get(key, ("", ""))
            # null removes a key whose field takes no null
            if value is None and not re.search("None|Optional", annotation):
                continue
            values[key] = "no" if value is False and key in _TAKES_NO else value
        return values

    @classmethod
    def free_fields(cls) -> list[str]:
        """Names of the fields of the installed trl's config that a recipe may set."""
        return sorted(trainer_fields(cls.method) - cls.owned.keys())

    @classmethod
    def trainer_keys(cls) -> dict[str, str]:
        """Describe the fields that a recipe may set, as in the installed trl's source.

        Returns:
            `trainer.NAME` → type and default.
        """
        keys: dict[str, str] = {}
        for name in cls.free_fields():
            annotation, default = _declarations(cls.method)[name]
            if name in DEFAULTS:
                default = repr(DEFAULTS[name])
            elif name in _BY_THE_MACHINE:
                default = "by the machine"
            keys[f"trainer.{name}"] = f"{annotation} = {default}" if default else annotation
        return keys

    def check(self) -> None:
        if self.launch.sharding not in (None, "none") and self.launch.world_size == 1:
            raise ValueError(f"launch.sharding {self.launch.sharding} needs more than one process")


class PolicyRecipe(TrainingRecipe):
    """Recipe that trains a policy further and compares it with the policy at its start."""

    def check(self) -> None:
        if self.model.path is None:
            raise ValueError("training starts from a policy: set model.path, not model.config")
        if self.adapter is not None and self.adapter.dropout:
            raise ValueError("adapter.dropout must be 0: two policies are compared without dropout")


class SftConfig(TrainingRecipe, stage="sft"):
    """One SFT run.

    data: the directory that build_sft wrote.
    document_masking: separation of packed documents: `varlen` and `block_diagonal` in attention,
        `unpacked` in rows of their own; `auto` takes the quickest that is exact.
    keep_epochs: epochs whose model is kept, in `checkpoint-epoch-N/`.
    """

    owned = OWNED_TRAINER_FIELDS
    method = "sft"

    data: str
    document_masking: DocumentMasking = "auto"
    balance: BalanceConfig = BalanceConfig()
    keep_epochs: tuple[int, ...] = ()

    @field_validator("keep_epochs")
    @classmethod
    def _rising(cls, epochs: tuple[int, ...]) -> tuple[int, ...]:
        if list(epochs) != sorted({epoch for epoch in epochs if epoch > 0}):
            raise ValueError(f"name each epoch once, from 1 and rising, found {list(epochs)}")
        return epochs

    def check(self) -> None:
        if self.adapter is not None and self.model.path is None:
            raise ValueError("adapter needs a trained base: set model.path, not model.config")
        checkpointing: Any = self.trainer.get("gradient_checkpointing_kwargs")
        options = cast(dict[str, Any], checkpointing) if isinstance(checkpointing, dict) else {}
        if self.balance.coefficient and options.get("use_reentrant"):
            raise ValueError(
                "balance.coefficient needs use_reentrant: false: reentrant checkpointing runs the "
                "routers without a graph, so the term would have no gradient"
            )
