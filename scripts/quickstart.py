"""Train a tiny model by SFT, DPO and RLHF with a judge of its own, and measure each effect.

    posttrain quickstart                       10 minutes on two cores, in runs/tiny
    posttrain quickstart --size full --at DIR  with half as much SFT again and twice the samples

Finished stages are passed on and an interrupted one goes on, so the same command resumes. What a
stage prints goes to runs/tiny/logs.
"""

import argparse
from functools import partial
from pathlib import Path

from posttrain.chain import chain_file, resolve_chain, run_chain
from posttrain.config.command import run_command
from posttrain.config.load import load_recipe
from posttrain.config.stages import StagesConfig

HERE = Path(__file__).resolve().parent
RUNS = Path("runs/tiny")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Run the tiny chain and show its effects.", allow_abbrev=False
    )
    parser.add_argument("--jobs", type=int, default=2, help="stages at a time (default 2)")
    parser.add_argument(
        "--seed", type=int, help="of what trains and samples (default: the recipes')"
    )
    parser.add_argument("--size", choices=["full"], help="full: more data, samples and questions")
    parser.add_argument("--at", type=Path, default=Path(), help="where runs/tiny goes (default: .)")
    options = parser.parse_args(argv)
    keys = [f"jobs={options.jobs}", f"logs={RUNS}/logs"]
    if options.seed is not None:
        keys.append(f"seed={options.seed}")
    if options.size is not None:
        keys.append(f"size={options.size}")
    config = load_recipe(chain_file("tiny"), StagesConfig, keys)
    stages = resolve_chain(config, HERE)
    options.at.mkdir(parents=True, exist_ok=True)
    show = partial(print, flush=True)
    show(f"{len(stages)} stages, {config.jobs} at a time; each prints to {options.at / RUNS}/logs")
    run_chain(stages, config, scripts=HERE, root=options.at, show=show)

    from posttrain.pages.chain import show_chain
    from posttrain.report.console import open_console

    show_chain(open_console(), [options.at / RUNS])


if __name__ == "__main__":
    run_command(main)
