"""Two families about reading code: move a block that two modules share into a function (a third
resembles it); and what a value becomes, through which functions (unused modules mislead).
"""

from __future__ import annotations

import ast
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from reward.environments.agentic.base import Family, Final, Fixture, Wrong, answers
from reward.environments.agentic.workspace import Call, read, sh, write, write_json

Case = tuple[str, str, list[Any], Any]  # module, function, arguments, result
SHARED_STATEMENTS = 4  # in the same order, whatever stands between them: a copy of the block
MOST = 1000  # statements of a function that are compared
HEADS = ("orders", "returns", "invoices", "tickets", "parcels", "quotes")
HELPERS = ("clean_codes", "tidy_codes", "normal_codes", "unify_codes")
SHARED = ("common", "shared", "codes", "textparts")
_BLOCK = """    {v} = []
    for item in items:
        {w} = item.strip().{case}().replace("{old}", "{new}")
        if len({w}) > {most}:
            {w} = {w}[:{most}]
        if {w} and {w} not in {v}:
            {v}.append({w})
"""


class RefactorDuplicatedCode(Family):
    name = "refactor_duplicated_code"

    def build(self, rng: random.Random) -> Fixture:
        modules = rng.sample(HEADS, 3)
        helper, shared = rng.choice(HELPERS), rng.choice(SHARED)
        old, new = rng.sample(("-", "_", ".", "/", " "), 2)
        details: dict[str, Any] = {
            "case": rng.choice(("upper", "lower")), "old": old, "new": new,
            "most": rng.randint(4, 7),
        }  # fmt: skip
        other = details | rng.choice(
            ({"most": details["most"] + 2}, {"new": old, "old": new},
             {"case": "lower" if details["case"] == "upper" else "upper"})
        )  # fmt: skip
        ends = ("    return len({v})", "    return sorted({v})", '    return "{old}".join({v})')
        names = rng.sample(("count_distinct", "list_codes", "label_of"), 3)
        files: dict[str, str] = {}
        right: dict[str, str] = {}
        for place, (module, name) in enumerate(zip(modules, names, strict=True)):
            words = dict(
                zip("vw", rng.sample(("found", "kept", "result", "code", "part"), 2), strict=True)
            )
            own = (other if place == 2 else details) | words
            end = ends[place].format(**own)
            head = f'"""{module.title()}."""\n\n'
            files[f"{module}.py"] = f"{head}\ndef {name}(items):\n{_BLOCK.format(**own)}{end}\n"
            right[f"{module}.py"] = (
                f"from {shared} import {helper}\n\n\ndef {name}(items):\n"
                f"    {own['v']} = {helper}(items)\n{end}\n"
            )
        block = _BLOCK.format(v="kept", w="code", **details)
        right[f"{shared}.py"] = f"def {helper}(items):\n{block}    return kept\n"
        first, second, third = (f"{module}.py" for module in modules)
        expected: list[Case] = []
        for module, name in zip(modules, names, strict=True):
            space: dict[str, Any] = {}
            exec(files[f"{module}.py"], space)  # noqa: S102 - our own text
            for _ in range(6):
                items = [_code(rng) for _ in range(rng.randint(3, 8))]
                expected.append((module, name, [items], space[name](list(items))))

        async def check(final: Final) -> None:
            trees = {m: _parsed(final, f"{m}.py") for m in (shared, *modules)}
            if helper not in {f.name for f in _functions(trees[shared])}:
                raise Wrong(f"{shared}.py has no function {helper}")
            for module in modules[:2]:
                if not _calls(trees[module], shared, helper):
                    raise Wrong(f"{module}.py does not call {helper}")
            for module, tree in trees.items():
                if module != modules[2] and _runs_text(tree):
                    raise Wrong(f"{module}.py runs code from text")
            blocks = [*_statements(ast.parse(files[first])), *_statements(trees[shared])]
            for module in modules[:2]:
                for statements in _statements(trees[module]):
                    if any(_common(statements, block) >= SHARED_STATEMENTS for block in blocks):
                        raise Wrong(f"{module}.py still has the block")
            await final.computes(expected)
            # a helper that gives nothing back has to change what both modules return
            stub = f"\n\ndef {helper}(items):\n    return []\n".encode()
            files_idle = {**final.files, f"{shared}.py": final.files[f"{shared}.py"] + stub}
            idle = replace(final, files=files_idle)
            for module in modules[:2]:
                if await _same_results(idle, [case for case in expected if case[0] == module]):
                    raise Wrong(f"{module}.py makes no use of what {helper} returns")

        moved = [write(f"{shared}.py", right[f"{shared}.py"])]
        fixed = [write(path, right[path]) for path in (first, second)]
        unused = [
            write(path, f"from {shared} import {helper}\n{files[path]}") for path in (first, second)
        ]
        called: list[Call] = []
        for path, name in zip((first, second), names, strict=False):
            copy = files[path].replace("item ", "entry ").replace("item.", "entry.")
            head = f"def {name}(items):\n"
            copy = copy.replace(head, f"{head}    {helper}([])\n")
            called.append(write(path, f"from {shared} import {helper}\n{copy}"))
        return Fixture(
            task=(
                f"{first} and {second} contain the same block of code. Move it into a function "
                f"{helper}(items) in a new module {shared}.py that both call. The results of all "
                f"public functions, also those in {third}, must stay as they are."
            ),
            files=files,
            check=check,
            deliverables=(f"{shared}.py", first, second),
            oracle=[sh("cat *.py"), *moved, *fixed],
            wrong={
                "replaces_the_third": [*moved, *fixed, write(third, right[third])],
                "imports_and_keeps_copies": [*moved, *unused],
                "renames_the_copies": [*moved, *called],
                "changes_results": [
                    write(f"{shared}.py", f"def {helper}(items):\n    return list(items)\n"), *fixed
                ],
            },
            unfinished={"stops_after_the_first": [read(first), *moved, fixed[0]]},
        )  # fmt: skip


async def _same_results(final: Final, expected: Sequence[Case]) -> bool:
    try:
        await final.computes(expected)
    except Wrong:
        return False
    return True


def _code(rng: random.Random) -> str:
    letters = "".join(rng.choice("abXY") for _ in range(rng.randint(1, 4)))
    return f" {letters}{rng.choice('-_./ ')}{rng.randint(1, 9999)}{rng.choice(('', ' '))}"


def _parsed(final: Final, path: str) -> ast.Module:
    try:
        return ast.parse(final.text(path))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise Wrong(f"{path} is not Python") from None


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def _calls(tree: ast.Module, module: str, name: str) -> bool:
    """Whether a function calls what a module defines, under whatever name it was imported."""
    names = {f"{module}.{name}"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == module:
            names |= {alias.asname or alias.name for alias in node.names if alias.name == name}
            names |= {name for alias in node.names if alias.name == "*"}
        elif isinstance(node, ast.Import):
            modules = [alias.asname or alias.name for alias in node.names if alias.name == module]
            names |= {f"{own}.{name}" for own in modules}
    called = {
        ast.unparse(node.func)
        for function in _functions(tree)
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
    }
    return not names.isdisjoint(called)


def _runs_text(tree: ast.Module) -> bool:
    """Whether code calls, or names, what runs text or copies the code of others."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return not names.isdisjoint(("exec", "eval", "compile", "__import__", "getsource", "__code__"))


def _statements(tree: ast.Module) -> list[list[str]]:
    """The statements of every function, nested ones included, names made alike."""
    return [
        [_shape(node) for node in ast.walk(function) if isinstance(node, ast.stmt)][1:MOST]
        for function in _functions(tree)
    ]


def _common(one: list[str], other: list[str]) -> int:
    """Length of the longest sequence of statements that two lists have in the same order."""
    lengths = [0] * (len(other) + 1)
    for statement in one:
        before = 0
        for place, candidate in enumerate(other, 1):
            above = lengths[place]
            lengths[place] = (
                before + 1 if statement == candidate else max(above, lengths[place - 1])
            )
            before = above
    return lengths[-1]


def _shape(node: ast.stmt) -> str:
    """A statement without its body and without the names of its variables."""
    kept = [ast.dump(_Nameless().visit(child)) for name, child in ast.iter_fields(node)
            if isinstance(child, ast.AST) and name not in ("body", "orelse")]  # fmt: skip
    return f"{type(node).__name__}{kept}"


class _Nameless(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.copy_location(ast.Name("_", node.ctx), node)


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
            for folder, number in (("core", constant), ("legacy", other)):
                head, end = "", f"value {sign} {number}"
                if place + 1 < depth:
                    head = f"from {folder}.{modules[place + 1]} import {verbs[place + 1]}\n\n"
                    end = f"{verbs[place + 1]}({end})"
                aside = f"\n\ndef {verb}_twice(value):\n    return {verb}(value) * 2\n"
                files[f"{folder}/{module}.py"] = (
                    f"{head}\ndef {verb}(value):\n    return {end}\n{aside}"
                )
        entry = f"{modules[0]}:{verbs[0]}"
        targets = {route: f"core.{entry}", wrong_route: f"legacy.{entry}"}
        files["routes.py"] = f"TARGETS = {dict(sorted(targets.items()))!r}\n"
        files["settings.py"] = f'REGION = "{route}"\nSTART = {start}\n'
        files["main.py"] = (
            "import importlib\n\nimport settings\nfrom routes import TARGETS\n\n\n"
            "def entry(start=settings.START):\n"
            '    module, _, name = TARGETS[settings.REGION].partition(":")\n'
            "    return getattr(importlib.import_module(module), name)(start)\n"
        )
        right = {"value": value, "path": path}
        decoy = [name.replace("core.", "legacy.") for name in path]

        return Fixture(
            task=(
                "What does entry() in main.py return, called without arguments, and through which "
                f'functions does the value go? Write {ANSWER} with the fields "value" (an integer) '
                'and "path": the functions that entry leads through, in the order in which they '
                'are called, each as "package.module.function". Change no code.'
            ),
            files=files,
            check=answers(ANSWER, right, unchanged=(
                "core", "legacy", "main.py", "routes.py", "settings.py"
            )),
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
