"""Loss and gradients with and without Liger's layer kernels, on a CPU in Triton's interpreter.

    pip install liger-kernel triton          # in an environment of its own
    python benchmarks/liger.py

The interpreter (Triton 3.9) passes floats on as they are and lacks libdevice, so both are
supplied here; what the kernels compute is Liger's.
"""

from __future__ import annotations

import copy
import os

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton.language as tl
from liger_kernel.ops import rms_norm
from transformers import AutoConfig, AutoModelForCausalLM, set_seed
from transformers.integrations.liger import apply_liger_kernel
from triton.runtime import interpreter

from posttrain.training.arguments import LIGER_MODELS

SHAPE = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
_convert = interpreter._implicit_cvt


def convert(value: object) -> object:
    if isinstance(value, float):
        handle = interpreter.TensorHandle(np.array([value], dtype=np.float32), tl.float32)
        return tl.tensor(handle, tl.float32)
    return _convert(value)


def main() -> None:
    interpreter._implicit_cvt = convert
    rms_norm.rsqrt = lambda x: 1.0 / tl.sqrt(x)
    for kind in LIGER_MODELS:
        set_seed(0)
        plain = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SHAPE))
        liger = copy.deepcopy(plain)
        apply_liger_kernel(liger, {"fused_linear_cross_entropy": False})
        ids = torch.randint(0, 64, (2, 24))
        losses = [model(input_ids=ids, labels=ids).loss for model in (plain, liger)]
        for loss in losses:
            loss.backward()
        pairs = zip(plain.parameters(), liger.parameters(), strict=True)
        apart = max((a.grad - b.grad).abs().max().item() for a, b in pairs)
        change = abs(losses[0].item() - losses[1].item())
        print(
            f"{kind:<8} loss {losses[0].item():.6f}  difference {change:.1e}  gradients {apart:.1e}"
        )


if __name__ == "__main__":
    main()
