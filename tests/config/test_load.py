"""Recipes: strict, and helpful about mistakes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import Field

from posttrain.config.base import Strict
from posttrain.config.build_dpo import BuildDpoConfig
from posttrain.config.build_genrm import BuildGenRmConfig
from posttrain.config.build_sft import BuildSftConfig
from posttrain.config.dpo import DpoConfig
from posttrain.config.eval import EvalConfig
from posttrain.config.load import load_recipe
from posttrain.config.recipe_files import parse_value, recipe_text
from posttrain.config.rlhf import RlhfConfig
from posttrain.config.sample import ProfileConfig
from posttrain.config.schemas import stage_schemas
from posttrain.config.sft import SftConfig
from posttrain.config.synthesize import SynthesizeConfig
from posttrain.config.tiny_world import TinyJudgementsConfig, TinyWorldConfig
from posttrain.errors import ConfigError


class Source(Strict):
    name: str
    share: float | None = None


class Recipe(Strict):
    learning_rate: float
    steps: int = 10
    sources: tuple[Source, ...] = Field(default=(), min_length=1)
    out: Path | None = None
    either: dict[str, int | Source] = Field(default_factory=dict[str, int | Source])


def write(tmp_path: Path, text: str, name: str = "r.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def load(tmp_path: Path, text: str, *overrides: str) -> Recipe:
    return load_recipe(write(tmp_path, text), Recipe, overrides)


def test_scientific_notation_is_a_number_and_lists_fill_tuples(tmp_path):
    recipe = load(tmp_path, "learning_rate: 5e-5\nsources: [{name: a}]\nout: x/y\n")
    assert recipe == Recipe(learning_rate=5e-5, sources=(Source(name="a"),), out=Path("x/y"))


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("learning_rat: 1.0\nlearning_rate: 1.0", (), "unknown key 'learning_rat' .did you mean 'learning_rate'"),
        ("learning_rate: 1.0\nsources: [{name: a, shar: 1.0}]", (), "'sources.0.shar' .did you mean 'sources.0.share'..$"),
        ("learning_rate: '1.0'", (), "'learning_rate': Input should be a valid number, found '1.0'"),
        ("learning_rate: 1.0\nlearning_rate: 2.0", (), "line 2: duplicate key 'learning_rate'"),
        ("a:\n\tb: 1", (), r"line 2, column 1: [^\n]*$"),
        ("{sources: [], mixture: {}, packing: {}}", (), "r.yaml: mixture, packing are no keys"),
        ("steps: 3", (), "'learning_rate' is required"),
        ("learning_rate: .nan", (), "finite number"),
        ("learning_rate: 1.0", ("steps=3", "steps=4"), "given twice"),
        ("learning_rate: 1.0", ("steps",), "not of the form"),
        ("learning_rate: 1.0\nsources: [{name: a}]", ("sources.1.name=b",), "no position in 0…0"),
        ("learning_rate: 1.0\nsteps: 3", ("steps.a=1",), "nothing can be set below the value 3"),
        ("- a", (), "a recipe is a mapping"),
        ("1: 2", (), "must be text"),
        ("a: !!int x", (), "not readable as YAML: line 1"),
        ("a: 1\nb: [3, " + "9" * 5000 + "]", (), "line 2, column 4: "),
        ("a: ä\nb: \x07", (), "line 2: character #x0007"),
        # a few lines that stand for 10⁹ values
        ("a: &a0 [" + "x," * 10 + "]\n" + "".join(f"a{i + 1}: &a{i + 1} [" + f"*a{i}," * 10 + "]\n" for i in range(8)), (), "too large a tree"),
        ("a: &a {steps: 1}\nb: &b {steps: 2}\nc: {<<: [*a, *b]}", (), "line 2: duplicate key 'steps'"),
        ("a: !!set {b}", (), "not readable as YAML"),
        ("a: " + "[" * 500 + "]" * 500, (), "not readable as YAML"),
        ("learning_rate: 1.0", ("steps=&a [*a]",), "cannot read the value"),
    ],
)  # fmt: skip
def test_mistakes_are_named(tmp_path, text, overrides, message):
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text, *overrides)


def test_a_file_that_is_not_utf8_is_named_with_its_line(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_bytes("a: 1\nb: ä".encode("latin1"))
    with pytest.raises(ConfigError, match="line 2: not UTF-8"):
        load_recipe(path, Recipe)


def test_keys_of_a_merged_mapping_give_way(tmp_path):
    text = "sources: [&a {name: a, share: 2}, {share: 3, <<: *a}, {<<: *a, share: 4}]"
    recipe = load(tmp_path, f"learning_rate: 1\n{text}")
    assert [source.share for source in recipe.sources] == [2, 3, 4]


@pytest.mark.parametrize(
    ("recipe", "schema", "override", "message"),
    [
        ("synthesize", SynthesizeConfig, "make={kind: long_documents, families: [single_needel]}", r"found 'single_needel' \(str\) \(did you mean 'single_needle'\?\)"),
        # one model needs no list around it, and so no position
        ("synthesize", SynthesizeConfig, "checkpoint=x", r"'checkpoint' .did you mean 'models\.NAME\.checkpoint'"),
        ("synthesize", SynthesizeConfig, "models.generator.0.checkpoint=x", r"key 'models\.generator\.0' .did you mean 'models\.NAME\.checkpoint'"),
        ("synthesize", SynthesizeConfig, "models.generator=[{name: a, checkpoit: x, backend: {kind: transformers}}]", r"did you mean 'models\.generator\.0\.checkpoint'"),
        ("profile", ProfileConfig, "prompts.0.enviroment=x", "did you mean 'prompts.0.environment'"),
        ("profile", ProfileConfig, "prompts=[{name: a, format: question, path: x, grader: m, tempate: x}]", "did you mean 'prompts.0.template'"),
        # the tag of the block is a key beside the unknown one
        ("profile", ProfileConfig, "prompts=[{name: a, format: question, question: q, path: x, grader: m, zzz: 1}]", r"unknown key 'prompts\.0\.zzz'"),
        ("profile", ProfileConfig, "prompts=[{name: a, format: question, question: q, path: x, grader: m, count: x}]", r"'prompts\.0\.count': Input should be a valid integer"),
        ("profile", ProfileConfig, "prompts=[{name: a, format: question, path: x, grader: m, limit: 4}]", r"'prompts\.0\.limit' .did you mean 'prompts\.0\.count'"),
        ("eval", EvalConfig, "limit=4", r"'limit' .did you mean 'prompts\.N\.count'"),
        ("profile", ProfileConfig, "backend.batchsize=3", "did you mean 'backend.batch_size'"),
        ("profile", ProfileConfig, "backend.url=http://h", r"unknown key 'backend.url' .of backend with kind completions or kind chat"),
        # at another depth, and of another stage
        ("build_sft", BuildSftConfig, "pad_token=x", "'pad_token' .did you mean 'tokenizer.pad_token'"),
        ("sft", SftConfig, "learning_rate=1e-4", "'learning_rate' .did you mean 'trainer.learning_rate'"),
        ("sft", SftConfig, "lr=1e-4", "did you mean 'trainer.learning_rate'"),
        ("build_sft", BuildSftConfig, "sources=[{name: a, path: b, weight: 2}]", r"renamed: .sources\.0\.share"),
        ("sft", SftConfig, "model.name=x", r"did you mean .model\.path"),
        ("build_sft", BuildSftConfig, "sources=[{name: a, path: b, wieght: 2}]", r"valid: augment, .*share"),
        ("sft", SftConfig, "learning_rat=1", "did you mean 'trainer.learning_rate'"),
        ("sft", SftConfig, "trainer.bta=1", "trainer.bta is not a field of"),
        ("sft", SftConfig, "trainer.keep_epochs=[1]", "did you mean 'keep_epochs'"),
        ("sft", SftConfig, "trainer.max_length=9", "^tiny/sft: trainer.max_length cannot be set here: set packing.max_length in build_sft$"),
        ("sft", SftConfig, "packing.max_length=9", "'packing' .it is of another stage: 'packing.max_length' of build_sft"),
        ("sft", SftConfig, "trainer.max_steps=many", "trainer.max_steps: takes a whole number, found 'many'"),
        ("sft", SftConfig, "trainer.report_to=trackio", r"trackio: it is not installed: pip install 'posttrain\[trackio\]'"),
        ("sft", SftConfig, "warmup=9", "did you mean 'trainer.warmup_"),
        ("profile", ProfileConfig, "backend={}", "'backend.kind' is required"),
        ("profile", ProfileConfig, "backend.kind=transfomers", "did you mean 'transformers'"),
        ("profile", ProfileConfig, "prompts.0.augment={templates: 5}", "templates': Input should be"),
        ("profile", ProfileConfig, "settings.0.thinking=true", "'settings.0.thinking': Input should be a valid number, or input should be 'both', found True"),
        ("build_sft", BuildSftConfig, "sources=[{name: a, hub: '', split: train}]", "40-digit commit"),
        ("eval", EvalConfig, "checkpoints={path: x, backend: {kind: vllm}}", r"\.kind' .did you mean 'backend.kind'"),
        ("eval", EvalConfig, "checkpoints={a: {pat: x}}", r"'checkpoints\.a\.pat' .did you mean 'checkpoints\.a\.path'"),
        ("profile", ProfileConfig, "backend={kind: chat, model: m, url: 'localhost:80'}", "begins with http"),
        ("profile", ProfileConfig, "backend={kind: chat, model: m, url: 'http://me:pw@h/v1'}", "no user, key or query"),
        ("profile", ProfileConfig, "backend={kind: chat, model: m, url: 'http://h/v1', api_key_env: sk-1234}", "never a key$"),
        # old keys
        ("build_sft", BuildSftConfig, "packing.capacity=1", "renamed: 'packing.max_length'"),
        ("profile", ProfileConfig, "parameters.temperature=1", "renamed: 'sampling'"),
        ("build_dpo", BuildDpoConfig, "categories.given=1", "renamed: 'categories.offline'"),
        ("rlhf", RlhfConfig, "sampling.batch_size=1", "moved: 'rollouts.batch_size'"),
        ("sft", SftConfig, "extends=base.yaml", "'extends' .gone: a recipe is one file"),
        ("eval", EvalConfig, "estimate.tokens_per_second=9", "gone: a dry run measures how fast"),
        ("build_genrm", BuildGenRmConfig, "sources.0.fields={reasoning: r}", "fields.reasoning' .gone"),
        ("build_dpo", BuildDpoConfig, "match_length=true", "'match_length' .gone: pairs are drawn"),
        ("build_sft", BuildSftConfig, "tokenizer.backend=tiktoken", "'tokenizer.backend' .gone: tiktoken is used"),
        ("build_sft", BuildSftConfig, "sources.0.filters={language: {allowed: [en], letters: 9}}", "language.letters' .gone: it is 200"),
        ("dpo", DpoConfig, "loss.kl_weight=0.1", "'loss.kl_weight' .gone: the KL coefficient"),
        ("profile", ProfileConfig, "sampling.logps=true", "'sampling.logps' .gone: no stage reads"),
        ("build_sft", BuildSftConfig, "sources.0.filters={truncated: {tokens: [99], slack: 0.1}}", "slack' .gone: it is 0.01"),
        ("rlhf", RlhfConfig, "loss.importance={product_high: 3}", "'loss.importance.product_high' .gone: .* sequence_limit"),
        ("rlhf", RlhfConfig, "guard={window: 2}", "'guard.window' .gone: it is four"),
        ("synthesize", SynthesizeConfig, "models.generator.thinking=3", "'models.generator.thinking': "),
        ("synthesize", SynthesizeConfig, "checks.planted=-1", "'checks.planted': "),
        ("world", TinyWorldConfig, "tokenizer.vocab_size=400", "'tokenizer' .gone: it is 1,024"),
        ("world", TinyWorldConfig, "families.maths.several_turns=0.2", "several_turns' .gone: it is 0.1"),
        ("judgements", TinyJudgementsConfig, "layout=full", "'layout' .gone: it is compact"),
        ("eval", EvalConfig, "prices={big: {input: 1, output: 2, reasoning: 3}}", "prices.big.reasoning' .gone: reasoning costs"),
        # of another stage, which has it or had it
        ("sft", SftConfig, "chunk=64", "'chunk' .it is of another stage: 'chunk' of eval, eval_genrm, profile_prompts or sample"),
        ("dpo", DpoConfig, "max_length=512", "'max_length' .it is of another stage: 'max_length' of build_dpo"),
        ("sft", SftConfig, "importance.kind=mask", "'importance' .valid: "),
        ("sft", SftConfig, "judge.chunk=64", "'judge' .it is of another stage"),
        ("sft", SftConfig, "limits.min_trained=0.1", "'limits' .valid: "),
        ("sft", SftConfig, "sft=runs/tiny/sft", "'sft' .valid: "),
        ("synthesize", SynthesizeConfig, "chunk=64", "'chunk' .gone: completions of a model"),
        ("rlhf", RlhfConfig, "model={config: {model_type: qwen3}}", "set model.path"),
        # who judges
        ("rlhf", RlhfConfig, "judge.models=[]", "judge.models"),
        ("rlhf", RlhfConfig, "judge.models.0.checkpoint=null", "checkpoint is required"),
        ("rlhf", RlhfConfig, "judge.models=[{backend: {kind: chat, url: 'http://h/v1', model: m}}]", "hides its template"),
        ("rlhf", RlhfConfig, "judge.models=[{backend: {kind: completions, url: 'http://h', model: m}}]", "name backend.tokenizer"),
    ],
)  # fmt: skip
def test_mistakes_in_shipped_recipes_are_named(recipe, schema, override, message):
    with pytest.raises(ConfigError, match=message):
        load_recipe(f"tiny/{recipe}", schema, [override])


def test_null_takes_a_key_back_where_its_field_takes_none(tmp_path):
    text = "learning_rate: 1.0\nsteps: 3\nsources: [{name: a, share: 0.5}]"
    recipe = load(tmp_path, text, "steps=null", "sources.0.share=null", "sources.0.name=b")
    assert (recipe.steps, recipe.sources) == (10, (Source(name="b"),))
    assert load(tmp_path, f"{text}\neither: {{a: 1, b: 2}}", "either.a=null").either == {"b": 2}
    with pytest.raises(ConfigError, match="'learning_rate' is required"):
        load(tmp_path, text, "learning_rate=null")
    with pytest.raises(ConfigError, match="found None"):  # forgotten in a file, not cleared
        load(tmp_path, "learning_rate: 1.0\nsteps:\n")
    with pytest.raises(ConfigError, match=r"'steps'.*found None"):  # a shell's unset variable
        load(tmp_path, text, "steps=")


def test_words_and_nulls_of_the_trainer():
    given = {
        "eval_strategy": "no",
        "save_strategy": "off",
        "bf16": "no",
        "num_train_epochs": "null",
    }
    overrides = [f"trainer.{name}={value}" for name, value in given.items()]
    trainer = load_recipe("tiny/sft", SftConfig, overrides).trainer
    assert [trainer.get(name, "absent") for name in given] == ["no", "no", False, "absent"]


def test_overrides_win_and_a_file_that_is_missing_has_neighbours(tmp_path):
    given = write(tmp_path, "learning_rate: 1.0\nsources: [{name: a}, {name: b}]\n")
    recipe = load_recipe(given, Recipe, ["sources.1.share=0.5", "learning_rate=2.0"])
    assert recipe.learning_rate == 2.0
    assert recipe.sources[1] == Source(name="b", share=0.5)
    with pytest.raises(ConfigError, match=r"holds r\.yaml"):
        load_recipe(tmp_path / "tip.yaml", Recipe)


@pytest.mark.parametrize(
    ("stage", "override", "meant"),
    [
        ("sft", "epochs=3", "trainer.num_train_epochs"),
        ("sft", "checkpoint=runs/a", "model.path"),
        ("eval", "checkpoint=runs/a", "checkpoints.NAME"),
        ("sft", "lora_r=16", "adapter.rank"),
        ("sft", "batch_size=4", "trainer.per_device_train_batch_size"),
        ("dpo", "batch_size=4", "batch"),
        ("sample", "batch_size=4", "backend.batch_size"),
        ("build_sft", "max_seq_length=512", "packing.max_length"),
        ("build_sft", "model_name_or_path=a", "tokenizer.path"),
        ("build_sft", "data=rows.jsonl", "sources.N.path"),
        ("rlvr", "num_rollouts=8", "num_generations"),
    ],
)
def test_words_of_other_trainers_name_the_key_here(stage: str, override: str, meant: str):
    folder = "one-gpu" if stage == "rlvr" else "cpu"
    with pytest.raises(ConfigError, match=rf"\(did you mean '{re.escape(meant)}'\?\)"):
        load_recipe(f"{folder}/{stage}", stage_schemas()[stage], [override])


def test_a_value_in_the_place_of_a_block_or_a_list_names_what_fits():
    with pytest.raises(ConfigError, match=r"'model' is a block of keys, such as 'model\.path'"):
        load_recipe("cpu/sft", stage_schemas()["sft"], ["model=runs/a"])
    with pytest.raises(ConfigError, match=r"'samples' is a list, such as 'samples=\[runs/a\]'"):
        load_recipe("cpu/build_dpo", stage_schemas()["build_dpo"], ["samples=runs/a"])
    with pytest.raises(ConfigError, match="it is a recipe of build_sft"):
        load_recipe("cpu/build_sft", stage_schemas()["sft"])


@pytest.mark.parametrize(
    ("text", "value"),
    [("010", 10), ("12:30", "12:30"), ("1_000", 1000), ("-5", -5), ("0x1F", 31), ("0o17", "0o17")],
)
def test_whole_numbers_are_decimal_or_hexadecimal(text: str, value: object):
    read = parse_value(text)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    "text", ["0123456789", "1e5", "5e-5", "010", "12:30", "0x1F", "true", "", "a: b"]
)
def test_a_text_that_looks_like_a_number_is_written_so_that_it_stays_one(text: str):
    assert parse_value(recipe_text({"revision": text, "steps": 10})) == {
        "revision": text,
        "steps": 10,
    }
