"""Fold a LoRA adapter into its base model and check that the logits stay.

posttrain merge runs/x runs/x_bf16 --dtype bfloat16
posttrain merge downloads/some-adapter runs/merged --base Qwen/Qwen3-0.6B
"""

import argparse
from pathlib import Path

from posttrain.config.command import run_command


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Fold a LoRA adapter into its base model.")
    parser.add_argument("directory", type=Path, help="an adapter, or a checkpoint with adapter/")
    parser.add_argument("out", type=Path, help="where the merged checkpoint goes")
    parser.add_argument("--base", help="folder or hub id; default: what the adapter names")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: the base's")
    options = parser.parse_args(argv)

    from posttrain.pages.write import ensure_report
    from posttrain.publish.merge import adapter_source, base_dtype, merge

    source = adapter_source(options.directory, base=options.base)
    dtype = options.dtype or base_dtype(source)
    print(f"{source.adapter} into {source.base.path}, in {dtype}")
    check = merge(source, options.out, dtype=dtype)
    print(
        f"{options.out}: logits differ by {check.difference:.1g} of their size (allowed "
        f"{check.tolerance:.1g}); the adapter itself changes {check.effect:.1g}"
    )
    print(ensure_report(options.out))


if __name__ == "__main__":
    run_command(main)
