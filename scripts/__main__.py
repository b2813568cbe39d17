"""`posttrain STAGE …`: every stage of a post-training recipe as one command.

posttrain --list                      every stage in a sentence
posttrain --version                   the version of the package
posttrain completion bash|zsh|fish    completion of stages, recipes and keys, for the shell to read
posttrain --recipes                   the recipes that come with the package, by name
posttrain STAGE --help                every key of its recipe, with type, default and source
posttrain STAGE --config RECIPE [key=value …] [--dry-run] [--print-config]
posttrain launch OPTIONS STAGE …      on several processes; OPTIONS are accelerate's

`python -m posttrain STAGE …`, and in a checkout `python scripts STAGE …`, are the same.
"""

import ast
import re
import runpy
import sys
from importlib.metadata import version
from pathlib import Path

from posttrain.errors import ConfigError

# installed, this folder is the package posttrain_scripts: nobody's own `scripts` is in the way
GROUPS = {
    "prepare data": (
        "synthesize",
        "build_sft",
        "build_dpo",
        "build_genrm",
        "tiny_world",
        "tiny_judgements",
    ),
    "train": ("sft", "dpo", "genrm", "rlhf", "rlvr", "distill", "merge", "quantize"),
    "sample and measure": (
        "sample",
        "profile_prompts",
        "eval",
        "eval_genrm",
        "win_rate",
        "chat",
    ),
    "look and publish": ("preview", "report", "audit", "push"),
    "run a chain": ("quickstart", "smoke", "stages"),
}
STAGES = {p.stem: p for p in sorted(Path(__file__).resolve().parent.glob("[!_]*.py"))}


_OPTIONS = ("--help", "--list", "--recipes", "--version")


def main() -> None:
    if sys.platform == "win32":
        sys.exit("posttrain runs on Linux and macOS; on Windows, run it inside WSL 2")

    from posttrain.config.command import run_command

    run_command(lambda: dispatch(sys.argv[1:]))


def dispatch(arguments: list[str]) -> None:
    """Run what the arguments name.

    Raises:
        ConfigError: there is no such stage; it names the nearest.
    """
    from posttrain.config.load import nearest
    from posttrain.config.recipe_files import recipe_names

    command, *options = arguments or ["--help"]
    if command == "--list":
        for stage, path in STAGES.items():
            print(f"{stage:<17}{sentence(path)}")
    elif command == "--recipes":
        print("\n".join(recipe_names()))
    elif command in ("--help", "-h"):
        print(__doc__)
        for group, stages in GROUPS.items():
            print(f"{group}:")
            for stage in stages:
                print(f"  {stage:<17}{sentence(STAGES[stage])}")
    elif command == "--version":
        print(f"posttrain {version('posttrain')}")
    elif command == "completion":
        from posttrain.config.completion import completion

        print(completion(options, [*STAGES, "launch", "completion"], STAGES), end="")
    elif command == "launch":
        launch(options)
    elif command in STAGES:
        sys.argv = [f"posttrain {command}", *options]
        runpy.run_path(str(STAGES[command]))["main"](options)
    else:
        hint = nearest(command, [*STAGES, "launch", "completion", *_OPTIONS], or_list=False)
        raise ConfigError(f"there is no stage {command!r}{hint}; posttrain --list names them all")


def sentence(path: Path) -> str:
    """First sentence of a script's docstring, read without running the script."""
    text = " ".join((ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split())
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0]


def launch(arguments: list[str]) -> None:
    """Run `accelerate launch OPTIONS scripts/STAGE.py …`; raises as `run_launcher`."""
    position = next((i for i, word in enumerate(arguments) if word in STAGES), None)
    if position is None:
        raise ConfigError(
            "launch takes accelerate's options, then a stage and its own, such as: posttrain "
            "launch --config_file accelerate/ddp --num_processes 2 sft --config RECIPE"
        )
    from posttrain.training.launcher import run_launcher  # a missing extra is named here

    script = str(STAGES[arguments[position]])
    run_launcher([*arguments[:position], script, *arguments[position + 1 :]])


if __name__ == "__main__":
    main()
