"""Two families about reading code: move a block that two modules share into a function (a third
resembles it); and what a value becomes, through which functions (unused modules mislead).
"""

from __future__ import annotations

import ast
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from reward.environments.agentic.base import Check, Family, Final, Fixture, Wrong, answers
from reward.environments.agentic.workspace import Call, read, sh, write, write_json

Case = tuple[str, str, list[Any], Any]  # module, function, arguments, result
# statements in the same order, whatever stands between them, that make a copy of the block
SHARED_STATEMENTS = 4
MOST = 1000  # statements of a function that are compared, since the time grows with their square
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


@dataclass(frozen=True, slots=True)
class _SharedBlock:
    """A refactoring task: three modules of one function each, and the helper to make.

    Attributes:
        modules: two modules with the same block, then one whose block differs.
        functions: public function of each module.
        helper: name of the function to make.
        helper_module: name of its new module.
        files: path → text at the start.
        solution: path → text after the refactoring; the third module is in it as it must not be.
    """

    modules: Sequence[str]
    functions: Sequence[str]
    helper: str
    helper_module: str
    files: dict[str, str]
    solution: dict[str, str]

    @property
    def paths(self) -> list[str]:
        return [f"{module}.py" for module in self.modules]

    @property
    def helper_path(self) -> str:
        return f"{self.helper_module}.py"


class RefactorDuplicatedCode(Family):
    name = "refactor_duplicated_code"

    def build(self, rng: random.Random) -> Fixture:
        block = _draw_shared_block(rng)
        expected = _draw_cases(rng, block)
        helper = block.helper
        files = block.files
        first_path, second_path, third_path = block.paths

        write_helper = write(block.helper_path, block.solution[block.helper_path])
        write_callers = [write(path, block.solution[path]) for path in (first_path, second_path)]
        import_line = f"from {block.helper_module} import {helper}\n"
        write_unused_imports = [
            write(path, f"{import_line}{files[path]}") for path in (first_path, second_path)
        ]
        # the helper is called for nothing, and the copies have other names
        write_renamed_copies: list[Call] = []
        for path, function in zip((first_path, second_path), block.functions, strict=False):
            copy = files[path].replace("item ", "entry ").replace("item.", "entry.")
            definition = f"def {function}(items):\n"
            copy = copy.replace(definition, f"{definition}    {helper}([])\n")
            write_renamed_copies.append(write(path, f"{import_line}{copy}"))
        write_other_helper = write(
            block.helper_path, f"def {helper}(items):\n    return list(items)\n"
        )
        return Fixture(
            task=(
                f"{first_path} and {second_path} contain the same block of code. Move it into a "
                f"function {helper}(items) in a new module {block.helper_path} that both call. The "
                f"results of all public functions, also those in {third_path}, must stay as they "
                "are."
            ),
            files=files,
            check=_refactoring_check(block, expected),
            deliverables=(block.helper_path, first_path, second_path),
            oracle=[sh("cat *.py"), write_helper, *write_callers],
            wrong={
                "replaces_the_third": [
                    write_helper,
                    *write_callers,
                    write(third_path, block.solution[third_path]),
                ],
                "imports_and_keeps_copies": [write_helper, *write_unused_imports],
                "renames_the_copies": [write_helper, *write_renamed_copies],
                "changes_results": [write_other_helper, *write_callers],
            },
            unfinished={
                "stops_after_the_first": [read(first_path), write_helper, write_callers[0]]
            },
        )


def _draw_shared_block(rng: random.Random) -> _SharedBlock:
    """Draw the modules of a refactoring task with their solution."""
    modules = rng.sample(HEADS, 3)
    helper = rng.choice(HELPERS)
    helper_module = rng.choice(SHARED)
    old, new = rng.sample(("-", "_", ".", "/", " "), 2)
    details: dict[str, Any] = {
        "case": rng.choice(("upper", "lower")),
        "old": old,
        "new": new,
        "most": rng.randint(4, 7),
    }
    # the third module's block differs in one detail: the helper would change its results
    opposite_case = "lower" if details["case"] == "upper" else "upper"
    third_details = details | rng.choice(
        (
            {"most": details["most"] + 2},
            {"new": old, "old": new},
            {"case": opposite_case},
        )
    )
    return_lines = ("    return len({v})", "    return sorted({v})", '    return "{old}".join({v})')
    functions = rng.sample(("count_distinct", "list_codes", "label_of"), 3)
    files: dict[str, str] = {}
    solution: dict[str, str] = {}
    for index, (module, function) in enumerate(zip(modules, functions, strict=True)):
        list_name, item_name = rng.sample(("found", "kept", "result", "code", "part"), 2)
        fields = (third_details if index == 2 else details) | {"v": list_name, "w": item_name}
        return_line = return_lines[index].format(**fields)
        path = f"{module}.py"
        files[path] = (
            f'"""{module.title()}."""\n\n\ndef {function}(items):\n'
            f"{_BLOCK.format(**fields)}{return_line}\n"
        )
        solution[path] = (
            f"from {helper_module} import {helper}\n\n\ndef {function}(items):\n"
            f"    {list_name} = {helper}(items)\n{return_line}\n"
        )
    helper_body = _BLOCK.format(v="kept", w="code", **details)
    solution[f"{helper_module}.py"] = f"def {helper}(items):\n{helper_body}    return kept\n"
    return _SharedBlock(modules, functions, helper, helper_module, files, solution)


def _draw_cases(rng: random.Random, block: _SharedBlock) -> list[Case]:
    """Draw six calls of each module's function, with the results of the code at the start."""
    cases: list[Case] = []
    for module, function in zip(block.modules, block.functions, strict=True):
        namespace: dict[str, Any] = {}
        exec(block.files[f"{module}.py"], namespace)  # noqa: S102 - our own text
        for _ in range(6):
            items = [_draw_code(rng) for _ in range(rng.randint(3, 8))]
            # a copy: the arguments of the case must not change
            cases.append((module, function, [items], namespace[function](list(items))))
    return cases


def _draw_code(rng: random.Random) -> str:
    letters = "".join(rng.choice("abXY") for _ in range(rng.randint(1, 4)))
    return f" {letters}{rng.choice('-_./ ')}{rng.randint(1, 9999)}{rng.choice(('', ' '))}"


def _refactoring_check(block: _SharedBlock, expected: list[Case]) -> Check:
    """Check that two modules use the helper in place of their block, and that no result changed."""
    callers = block.modules[:2]
    third_module = block.modules[2]
    helper = block.helper

    async def check(final: Final) -> None:
        trees = {
            module: _parse_module(final, f"{module}.py")
            for module in (block.helper_module, *block.modules)
        }
        helper_tree = trees[block.helper_module]
        if helper not in {function.name for function in _functions(helper_tree)}:
            raise Wrong(f"{block.helper_path} has no function {helper}")
        for module in callers:
            if not _calls(trees[module], block.helper_module, helper):
                raise Wrong(f"{module}.py does not call {helper}")
        # the third may do what it did
        for module, tree in trees.items():
            if module != third_module and _runs_text(tree):
                raise Wrong(f"{module}.py runs code from text")
        # a copy of the helper's statements is a copy too, whatever the helper made of the block
        first_source = block.files[block.paths[0]]
        blocks = [*_normalized_statements(ast.parse(first_source))]
        blocks += _normalized_statements(helper_tree)
        for module in callers:
            for statements in _normalized_statements(trees[module]):
                if any(
                    _common_length(statements, copied) >= SHARED_STATEMENTS for copied in blocks
                ):
                    raise Wrong(f"{module}.py still has the block")
        await final.computes(expected)
        # a helper that returns nothing has to change the results of both modules
        stub = f"\n\ndef {helper}(items):\n    return []\n".encode()
        stubbed_helper = final.files[block.helper_path] + stub
        stubbed = replace(final, files={**final.files, block.helper_path: stubbed_helper})
        for module in callers:
            if await _same_results(stubbed, [case for case in expected if case[0] == module]):
                raise Wrong(f"{module}.py makes no use of what {helper} returns")

    return check


async def _same_results(final: Final, expected: Sequence[Case]) -> bool:
    try:
        await final.computes(expected)
    except Wrong:
        return False
    return True


def _parse_module(final: Final, path: str) -> ast.Module:
    try:
        return ast.parse(final.text(path))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise Wrong(f"{path} is not Python") from None


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    """All functions of a module, nested ones included."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def _calls(tree: ast.Module, module: str, name: str) -> bool:
    """Tell whether a function calls another module's function, under any name it is imported as."""
    spellings = {f"{module}.{name}"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == module:
            for alias in node.names:
                if alias.name == name:
                    spellings.add(alias.asname or name)
                elif alias.name == "*":
                    spellings.add(name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == module:
                    spellings.add(f"{alias.asname or module}.{name}")
    called: set[str] = set()
    for function in _functions(tree):
        for node in ast.walk(function):
            if isinstance(node, ast.Call):
                called.add(ast.unparse(node.func))
    return not spellings.isdisjoint(called)


def _runs_text(tree: ast.Module) -> bool:
    """Tell whether code names a function that runs text, or an attribute that holds other code."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return not names.isdisjoint(("exec", "eval", "compile", "__import__", "getsource", "__code__"))


def _normalized_statements(tree: ast.Module) -> list[list[str]]:
    """The statements of each function, nested ones included, without the names of variables."""
    statements_by_function: list[list[str]] = []
    for function in _functions(tree):
        statements = [
            _normalized(node) for node in ast.walk(function) if isinstance(node, ast.stmt)
        ]
        # the first one is the function itself
        statements_by_function.append(statements[1:MOST])
    return statements_by_function


def _common_length(statements: list[str], block: list[str]) -> int:
    """Length of the longest sequence of statements that two lists have in the same order."""
    # lengths[k]: the answer for the statements so far and the first k of the block
    lengths = [0] * (len(block) + 1)
    for statement in statements:
        diagonal = 0
        for k, candidate in enumerate(block, 1):
            without_statement = lengths[k]
            if statement == candidate:
                lengths[k] = diagonal + 1
            else:
                lengths[k] = max(without_statement, lengths[k - 1])
            diagonal = without_statement
    return lengths[-1]


def _normalized(statement: ast.stmt) -> str:
    """A statement as text, without its body and without the names of its variables."""
    parts: list[str] = []
    for field, child in ast.iter_fields(statement):
        if isinstance(child, ast.AST) and field not in ("body", "orelse"):
            parts.append(ast.dump(_VariableEraser().visit(child)))
    return f"{type(statement).__name__}{parts}"


class _VariableEraser(ast.NodeTransformer):
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
        modules = rng.sample(NOUNS, depth)
        verbs = rng.sample(VERBS, depth)
        route, legacy_route = rng.sample(ROUTES, 2)
        start = rng.randint(11, 97)
        value = start
        legacy_value = start
        files = {"core/__init__.py": "", "legacy/__init__.py": ""}
        call_path: list[str] = []
        values: list[int] = []
        # both packages have the same functions, with other constants; the route chooses one
        for index, (module, verb) in enumerate(zip(modules, verbs, strict=True)):
            sign = rng.choice(("+", "-", "*"))
            constant = rng.randint(2, 9)
            legacy_constant = constant + rng.randint(1, 7)
            value = _apply(value, sign, constant)
            legacy_value = _apply(legacy_value, sign, legacy_constant)
            call_path.append(f"core.{module}.{verb}")
            values.append(value)
            for package, number in (("core", constant), ("legacy", legacy_constant)):
                import_lines = ""
                result = f"value {sign} {number}"
                if index + 1 < depth:
                    next_verb = verbs[index + 1]
                    import_lines = f"from {package}.{modules[index + 1]} import {next_verb}\n\n"
                    result = f"{next_verb}({result})"
                # a function that nothing calls
                distractor = f"\n\ndef {verb}_twice(value):\n    return {verb}(value) * 2\n"
                files[f"{package}/{module}.py"] = (
                    f"{import_lines}\ndef {verb}(value):\n    return {result}\n{distractor}"
                )
        entry = f"{modules[0]}:{verbs[0]}"
        targets = {route: f"core.{entry}", legacy_route: f"legacy.{entry}"}
        # sorted, so that the place in the table does not tell the route
        files["routes.py"] = f"TARGETS = {dict(sorted(targets.items()))!r}\n"
        files["settings.py"] = f'REGION = "{route}"\nSTART = {start}\n'
        files["main.py"] = (
            "import importlib\n\nimport settings\nfrom routes import TARGETS\n\n\n"
            "def entry(start=settings.START):\n"
            '    module, _, name = TARGETS[settings.REGION].partition(":")\n'
            "    return getattr(importlib.import_module(module), name)(start)\n"
        )
        answer = {"value": value, "path": call_path}
        legacy_path = [name.replace("core.", "legacy.") for name in call_path]
        code_paths = ("core", "legacy", "main.py", "routes.py", "settings.py")
        return Fixture(
            task=(
                "What does entry() in main.py return, called without arguments, and through which "
                f'functions does the value go? Write {ANSWER} with the fields "value" (an integer) '
                'and "path": the functions that entry leads through, in the order in which they '
                'are called, each as "package.module.function". Change no code.'
            ),
            files=files,
            check=answers(ANSWER, answer, unchanged=code_paths),
            deliverables=(ANSWER,),
            oracle=[
                read("main.py"),
                sh("cat settings.py routes.py core/*.py"),
                sh("python3 -c 'import main; print(main.entry())'"),
                write_json(ANSWER, **answer),
            ],
            wrong={
                "follows_the_legacy_code": [
                    write_json(ANSWER, value=legacy_value, path=legacy_path)
                ],
                "stops_a_call_short": [write_json(ANSWER, value=values[-2], path=call_path[:-1])],
                "runs_it_and_guesses_the_path": [
                    write_json(ANSWER, value=value, path=call_path[::-1])
                ],
                "writes_into_the_code": [
                    sh("echo '# traced' >> main.py"),
                    write_json(ANSWER, **answer),
                ],
            },
        )


def _apply(value: int, sign: str, constant: int) -> int:
    return {"+": value + constant, "-": value - constant, "*": value * constant}[sign]
