"""A model in training that rounds as a quantised checkpoint does (quantisation-aware distillation).

Rounding has no useful slope, so the gradient at the rounded weights moves the weights that they
were rounded from (the straight-through estimator).
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from modelopt.torch.quantization.nn import TensorQuantizer  # pyright: ignore[reportMissingImports]
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from posttrain.config.paths import is_quantised
from posttrain.errors import ConfigError
from posttrain.models.inference import weights_digest
from posttrain.models.simulated import (
    FP8,
    PACKED,
    SCALES,
    check_can_simulate,
    largest_value,
    read_tensors,
    round_activations,
    round_to_nvfp4,
    tail,
)
from posttrain.quantization.simulate import QuantisedWeight, unit_of, weight_of
from posttrain.runs import MANIFEST, Parent, parent_of, read_artifact


class RoundedWeights:
    """Rounded copies of a model's weights, which take their place while it samples and is scored.

    The scale of a tensor is that of the largest weight, as `quantize` will choose it for the
    trained weights. Matrices with one scale in the quantised checkpoint go on sharing theirs.
    """

    def __init__(self, model: PreTrainedModel, folder: Path) -> None:
        """Insert quantisers into a model, those of activations with the scales of a folder.

        Raises:
            ConfigError: the folder has quantised a matrix that is not in the model.
        """
        tensors = read_tensors(folder)
        round_activations(model, tensors)
        _name_attention_apart(model)
        stored_names = {tail(name): name for name in _matrices(tensors)}
        groups: dict[tuple[str, float], list[tuple[Any, QuantisedWeight]]] = defaultdict(list)
        for name, module in model.named_modules():
            if not isinstance(module, TensorQuantizer):
                continue
            quantiser: Any = module
            weight = weight_of(name)
            stored_name = stored_names.pop(tail(weight.name), None) if weight is not None else None
            if weight is not None and stored_name is not None:
                scale_name = f"{stored_name}_scale"
                if tensors[stored_name].dtype == PACKED:
                    round_to_nvfp4(quantiser)
                    scale_name = f"{stored_name}_scale_2"
                scale = tensors[scale_name].to(model.device)
                quantiser.amax = scale * largest_value(quantiser)
                groups[unit_of(name, model), float(scale)].append((quantiser, weight))
            # what is saved is the model alone
            quantiser._non_persistent_buffers_set.add("_amax")
        if stored_names:
            raise ConfigError(
                f"simulate {folder}: the student has no matrix {min(stored_names)} to round"
            )
        self._groups = [*groups.values()]
        names = {weight.parameter for group in self._groups for _, weight in group}
        self._parameters = {name: model.get_parameter(name) for name in sorted(names)}
        self._copies: dict[str, torch.Tensor] = {}
        self._step: int | None = None

    @property
    def copied_bytes(self) -> int:
        """Bytes of all copies."""
        return sum(parameter.nbytes for parameter in self._parameters.values())

    @contextlib.contextmanager
    def rounded(self, step: int) -> Iterator[None]:
        """Hold the rounded weights in the model inside the block, backward passes included.

        Args:
            step: number of optimiser steps so far; weights are rounded once in each.
        """
        if step != self._step:
            self._round()
            self._step = step
        originals = {name: parameter.data for name, parameter in self._parameters.items()}
        for name, parameter in self._parameters.items():
            parameter.data = self._copies[name]
        try:
            yield
        finally:
            for name, parameter in self._parameters.items():
                parameter.data = originals[name]

    @torch.no_grad()
    def _round(self) -> None:
        self._copies = {name: values.clone() for name, values in self._parameters.items()}
        for group in self._groups:
            largest = torch.stack([self._values(weight).abs().max() for _, weight in group]).max()
            for quantiser, weight in group:
                quantiser.amax = largest
                quantiser.enable()
                self._copy(weight).copy_(quantiser(self._values(weight)))
                # the layer takes the copy as it is
                quantiser.disable()

    def _values(self, weight: QuantisedWeight) -> torch.Tensor:
        values = self._parameters[weight.parameter]
        return values if weight.expert is None else values[weight.expert]

    def _copy(self, weight: QuantisedWeight) -> torch.Tensor:
        values = self._copies[weight.parameter]
        return values if weight.expert is None else values[weight.expert]


def _name_attention_apart(model: PreTrainedModel) -> None:
    """Have a model call its attention function under a name of its own.

    To round keys and values ModelOpt puts another function under the name for the time of a pass,
    which a teacher that is scored in another thread meanwhile must not call.
    """
    name = str(model.config._attn_implementation)
    if name == "eager":  # teachers do not use it
        return
    AttentionInterface.register(f"simulated_{name}", ALL_ATTENTION_FUNCTIONS[name])
    AttentionMaskInterface.register(f"simulated_{name}", ALL_MASK_ATTENTION_FUNCTIONS[name])
    model.set_attn_implementation(f"simulated_{name}")


def _matrices(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Quantised matrices of a folder; the scales of NVFP4 are in FP8 themselves."""
    return {
        name: tensor
        for name, tensor in tensors.items()
        if tensor.dtype in (FP8, PACKED) and name.rpartition(".")[2] not in SCALES
    }


@dataclass(frozen=True, slots=True)
class QuantisedStudent:
    """Quantised checkpoint whose rounding a student trains with.

    Attributes:
        folder: Output of `quantize`.
        digest: Digest of its weights.
        parent: Its artifact; None for a folder without a manifest.
        text: Sentence for plan and card.
    """

    folder: Path
    digest: str
    parent: Parent | None
    text: str

    def round(self, model: PreTrainedModel) -> RoundedWeights:
        """Insert quantisers into a model, and return its rounded weights."""
        return RoundedWeights(model, self.folder)


def open_student(simulate: str, *, student: str, out: Path) -> QuantisedStudent:
    """Check the quantised checkpoint that a recipe simulates.

    Args:
        student: path of the student's model.
        out: folder of the run, which the parent's path is relative to.

    Raises:
        ConfigError: the folder is not quantised, or was made from another model than the student.
        DataError: its files have changed.
    """
    if not is_quantised(simulate):
        raise ConfigError(f"simulate {simulate}: these weights are not quantised by ModelOpt")
    folder = Path(simulate)
    check_can_simulate(folder)
    parent: Parent | None = None
    kept: list[str] = []
    if (folder / MANIFEST).is_file():
        manifest = read_artifact(folder, kind="checkpoint")
        parent = parent_of(simulate, relative_to=out, manifest=manifest)
        origins = [origin.digest for origin in manifest.parents if origin.kind == "checkpoint"]
        student_digest = weights_digest(student)
        if origins and student_digest not in origins:
            raise ConfigError(
                f"simulate {simulate} was made from another checkpoint ({origins[0][:12]}) than "
                f"model.path {student} ({student_digest[:12]}), and has the scales of that one"
            )
        kept = manifest.stats.get("kept", [])
    formats = {FP8: "FP8", PACKED: "NVFP4"}
    matrices = _matrices(read_tensors(folder))
    counts = Counter(formats[tensor.dtype] for tensor in matrices.values())
    digest = weights_digest(simulate)
    counts_text = ", ".join(f"{count} matrices in {name}" for name, count in counts.items())
    text = (
        f"the student rounds as {folder.name} ({digest[:12]}) does: {counts_text}; kept: "
        f"{', '.join(kept) or 'no unit'}. What is saved is not rounded."
    )
    return QuantisedStudent(folder, digest, parent, text)
