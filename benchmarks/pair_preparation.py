"""Preference pairs from text: our preparation against TRL's, same rows, template and tokenizer.

    python benchmarks/pair_preparation.py --pairs pairs.jsonl --tokenizer runs/tiny/world/tokenizer

Both read the same JSON Lines rows (prompt or conversation, chosen, rejected) and end with token
ids on disk. TRL renders and tokenises prompt, prompt + chosen and prompt + rejected, three texts a
pair; ours renders each side once and tokenises every distinct text of a batch once. CPU seconds of
one process, the best of `--repeats`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from datasets import Dataset, disable_progress_bars
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer

from data_builders.dialects import canonicalise, reading_of
from data_builders.dialects.texts import read_side
from data_builders.pairs.encode import PairEncoder
from data_builders.pairs.offline import read_offline
from data_builders.pairs.shards import read_pairs, write_pairs
from posttrain.chat import ChatTemplate
from posttrain.config.source import SourceConfig
from posttrain.records import Pair, message_to_template
from posttrain.tokens.renderer import chat_template_of
from posttrain.tokens.tokenizer import encoder_of, load_any_tokenizer
from posttrain.versions import package_versions


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--template", default="nemotron_3_nano")
    parser.add_argument("--rows", type=int, default=3000, help="rows to prepare, repeated if fewer")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    disable_progress_bars()
    tokenizer = load_any_tokenizer(options.tokenizer)
    template = chat_template_of(tokenizer, choice=options.template)
    tokenizer.chat_template = template.source
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        rows = write_numbered(options.pairs, folder / "rows.jsonl", options.rows)
        config = SourceConfig(name="pairs", path="rows.jsonl")
        prepare_ours(config, folder, template, tokenizer)
        pairs = list(read_pairs(folder / "ours", "train"))
        arms: dict[str, Callable[[], object]] = {
            "ours": lambda: prepare_ours(config, folder, template, tokenizer),
            "TRL": lambda: prepare_trl(rows, config, tokenizer, folder),
        }
        seconds = {name: best(run, options.repeats) for name, run in arms.items()}
        report(pairs, prepare_trl(rows, config, tokenizer, folder), seconds)


def write_numbered(path: Path, target: Path, count: int) -> list[dict[str, Any]]:
    """Write `count` rows, each with its number, so that nothing is cached by equality."""
    lines = path.read_text("utf-8").splitlines()
    rows: list[dict[str, Any]] = []
    for k in range(count):
        row = json.loads(lines[k % len(lines)])
        side = row["chosen"]
        if isinstance(side, dict):
            key = "value" if "value" in side else "content"
            side[key] = f"{k}: {side[key]}"
        elif isinstance(side, str):
            row["chosen"] = f"{k}: {side}"
        else:
            side[-1]["content"] = f"{k}: {side[-1]['content']}"
        rows.append(row)
    target.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return rows


def prepare_ours(
    config: SourceConfig, folder: Path, template: ChatTemplate, tokenizer: Any
) -> None:
    """Read, render, tokenise and write the rows with our preparation."""
    encoder = PairEncoder(template, encoder_of(tokenizer).arrays)
    outcomes = read_offline(config, encoder, base_dir=folder)
    pairs = (pair for pair, _ in outcomes if isinstance(pair, Pair))
    write_pairs(pairs, folder / "ours", "train")


def prepare_trl(
    rows: list[dict[str, Any]], config: SourceConfig, tokenizer: Any, folder: Path
) -> Dataset:
    """Prepare the same rows with TRL's own preparation, from its conversational format."""
    reading = reading_of(config)
    trl_rows: list[dict[str, Any]] = []
    for row in rows:
        canonical_row = canonicalise(row, config)
        chosen = read_side(canonical_row, "chosen", reading).messages
        rejected = read_side(canonical_row, "rejected", reading).messages
        trl_rows.append(
            {
                "prompt": [message_to_template(message) for message in chosen[:-1]],
                "chosen": [message_to_template(chosen[-1])],
                "rejected": [message_to_template(rejected[-1])],
                # an off prompt, as ours: otherwise the prompt is cut at the think tag
                "chat_template_kwargs": {"enable_thinking": False},
            }
        )
    args = DPOConfig(output_dir=str(folder / "trl"), bf16=False, use_cpu=True, max_length=None)
    owner = cast(DPOTrainer, SimpleNamespace(_tokenizer=tokenizer))
    data = DPOTrainer._prepare_dataset(owner, Dataset.from_list(trl_rows), tokenizer, args, "train")
    assert isinstance(data, Dataset)
    data.save_to_disk(str(folder / "trl" / "data"))
    return data


def best(run: Callable[[], object], repeats: int) -> float:
    """CPU seconds of the fastest run."""
    times: list[float] = []
    for _ in range(repeats):
        started = time.process_time()
        run()
        times.append(time.process_time() - started)
    return min(times)


def report(pairs: list[Any], data: Dataset, seconds: dict[str, float]) -> None:
    """Print the table, and how many pairs have the same tokens in both."""
    tokens = sum(2 * len(p.prompt_ids) + len(p.chosen.ids) + len(p.rejected.ids) for p in pairs)
    same = sum(
        list(p.prompt_ids) == row["prompt_ids"] and list(p.chosen.ids) == row["chosen_ids"]
        for p, row in zip(pairs, cast(Any, data), strict=False)
    )
    print(f"{len(pairs):,} pairs of ours, {len(data):,} of TRL's; {tokens:,} tokens")
    print(f"{same:,} pairs with equal prompt and chosen ids")
    print("| arm | CPU s | pairs/s | ratio |\n|---|---|---|---|")
    for name, cpu in seconds.items():
        print(f"| {name} | {cpu:.2f} | {len(pairs) / cpu:,.0f} | {seconds['TRL'] / cpu:.2f} |")
    versions = package_versions()
    print(", ".join(f"{name} {versions[name]}" for name in ("trl", "transformers", "tokenizers")))


if __name__ == "__main__":
    main()
