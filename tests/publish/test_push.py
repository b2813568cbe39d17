"""A checkpoint goes to the hub as it is, with a card that invents nothing; all else stays here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import ModelCard, constants
from huggingface_hub.utils._runtime import is_xet_available
from safetensors.numpy import save_file

from posttrain.errors import ConfigError, DataError
from posttrain.publish.card import CARD
from posttrain.publish.hub import push, upload_plan
from scripts.push import main
from tests.publish.stand_in import TOKEN, StandIn
from tests.publish.writers import write_checkpoint, write_evaluation, write_manifest_again

REPO = "acme/tiny"
SCRIPTS = Path(__file__).parents[2] / "scripts"
FILES = {
    "README.md", "chat_template.jinja", "config.json", "generation_config.json", "log.jsonl",
    "model.safetensors", "posttrain.json", "tokenizer.json", "tokenizer_config.json",
}  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("runs") / "sft")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch):
    with StandIn() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # the stand-in speaks LFS
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(time, "sleep", lambda _: None)  # the client waits before it tries again
        yield hub


def test_files_arrive_byte_equal_in_a_private_repository(hub: StandIn, checkpoint: Path, capsys):
    main([str(checkpoint), REPO])
    assert hub.private[REPO]
    assert set(hub.files[REPO]) == FILES
    for name in FILES - {"README.md", "posttrain.json"}:
        assert hub.files[REPO][name] == (checkpoint / name).read_bytes(), name
    assert hub.large[REPO] == {"model.safetensors"}
    assert TOKEN not in capsys.readouterr().out
    assert all(TOKEN.encode() not in data for data in hub.files[REPO].values())
    main([str(checkpoint), "acme/open", "--public"])
    assert not hub.private["acme/open"]


def test_a_failed_transfer_is_tried_again_and_a_failed_push_goes_on(hub, checkpoint):
    hub.broken, hub.refuse_commits = 2, 1
    with pytest.raises(ConfigError, match="disk is full"):
        main([str(checkpoint), REPO])
    assert hub.transfers == 3
    assert hub.files[REPO] == {}
    main([str(checkpoint), REPO])
    assert hub.transfers == 3  # the weights lay there already
    assert set(hub.files[REPO]) == FILES


def test_no_empty_repository_stays_where_the_card_is_refused(hub, checkpoint):
    hub.refuse_cards = True
    with pytest.raises(ConfigError, match="no head"):
        main([str(checkpoint), REPO])
    assert hub.files == {}


def test_as_installed_the_client_sends_weights_by_the_protocol_that_is_tested(hub, checkpoint):
    """With the client's own settings, and the Xet library beside it: the stand-in knows LFS alone."""
    assert is_xet_available() or constants.HF_HUB_DISABLE_XET
    names = ("HF_HUB_DISABLE_XET", "HF_HUB_OFFLINE")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, str(SCRIPTS), "push", str(checkpoint), REPO],
        env=environment | {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert hub.large[REPO] == {"model.safetensors"}


def test_an_existing_repository_is_added_to_and_named(hub, checkpoint, capsys):
    hub.hold(REPO, **{"notes.txt": b"mine", "config.json": b"old"})
    main([str(checkpoint), REPO])
    assert hub.files[REPO]["notes.txt"] == b"mine"
    assert hub.files[REPO]["config.json"] == (checkpoint / "config.json").read_bytes()
    assert "notes.txt" in capsys.readouterr().out
    main([str(checkpoint), REPO, "--public"])
    assert "stays private" in capsys.readouterr().out
    assert hub.private[REPO]


def test_what_may_not_be_pushed_changes_nothing(hub, checkpoint, monkeypatch):
    hub.hold("acme/open", private=False, **{"config.json": b"old"})
    with pytest.raises(ConfigError, match="is public"):
        main([str(checkpoint), "acme/open"])
    assert hub.files["acme/open"] == {"config.json": b"old"}
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(ConfigError) as refused:
        main([str(checkpoint), REPO])
    assert "hf_wrong" not in str(refused.value)
    assert REPO not in hub.files


def test_no_network_and_other_bytes_on_the_hub_are_named(hub, checkpoint, monkeypatch):
    hub.keep_wrong = True
    with pytest.raises(ConfigError, match=r"config\.json"):
        main([str(checkpoint), REPO])
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    with pytest.raises(ConfigError, match="rerun the same command to resume"):
        main([str(checkpoint), REPO])


def test_a_dry_run_uses_no_network_and_lists_everything(checkpoint, capsys):
    # the suite runs offline: a request would raise
    main([str(checkpoint), REPO, "--dry-run"])
    out = capsys.readouterr().out
    assert all(name in out for name in FILES)
    assert f"{(checkpoint / 'model.safetensors').stat().st_size:,}" in out
    for left in ("rollouts/", "adapter/", "optimizer.pt", "report.html", "resume"):
        line = next(line for line in out.splitlines() if left in line)
        assert "left out" in line
    assert "checkpoint-epoch-1/: another epoch of the same run" in out
    assert "vllm serve acme/tiny --reasoning-parser nemotron_v3" in out


def test_nothing_unfinished_changed_or_foreign_is_read(tmp_path, checkpoint):
    with pytest.raises(DataError, match="manifest"):
        upload_plan(tmp_path, REPO)
    changed = write_checkpoint(tmp_path / "changed")
    (changed / "config.json").write_text("{}")
    with pytest.raises(DataError, match="has changed"):
        upload_plan(changed, REPO)
    for name in ("tiny", "a//b"):
        with pytest.raises(ConfigError, match=r"name|ORG"):
            upload_plan(checkpoint, name)
    pickled = write_checkpoint(tmp_path / "pickled", weights="pytorch_model.bin")
    with pytest.raises(ConfigError, match="safetensors"):
        upload_plan(pickled, REPO)


@pytest.mark.parametrize("path", ["/home" + "/ann/models/x", r"C:\Users\ann\x", "/root" + "/x"])
def test_no_path_of_this_machine_is_published(tmp_path, path):
    recipe = {"model": {"path": path}, "note": f"cached in {path}"}
    folder = write_checkpoint(tmp_path / "own", config=recipe)
    public = upload_plan(folder, REPO).files["posttrain.json"]
    assert isinstance(public, bytes)
    assert not {"ann", "root"} & {*re.findall(r"\w+", public.decode())}
    body = json.loads(public)
    assert body["digest"] == json.loads((folder / "manifest.json").read_text())["digest"]
    assert {entry["path"] for entry in body["files"]} == FILES - {"README.md", "posttrain.json"}
    with (folder / CARD).open("a") as card:
        card.write(f"\ntrained from {path}\n")
    with pytest.raises(ConfigError, match=r"README\.md, line \d+"):
        upload_plan(folder, REPO)


SECRETS = [
    "hf_" + "a1" * 17, "sk-proj-" + "aB3-" * 10, "AKIA" + "Q7" * 8,
    "-----BEGIN OPENSSH " + "PRIVATE KEY-----", "postgres://ann:hunter2@db/x",
]  # fmt: skip


def test_no_secret_is_published(tmp_path):
    folder = write_checkpoint(tmp_path / "card")
    text = (folder / CARD).read_text()
    for secret in SECRETS:
        (folder / CARD).write_text(f"{text}\n{secret}\n")
        with pytest.raises(ConfigError, match=rf"{CARD}, line \d+: .*secret") as refused:
            upload_plan(folder, REPO)
        assert secret not in str(refused.value)
    harmless = "hf_hub, sk-learn-compatible-estimators-of-a-kind, https://host:8000/v1, ann@host"
    (folder / CARD).write_text(f"{text}\n{harmless}\n")
    upload_plan(folder, REPO)
    recipe = write_checkpoint(tmp_path / "recipe", config={"note": f"by {SECRETS[0]}"})
    with pytest.raises(ConfigError, match=r"posttrain\.json, line \d+: .*secret"):
        upload_plan(recipe, REPO)


HIDING = {
    "tokenizer.json": lambda text: json.dumps({"added_tokens": [{"id": 3, "content": text}]}),
    "tokenizer_config.json": lambda text: json.dumps({"name_or_path": text}),
    "vocab.json": lambda text: json.dumps({"a": 0, text: 1}),
    "merges.txt": lambda text: f"#version\n{text}\n",
    "tokenizer.model": lambda text: f"\0\1{text}\2",
    "model.safetensors.index.json": lambda text: json.dumps({"metadata": {"from": text}}),
    "log.jsonl": lambda text: json.dumps({"note": text}) + "\n",
}


@pytest.mark.parametrize("name", [*HIDING, "model.safetensors"])
def test_every_file_that_is_sent_is_looked_through(tmp_path: Path, name: str):
    for number, text in enumerate((SECRETS[0], str(tmp_path / "own1"))):
        folder = write_checkpoint(tmp_path / f"own{number}", extra={name: ""})
        if name == "model.safetensors":
            save_file({"w": np.zeros(2, np.float32)}, folder / name, metadata={"from": text})
        else:
            (folder / name).write_text(HIDING[name](text))
        write_manifest_again(folder)
        with pytest.raises(ConfigError, match=re.escape(str(folder / name))):
            upload_plan(folder, REPO)
    harmless = write_checkpoint(tmp_path / "harmless", extra={"vocab.json": ""})
    (harmless / "vocab.json").write_text('{"://": 3, "x@": 4, "/home' + '/x": 5, "sk-": 6}')
    write_manifest_again(harmless)
    assert "vocab.json" in upload_plan(harmless, REPO).files


def test_a_file_that_changes_behind_the_check_is_not_sent(hub: StandIn, tmp_path: Path):
    folder = write_checkpoint(tmp_path / "own")
    plan = upload_plan(folder, REPO)
    (folder / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"config\.json has changed since it was checked"):
        push(plan, private=True)
    assert REPO not in hub.files


def test_an_edited_card_is_no_changed_file_even_where_a_manifest_lists_it(tmp_path: Path):
    folder = write_checkpoint(tmp_path / "own", extra={CARD: ""})
    (folder / CARD).write_text("---\nlicense: mit\n---\n# Ours\n")
    assert "# Ours" in upload_plan(folder, REPO).card
    (folder / "config.json").write_text("{}")
    with pytest.raises(DataError, match=r"config\.json has changed"):
        upload_plan(folder, REPO)


def card_of(folder: Path, *evaluations: Path) -> ModelCard:
    return ModelCard(upload_plan(folder, REPO, evaluations=evaluations).card)


def test_figures_come_from_evaluations_of_these_very_weights(tmp_path, checkpoint):
    digest = json.loads((checkpoint / "manifest.json").read_text())["digest"]
    own = write_evaluation(tmp_path / "eval", weights={"sft": "0" * 64, "dpo": digest})
    card = card_of(checkpoint, own)
    results: list[Any] = card.data.eval_results
    assert [(r.dataset_name, r.metric_type, r.metric_value) for r in results] == [
        ("maths", "accuracy", 0.61), ("logs", "accuracy", 0.25)
    ]  # fmt: skip
    assert results[0].dataset_args == {"questions": 40, "samples": 80}
    assert (
        "| maths | no_tools | on | 40 | 3 | 61.0% (50.0% to 70.0%) | 2.0% (1.0% to 3.0%)"
        in card.text
    )
    assert card_of(checkpoint).data.eval_results is None
    # the card of an earlier push is taken up again: same files, so same digest
    again = write_checkpoint(tmp_path / "again")
    (again / CARD).write_text(str(card))
    assert str(card_of(again, own)) == str(card)
    other = write_evaluation(tmp_path / "other", weights={"dpo": "1" * 64})
    with pytest.raises(DataError, match="did not evaluate"):
        card_of(checkpoint, other)


def test_an_owner_may_edit_the_card_and_state_the_license(tmp_path, capsys):
    folder = write_checkpoint(tmp_path / "edited")
    text = (folder / CARD).read_text()
    (folder / CARD).write_text(text.replace("# SFT checkpoint", "# Our model\n\nFor sums."))
    main([str(folder), REPO, "--dry-run", "--license", "MIT"])
    out = capsys.readouterr().out
    assert "# Our model" in out
    assert "license: mit" in out
    assert "license: unknown" not in out
    main([str(folder), REPO, "--dry-run", "--license", "Acme 1.0"])
    assert "license_name: acme 1.0" in capsys.readouterr().out
    for card in (
        b"no head",
        b"---\na: [\n---\n",
        b"---\na: !x y\n---\n",
        b"---\na: \xe9: [\n---\n",
    ):
        (folder / CARD).write_bytes(card)
        with pytest.raises(DataError, match="front matter"):
            upload_plan(folder, REPO)
