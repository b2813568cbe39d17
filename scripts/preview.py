"""Look into any artifact: lineage, counts, config, and samples with every token's mask.

    python scripts/preview.py runs/tiny/sft_data
    python scripts/preview.py runs/tiny/sft_data --split eval --rows 5 --seed 1 --limit 0

Trained tokens are green on a terminal; piped, or with NO_COLOR set, they stand in 【 】.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from posttrain.artifacts import read_artifact
from posttrain.claim import run_command
from posttrain.preview import lineage, preview_packs, preview_pairs, preview_rows, summary
from posttrain.tokens.tokenizer import encoder_of, load_any_tokenizer


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Print an artifact.")
    parser.add_argument("directory", type=Path, help="the artifact: a directory with manifest.json")
    parser.add_argument("--rows", type=int, default=3, help="packs, or rows of each file, to show")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--limit", type=int, default=600, help="tokens or characters; 0: all")
    parser.add_argument("--split", choices=["train", "eval"], default="train")
    options = parser.parse_args(arguments)
    if min(options.rows, options.limit) < 0:
        parser.error("--rows and --limit take 0 or more")
    # soft wrapping: text that is piped keeps its own line ends
    console = Console(soft_wrap=True, highlight=False, emoji=False)
    limit = options.limit or None

    manifest = read_artifact(options.directory)
    console.print(lineage(options.directory, manifest))
    summary(console, manifest)
    shown = {"rows": options.rows, "seed": options.seed, "limit": limit}
    if manifest.kind in ("sft_data", "dpo_data"):
        tokenizer = load_any_tokenizer(str(options.directory / "tokenizer"))
        decode = encoder_of(tokenizer).decode
        if manifest.kind == "dpo_data":
            preview_pairs(console, options.directory, manifest, decode, **shown)
        else:
            preview_packs(
                console, options.directory, manifest, decode, split=options.split, **shown
            )
    else:
        preview_rows(console, options.directory, manifest, **shown)


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
