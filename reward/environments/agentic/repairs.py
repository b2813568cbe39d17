"""Two families about one broken line, and the small functions that they are made of.

`fix_failing_test` has three modules with tests; `minimal_fix` a long file, of which few lines may
change.
"""

from __future__ import annotations

import difflib
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from reward.environments.agentic.base import Family, Final, Fixture, Wrong
from reward.environments.agentic.workspace import read, sh, write

Arguments = list[Any]


@dataclass(frozen=True, slots=True)
class _Template:
    """A small function of which one line may be wrong.

    Texts hold the constants {k}, {k3} and {m}; Function.constants has their values.

    Attributes:
        names: names that the function may get.
        parameters: parameters as in its definition.
        purpose: docstring, which says what is right.
        body: statements, with {line} in place of the line that may be wrong.
        right_line: the line as it should be.
        wrong_lines: wrong versions of the line.
        draw_arguments: draws the arguments of a call, given the constants.
    """

    names: tuple[str, ...]
    parameters: str
    purpose: str
    body: str
    right_line: str
    wrong_lines: tuple[str, ...]
    draw_arguments: Callable[[random.Random, Mapping[str, int]], Arguments]


def _draw_numbers(rng: random.Random, count: int, low: int = 0, high: int = 60) -> list[int]:
    return [rng.randint(low, high) for _ in range(count)]


def _draw_shares(rng: random.Random, constants: Mapping[str, int]) -> Arguments:
    total = rng.randint(100, 900) * 7 + rng.randint(1, 5)
    return [total, rng.randint(3, 7)]


def _draw_weight(rng: random.Random, constants: Mapping[str, int]) -> Arguments:
    # weights at a step's end, beside it and between two
    return [constants["k"] * rng.randint(1, 12) + rng.choice((0, 0, 1, -1, 40))]


def _draw_values(rng: random.Random, constants: Mapping[str, int]) -> Arguments:
    return [_draw_numbers(rng, rng.randint(6, 10), 1)]


def _draw_spans(rng: random.Random, constants: Mapping[str, int]) -> Arguments:
    starts = _draw_numbers(rng, rng.randint(3, 7), 0, 60)
    return [[[start, start + rng.randint(1, 6)] for start in starts]]


def _draw_days(rng: random.Random, constants: Mapping[str, int]) -> Arguments:
    days = constants["k3"] + rng.randint(1, 9)
    return [days, rng.randint(1, constants["m"] // 20)]


def _draw_entries(rng: random.Random, constants: Mapping[str, int]) -> Arguments:
    entries: list[Any] = []
    for version in rng.sample(range(20), 9):
        entries.append([rng.choice("abc"), version, rng.randint(1, 99)])
    return [entries]


_TEMPLATES = (
    _Template(
        names=("share_cents", "split_amount", "divide_bill"),
        parameters="total, people",
        purpose=(
            "Shares of an amount in cents: equal, the remainder cent by cent to the first ones."
        ),
        body=(
            "    base, rest = divmod(total, people)\n"
            "    shares = []\n"
            "    for place in range(people):\n"
            "{line}\n"
            "        shares.append(base + extra)\n"
            "    return shares"
        ),
        right_line="        extra = 1 if place < rest else 0",
        wrong_lines=(
            "        extra = 1 if place <= rest else 0",
            "        extra = rest if place == 0 else 0",
        ),
        draw_arguments=_draw_shares,
    ),
    _Template(
        names=("shipping_fee", "handling_fee", "delivery_fee"),
        parameters="weight",
        purpose=(
            "A fee by weight in grams: {m} up to and including {k} grams, then {m} for each "
            "begun {k}."
        ),
        body="    if weight <= 0:\n        return 0\n{line}\n    return {m} * steps",
        right_line="    steps = -(-weight // {k})",
        wrong_lines=("    steps = weight // {k} + 1", "    steps = max(1, weight // {k})"),
        draw_arguments=_draw_weight,
    ),
    _Template(
        names=("window_sums", "moving_totals", "sliding_sums"),
        parameters="values",
        purpose="The sums of all runs of {k3} neighbouring values, in their order.",
        body=(
            "    sums = []\n"
            "{line}\n"
            "        sums.append(sum(values[start : start + {k3}]))\n"
            "    return sums"
        ),
        right_line="    for start in range(len(values) - {k3} + 1):",
        wrong_lines=(
            "    for start in range(len(values) - {k3}):",
            "    for start in range(len(values)):",
        ),
        draw_arguments=_draw_values,
    ),
    _Template(
        names=("merge_spans", "join_ranges", "combine_slots"),
        parameters="spans",
        purpose="Spans [start, end] in ascending order, those that overlap or touch joined to one.",
        body=(
            "    merged = []\n"
            "    for start, end in sorted(spans):\n"
            "{line}\n"
            "            merged[-1][1] = max(merged[-1][1], end)\n"
            "        else:\n"
            "            merged.append([start, end])\n"
            "    return merged"
        ),
        right_line="        if merged and start <= merged[-1][1]:",
        wrong_lines=(
            "        if merged and start < merged[-1][1] - 1:",
            "        if merged and start == merged[-1][1]:",
        ),
        draw_arguments=_draw_spans,
    ),
    _Template(
        names=("late_charge", "overdue_charge", "storage_charge"),
        parameters="days, per_day",
        purpose="A charge for the days beyond {k3} free ones, at most {m} in all.",
        body="{line}\n    return min({m}, billable * per_day)",
        right_line="    billable = max(0, days - {k3})",
        wrong_lines=(
            "    billable = days if days > {k3} else 0",
            "    billable = max(0, days - {k3} - 1)",
        ),
        draw_arguments=_draw_days,
    ),
    _Template(
        names=("latest_by_key", "newest_entries", "current_values"),
        parameters="entries",
        purpose=(
            "Of entries [key, version, value] the value with the highest version of each key, "
            "by key."
        ),
        body=(
            "    best = {{}}\n"
            "    for key, version, value in entries:\n"
            "{line}\n"
            "            best[key] = (version, value)\n"
            "    return [[key, best[key][1]] for key in sorted(best)]"
        ),
        right_line="        if key not in best or version > best[key][0]:",
        wrong_lines=(
            "        if key not in best:",
            "        if key not in best or version < best[key][0]:",
        ),
        draw_arguments=_draw_entries,
    ),
)


@dataclass(frozen=True, slots=True)
class Function:
    """One function with its constants chosen.

    Attributes:
        wrong_line: line in place of `right_line` while the function is broken.
    """

    name: str
    template: _Template
    constants: Mapping[str, int]
    right_line: str
    wrong_line: str

    def source(self, *, broken: bool = False) -> str:
        line = self.wrong_line if broken else self.right_line
        purpose = self.template.purpose.format(**self.constants)
        body = self.template.body.format(line=line, **self.constants)
        return f'def {self.name}({self.template.parameters}):\n    """{purpose}"""\n{body}\n'

    def result(self, arguments: Arguments, *, broken: bool = False) -> Any:
        """Call the function, right or broken, on a copy of the arguments."""
        namespace: dict[str, Any] = {}
        exec(self.source(broken=broken), namespace)  # noqa: S102 - our own text
        return namespace[self.name](*json.loads(json.dumps(arguments)))

    def cases(self, rng: random.Random, count: int) -> list[tuple[Arguments, Any]]:
        """Draw distinct arguments with their right results.

        The broken function fails on the first half.
        """
        failing_cases: list[tuple[Arguments, Any]] = []
        passing_cases: list[tuple[Arguments, Any]] = []
        drawn_keys: set[str] = set()
        while len(failing_cases) < count // 2 or len(failing_cases) + len(passing_cases) < count:
            arguments = self.template.draw_arguments(rng, self.constants)
            key = json.dumps(arguments)
            if key in drawn_keys:
                continue
            drawn_keys.add(key)
            right_result = self.result(arguments)
            if right_result != self.result(arguments, broken=True):
                failing_cases.append((arguments, right_result))
            else:
                passing_cases.append((arguments, right_result))
        return (failing_cases + passing_cases)[:count]


def draw_functions(rng: random.Random, count: int) -> list[Function]:
    """Draw functions of distinct templates."""
    functions: list[Function] = []
    for template in rng.sample(_TEMPLATES, count):
        k = rng.randrange(200, 900, 50)
        constants = {"k": k, "m": rng.randrange(90, 400, 10), "k3": k // 50 % 4 + 2}
        right_line = template.right_line.format(**constants)
        wrong_line = rng.choice(template.wrong_lines).format(**constants)
        name = rng.choice(template.names)
        functions.append(Function(name, template, constants, right_line, wrong_line))
    return functions


MODULES = ("billing", "planning", "reporting", "accounts", "routes", "summary", "intake")
RUN_TESTS = "python3 -m unittest discover -s tests"


class FixFailingTest(Family):
    """Fix the module whose tests fail, without a change to the tests."""

    name = "fix_failing_test"

    def build(self, rng: random.Random) -> Fixture:
        functions = draw_functions(rng, 3)
        modules = rng.sample(MODULES, 3)
        cases_by_function = [function.cases(rng, 14) for function in functions]
        broken_index = rng.randrange(3)
        broken = functions[broken_index]
        broken_module = modules[broken_index]
        # The broken function fails on the first seven cases. The tests have two of them, the check
        # all: results written down for the tests alone do not pass.
        cases_in_tests = [cases[:2] + cases[10:] for cases in cases_by_function]
        files: dict[str, str] = {}
        tests: dict[str, str] = {}
        expected: list[tuple[str, str, Arguments, Any]] = []
        for index, (module, function) in enumerate(zip(modules, functions, strict=True)):
            files[f"app/{module}.py"] = function.source(broken=function is broken)
            tests[f"tests/test_{module}.py"] = _test_source(module, function, cases_in_tests[index])
            checked_cases = cases_in_tests[index] + cases_by_function[index][2:10]
            expected += [(f"app.{module}", function.name, *case) for case in checked_cases]

        async def check(final: Final) -> None:
            final.unchanged("tests")
            await final.computes(expected)

        code_path = f"app/{broken_module}.py"
        test_path = f"tests/test_{broken_module}.py"
        parameters = broken.template.parameters
        shown_cases = cases_in_tests[broken_index]
        results = {tuple(map(repr, arguments)): result for arguments, result in shown_cases}
        table_lookup = (
            f"    known = {results!r}\n    return known.get(tuple(map(repr, [{parameters}])), 0)\n"
        )
        wrong_cases = [
            (arguments, broken.result(arguments, broken=True)) for arguments, _ in shown_cases
        ]
        weakened_test = _test_source(broken_module, broken, wrong_cases)
        return Fixture(
            task=(
                f"Some tests under tests/ fail ({RUN_TESTS}). Find the cause and fix the code "
                "under app/ so that it does what its docstrings state. Leave everything under "
                "tests/ as it is."
            ),
            files={**files, "app/__init__.py": "", **tests},
            check=check,
            oracle=[
                sh(RUN_TESTS),
                read(code_path),
                write(code_path, broken.source()),
                sh(RUN_TESTS),
            ],
            wrong={
                "edits_the_test": [write(test_path, weakened_test)],
                "deletes_the_tests": [sh("rm -r tests")],
                "hard_codes_results": [
                    write(code_path, f"def {broken.name}({parameters}):\n{table_lookup}")
                ],
                "exits_with_0": [write(code_path, "import os\nos._exit(0)\n"), sh(RUN_TESTS)],
                "fixes_another_module": [write("app/__init__.py", "# checked\n"), sh(RUN_TESTS)],
            },
        )


def _test_source(module: str, function: Function, cases: list[tuple[Arguments, Any]]) -> str:
    """Text of a module of tests, one for each case."""
    title = function.name.title().replace("_", "")
    methods: list[str] = []
    for number, (arguments, result) in enumerate(cases, 1):
        call = _call_text(function, arguments)
        methods.append(
            f"    def test_case_{number}(self):\n        self.assertEqual({call}, {result!r})\n"
        )
    header = f"import unittest\n\nfrom app.{module} import {function.name}\n\n\n"
    return header + f"class {title}Test(unittest.TestCase):\n" + "\n".join(methods)


def _call_text(function: Function, arguments: Arguments) -> str:
    return f"{function.name}({', '.join(map(repr, arguments))})"


MOST_CHANGED = 4  # lines: the fix removes one and adds one
FILES = ("helpers.py", "toolkit.py", "calc.py", "rules.py")


class MinimalFix(Family):
    """Fix one function of a long file with at most `MOST_CHANGED` lines added or removed."""

    name = "minimal_fix"

    def build(self, rng: random.Random) -> Fixture:
        functions = draw_functions(rng, 5)
        broken = functions[rng.randrange(5)]
        path = rng.choice(FILES)
        module = path.removesuffix(".py")
        cases_by_name = {function.name: function.cases(rng, 10) for function in functions}
        expected: list[tuple[str, str, Arguments, Any]] = []
        for name, cases in cases_by_name.items():
            expected += [(module, name, *case) for case in cases]
        sources = [function.source(broken=function is broken) for function in functions]
        text = f'"""Functions of the {module} module."""\n\n\n' + "\n\n".join(sources)
        fixed_text = text.replace(broken.source(broken=True), broken.source())
        # the first of the cases is one on which the broken function fails
        arguments, right_result = cases_by_name[broken.name][0]
        wrong_result = broken.result(arguments, broken=True)

        async def check(final: Final) -> None:
            all_paths = final.initial.keys() | final.files.keys()
            final.unchanged(*(all_paths - {path}))
            changed = _count_changed_lines(text, final.text(path))
            if changed > MOST_CHANGED:
                raise Wrong(f"{changed} lines were added or removed")
            await final.computes(expected)

        rewritten_text = fixed_text.replace('"""Functions', '"""All functions')
        rewritten_text = rewritten_text.replace("    return", "    # the result\n    return")
        parameters = broken.template.parameters
        definition = f"def {broken.name}({parameters}):\n"
        special_case = f"    if [{parameters}] == {arguments!r}:\n        return {right_result!r}\n"
        special_text = text.replace(definition, definition + special_case, 1)
        return Fixture(
            task=(
                f"{_call_text(broken, arguments)} in {path} returns {wrong_result!r}, and "
                f"{right_result!r} is right. Correct the cause, also for other arguments, with "
                f"the smallest possible change: at most {MOST_CHANGED} lines added or removed in "
                "all, in this file alone."
            ),
            files={path: text, "CHANGES.txt": "Nothing yet.\n"},
            check=check,
            oracle=[read(path), write(path, fixed_text)],
            wrong={
                "rewrites_the_file": [read(path), write(path, rewritten_text)],
                "answers_one_case": [write(path, special_text)],
                "edits_another_file": [
                    write(path, fixed_text),
                    write("CHANGES.txt", f"Fixed {broken.name}.\n"),
                ],
                "leaves_a_backup": [write(f"{path}.orig", text), write(path, fixed_text)],
            },
        )


def _count_changed_lines(text_before: str, text_after: str) -> int:
    """Lines removed plus lines added."""
    lines_before = text_before.splitlines()
    lines_after = text_after.splitlines()
    # too many already, and aligning files of very different length would take long
    length_difference = abs(len(lines_before) - len(lines_after))
    if length_difference > MOST_CHANGED:
        return length_difference
    matcher = difflib.SequenceMatcher(None, lines_before, lines_after, autojunk=False)
    unchanged_lines = sum(block.size for block in matcher.get_matching_blocks())
    return len(lines_before) + len(lines_after) - 2 * unchanged_lines
