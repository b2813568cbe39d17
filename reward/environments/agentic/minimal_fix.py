"""The family "minimal_fix": one broken line in a long file, and the size of the change counts.

Passes: the functions give the right results, at most `MOST_CHANGED` lines are added or removed in
the one file, and no other file differs. A right rewrite of the file does not pass.
"""

from __future__ import annotations

import difflib
import random

from reward.environments.agentic.base import Family, Final, Fixture, Wrong, read, write
from reward.environments.agentic.programs import choose

MOST_CHANGED = 4
FILES = ("helpers.py", "toolkit.py", "calc.py", "rules.py")


class MinimalFix(Family):
    name = "minimal_fix"

    def build(self, rng: random.Random) -> Fixture:
        functions = choose(rng, 5)
        bad = functions[rng.randrange(5)]
        path = rng.choice(FILES)
        module = path.removesuffix(".py")
        cases = {f.name: f.cases(rng, 10) for f in functions}
        arguments, value = cases[bad.name][0]
        sources = [f.source(broken=f is bad) for f in functions]
        text = f'"""Functions of the {module} module."""\n\n\n' + "\n\n".join(sources)
        right = text.replace(bad.source(broken=True), bad.source())
        given = ", ".join(map(repr, arguments))
        call = f"{bad.name}({given})"
        returned = bad.expected(arguments, broken=True)
        expected = [
            (module, f.name, one, result) for f in functions for one, result in cases[f.name]
        ]

        async def check(final: Final) -> None:
            final.unchanged(*(p for p in final.initial.keys() | final.files.keys() if p != path))
            changed = _changed_lines(text, final.text(path))
            if changed > MOST_CHANGED:
                raise Wrong(f"{changed} lines were added or removed")
            await final.computes(expected)

        rewritten = right.replace('"""Functions', '"""All functions').replace(
            "    return", "    # the result\n    return"
        )
        parameters = bad.template.parameters
        definition = f"def {bad.name}({parameters}):\n"
        special = f"{definition}    if [{parameters}] == {arguments!r}:\n        return {value!r}\n"
        head, _, tail = text.partition(definition)
        return Fixture(
            task=(
                f"{call} in {path} returns {returned!r}, and {value!r} is right. Correct the "
                f"cause, also for other arguments, with the smallest possible change: at most "
                f"{MOST_CHANGED} lines added or removed in all, in this file alone."
            ),
            files={path: text, "CHANGES.txt": "Nothing yet.\n"},
            check=check,
            oracle=[read(path), write(path, right)],
            wrong={
                "rewrites_the_file": [read(path), write(path, rewritten)],
                "answers_one_case": [write(path, f"{head}{special}{tail}")],
                "edits_another_file": [
                    write(path, right), write("CHANGES.txt", f"Fixed {bad.name}.\n")
                ],
                "leaves_a_backup": [write(f"{path}.orig", text), write(path, right)],
            },
        )  # fmt: skip


def _changed_lines(before: str, after: str) -> int:
    """Lines removed plus lines added. Files of very different length are not aligned."""
    old, new = before.splitlines(), after.splitlines()
    if abs(len(old) - len(new)) > MOST_CHANGED:
        return abs(len(old) - len(new))
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    same = sum(block.size for block in matcher.get_matching_blocks())
    return len(old) + len(new) - 2 * same
