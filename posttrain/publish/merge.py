"""A LoRA adapter folded into its base: a checkpoint of plain weights, with the proof that it says
the same. The sum is worked out in float32 and rounded once; logits of base and adapter are compared
with those of the files that were written, read again in float32."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from posttrain.config.sft import ModelConfig
from posttrain.errors import ConfigError
from posttrain.hashing import sha256_file
from posttrain.models.adapters import adapted_model
from posttrain.models.inference import weights_digest
from posttrain.models.load import embedding_rows, set_special_tokens
from posttrain.publish.card import CARD, checkpoint_card, origins_of
from posttrain.runs import (
    MANIFEST,
    STAGE,
    Counts,
    Manifest,
    atomic_write_text,
    open_run,
    parent_of,
    read_artifact,
)
from posttrain.tokens.renderer import chat_template_of
from posttrain.tokens.tokenizer import largest_id, load_any_tokenizer, special_tokens

MergeDtype = Literal["float32", "bfloat16"]
# root mean square of the difference of logits, over that of the logits. Sums in another order move
# float32 by about 1e-6; rounding the weights to 8 bits moves bfloat16 by a few thousandths
TOLERANCE: dict[MergeDtype, float] = {"float32": 1e-4, "bfloat16": 2e-2}
_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_CARRIED = ("tokenizer", "chat_template", "special_tokens", "added_tokens", "vocab", "merges",
            "generation_config.json")  # fmt: skip
_PROBE = (4, 64)  # rows and columns of token ids


@dataclass(frozen=True, slots=True)
class AdapterSource:
    """An adapter and what it belongs to.

    Attributes:
        folder: what the user named; `adapter` is it or lies in it.
        base: folder or hub id; `revision` of a hub id.
        manifest: of `folder`, where it is a checkpoint of ours; `base_manifest` of the base.
    """

    folder: Path
    adapter: Path
    base: str
    revision: str | None
    manifest: Manifest | None
    base_manifest: Manifest | None

    @property
    def tokenizer(self) -> str:
        """Where the tokenizer lies: beside the adapter, or else with the base."""
        own = [self.folder, self.adapter]
        named = [f for f in own if (f / "tokenizer_config.json").is_file()]
        return str(named[0]) if named else self.base


@dataclass(frozen=True, slots=True)
class MergeCheck:
    """Relative root mean squares over the logits of a probe: what merging changed, what the adapter
    changes of its base, and how much the first may be."""

    difference: float
    effect: float
    tolerance: float


def adapter_source(folder: Path, *, base: str | None) -> AdapterSource:
    """Find the adapter and its base.

    Args:
        folder: an adapter as peft saves it, or a checkpoint with `adapter/`.
        base: instead of the one that the adapter's config names.

    Raises:
        ConfigError: no LoRA adapter in safetensors, no base, or not the base it was trained on.
        DataError: an artifact whose files have changed.
    """
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
    named = base or config.get("base_model_name_or_path")
    if not named or not isinstance(named, str):
        raise ConfigError(f"{adapter / _CONFIG} names no base model: give --base")
    manifest = _manifest(folder)
    base_manifest = _manifest(Path(named))
    trained_on = [p.digest for p in manifest.parents if p.kind == "checkpoint"] if manifest else []
    if trained_on and (base_manifest is None or base_manifest.digest not in trained_on):
        found = base_manifest.digest[:12] if base_manifest else "no checkpoint with a manifest"
        raise ConfigError(
            f"{folder} was trained on checkpoint {trained_on[0][:12]}, {named} is {found}: name "
            "the right one with --base"
        )
    revision = None if base or Path(named).is_dir() else config.get("revision")
    return AdapterSource(folder, adapter, named, revision, manifest, base_manifest)


def _manifest(folder: Path) -> Manifest | None:
    return read_artifact(folder, kind="checkpoint") if (folder / MANIFEST).is_file() else None


def base_dtype(source: AdapterSource) -> MergeDtype:
    """The dtype that the base is saved in; float32 for any other than bfloat16.

    Raises:
        ConfigError: the base cannot be read.
    """
    try:
        config = AutoConfig.from_pretrained(source.base, revision=source.revision)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"base {source.base} cannot be read: {reason}") from error
    return "bfloat16" if config.dtype == torch.bfloat16 else "float32"


def merge(source: AdapterSource, out: Path, *, dtype: MergeDtype) -> MergeCheck:
    """Write the merged checkpoint: weights, tokenizer, template, generation config, card, manifest.

    Raises:
        ConfigError: it cannot be loaded, does not fit its tokenizer, `out` belongs to something
            else, or the written weights differ by more than the tolerance; then nothing stays.
    """
    base = source.base_manifest
    identity = {
        "adapter": sha256_file(source.adapter / _WEIGHTS),
        "adapter_config": sha256_file(source.adapter / _CONFIG),
        "base": base.digest if base else weights_digest(source.base),
        "dtype": dtype,
    }
    with open_run(out, kind="checkpoint", config={"merge": identity}) as run:
        if run.complete:
            return MergeCheck(**read_artifact(out, verify=False).stats["check"])
        partial = out / ".merge.partial"
        shutil.rmtree(partial, ignore_errors=True)
        try:
            check = _write(source, partial, dtype)
            for path in sorted(partial.iterdir()):
                path.replace(out / path.name)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        folders = [(source.folder, source.manifest), (source.base, base)]
        parents = [
            parent_of(path, relative_to=out, manifest=manifest)
            for path, manifest in folders
            if manifest is not None
        ]
        ours = source.manifest is not None
        origins = origins_of(
            out,
            base=str(source.folder) if ours else source.base,
            adapter=None if ours else source.folder,
        )
        card = checkpoint_card(
            "lora",
            origins,
            folder=out,
            summary=[
                f"A LoRA adapter merged into its base in {dtype}. Root mean square of the logits' "
                f"difference over that of the logits: {check.difference:.1g} (allowed "
                f"{check.tolerance:.1g}; the adapter itself changes {check.effect:.1g})."
            ],
            parents=parents,
            details=[],
        )
        atomic_write_text(out / CARD, card)
        own = {path.name for path in out.iterdir() if path.is_file()} - {CARD, STAGE}
        known = source.manifest or base
        run.finish(
            counts=Counts(0, 0),
            files=dict.fromkeys(own),
            parents=parents,
            template_digest=known.template_digest if known else None,
            stats={"check": asdict(check), "dtype": dtype},
        )
        return check


def _write(source: AdapterSource, partial: Path, dtype: MergeDtype) -> MergeCheck:
    tokenizer = load_any_tokenizer(source.tokenizer)
    try:
        spec = ModelConfig(path=source.base, revision=source.revision)
        adapted: Any = adapted_model(source.adapter, spec).eval()
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{source.adapter} on {source.base} cannot be loaded: {reason}"
        ) from error
    rows = embedding_rows(adapted.get_base_model())
    if rows <= largest_id(tokenizer):
        raise ConfigError(
            f"the tokenizer in {source.tokenizer} uses ids up to {largest_id(tokenizer)}, the base "
            f"has {rows} rows: they do not belong together"
        )
    generator = torch.Generator().manual_seed(0)
    probe = torch.randint(0, rows, _PROBE, generator=generator)
    before = _logits(adapted, probe)
    with adapted.disable_adapter():
        effect = _relative(_logits(adapted, probe), before)
    merged: PreTrainedModel = adapted.merge_and_unload(safe_merge=True)
    template = None
    if isinstance(tokenizer.chat_template, str):
        template = chat_template_of(tokenizer, choice="own")
    set_special_tokens(merged, special_tokens(tokenizer, template=template))
    merged.to(getattr(torch, dtype)).save_pretrained(partial)
    _carry(source, tokenizer, partial)
    again = AutoModelForCausalLM.from_pretrained(partial, dtype=torch.float32).eval()
    difference = _relative(_logits(again, probe), before)
    tolerance = TOLERANCE[dtype]
    if difference > min(tolerance, effect / 2 if effect else tolerance):
        raise ConfigError(
            f"merged in {dtype}, the logits differ by {difference:.1g} of their size; allowed are "
            f"{tolerance:.1g} and half of what the adapter changes ({effect:.1g})"
            + ("; merge in float32" if dtype == "bfloat16" else "")
        )
    # one digit: the others differ between machines, and the manifest must not
    return MergeCheck(float(f"{difference:.0e}"), float(f"{effect:.0e}"), tolerance)


def _carry(source: AdapterSource, tokenizer: Any, partial: Path) -> None:
    """Put tokenizer, template and generation config beside the weights, byte for byte where they
    are files here."""
    folder = Path(source.tokenizer)
    if not folder.is_dir():
        tokenizer.save_pretrained(partial)
        return
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name.startswith(_CARRIED):
            shutil.copyfile(path, partial / path.name)


@torch.inference_mode()
def _logits(model: Any, probe: torch.Tensor) -> torch.Tensor:
    return model(input_ids=probe, use_cache=False).logits.float()


def _relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).square().mean().sqrt() / b.square().mean().sqrt())
