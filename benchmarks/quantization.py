"""FP8 calibrated on SFT data against other text: KL by component, over draws.

Both are measured on the same held-out rows of the SFT data.

    python -m benchmarks quantization --checkpoint DIR --data SFT_DATA --other SFT_DATA --draws 3
"""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from posttrain.evaluation.intervals import ratio, welch
from posttrain.models.inference import load_for_inference


def kl_by_component(
    checkpoint: str, calibration: Path, data: Path, *, samples: int, rows: int, seed: int
) -> dict[str, float]:
    """KL, in 10⁻³ nats a trained token, with only one component in FP8, and with all of them."""
    # imported here, so that `--help` works without ModelOpt
    from posttrain.quantization.measure import measure
    from posttrain.quantization.rows import draw_sequences
    from posttrain.quantization.simulate import Simulated

    model = load_for_inference(
        checkpoint,
        dtype="float32",
        device="cpu",
        attention="sdpa",
        vocabulary=1,
        transposed=False,
    )
    calibrating = draw_sequences(calibration, "train", samples, seed=seed, reasoning=True)
    measuring = draw_sequences(data, "eval", rows, seed=0, reasoning=False)
    simulated = Simulated(model, calibrating, kv_cache=True)
    variants = simulated.components() | {"all": [*simulated.units]}
    measured = measure(simulated, measuring, variants)
    return {name: 1000 * figures.kl.value for name, figures in measured.items()}


def mean_text(draws: list[float]) -> str:
    mean = ratio(draws, [1] * len(draws))
    return f"{mean.value:.3f} ({mean.low:.3f} … {mean.high:.3f})"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--data", type=Path, required=True, help="SFT data of the model")
    parser.add_argument("--other", type=Path, required=True, help="SFT data of other text")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--samples", type=int, default=32, help="calibrating sequences of a draw")
    parser.add_argument("--rows", type=int, default=5, help="held-out rows")


def main(options: Namespace) -> None:
    draws: dict[str, list[dict[str, float]]] = {"data": [], "other": []}
    for source, figures in draws.items():
        for seed in range(options.draws):
            row = kl_by_component(
                options.checkpoint,
                getattr(options, source),
                options.data,
                samples=options.samples,
                rows=options.rows,
                seed=seed,
            )
            figures.append(row)
            print(json.dumps({"calibration": source, "seed": seed, **row}), flush=True)
    for name in draws["data"][0]:
        sft_draws = [row[name] for row in draws["data"]]
        other_draws = [row[name] for row in draws["other"]]
        low, high = welch(sft_draws, other_draws)
        print(
            f"{name}: SFT data {mean_text(sft_draws)}, other text {mean_text(other_draws)}, "
            f"other less SFT {low:.3f} … {high:.3f}"
        )
