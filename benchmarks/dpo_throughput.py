"""DPO steps against plain TRL: seconds for 128 pairs, reference included; same model, same pairs.

    python -m benchmarks dpo_throughput                  # a 0.5 B model on a GPU, a tiny one on CPU
    python -m benchmarks dpo_throughput --data runs/tiny/dpo_data --checkpoint runs/tiny/sft

Arms: `ours` in both layouts; `trl`, its defaults, with the reference's forward pass in every step;
`trl precomputed`, with the reference's sums computed beforehand. TRL gets the same token ids: its
own preparation of texts is left out. On CPU the seconds are the process's own, so that other work
on the machine counts little.
"""

from __future__ import annotations

import gc
import random
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
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

from benchmarks.shapes import (
    END,
    PAD,
    SHAPES,
    add_comparison_arguments,
    peak_gib,
    random_model,
    write_figures,
)
from data_builders.pairs.shards import write_pairs
from posttrain.config.dpo import LossConfig
from posttrain.records import Pair, Side
from posttrain.tokens.tokenizer import load_tokenizer
from posttrain.training.dpo.data import Pairs, load_pairs, make_pair_collator
from posttrain.training.dpo.reference import ReferenceKey, ReferenceStore, longest_first
from posttrain.training.dpo.trainer import PairTrainer


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of one arm.

    Attributes:
        step_seconds: seconds to train on 128 pairs, without the reference.
        reference_seconds: seconds for the reference of 128 pairs.
        tokens_per_second: tokens of both sequences of a pair, with the reference's seconds.
        losses: losses of the steps, which must agree between arms.
    """

    arm: str
    step_seconds: float
    reference_seconds: float
    tokens_per_second: float
    peak_gib: float
    losses: list[float]


def write_synthetic(folder: Path, *, count: int, mean: int, vocabulary: int) -> Path:
    """Write pairs with prompts and completions of about `mean` tokens each."""
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
    """Wall seconds on a GPU; CPU seconds of this process on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


class Clock(TrainerCallback):
    """Callback that times the steps after the first, which warms up."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.marks: list[float] = []

    def on_step_end(self, *_args: Any, **_kwargs: Any) -> None:
        self.marks.append(seconds_now(self.device))

    @property
    def seconds(self) -> float:
        """Mean seconds of a step."""
        return (self.marks[-1] - self.marks[0]) / (len(self.marks) - 1)


class PlainTRL(DPOTrainer):
    """TRL's trainer on rows that are tokenised already, in their order."""

    seconds_before = 0.0

    def _prepare_dataset(self, dataset: Any, *_args: Any, **_kwargs: Any) -> Any:
        return dataset

    def _precompute_ref_logps(self, *args: Any, **kwargs: Any) -> Any:
        started = seconds_now(self.args.device)
        logps = super()._precompute_ref_logps(*args, **kwargs)
        self.seconds_before = seconds_now(self.args.device) - started
        return logps

    def _get_train_sampler(self, *_args: Any, **_kwargs: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)  # type: ignore[arg-type]


class InOrder(PairTrainer):
    """Our trainer in the order of the rows, so that all arms see the same steps."""

    seconds_before = 0.0

    def load_reference(self, model: Any) -> Any:
        started = seconds_now(self.args.device)
        reference = super().load_reference(model)
        self.seconds_before = seconds_now(self.args.device) - started
        return reference

    def _get_train_sampler(self, *_args: Any, **_kwargs: Any) -> Any:
        rows: list[int] = []
        lengths = self.pairs.total_lengths
        for start in range(0, len(self.pairs), self.global_batch):
            step = range(start, min(start + self.global_batch, len(self.pairs)))
            rows += sorted(step, key=lambda row: -lengths[row])
        return rows


def arguments(args: Namespace, work: Path, **more: Any) -> DPOConfig:
    on_gpu = torch.cuda.is_available()
    return DPOConfig(
        output_dir=str(work),
        max_steps=args.steps,
        per_device_train_batch_size=args.micro,
        gradient_accumulation_steps=128 // args.micro,
        learning_rate=3e-6,
        lr_scheduler_type="constant",
        beta=0.05,
        loss_type=["sigmoid", "sft"],
        loss_weights=[1.0, 0.2],
        max_length=None,
        bf16=on_gpu,
        use_cpu=not on_gpu,
        gradient_checkpointing=args.checkpointing,
        remove_unused_columns=False,
        dataloader_pin_memory=on_gpu,
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        report_to="none",
        **more,
    )


def result_of(arm: str, trainer: Any, clock: Clock, pairs: Pairs) -> Result:
    """Train, and compute the figures of an arm."""
    if clock.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    trainer.train()
    reference = trainer.seconds_before * 128 / len(pairs)
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    tokens = 128 * float(pairs.total_lengths.mean())
    rate = tokens / (clock.seconds + reference)
    return Result(arm, clock.seconds, reference, rate, peak_gib(clock.device), losses)


def run_ours(
    layout: str, make: Callable[[], PreTrainedModel], pairs: Pairs, setting: Any
) -> Result:
    """Run our trainer in one layout, with the mean form of the SFT term, which is TRL's."""
    args, tokenizer, work = setting
    key = ReferenceKey("benchmark", None, layout, "any", None)
    order = longest_first(pairs.total_lengths)
    store = ReferenceStore(work, key, order=order)
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


def run_trl(
    make: Callable[[], PreTrainedModel], pairs: Pairs, setting: Any, *, precompute: bool
) -> Result:
    """Run TRL's trainer; it has no mask, so that all tokens of its pairs must be sampled ones."""
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


def word_tokenizer(size: int) -> PreTrainedTokenizerFast:
    words = {"<|pad|>": PAD, "<|start|>": 1, "<|end|>": END}
    words |= {f"w{n}": n for n in range(3, size)}
    raw = Tokenizer(models.WordLevel(words, unk_token="w3"))  # noqa: S106 - a token
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<|pad|>", eos_token="<|end|>")  # noqa: S106 - tokens


def run_arms(args: Namespace) -> Iterator[Result]:
    """Run the arms, each with a fresh model and a folder of its own."""
    vocabulary = SHAPES[args.shape]["vocab_size"]

    def make() -> PreTrainedModel:
        if args.checkpoint:
            set_seed(0)
            return AutoModelForCausalLM.from_pretrained(args.checkpoint)
        return random_model(args.shape)

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if args.data:
            data = args.data
            tokenizer = load_tokenizer(args.data / "tokenizer")
        else:
            tokenizer = word_tokenizer(vocabulary)
            count = 128 * args.steps
            data = write_synthetic(root, count=count, mean=args.mean, vocabulary=vocabulary)
        pairs = load_pairs(data)
        runs: list[Callable[[Any], Result]] = [
            lambda setting: run_ours("shared_prompt", make, pairs, setting),
            lambda setting: run_ours("unpacked", make, pairs, setting),
            lambda setting: run_trl(make, pairs, setting, precompute=False),
            lambda setting: run_trl(make, pairs, setting, precompute=True),
        ]
        for number, run in enumerate(runs):
            work = root / str(number)
            work.mkdir()
            yield run((args, tokenizer, work))
            gc.collect()


def add_arguments(parser: ArgumentParser) -> None:
    on_gpu = torch.cuda.is_available()
    add_comparison_arguments(parser)
    parser.add_argument("--data", type=Path, help="a dpo_data artifact; default: synthetic")
    parser.add_argument("--checkpoint", type=Path, help="its policy; default: random weights")
    parser.add_argument("--mean", type=int, default=1024 if on_gpu else 60, help="tokens a part")
    parser.add_argument("--micro", type=int, default=8, help="pairs a micro-batch")
    parser.add_argument("--steps", type=int, default=6 if on_gpu else 3, help="of 128 pairs")
    parser.add_argument("--checkpointing", action="store_true", help="recompute activations")


def main(args: Namespace) -> None:
    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        print("no GPU: with one, this measures a 0.5 B model in bf16. Now a tiny one in fp32.")
    results = []
    for result in run_arms(args):
        results.append(result)
        print(
            f"{result.arm:<22} {result.step_seconds:>7.2f} s a step + "
            f"{result.reference_seconds:.2f} s reference  {result.tokens_per_second:>9,.0f} "
            f"tokens/s  peak {result.peak_gib:.2f} GiB  loss {result.losses[-1]:.4f}",
            flush=True,
        )
    write_figures(args.out, results)
