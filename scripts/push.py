"""Publish a checkpoint on a model hub, private unless --public.

    posttrain push runs/tiny/dpo ORG/NAME --evaluation runs/tiny/eval --dry-run
    posttrain push runs/tiny/dpo ORG/NAME --evaluation runs/tiny/eval --license apache-2.0

The token comes from HF_TOKEN or `hf auth login`, the hub's address from HF_ENDPOINT. Weights go by
LFS; HF_HUB_DISABLE_XET=0 lets the hub's client choose.
"""

import argparse
import os
from pathlib import Path

from posttrain.config.command import run_command


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Publish a checkpoint on a model hub.")
    parser.add_argument("directory", type=Path, metavar="DIR", help="a finished checkpoint")
    parser.add_argument("repository", metavar="ORG/NAME", help="made if it is not there")
    parser.add_argument("--public", action="store_true", help="for everybody; default: private")
    parser.add_argument("--dry-run", action="store_true", help="list files and card, send nothing")
    parser.add_argument("--evaluation", type=Path, action="append", default=[], metavar="DIR",
                        help="of this checkpoint, for the card's figures; repeatable")  # fmt: skip
    parser.add_argument("--license", help="of the weights, such as apache-2.0; default: the card's")
    options = parser.parse_args(argv)

    # the transfer by Xet was never run here; the client reads this when it is imported
    os.environ.setdefault("HF_HUB_DISABLE_XET", "1")

    from posttrain.publish.hub import push, upload_plan

    plan = upload_plan(
        options.directory,
        options.repository,
        evaluations=options.evaluation,
        license=options.license,
    )
    print(f"{options.directory} → {plan.repository}, {'public' if options.public else 'private'}")
    sizes = {p: len(f) if isinstance(f, bytes) else f.stat().st_size for p, f in plan.files.items()}
    for path, size in [*sizes.items(), (f"{len(sizes)} files", sum(sizes.values()))]:
        print(f"  {size:>14,} bytes  {path}")
    for path, why in plan.left_out.items():
        print(f"  {'left out':>20}  {path}: {why}")
    for warning in plan.warnings:
        print(f"warning: {warning}")
    if options.dry_run:
        print(f"\nREADME.md\n\n{plan.card}")
        return
    push(plan, private=not options.public)


if __name__ == "__main__":
    run_command(main)
