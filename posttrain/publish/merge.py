"""Merge a LoRA adapter into its base: a checkpoint of plain weights, checked to give the same.

The sum is computed in float32 and rounded once; logits of base and adapter are compared with those
of the files that were written, read again in float32.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from posttrain.config.paths import refuse_missing_checkpoint
from posttrain.config.sft import ModelConfig
from posttrain.errors import ConfigError
from posttrain.hashing import sha256_file
from posttrain.models.adapters import adapted_model
from posttrain.models.load import embedding_rows, load_pretrained, set_special_tokens
from posttrain.publish.derive import (
    KIND,
    Derived,
    Source,
    copy_tokenizer,
    derive_checkpoint,
    read_source,
)
from posttrain.runs import MANIFEST, open_run, read_artifact
from posttrain.tokens.renderer import chat_template_of
from posttrain.tokens.tokenizer import largest_id, load_any_tokenizer, special_tokens

MergeDtype = Literal["float32", "bfloat16"]
# root mean square of the difference of logits, over that of the logits. Sums in another order move
# float32 by about 1e-6; rounding the weights to 8 bits moves bfloat16 by a few thousandths
TOLERANCE: dict[MergeDtype, float] = {"float32": 1e-4, "bfloat16": 2e-2}
_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_PROBE = (4, 64)  # rows and columns of the random token ids that logits are compared on


@dataclass(frozen=True, slots=True)
class AdapterSource:
    """LoRA adapter and the base that it was trained on.

    Attributes:
        folder: folder that the user named, which is `adapter` or holds it.
        adapter: folder of the adapter's config and weights.
        base: model that the adapter was trained on.
        revision: revision of the base, where that is a hub id.
    """

    folder: Source
    adapter: Path
    base: Source
    revision: str | None

    @property
    def tokenizer(self) -> str:
        """Folder of the tokenizer: beside the adapter, or else with the base."""
        for folder in (Path(self.folder.path), self.adapter):
            if (folder / "tokenizer_config.json").is_file():
                return str(folder)
        return self.base.path


@dataclass(frozen=True, slots=True)
class MergeCheck:
    """Root mean squares of differences of logits on a probe, over that of the logits.

    Attributes:
        difference: between the adapted model and the merged files.
        effect: between the base and the adapted model.
        tolerance: highest `difference` that is allowed.
    """

    difference: float
    effect: float
    tolerance: float


def adapter_source(folder: Path, *, base: str | None) -> AdapterSource:
    """Find the adapter and its base.

    Args:
        folder: an adapter as peft saves it, or a checkpoint with `adapter/`.
        base: replaces the base that the adapter's config names.

    Raises:
        ConfigError: no LoRA adapter in safetensors, no base, or not the base it was trained on.
        DataError: an artifact whose files have changed, or a base that is another artifact.
    """
    if not folder.is_dir():
        raise ConfigError(f"there is no directory {folder}")
    adapter = folder if (folder / _CONFIG).is_file() else folder / "adapter"
    if not (adapter / _CONFIG).is_file():
        raise ConfigError(f"{folder} holds no adapter: no {_CONFIG} in it or in its adapter/")
    if not (adapter / _WEIGHTS).is_file():
        raise ConfigError(f"{adapter} has no {_WEIGHTS}; pickled weights are not read")
    try:
        config: Any = json.loads((adapter / _CONFIG).read_text("utf-8"))
        method = config.get("peft_type")
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{adapter / _CONFIG} is no JSON object: {error}") from error
    if method != "LORA":
        raise ConfigError(f"{adapter} is {method}; only LORA is merged")
    base_path = base or config.get("base_model_name_or_path")
    if not base_path or not isinstance(base_path, str):
        raise ConfigError(f"{adapter / _CONFIG} names no base model: give --base")
    refuse_missing_checkpoint(base_path, key="--base" if base else str(adapter / _CONFIG))
    if adapter == folder and folder.name == "adapter" and (folder.parent / MANIFEST).is_file():
        folder = folder.parent  # a checkpoint's own, whose manifest has its data and its license
    folder_source = read_source(folder)
    base_source = read_source(base_path)
    _check_trained_on(folder_source, base_source)
    is_hub_id = base is None and not Path(base_path).is_dir()
    revision = config.get("revision") if is_hub_id else None
    return AdapterSource(folder_source, adapter, base_source, revision)


def _check_trained_on(folder: Source, base: Source) -> None:
    """Raise ConfigError if the adapter's manifest names another checkpoint as its base."""
    if folder.manifest is None:
        return
    base_digests = [p.digest for p in folder.manifest.parents if p.kind == "checkpoint"]
    if not base_digests:
        return
    if base.manifest is None or base.manifest.digest not in base_digests:
        actual = base.manifest.digest[:12] if base.manifest else "no checkpoint with a manifest"
        raise ConfigError(
            f"{folder.path} was trained on checkpoint {base_digests[0][:12]}, {base.path} is "
            f"{actual}: name the right one with --base"
        )


def base_dtype(source: AdapterSource) -> MergeDtype:
    """Dtype to merge in: bfloat16 if the base is saved in it, float32 for any other.

    Raises:
        ConfigError: the base cannot be read.
    """
    try:
        config = AutoConfig.from_pretrained(source.base.path, revision=source.revision)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"base {source.base.path} cannot be read: {reason}") from error
    return "bfloat16" if config.dtype == torch.bfloat16 else "float32"


def merge(source: AdapterSource, out: Path, *, dtype: MergeDtype) -> MergeCheck:
    """Write the merged checkpoint: weights, tokenizer, template, generation config, card, manifest.

    Args:
        out: folder to write; a complete checkpoint of the same merge is left as it is.
        dtype: of the written weights.

    Raises:
        ConfigError: the adapter cannot be loaded or does not fit its tokenizer, `out` belongs to
            something else, or the logits differ by more than the tolerance; then nothing stays.
    """
    # an adapter that is no checkpoint of ours declares its license in a card of its own
    is_foreign = source.folder.manifest is None
    identity = {
        "adapter": sha256_file(source.adapter / _WEIGHTS),
        "adapter_config": sha256_file(source.adapter / _CONFIG),
        "base": source.base.digest,
        "dtype": dtype,
    }
    with open_run(out, kind=KIND, config={"merge": identity}) as run:
        if not run.complete:
            derive_checkpoint(
                run,
                method="lora",
                sources=[source.folder, source.base],
                base=source.base.path if is_foreign else source.folder.path,
                adapter=Path(source.folder.path) if is_foreign else None,
                write=partial(_write_merged, source=source, dtype=dtype),
            )
    return MergeCheck(**read_artifact(out, verify=False).stats["check"])


def _write_merged(folder: Path, *, source: AdapterSource, dtype: MergeDtype) -> Derived:
    check = _merge_and_check(source, folder, dtype)
    summary = (
        f"A LoRA adapter merged into its base in {dtype}. Root mean square of the logits' "
        f"difference over that of the logits: {check.difference:.1g} (allowed "
        f"{check.tolerance:.1g}; the adapter itself changes {check.effect:.1g})."
    )
    return Derived([summary], {"check": asdict(check), "dtype": dtype})


def _merge_and_check(source: AdapterSource, folder: Path, dtype: MergeDtype) -> MergeCheck:
    """Write the merged model and its tokenizer, and compare its logits with the adapted model's."""
    tokenizer = load_any_tokenizer(source.tokenizer)
    # only a download needs the bar
    if Path(source.base.path).is_dir():
        disable_progress_bar()
    try:
        spec = ModelConfig(path=source.base.path, revision=source.revision)
        adapted: Any = adapted_model(source.adapter, spec).eval()
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        raise ConfigError(
            f"{source.adapter} on {source.base.path} cannot be loaded: {_reason(str(error))}"
        ) from error
    rows = embedding_rows(adapted.get_base_model())
    if rows <= largest_id(tokenizer):
        raise ConfigError(
            f"the tokenizer in {source.tokenizer} uses ids up to {largest_id(tokenizer)}, the base "
            f"has {rows} rows: they do not belong together"
        )
    generator = torch.Generator().manual_seed(0)
    ids_B_T = torch.randint(0, rows, _PROBE, generator=generator)
    adapted_logits_B_T_V = _logits(adapted, ids_B_T)
    with adapted.disable_adapter():
        effect = _relative_difference(_logits(adapted, ids_B_T), adapted_logits_B_T_V)

    merged: PreTrainedModel = adapted.merge_and_unload(safe_merge=True)
    template = None
    if isinstance(tokenizer.chat_template, str):
        template = chat_template_of(tokenizer, choice="own")
    set_special_tokens(merged, special_tokens(tokenizer, template=template))
    merged.to(getattr(torch, dtype)).save_pretrained(folder)
    copy_tokenizer(tokenizer, origin=source.tokenizer, folder=folder)

    # the files that were written are checked, not the model in memory
    written = load_pretrained(folder, dtype=torch.float32).eval()
    difference = _relative_difference(_logits(written, ids_B_T), adapted_logits_B_T_V)
    tolerance = TOLERANCE[dtype]
    # rounding may not undo what a weak adapter changes
    if difference > min(tolerance, effect / 2 if effect else tolerance):
        advice = "; merge in float32" if dtype == "bfloat16" else ""
        raise ConfigError(
            f"merged in {dtype}, the logits differ by {difference:.1g} of their size; allowed are "
            f"{tolerance:.1g} and half of what the adapter changes ({effect:.1g}){advice}"
        )
    # one digit: the others differ between machines, and the manifest must not
    return MergeCheck(float(f"{difference:.0e}"), float(f"{effect:.0e}"), tolerance)


def _reason(message: str) -> str:
    """Message in one line; of many tensors that do not fit, the first and the number of others."""
    misfits = [line for line in message.splitlines() if "size mismatch" in line]
    if len(misfits) > 1:
        message = f"{misfits[0]} {len(misfits) - 1:,} other tensors do not fit, either"
    return " ".join(message.split())


@torch.inference_mode()
def _logits(model: Any, ids_B_T: torch.Tensor) -> torch.Tensor:
    return model(input_ids=ids_B_T, use_cache=False).logits.float()


def _relative_difference(logits: torch.Tensor, reference: torch.Tensor) -> float:
    """Root mean square of the difference over that of the reference."""
    return float((logits - reference).square().mean().sqrt() / reference.square().mean().sqrt())
