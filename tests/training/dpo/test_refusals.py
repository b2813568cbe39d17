"""What cannot be trained is refused while the recipe resolves, by name and with a way out."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from posttrain.config.dpo import DpoConfig
from posttrain.config.load import validate
from posttrain.config.sft import ModelConfig
from posttrain.errors import ConfigError, DataError
from posttrain.records import Side, pair_to_row
from posttrain.runs import Counts, Manifest, Run, read_artifact
from posttrain.training.dpo.data import choose_layout, load_pairs, probe_layout
from posttrain.training.dpo.reference import initial_weights
from posttrain.training.dpo.stage import (
    DpoStage,
    accumulation,
    dpo_arguments,
    fitting_settings,
)
from posttrain.training.dpo.trainer import pair_order
from posttrain.training.plan import check_batch, check_enough
from tests.training.dpo.pairs import make_pairs, write_pairs
from tests.training.dpo.recipe import finish, make_recipe, raw_recipe, start
from tests.training.tiny import attention_model, hybrid_model


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write_pairs(tmp_path / "data", make_pairs(8))


@pytest.fixture
def recipe(small: Path, policy: Path, tmp_path: Path):
    def make(trainer=None, **keys) -> DpoConfig:
        return make_recipe(small, policy, tmp_path / "out", trainer, **keys)

    return make


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"trainer": {"beta": 0.1}}, "beta cannot be set here: set loss:"),
        ({"trainer": {"gradient_accumulation_steps": 4}}, "set batch:"),
        ({"trainer": {"num_train_epochs": 1}}, "set max_steps"),
        ({"model": {"config": {"model_type": "llama"}}}, "training starts from a policy"),
        ({"adapter": {"dropout": 0.1}}, "adapter.dropout must be 0"),
    ],
)
def test_recipes_that_cannot_mean_anything(small, policy, tmp_path, keys, message):
    raw = raw_recipe(small, policy, tmp_path / "out") | keys
    with pytest.raises(ConfigError, match=message):
        validate(raw, DpoConfig, where="test")


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        ({"max_steps": -1}, "counted in steps"),
        ({"save_strategy": "epoch"}, "set steps"),
        ({"per_device_train_batch_size": 3}, "may be 1, 2, 4, 8"),
    ],
)
def test_trainer_fields_are_checked(recipe, trainer, message):
    with pytest.raises(ConfigError, match=message):
        dpo_arguments(recipe(trainer), out=Path("x"), env={})


def test_defaults_are_the_papers(small, policy, tmp_path):
    raw = {"data": str(small), "out": "x", "model": {"path": str(policy)}}
    recipe = validate(raw, DpoConfig, where="test")
    args = dpo_arguments(recipe, out=tmp_path, env={"WORLD_SIZE": "2"})
    assert (args.learning_rate, args.max_steps, recipe.batch) == (3e-6, 50, 128)
    assert (args.beta, args.loss_type, args.loss_weights) == (0.05, ["sigmoid", "sft"], [1.0, 0.2])
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps * 2 == 128
    # ours: a run of fifty steps has one resume checkpoint, and a row for every step
    assert (args.save_strategy, args.save_steps, args.logging_steps) == ("steps", 25, 1)


def test_more_steps_than_pairs_say_what_would_do(recipe):
    with pytest.raises(ConfigError, match=r"draw 24; there are 8 .*give 24 pairs.*max_epochs: 3"):
        start(recipe())
    check_enough(8, name="pairs", batch=8, batches=3, max_epochs=3)
    with pytest.raises(ConfigError, match="max_steps: 2"):
        check_enough(8, name="pairs", batch=8, batches=3, max_epochs=2)
    assert accumulation(128, 8, 2) == 8
    with pytest.raises(ConfigError, match="batch must be a multiple of 3"):
        accumulation(128, 1, 3)
    with pytest.raises(ConfigError, match="has 8 pairs, this launch makes it 4"):
        check_batch(SimpleNamespace(global_batch=4), 8, name="pairs")


def test_too_few_pairs_are_told_overrides_that_train(recipe):
    with pytest.raises(ConfigError) as refused:
        start(recipe({"warmup_steps": 5, "max_steps": 50}))
    assert "take batches of at most" not in str(refused.value)
    _, _, command = str(refused.value).partition("add to the command: ")
    given = dict(part.split("=") for part in command.split())
    trainer = {
        key.removeprefix("trainer."): int(value) for key, value in given.items() if key != "batch"
    }
    fitted = recipe(trainer | {"learning_rate": 1e-4})
    start(fitted.model_copy(update={"batch": int(given["batch"])}))


@pytest.mark.parametrize("draws", [*range(1, 40), 1000])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_fitting_settings_divide_and_stay_within_the_pairs(draws: int, processes: int):
    settings = fitting_settings(draws, batch=24, processes=processes, micro=4, warmup=5)
    if settings is None:
        assert draws < processes
        return
    batch = settings["batch"]
    assert batch <= max(24, processes)
    assert batch * settings["trainer.max_steps"] <= draws
    assert settings["trainer.warmup_steps"] < settings["trainer.max_steps"]
    assert accumulation(batch, settings["trainer.per_device_train_batch_size"], processes) >= 1


def test_few_pairs_are_taken_as_they_are_where_the_recipe_says_so(small, policy, tmp_path):
    """8 pairs × 2 epochs, of the 400 that the recipe draws: two pairs a step for 8 steps."""
    trainer = {"max_steps": 50, "warmup_steps": 5, "per_device_train_batch_size": 4}

    def run_recipe(few_pairs: str, **keys) -> DpoConfig:
        out = tmp_path / "fitted"
        return make_recipe(small, policy, out, trainer, few_pairs=few_pairs, max_epochs=2, **keys)

    with pytest.raises(ConfigError, match=r"add to the command: batch=2 trainer\.max_steps=8"):
        start(run_recipe("refuse"))
    out = finish(run_recipe("fit"))
    manifest = read_artifact(out)
    assert manifest.stats["steps"] == 8
    assert manifest.config["batch"] == 2
    assert "batch 8 → 2, trainer.max_steps 50 → 8" in manifest.stats["fitted_to_pairs"]
    assert "batch 8 → 2" in (out / "report.html").read_text()
    # what was fitted names the run: the same settings, typed, are the same run
    typed = run_recipe("refuse", batch=2)
    typed.trainer.update(max_steps=8, warmup_steps=0, per_device_train_batch_size=2)
    assert DpoStage(typed).identity() == DpoStage(run_recipe("fit")).identity()


def test_a_recipe_that_the_pairs_fill_is_not_fitted(recipe):
    filled = recipe({"max_steps": 1}, few_pairs="fit")
    stage = DpoStage(filled)
    assert stage.recipe == filled
    assert "fitted_to_pairs" not in stage.prepare().preflight.stats


def test_every_step_is_full_and_every_pair_comes_before_any_comes_again():
    lengths = [10, 50, 30, 40, 20]
    order = pair_order(lengths=lengths, batch=2, steps=5, seed=3)
    assert len(order) == 10
    assert all(order.count(row) == 2 for row in range(5))
    steps = [order[i : i + 2] for i in range(0, 10, 2)]
    assert len({row for step in steps[:2] for row in step}) == 4
    assert all(lengths[a] >= lengths[b] for a, b in steps)
    assert order != pair_order(lengths=lengths, batch=2, steps=5, seed=4)


def test_a_pair_longer_than_the_model_is_named(recipe, tmp_path, policy):
    long = Side(ids=(5,) * 300, mask=(True,) * 300, text="")
    pairs = [*make_pairs(8), replace(make_pairs(1)[0], id="the-long-one", chosen=long)]
    data = write_pairs(tmp_path / "long", pairs)
    with pytest.raises(DataError, match=r"'the-long-one'.*positions for 256.*max_length: 256"):
        start(make_recipe(data, policy, tmp_path / "o", {"max_steps": 1}))


def test_pairs_of_another_tokenizer(tmp_path, policy):
    strange = replace(make_pairs(1)[0], prompt_ids=(5, 64))
    data = write_pairs(tmp_path / "strange", [*make_pairs(8), strange])
    with pytest.raises(DataError, match=r"ids 1…64 .*rows 0…63"):
        start(make_recipe(data, policy, tmp_path / "o", {"max_steps": 1}))


def test_a_policy_trained_with_another_template(tmp_path):
    policy = tmp_path / "policy"
    stage = Run.open(policy, kind="checkpoint", config={})
    attention_model().save_pretrained(policy)
    files = {p.name: None for p in policy.iterdir() if p.name != "stage.json"}
    stage.finish(counts=Counts(0, 0), files=files, template_digest="a" * 64)
    for digit in "0b":
        other = write_pairs(tmp_path / digit, make_pairs(8), template=digit * 64)
        with pytest.raises(ConfigError, match="policy was trained with aaaaaaaaaaaa"):
            start(make_recipe(other, policy, tmp_path / "o", {"max_steps": 1}))
    same = write_pairs(tmp_path / "same", make_pairs(8), template="a" * 64)
    start(make_recipe(same, policy, tmp_path / "o", {"max_steps": 1}))


def test_layouts_that_a_model_would_not_honour():
    with pytest.raises(ConfigError, match="recurrent layers"):
        choose_layout("shared_prompt", hybrid_model(), longest=10)
    assert choose_layout("auto", hybrid_model(), longest=10) == "unpacked"
    assert choose_layout("auto", attention_model(), longest=10) == "shared_prompt"
    assert choose_layout("auto", attention_model(), longest=10_000) == "unpacked"
    eager = attention_model()
    eager.set_attn_implementation("eager")
    with pytest.raises(ConfigError, match="needs sdpa, not eager"):
        choose_layout("shared_prompt", eager, longest=10)
    windowed = attention_model()
    windowed.config.sliding_window = 64
    assert choose_layout("auto", windowed, longest=10) == "unpacked"
    by_distance = attention_model()
    by_distance.config.alibi = True
    assert choose_layout("auto", by_distance, longest=10) == "unpacked"


def test_a_layout_that_scores_otherwise_than_alone_is_refused(recipe, tmp_path):
    trainer = start(recipe({"max_steps": 1})).trainer

    def leaking(batch):
        scored = trainer.probe(batch)
        together = len(batch["row"]) > 1
        return replace(scored, chosen=scored.chosen + 0.1) if together else scored

    probe_layout(trainer.probe, trainer.pairs, "shared_prompt", pad_id=0, dtype="float32")
    with pytest.raises(ConfigError, match="Set layout: unpacked"):
        probe_layout(leaking, trainer.pairs, "shared_prompt", pad_id=0, dtype="float32")


BROKEN = {
    "chosen_ids and chosen_mask differ": {"chosen_mask": [True]},
    "rejected_mask trains no token": {"rejected_ids": [5, 6], "rejected_mask": [False, False]},
    "its prompt is empty": {"prompt_ids": []},
    "category is none of": {"category": "no_tool"},
}


@pytest.mark.parametrize("message", BROKEN)
def test_broken_pairs_are_named(tmp_path, message):
    rows = [pair_to_row(pair) for pair in make_pairs(5)]
    rows[3] |= BROKEN[message]
    data = write_pairs(tmp_path / "broken", [], rows=rows, shards=1)
    with pytest.raises(DataError, match=f"'pair-3': {message}"):
        load_pairs(data)


def test_no_pairs_and_missing_columns(tmp_path):
    with pytest.raises(DataError, match="has no pairs"):
        load_pairs(write_pairs(tmp_path / "empty", []))
    rows = [pair_to_row(pair) for pair in make_pairs(2)]
    for row in rows:
        del row["rejected_mask"]
    with pytest.raises(DataError, match="no column 'rejected_mask'"):
        load_pairs(write_pairs(tmp_path / "short", [], rows=rows))


def test_a_stale_or_changed_reference_is_refused(recipe, tmp_path):
    cache = tmp_path / "cache"
    keys = {"trainer": {"max_steps": 1}, "reference_cache": str(cache)}
    out = finish(recipe(**keys))
    (file,) = cache.rglob("*.safetensors")
    whole = file.read_bytes()
    again = start(recipe(**keys, seed=1))
    assert again.trainer.store.missing() == []
    assert again.trainer.store.load().chosen.max() < 0

    file.write_bytes(whole[:-8] + bytes(8))
    with pytest.raises(DataError, match="has changed since it was written"):
        again.trainer.store.load()
    file.write_bytes(whole[:100])
    with pytest.raises(DataError, match="cannot be read"):
        again.trainer.store.load()

    # other weights have another key, and so another folder; a file moved there gives itself away
    moved = make_recipe(Path(recipe(**keys).data), out, tmp_path / "other", **keys)
    other = start(moved).trainer.store
    assert other.missing() == [0]
    other.path.mkdir()
    (other.path / file.name).write_bytes(whole)
    with pytest.raises(DataError, match="belongs to another model"):
        other.load()


def test_what_the_reference_depends_on(recipe, small, tmp_path):
    def key(**keys) -> str:
        return start(recipe({"max_steps": 1}, **keys)).trainer.store.key.digest

    plain = key()
    assert key(seed=1, layout="unpacked", adapter={"rank": 2}) == plain
    half = start(recipe({"max_steps": 1, "bf16": True})).trainer.store.key
    assert half.dtype == "float32, bfloat16 autocast"


def test_weights_are_known_by_the_models_own_files(tmp_path: Path):
    """An adapter beside a model, a kept epoch and a page change no log-probability."""
    model = tmp_path / "model"
    attention_model().save_pretrained(model)
    digest = initial_weights(ModelConfig(path=str(model)), None)
    (model / "adapter").mkdir()
    (model / "adapter" / "adapter_model.safetensors").write_bytes(b"adapter")
    (model / "README.md").write_text("a page")
    (model / "log.txt").write_text("a log")
    assert initial_weights(ModelConfig(path=str(model)), None) == digest
    (model / "config.json").write_text("{}")
    assert initial_weights(ModelConfig(path=str(model)), None) != digest

    def manifest(*paths: str) -> Manifest:
        files = dict.fromkeys(paths)
        stage = Run.open(tmp_path / "run", kind="checkpoint", config={"files": paths})
        for path in paths:
            (tmp_path / "run" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "run" / path).write_text(path)
        stage.finish(counts=Counts(0, 0), files=files)
        written = read_artifact(tmp_path / "run")
        shutil.rmtree(tmp_path / "run")
        return written

    artifact = ModelConfig(path=str(tmp_path / "run"))
    plain = initial_weights(artifact, manifest("model.safetensors"))
    kept_epoch = "checkpoint-epoch-1/model.safetensors"
    assert plain == initial_weights(artifact, manifest("model.safetensors", kept_epoch, "log.txt"))
    assert plain != initial_weights(artifact, manifest("model.safetensors", "config.json"))


def test_a_lost_reference_cannot_be_had_from_a_trained_policy(recipe):
    prepared = start(recipe({"max_steps": 1}))
    prepared.trainer.state.global_step = 5
    with pytest.raises(DataError, match=r"trained for 5 steps: the reference is gone"):
        prepared.trainer.load_reference(prepared.trainer.model)


def test_another_loss_in_the_same_directory_is_refused(recipe, tmp_path):
    DpoStage(recipe()).open()
    DpoStage(recipe(reference_cache=str(tmp_path / "elsewhere"))).open()
    with pytest.raises(ConfigError, match=r"another config.*loss\.sft_form"):
        DpoStage(recipe(loss={"sft_form": "mean"})).open()


def test_pairs_know_which_tokens_they_hold(small):
    pairs = load_pairs(small)
    held = {*pairs.data["prompt_ids"][0], *pairs.data["rejected_ids"][5]}
    assert all(pairs.contains(token) for token in held)
    assert not pairs.contains(45)  # a hole of the id space
