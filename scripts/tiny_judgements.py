"""Generate the tiny world's judgements: pairs of answers with gold scores, to train a judge on.

python scripts/tiny_judgements.py --config recipes/tiny/judgements.yaml [key=value …] [--dry-run]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from data_builders.tiny_world.write_judgements import write_judgements
from posttrain.claim import claimed, run_command
from posttrain.config.load import load_recipe
from posttrain.config.tiny_judgements import TinyJudgementsConfig
from posttrain.report import ensure_report, write_report


def plan(config: TinyJudgementsConfig) -> str:
    """What would be written, one line a family."""
    lines = [f"judgements → {config.out} (seed {config.seed}, held-out seed {config.heldout_seed})"]
    for name, rows in config.families.items():
        lines.append(
            f"  {name:<8} {rows.warm_up:,} to warm up on, {rows.train:,} to train on, "
            f"{rows.heldout:,} held out"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Read the recipe, then print the plan or write the artifact."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--config", required=True, type=Path)
    parser.add_argument("--dry-run", action="store_true", help="print the plan, write nothing")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    options = parser.parse_args(arguments)
    config = load_recipe(options.config, TinyJudgementsConfig, options.overrides)
    print(plan(config))
    if options.dry_run:
        return
    with claimed(Path(config.out), kind="tiny_judgements", config=config.owner_config()) as stage:
        if stage.complete:
            ensure_report(stage.path)
            print(f"{stage.path} is complete; nothing to do")
            return
        written = write_judgements(config, stage.path)
        manifest = stage.finish(
            counts=written.counts,
            files=written.files,
            seed=config.seed,
            stats=written.stats,
        )
        print(f"wrote {manifest.counts.kept:,} rows")
        print(write_report(stage.path))


if __name__ == "__main__":
    run_command(main)
