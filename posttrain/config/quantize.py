"""The recipe of quantisation: `posttrain quantize --config tiny/quantize`."""

from typing import Any, Literal

from pydantic import Field

from posttrain.config.base import Strict, source

# statements of the formats on the card and the page
FORMATS = {
    "fp8": "FP8 (E4M3, one scale a tensor)",
    "nvfp4": "NVFP4 (E2M1, one scale of E4M3 for 16 values)",
    "mixed": "NVFP4 or FP8 by unit",
}
# what NVIDIA keeps in BF16 for Nemotron 3 Nano (section 4), as components
NANO = ("attention", "mamba_before_attention")


class QuantizeConfig(Strict, stage="quantize"):
    """One quantisation of a checkpoint by ModelOpt: weights and activations of linear layers.

    checkpoint: folder of the model to quantise.
    data: the `sft_data` artifact that it was trained on. Training rows calibrate, held-out rows
        measure.
    format: `fp8`: E4M3, one scale a tensor; `nvfp4`: E2M1, one scale for 16 values; `mixed`:
        ModelOpt's AutoQuantize gives each unit NVFP4, FP8 or the checkpoint's own precision.
    bits: of `mixed`: largest mean of bits an element of all units; one that is kept counts as 16.
    kv_cache: cache keys and values in FP8 too.
    samples: sequences that calibrate, those with reasoning where there are some.
    seeds: draws of calibrating sequences that the components are measured with. The first is
        written; the others show how far the figures depend on the draw.
    measured: held-out sequences that loss and KL of the whole are measured on.
    measured_parts: number of these on which every component, layer and unit is measured.
    keep: units that stay in the checkpoint's own precision. `auto`: the most sensitive ones, until
        the KL of all others together is at most `limit`; `nano`: attention, and the Mamba layers
        that feed it; or patterns, such as `attention.*` or `mlp.0` (the page lists all units).
    limit: largest KL of the quantised model from the checkpoint, in nats a trained token, for
        `auto`.
    """

    out: str
    checkpoint: str
    data: str
    format: Literal["fp8", "nvfp4", "mixed"] = "fp8"
    bits: float = Field(
        default=4.75, ge=4.5, le=16, json_schema_extra=source("Nemotron 3 Super, quantization")
    )
    kv_cache: bool = Field(default=True, json_schema_extra=source("Nemotron 3 Nano, section 4"))
    samples: int = Field(default=1000, ge=1, json_schema_extra=source("Nemotron 3 Nano, section 4"))
    seeds: int = Field(default=1, ge=1)
    measured: int = Field(default=200, ge=2)
    measured_parts: int = Field(default=16, ge=2)
    keep: Literal["auto", "nano"] | tuple[str, ...] = "auto"
    limit: float = Field(default=0.01, gt=0)
    seed: int = Field(default=0, ge=0)

    def check(self) -> None:
        of_other_formats = ("keep", "limit") if self.format == "mixed" else ("bits",)
        for key in of_other_formats:
            # a recipe that was printed names the defaults of all keys
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(
                    f"{key} does not go with format: {self.format}; AutoQuantize (format: mixed) "
                    "chooses what is kept by `bits`, the other formats by `keep` and `limit`"
                )
        if self.keep != "auto" and self.limit != type(self).model_fields["limit"].default:
            raise ValueError("limit is for keep: auto; what keep names stays, whatever the KL")

    @property
    def keeps_by_limit(self) -> bool:
        """True if the most sensitive units are kept, until the KL is within `limit`."""
        return self.keep == "auto" and self.format != "mixed"

    def owner_config(self) -> dict[str, Any]:
        """The config without its paths: inputs enter an artifact's digest by their digests."""
        return self.model_dump(mode="json", exclude={"out", "checkpoint", "data"})
