"""KL of quantised checkpoints from the model that all were made from, paired by held-out row.

python -m benchmarks quantization_distillation --source DIR --data SFT_DATA ptq=DIR qad=DIR
"""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

import torch

from posttrain.evaluation.intervals import ratio
from posttrain.models.inference import load_for_inference
from posttrain.quantization.rows import Sequence, draw_sequences, trained_targets


@torch.inference_mode()
def logps_of(path: str, rows: list[Sequence]) -> list[torch.Tensor]:
    """Log-probabilities `[trained tokens, vocabulary]` of a checkpoint on each row, in float32."""
    model = load_for_inference(
        path,
        dtype="float32",
        device="cpu",
        attention="sdpa",
        vocabulary=1,
        transposed=False,
        simulate=True,
    )
    logps: list[torch.Tensor] = []
    for row in rows:
        positions_N, _ = trained_targets(row)
        logits_T_V = model(row.ids_T[None], use_cache=False).logits[0]
        logps.append(logits_T_V[positions_N].float().log_softmax(-1))
    return logps


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--source", required=True)
    parser.add_argument("--data", type=Path, required=True, help="SFT data of the source")
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("arms", nargs="+", help="name=DIR; the others are compared with the first")


def main(options: Namespace) -> None:
    rows = draw_sequences(options.data, "eval", options.rows, seed=0, reasoning=False)
    source = logps_of(options.source, rows)
    tokens = [len(logps_N_V) for logps_N_V in source]
    first_kls: list[float] = []
    for arm in options.arms:
        name, _, path = arm.partition("=")
        kls: list[float] = []
        for source_N_V, arm_N_V in zip(source, logps_of(path, rows), strict=True):
            kls.append(float((source_N_V.exp() * (source_N_V - arm_N_V)).sum()))
        first_kls = first_kls or kls
        kl = ratio(kls, tokens)
        changes = [value - first for value, first in zip(kls, first_kls, strict=True)]
        change = ratio(changes, tokens)
        figures = {
            "arm": name,
            "kl": [kl.value, kl.low, kl.high],
            "change": [change.value, change.low, change.high],
        }
        print(json.dumps(figures), flush=True)
