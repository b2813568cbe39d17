"""`posttrain sft --model M --data D`: from names to a checkpoint, with recipes to keep."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from posttrain.config.load import read_recipe
from posttrain.errors import ConfigError, PosttrainError
from posttrain.one_line import default_output, rows_of
from posttrain.runs import read_artifact
from scripts.__main__ import dispatch
from tests.docs.test_own_model import write_model
from tests.sampling.small_models import byte_tokenizer
from tests.scripts.forked_stage import fork_stages

COMMIT = "0123456789" * 4
ON_CPU = ["trainer.bf16=false", "trainer.max_steps=2", "trainer.warmup_steps=0"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with rows and a model that knows reasoning and tools."""
    monkeypatch.chdir(tmp_path)
    rows = [
        {"messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": "7"}]}
        for i in range(60)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_model(tmp_path / "model", byte_tokenizer())
    return tmp_path


def put_in_cache(model: Path, cache: Path) -> None:
    """The model as the hub's client leaves one that it has fetched."""
    repository = cache / "models--org--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text(COMMIT)
    shutil.copytree(model, repository / "snapshots" / COMMIT)


def test_a_hub_model_and_a_file_become_a_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """The commit that main is at is pinned, loaded, printed and kept; no network is asked."""
    put_in_cache(folder / "model", folder / "cache")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_CACHE", str(folder / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    fork_stages(monkeypatch)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    names = ["--model", "org/tiny", "--data", "rows.jsonl", "--output", "runs/mine"]
    dispatch(["sft", *names, "build_sft.packing.max_length=256", *ON_CPU])
    printed = capfd.readouterr().out
    # -- the recipes are there, each with its command, and say what was run
    build, train = (read_recipe(f"runs/mine/{stage}.yaml") for stage in ("build_sft", "sft"))
    assert build["tokenizer"] == {"path": "org/tiny", "revision": COMMIT}
    assert build["packing"] == {"max_length": 256}
    assert train["model"] == {"path": "org/tiny", "revision": COMMIT}
    assert train["trainer"]["max_steps"] == 2
    for stage in ("build_sft", "sft"):
        text = Path(f"runs/mine/{stage}.yaml").read_text()
        assert text in printed
        assert f"\n# posttrain {stage} --config runs/mine/{stage}.yaml\n" in text
    # -- the plan is shown, the commit said and kept
    assert "steps" in printed
    assert f"org/tiny at commit {COMMIT}" in printed
    data = read_artifact("runs/mine/sft_data")
    checkpoint = read_artifact("runs/mine/sft", kind="checkpoint")
    assert data.stats["tokenizer"]["commit"] == COMMIT
    assert checkpoint.stats["base_commit"] == COMMIT
    assert checkpoint.parents[0].digest == data.digest
    card = Path("runs/mine/sft/README.md").read_text()
    assert f"Base: org/tiny at commit {COMMIT[:12]}" in card


def test_what_the_builder_refuses_is_its_own_error_and_leaves_nothing(folder: Path, capfd):
    (folder / "rows.jsonl").write_text('{"foo": 1, "bar": "x"}\n' * 20)
    with pytest.raises(PosttrainError, match=r"stage build_sft .*stopped") as stopped:
        dispatch(["sft", "--model", "model", "--data", "rows.jsonl", "--output", "runs/mine"])
    printed = "".join(capfd.readouterr())
    assert "Rerun the same command to resume" in str(stopped.value)
    assert "such as build_sft.sources.0.fields.prompt=question." in str(stopped.value)
    assert "not any known dialect" in " ".join(printed.split())
    assert not Path("runs/mine").exists()


def test_a_dry_run_shows_recipe_and_plan_and_writes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    fork_stages(monkeypatch)
    dispatch(["sft", "--model", "model", "--data", "rows.jsonl", "--dry-run"])
    printed = capfd.readouterr().out
    assert "# posttrain build_sft --config runs/model-rows/build_sft.yaml" in printed
    assert "packs of 512" in printed
    assert not Path("runs").exists()


def test_a_recipe_that_was_edited_is_not_overwritten(folder: Path):
    Path("runs/mine").mkdir(parents=True)
    edited = Path("runs/mine/build_sft.yaml")
    edited.write_text(yaml.safe_dump({"out": "elsewhere"}))
    with pytest.raises(ConfigError, match=r"posttrain build_sft --config runs/mine/build_sft.yaml"):
        dispatch(["sft", "--model", "model", "--data", "rows.jsonl", "--output", "runs/mine"])
    assert edited.read_text() == "out: elsewhere\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "model"], "give --model and --data together"),
        (["--model", "model", "--data", "rows.jsonl", "--config", "cpu/sft"], "together, or a"),
        (["--model", "model", "--data", "row.jsonl"], "--data: there is no file .*'row.jsonl'"),
        (["--model", "./modle", "--data", "rows.jsonl"], "--model: there is no directory"),
        (["--model", "model", "--data", "rows.jsonl", "trainer.max_step=2"], "trainer.max_steps"),
        (["--model", "model", "--data", "rows.jsonl", "packing.max_length=9"], "of build_sft"),
        (["--model", "model", "--data", "rows.jsonl", "--epochs", "3"], "num_train_epochs"),
    ],
)
def test_mistakes_are_found_before_anything_is_built(
    folder: Path, arguments: list[str], message: str
):
    with pytest.raises(ConfigError, match=message):
        dispatch(["sft", *arguments])
    assert not Path("runs").exists()


def test_rows_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch):
    assert rows_of("rows.jsonl") == {"path": "rows.jsonl"}
    assert rows_of("*.jsonl") == {"path": "*.jsonl"}
    (folder / "many/inner").mkdir(parents=True)
    with pytest.raises(ConfigError, match="--data: many holds none of"):
        rows_of("many")
    (folder / "many/inner/a.parquet").touch()
    assert rows_of("many") == {"path": ["many/**/*.parquet"]}

    class Api:
        def repo_info(self, hub_id: str, *, repo_type: str) -> Api:
            assert (hub_id, repo_type) == ("org/rows", "dataset")
            return self

        sha = COMMIT

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    monkeypatch.setenv("HF_HUB_CACHE", str(folder / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match=r"--data: .*HF_HUB_OFFLINE is set: .* a local path"):
        rows_of("org/rows")
    (folder / "cache/datasets--org--rows/snapshots").mkdir(parents=True)
    assert rows_of("org/rows") == {"hub": "org/rows", "revision": COMMIT, "split": "train"}
    assert default_output("Qwen/Qwen3-0.6B", "data/*.jsonl") == "runs/Qwen3-0.6B"
