"""Look into any artifact: lineage, counts, figures, and samples with every token's mask.

    posttrain preview runs/tiny/sft_data
    posttrain preview runs/tiny/sft_data --split eval --rows 5 --seed 1 --limit 0

Trained tokens are green on a terminal; piped, or with NO_COLOR set, they stand in 【 】.
"""

import argparse
import sys
from pathlib import Path

from posttrain.config.command import run_command


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Print an artifact.")
    parser.add_argument("directory", type=Path, help="the artifact: a directory with manifest.json")
    parser.add_argument("--rows", type=int, default=3, help="packs, or rows of each file, to show")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--limit", type=int, default=600, help="tokens or characters; 0: all")
    parser.add_argument("--split", choices=["train", "eval"], default="train")
    options = parser.parse_args(argv)
    if min(options.rows, options.limit) < 0:
        parser.error("--rows and --limit take 0 or more")
    if options.directory.is_file():
        parser.error(
            f"{options.directory} is a file, and this shows artifacts; how its rows are read: "
            "posttrain build_sft --config one-gpu/build_sft "
            f"'sources=[{{name: mine, path: {options.directory}}}]' --dry-run"
        )

    from rich.console import Console

    from posttrain.lineage import trace
    from posttrain.pages.preview import artifact_sections, pack_section, pair_section, row_sections
    from posttrain.report.console import print_sections
    from posttrain.runs import read_artifact

    manifest = read_artifact(options.directory)
    # soft wrapping: text that is piped keeps its own line ends
    width = None if sys.stdout.isatty() else 160
    console = Console(soft_wrap=True, highlight=False, emoji=False, width=width)
    print_sections(console, artifact_sections(options.directory))
    root = trace(options.directory)[0]
    shown = {"rows": options.rows, "seed": options.seed, "limit": options.limit or None}
    if manifest.kind not in ("sft_data", "dpo_data"):
        print_sections(console, row_sections(root, **shown))
        return

    from posttrain.tokens.tokenizer import encoder_of, load_any_tokenizer

    decode = encoder_of(load_any_tokenizer(str(options.directory / "tokenizer"))).decode
    if manifest.kind == "sft_data":
        section = pack_section(root, decode, **shown, split=options.split)
    else:
        section = pair_section(root, decode, **shown)
    print_sections(console, [section])


if __name__ == "__main__":
    run_command(main)
