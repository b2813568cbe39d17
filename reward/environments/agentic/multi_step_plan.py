"""The family "multi_step_plan": files to write in order, each from what the one before it holds.

Passes: every file has its content, they were first written in their order (files of one call count
as written in that order), and nothing else was left.
"""

from __future__ import annotations

import random

from reward.environments.agentic.base import Call, Family, Final, Fixture, Wrong, write

PREFIXES = ("step", "stage", "part", "phase")
FOLDERS = ("steps", "plan", "work", "out")
WORDS = ("amber", "birch", "cobalt", "dune", "ember", "fjord", "grove", "harbor", "iris", "juniper")


class MultiStepPlan(Family):
    name = "multi_step_plan"

    def build(self, rng: random.Random) -> Fixture:
        count, folder, prefix = rng.randint(4, 6), rng.choice(FOLDERS), rng.choice(PREFIXES)
        words, number = rng.sample(WORDS, count), rng.randint(10, 99)
        paths = [f"{folder}/{prefix}{n}.txt" for n in range(1, count + 1)]
        lines = [f'{paths[0]}: the line "{words[0]} {number}".']
        contents = [f"{words[0]} {number}\n"]
        for place in range(1, count):
            add, times = rng.randint(3, 40), rng.choice((1, 2, 3))
            number = number * times + add
            contents.append(f"{words[place]} {number}\n")
            factor = f"{times} times " if times > 1 else ""
            rule = f"{factor}the number in {paths[place - 1]} plus {add}"
            lines.append(f'{paths[place]}: the line "{words[place]} N", where N is {rule}.')
        wanted = dict(zip(paths, contents, strict=True))

        async def check(final: Final) -> None:
            if extra := final.files.keys() - wanted.keys() - final.initial.keys():
                raise Wrong(f"files that the plan does not have: {', '.join(sorted(extra))[:200]}")
            for path, content in wanted.items():
                if final.text(path).rstrip("\n") != content.rstrip("\n"):
                    raise Wrong(f"{path} has another content")
            if [path for path in final.order if path in wanted] != paths:
                raise Wrong("the files were not written in their order")

        made: list[Call] = [write(path, content) for path, content in wanted.items()]
        swapped = [made[1], made[0], *made[2:]]
        stale = [*made[:-1], write(paths[-1], f"{words[-1]} {int(contents[-2].split()[1])}\n")]
        listed = "\n".join(f"{n}. {line}" for n, line in enumerate(lines, 1))
        return Fixture(
            task=f"Write these files one after the other, in this order, and no others.\n{listed}",
            files={"PLAN.md": f"Files go to {folder}/.\n"},
            check=check,
            deliverables=tuple(paths),
            oracle=made,
            wrong={
                "out_of_order": swapped,
                "skips_a_rule": stale,
                "adds_a_file": [*made, write(f"{folder}/summary.txt", "Done.\n")],
            },
            unfinished={"stops_before_the_end": made[:-1]},
        )
