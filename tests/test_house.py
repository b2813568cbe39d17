"""The house rules that a machine can hold: who imports whom, and which names are taken."""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = {"torch", "transformers", "trl", "peft", "vllm", "deepspeed", "accelerate", "bitsandbytes"}
# folder → packages its files may not import (design, section 2)
FORBIDDEN = {
    "posttrain": {"reward", "data_builders", "scripts"},
    "posttrain/chat": HEAVY | {"numpy", "datasets", "pyarrow"},
    "posttrain/config": HEAVY | {"numpy", "datasets", "pyarrow"},
    "posttrain/tokens": HEAVY - {"transformers"},  # tokenizers come from it
    "posttrain/report": {"trl", "peft", "vllm", "deepspeed", "accelerate"},
    "posttrain/environments": HEAVY | {"numpy", "datasets", "pyarrow"},
    "reward": HEAVY | {"data_builders", "scripts", "datasets"},
    "data_builders": {"scripts", "trl", "peft", "vllm", "deepspeed", "accelerate", "torch"},
}
LIGHT_FILES = (
    "posttrain/records.py",
    "posttrain/rollouts.py",
    "posttrain/group_rewards.py",
    "posttrain/sampling/sampler.py",
    "posttrain/errors.py",
    "posttrain/runs.py",
    "posttrain/jsontext.py",
    "posttrain/hashing.py",
)


DEFINED = (ast.FunctionDef, ast.ClassDef)
# words that are nobody's: the glossary has the field's
WORDS = re.compile(
    r"(?:^|_)(books?|said|asked|observed|spools?|twins?|tally|stock|licence|maths)(?:_|$)"
)
PRODUCT = sorted(
    p
    for top in ("posttrain", "data_builders", "reward", "scripts")
    for p in (ROOT / top).rglob("*.py")
)


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """What these tests look at in a file: its imports, definitions and annotated names."""
    kinds = (ast.Import, ast.ImportFrom, *DEFINED, ast.arg, ast.AnnAssign)
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]


@functools.cache
def imported(path: Path) -> set[str]:
    """Top-level packages a file imports, anywhere in it."""
    found: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.split(".")[0])
    return found


def test_imports_point_inwards():
    files = [(path, folder) for folder in FORBIDDEN for path in (ROOT / folder).rglob("*.py")]
    assert {folder for _, folder in files} == {*FORBIDDEN}
    bad = [(str(p), imported(p) & FORBIDDEN[f]) for p, f in files if imported(p) & FORBIDDEN[f]]
    assert bad == []


def test_nobody_imports_benchmarks():
    statement = re.compile(r"^\s*(?:from|import) benchmarks\b", re.MULTILINE)
    files = [*PRODUCT, *(ROOT / "tests").rglob("*.py")]
    assert [path for path in files if statement.search(path.read_text("utf-8"))] == []


# rooms of posttrain from the ground up (design, section 2): each imports from lower floors alone
FLOORS = (
    {"ground"},
    {"config", "report"},
    {"chat"},
    {"tokens", "environments"},
    {"models", "audit"},
    {"sampling"},
    {"publish", "conversation"},
    {"training"},
    {"evaluation"},
    {"quantization"},
    {"pages"},
    {"commands"},
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
COMMANDS = {"chain", "few_steps", "one_line", "runner"}  # what scripts share


def room_of(module: str) -> str:
    """The room of a module of posttrain, such as `chat` of `posttrain.chat.masks`."""
    name = module.split(".")[1]
    if name in COMMANDS:
        return "commands"
    return name if name in FLOOR_OF else "ground"  # records, runs, errors and other single files


def test_rooms_import_from_lower_floors_alone():
    rooms = {
        path.name for path in (ROOT / "posttrain").iterdir() if (path / "__init__.py").is_file()
    }
    assert rooms <= FLOOR_OF.keys()
    upward: list[tuple[str, str]] = []
    for path in sorted((ROOT / "posttrain").rglob("*.py")):
        relative = path.relative_to(ROOT)
        room = room_of(".".join(relative.with_suffix("").parts))
        for node in nodes(path):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(
                "posttrain"
            ):
                continue
            modules = [node.module or ""]
            if node.module == "posttrain":
                modules = [f"posttrain.{alias.name}" for alias in node.names]
            for module in modules:
                other = room_of(module)
                if other != room and FLOOR_OF[other] >= FLOOR_OF[room]:
                    upward.append((str(relative), module))
    assert upward == []


def test_encoding_and_packing_load_no_tokenizer():
    files = sorted((ROOT / "posttrain/tokens").rglob("*.py"))
    with_tokenizer = ["renderer.py", "tokenizer.py"]
    assert [f.name for f in files if imported(f) & HEAVY] == with_tokenizer


def test_scipy_stats_is_imported_in_one_function_alone():
    """It takes longer to import than a page or an evaluation of few records takes to be made."""
    importers: list[str] = []
    for path in PRODUCT:
        for node in nodes(path):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            names = {alias.name for alias in node.names}
            if isinstance(node, ast.ImportFrom):
                names = {f"{node.module}.{name}" for name in names}
            if any(f"{name}.".startswith("scipy.stats.") for name in names):
                assert node.col_offset > 0, path
                importers.append(path.name)
    assert importers == ["sensitivity.py"]


def test_the_light_files_stay_light():
    heavy = HEAVY | {"numpy", "datasets", "pyarrow"}
    assert [name for name in LIGHT_FILES if imported(ROOT / name) & heavy] == []


def test_a_short_file_has_more_than_one_importer():
    """Under 60 lines with one importer is a part of that importer; families and schemas apart."""
    modules = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in PRODUCT}
    importers: dict[Path, set[Path]] = {p: set() for p in PRODUCT}
    for path in PRODUCT:
        for node in nodes(path):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            for name in (node.module, *(f"{node.module}.{a.name}" for a in node.names)):
                if name in modules and modules[name] != path:
                    importers[modules[name]].add(path)
    apart = re.compile(r"dialects|families|config|scripts|__init__")
    short = [
        p for p in PRODUCT if len(p.read_text().splitlines()) < 60 and not apart.search(str(p))
    ]
    assert [str(p) for p in short if len(importers[p]) == 1] == []


def test_a_public_class_name_exists_once():
    found = [
        node.name
        for path in PRODUCT
        for node in nodes(path)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert sorted({name for name in found if found.count(name) > 1}) == []


def test_identifiers_use_the_words_of_the_field():
    bad: list[tuple[str, str]] = []
    for path in PRODUCT:
        for node in nodes(path):
            name = getattr(node, "name", None) if isinstance(node, DEFINED) else None
            if isinstance(node, ast.arg):
                name = node.arg
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                name = node.target.id
            if name and WORDS.search(name.lower()):
                bad.append((path.name, name))
    assert bad == []


_MISTAKES = """
import contextlib, json, runpy, sys, posttrain.records, posttrain.runs, posttrain.chat
heavy, commands = json.loads(sys.argv[1])
posttrain.chat.nemotron_3_nano_template()
if loaded := {*heavy, "numpy"} & set(sys.modules):
    sys.exit(f"the light layer loads {sorted(loaded)}")
for path, *arguments in commands:
    sys.argv = [path, *arguments]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(sys.stderr):
        runpy.run_path(path, run_name="__main__")
    if loaded := set(heavy) & set(sys.modules):
        sys.exit(f"{sys.argv} loads {sorted(loaded)}")
"""


def test_help_and_mistakes_load_nothing_heavy(tmp_path: Path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("not_a_key_of_any_recipe: 1\n")
    missing = tmp_path / "missing"
    sources = ["prompts=[]", "settings=[]", f"previous={missing}"]
    mistakes: dict[str, list[list[str]]] = {
        **{name: [["prompts.0.grader=maths"]] for name in ("sample", "eval", "rlhf")},
        "profile_prompts": [["prompts.0.grader=maths"], sources],
        "rlvr": [[f"pass_rates={missing}"]],
        "sft": [["trainer.learning_rat=1"]],
    }
    evaluation = str(ROOT / "scripts" / "eval.py")
    commands = [[evaluation, "compare", str(missing), str(missing)]]
    for path in sorted((ROOT / "scripts").glob("*.py")):
        commands += [[str(path), "--help"], [str(path), "--config", str(recipe)]]
        name = path.stem.removesuffix("_prompts")
        own = [str(path), "--config", str(ROOT / "recipes" / "tiny" / f"{name}.yaml")]
        commands += [[*own, f"out={tmp_path}", *more] for more in mistakes.get(path.stem, ())]
    order = json.dumps([sorted(HEAVY | {"matplotlib", "datasets"}), commands])
    process = [sys.executable, "-c", _MISTAKES, order]
    out = subprocess.run(process, capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr[-2000:]


def test_no_script_shadows_a_module():
    """A script's folder is sys.path[0] when it runs: `scripts/inspect.py` would break `inspect`."""
    scripts = (ROOT / "scripts").resolve()
    names = [path.stem for path in scripts.glob("*.py")]
    elsewhere = [p for p in sys.path if Path(p or ".").resolve() != scripts]
    find = importlib.machinery.PathFinder.find_spec
    assert [n for n in names if n in sys.stdlib_module_names or find(n, elsewhere)] == []


def test_tracked_files_name_no_machine():
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if tracked.returncode != 0:
        pytest.skip("not a git checkout")
    private = re.compile(r"(?<![\w.])/(?:work|root|home)/\w")
    for name in tracked.stdout.split():
        path = ROOT / name
        if path.suffix in {".py", ".md", ".yaml", ".toml", ".sh"} and path.is_file():
            assert not private.search(path.read_text()), name


def test_the_files_that_contributors_are_sent_to_are_there():
    named = re.findall(r"`([\w/-]+\.py)`", (ROOT / "CONTRIBUTING.md").read_text())
    every = [f"/{path.relative_to(ROOT)}" for path in (*PRODUCT, *(ROOT / "tests").rglob("*.py"))]
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in every)] == []


def test_stages_print_to_one_kind_of_console():
    """rich's default reads `[…]` in the name of a folder or a source as markup, and leaves it out."""
    own = {
        "posttrain/report/console.py",
        "posttrain/conversation/terminal.py",
        "scripts/preview.py",
    }
    made = {str(p.relative_to(ROOT)) for p in PRODUCT if "Console(" in p.read_text("utf-8")}
    assert made == own
