"""DPO steps against plain TRL: seconds for 128 pairs, reference included; same model, same pairs.

    python benchmarks/dpo_throughput.py                  # a 0.5 B model on a GPU, a tiny one on CPU
    python benchmarks/dpo_throughput.py --data runs/tiny/dpo_data --checkpoint runs/tiny/sft

Arms: `ours` in both layouts; `trl`, its defaults, with the reference's forward pass in every step;
`trl precomputed`, with the reference's sums computed beforehand. TRL gets the same token ids: its
own preparation of texts is left out here (benchmarks/pair_preparation.py measures that). On CPU the
seconds are the process's own, so that other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from shapes import END, PAD, SHAPES, default_shape, random_model
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    TrainerCallback,
    set_seed,
)
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer

from data_builders.pairs.shards import write_pairs
from posttrain.config.dpo import LossConfig
from posttrain.records import Pair, Side
from posttrain.tokens.tokenizer import load_tokenizer
from posttrain.training.dpo.data import Pairs, load_pairs, make_pair_collator
from posttrain.training.dpo.reference import ReferenceKey, ReferenceStore, longest_first
from posttrain.training.dpo.trainer import PairTrainer
from posttrain.versions import package_versions


@dataclass(frozen=True, slots=True)
class Result:
    """One arm: seconds for 128 pairs, training and reference apart; tokens of both sequences of a
    pair a second, all included; peak memory; the losses, which must agree."""

    arm: str
    step_seconds: float
    reference_seconds: float
    tokens_per_second: float
    peak_gib: float
    losses: list[float]


def synthetic(folder: Path, *, count: int, mean: int, vocabulary: int) -> Path:
    """Pairs with prompts and completions of about `mean` tokens each."""
    rng = random.Random(0)

    def ids() -> tuple[int, ...]:
        length = max(4, int(rng.gauss(mean, mean / 3)))
        return tuple(rng.randrange(3, vocabulary) for _ in range(length))

    def side() -> Side:
        tokens = ids()
        return Side(ids=tokens, mask=(True,) * len(tokens), text="")

    pairs = (Pair(str(n), str(n), "no_tools", False, ids(), side(), side()) for n in range(count))
    write_pairs(pairs, folder / "pairs", "train")
    return folder


def seconds_now(device: torch.device) -> float:
    """Of the clock; on CPU, of work that this process did."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


class Clock(TrainerCallback):
    """Seconds of the steps after the first, which warms up."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.marks: list[float] = []

    def on_step_end(self, *_args: Any, **_kwargs: Any) -> None:
        """Take the time."""
        self.marks.append(seconds_now(self.device))

    @property
    def seconds(self) -> float:
        """Of one step."""
        return (self.marks[-1] - self.marks[0]) / (len(self.marks) - 1)


class PlainTRL(DPOTrainer):
    """TRL as it is, but for token ids that are there already, in the order of the rows."""

    seconds_before = 0.0

    def _prepare_dataset(self, dataset: Any, *_args: Any, **_kwargs: Any) -> Any:
        return dataset

    def _precompute_ref_logps(self, *args: Any, **kwargs: Any) -> Any:
        started = seconds_now(self.args.device)
        found = super()._precompute_ref_logps(*args, **kwargs)
        self.seconds_before = seconds_now(self.args.device) - started
        return found

    def _get_train_sampler(self, *_args: Any, **_kwargs: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)  # type: ignore[arg-type]


class InOrder(PairTrainer):
    """Ours, in the order of the rows, so that every arm sees the same steps."""

    seconds_before = 0.0

    def load_reference(self, model: Any) -> Any:
        started = seconds_now(self.args.device)
        found = super().load_reference(model)
        self.seconds_before = seconds_now(self.args.device) - started
        return found

    def _get_train_sampler(self, *_args: Any, **_kwargs: Any) -> Any:
        rows: list[int] = []
        lengths = self.pairs.lengths
        for at in range(0, len(self.pairs), self.global_batch):
            step = range(at, min(at + self.global_batch, len(self.pairs)))
            rows += sorted(step, key=lambda row: -lengths[row])
        return rows


def arguments(args: argparse.Namespace, work: Path, **more: Any) -> DPOConfig:
    on_gpu = torch.cuda.is_available()
    return DPOConfig(
        output_dir=str(work), max_steps=args.steps, per_device_train_batch_size=args.micro,
        gradient_accumulation_steps=128 // args.micro, learning_rate=3e-6, beta=0.05,
        loss_type=["sigmoid", "sft"], loss_weights=[1.0, 0.2], max_length=None, bf16=on_gpu,
        use_cpu=not on_gpu, gradient_checkpointing=args.checkpointing, report_to="none",
        save_strategy="no", logging_steps=1, disable_tqdm=True, lr_scheduler_type="constant",
        remove_unused_columns=False, dataloader_pin_memory=on_gpu, **more,
    )  # fmt: skip


def result_of(arm: str, trainer: Any, clock: Clock, pairs: Pairs) -> Result:
    """Train and sum it up; the reference's seconds are those of 128 pairs."""
    if clock.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    trainer.train()
    reference = trainer.seconds_before * 128 / len(pairs)
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    tokens = 128 * float(pairs.lengths.mean())
    rate = tokens / (clock.seconds + reference)
    return Result(arm, clock.seconds, reference, rate, _peak_gib(clock.device), losses)


def ours(layout: str, make: Callable[[], PreTrainedModel], pairs: Pairs, setting: Any) -> Result:
    """Our trainer in one layout; the mean form of the SFT term, which is TRL's."""
    args, tokenizer, work = setting
    key = ReferenceKey("benchmark", None, layout, "any", None, False)
    order = longest_first(pairs.lengths)
    store = ReferenceStore(work, key, order=order, chosen_counts=pairs.chosen.sampled)
    trainer = InOrder(
        model=make(),
        args=arguments(args, work, precompute_ref_log_probs=True),
        data_collator=make_pair_collator(layout, tokenizer.pad_token_id),
        processing_class=tokenizer,
        pairs=pairs,
        layout=layout,
        loss=LossConfig(sft_form="mean"),
        store=store,
    )
    clock = Clock(trainer.args.device)
    trainer.add_callback(clock)
    return result_of(f"ours ({layout})", trainer, clock, pairs)


def plain(
    make: Callable[[], PreTrainedModel], pairs: Pairs, setting: Any, *, precompute: bool
) -> Result:
    """TRL's trainer; the mask is left out, so its pairs must be sampled throughout."""
    args, tokenizer, work = setting
    data = pairs.data.select_columns(["prompt_ids", "chosen_ids", "rejected_ids"])
    trainer = PlainTRL(
        model=make(),
        ref_model=None if precompute else make(),
        args=arguments(args, work, precompute_ref_log_probs=precompute),
        train_dataset=data,
        processing_class=tokenizer,
    )
    clock = Clock(trainer.args.device)
    trainer.add_callback(clock)
    name = "trl precomputed" if precompute else "trl"
    return result_of(name, trainer, clock, pairs)


def _peak_gib(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / (1 << 30)
    # of the process so far: on CPU only the largest arm is meaningful
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


def word_tokenizer(size: int) -> PreTrainedTokenizerFast:
    words = {"<|pad|>": PAD, "<|start|>": 1, "<|end|>": END}
    words |= {f"w{n}": n for n in range(3, size)}
    raw = Tokenizer(models.WordLevel(words, unk_token="w3"))  # noqa: S106 - a token
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<|pad|>", eos_token="<|end|>")  # noqa: S106 - tokens


def arms(args: argparse.Namespace) -> Iterator[Result]:
    """Each arm with a fresh model and a folder of its own."""
    vocabulary = SHAPES[args.shape]["vocab_size"]

    def make() -> PreTrainedModel:
        if args.checkpoint:
            set_seed(0)
            return AutoModelForCausalLM.from_pretrained(args.checkpoint)
        return random_model(args.shape)

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if args.data:
            data, tokenizer = args.data, load_tokenizer(args.data / "tokenizer")
        else:
            tokenizer = word_tokenizer(vocabulary)
            count = 128 * args.steps
            data = synthetic(root, count=count, mean=args.mean, vocabulary=vocabulary)
        pairs = load_pairs(data)
        runs: list[Callable[[Any], Result]] = [
            lambda setting: ours("shared_prompt", make, pairs, setting),
            lambda setting: ours("unpacked", make, pairs, setting),
            lambda setting: plain(make, pairs, setting, precompute=False),
            lambda setting: plain(make, pairs, setting, precompute=True),
        ]
        for number, run in enumerate(runs):
            work = root / str(number)
            work.mkdir()
            yield run((args, tokenizer, work))
            gc.collect()


def main() -> None:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, help="a dpo_data artifact; default: synthetic")
    parser.add_argument("--checkpoint", type=Path, help="its policy; default: random weights")
    parser.add_argument("--shape", choices=sorted(SHAPES), default=default_shape())
    parser.add_argument("--mean", type=int, default=1024 if on_gpu else 60, help="tokens a part")
    parser.add_argument("--micro", type=int, default=8, help="pairs a micro-batch")
    parser.add_argument("--steps", type=int, default=6 if on_gpu else 3, help="of 128 pairs")
    parser.add_argument("--checkpointing", action="store_true", help="recompute activations")
    parser.add_argument("--out", type=Path, help="also write the figures as JSON")
    args = parser.parse_args()
    if not on_gpu:
        print("no GPU: with one, this measures a 0.5 B model in bf16. Now a tiny one in fp32.")
    results = []
    for result in arms(args):
        results.append(result)
        print(
            f"{result.arm:<22} {result.step_seconds:>7.2f} s a step + "
            f"{result.reference_seconds:.2f} s reference  {result.tokens_per_second:>9,.0f} "
            f"tokens/s  peak {result.peak_gib:.2f} GiB  loss {result.losses[-1]:.4f}",
            flush=True,
        )
    if args.out:
        stats = {"versions": package_versions(), "arms": [asdict(r) for r in results]}
        args.out.write_text(json.dumps(stats, indent=1) + "\n")


if __name__ == "__main__":
    main()
