"""`python -m posttrain STAGE …`: the command `posttrain`, where its folder is not on the PATH."""

from __future__ import annotations

from importlib.metadata import entry_points

if __name__ == "__main__":
    # the stages' scripts stand above this package, which imports none of them
    (command,) = entry_points(group="console_scripts", name="posttrain")
    command.load()()
