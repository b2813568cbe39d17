"""The family "trace_through_codebase": what a value becomes, and through which functions.

Passes: `answer.json` has the value that the entry returns and the functions that it goes through,
in order. Modules that nobody imports have functions of the same names with other constants, and the
entry picks its route by a table in a further file.
"""

from __future__ import annotations

import random

from reward.environments.agentic.base import Family, Final, Fixture, read, sh, write_json

ANSWER = "answer.json"
VERBS = ("adjust", "scale", "offset", "clamp", "convert", "weigh", "settle", "derive", "refine")
NOUNS = ("rates", "limits", "units", "margins", "bands", "levels", "factors", "quotas", "zones")
ROUTES = ("north", "coast", "inland", "island")


class TraceThroughCodebase(Family):
    name = "trace_through_codebase"

    def build(self, rng: random.Random) -> Fixture:
        depth = rng.randint(4, 6)
        modules, verbs = rng.sample(NOUNS, depth), rng.sample(VERBS, depth)
        route, wrong_route = rng.sample(ROUTES, 2)
        start = rng.randint(11, 97)
        value, legacy = start, start
        files = {"core/__init__.py": "", "legacy/__init__.py": ""}
        path: list[str] = []
        partial: list[int] = []
        for place, (module, verb) in enumerate(zip(modules, verbs, strict=True)):
            sign, constant = rng.choice(("+", "-", "*")), rng.randint(2, 9)
            other = constant + rng.randint(1, 7)
            value, legacy = _apply(value, sign, constant), _apply(legacy, sign, other)
            path.append(f"core.{module}.{verb}")
            partial.append(value)
            following = place + 1 < depth
            for folder, number in (("core", constant), ("legacy", other)):
                head = (
                    f"from {folder}.{modules[place + 1]} import {verbs[place + 1]}\n\n"
                    if following else ""
                )  # fmt: skip
                inner = f"value {sign} {number}"
                end = f"{verbs[place + 1]}({inner})" if following else inner
                aside = f"\n\ndef {verb}_twice(value):\n    return {verb}(value) * 2\n"
                files[f"{folder}/{module}.py"] = (
                    f"{head}\ndef {verb}(value):\n    return {end}\n{aside}"
                )
        first = (modules[0], verbs[0])
        targets = {
            route: f"core.{first[0]}:{first[1]}",
            wrong_route: f"legacy.{first[0]}:{first[1]}",
        }
        table = dict(sorted(targets.items()))
        files["routes.py"] = f"TARGETS = {table!r}\n"
        files["settings.py"] = f'REGION = "{route}"\nSTART = {start}\n'
        files["main.py"] = (
            "import importlib\n\nimport settings\nfrom routes import TARGETS\n\n\n"
            "def entry(start=settings.START):\n"
            '    module, _, name = TARGETS[settings.REGION].partition(":")\n'
            "    return getattr(importlib.import_module(module), name)(start)\n"
        )
        right = {"value": value, "path": path}
        decoy = [name.replace("core.", "legacy.") for name in path]

        async def check(final: Final) -> None:
            final.unchanged("core", "legacy", "main.py", "routes.py", "settings.py")
            final.answer(ANSWER, **right)

        return Fixture(
            task=(
                "What does entry() in main.py return, called without arguments, and through which "
                f'functions does the value go? Write {ANSWER} with the fields "value" (an integer) '
                'and "path": the functions that entry leads through, in the order in which they '
                'are called, each as "package.module.function". Change no code.'
            ),
            files=files,
            check=check,
            deliverables=(ANSWER,),
            oracle=[
                read("main.py"),
                sh("cat settings.py routes.py core/*.py"),
                sh("python3 -c 'import main; print(main.entry())'"),
                write_json(ANSWER, **right),
            ],
            wrong={
                "follows_the_legacy_code": [write_json(ANSWER, value=legacy, path=decoy)],
                "stops_a_call_short": [write_json(ANSWER, value=partial[-2], path=path[:-1])],
                "runs_it_and_guesses_the_path": [write_json(ANSWER, value=value, path=path[::-1])],
                "writes_into_the_code": [
                    sh("echo '# traced' >> main.py"), write_json(ANSWER, **right)
                ],
            },
        )  # fmt: skip


def _apply(value: int, sign: str, constant: int) -> int:
    return {"+": value + constant, "-": value - constant, "*": value * constant}[sign]
