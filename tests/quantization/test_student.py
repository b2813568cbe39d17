"""Distillation of a student that rounds: its step, by plain transformers, and what it saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

pytest.importorskip("modelopt", reason="needs the extra `quantize` (nvidia-modelopt)")

from modelopt.torch.quantization.nn import TensorQuantizer  # pyright: ignore[reportMissingImports]

from posttrain.config.quantize import QuantizeConfig
from posttrain.errors import ConfigError, TrainingError
from posttrain.models.load import load_pretrained
from posttrain.models.simulated import is_simulated, round_to_nvfp4
from posttrain.quantization.student import QuantisedStudent, RoundedWeights, open_student
from posttrain.runs import read_artifact
from tests.quantization.test_quantize import quantize, rounded
from tests.training.rl.distilling import (
    Keeping,
    distil,
    make_recipe,
    mean_reverse_kl,
    write_teacher,
)
from tests.training.rl.policy import write_policy
from tests.training.tiny import log_rows, write_artifact

SGD = {"max_steps": 1, "learning_rate": 1.0, "optim": "sgd", "max_grad_norm": 0.0}
SGD |= {"weight_decay": 0.0, "per_device_train_batch_size": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of both kinds, each quantised to both formats with one unit kept."""
    folder = tmp_path_factory.mktemp("student")
    write_artifact(folder / "data")
    for kind in ("attention", "hybrid"):
        write_policy(folder / kind, kind)
        for name in ("fp8", "nvfp4"):
            paths = {"checkpoint": f"{folder / kind}", "data": f"{folder / 'data'}"}
            keys: Any = {"format": name, "keep": ("mlp.*",), "samples": 12, "measured": 2}
            out = f"{folder / kind}_{name}"
            quantize(QuantizeConfig(out=out, measured_parts=2, **paths, **keys))
    return folder


def run(
    folder: Path,
    out: Path,
    kind: str,
    name: str,
    trainer: dict[str, Any],
    *,
    second: Path | None = None,
    objective: str = "full",
) -> tuple[Path, Keeping]:
    """A run whose teacher is the source, or another one in the second domain."""
    source = folder / kind
    simulate = f"{source}_{name}"
    recipe = make_recipe(source, out, trainer, objective=objective, simulate=simulate)
    student = open_student(simulate, student=f"{source}", out=out)
    return distil(recipe, {"first": source, "second": second or source}, simulation=student)


@pytest.mark.parametrize("name", ["fp8", "nvfp4"])
@pytest.mark.parametrize("kind", ["attention", "hybrid"])
def test_a_step_is_that_of_the_reverse_kl_at_the_rounded_weights(
    folder: Path, tmp_path: Path, kind: str, name: str
):
    """The loss is the KL of the quantised checkpoint from the teacher, one of which is its source,
    and the source's weights are moved by the gradient at the checkpoint's."""
    other = write_teacher(tmp_path / "teacher", folder / kind, moved=0.3)
    out, reward = run(folder, tmp_path / "out", kind, name, SGD, second=other)
    second = AutoModelForCausalLM.from_pretrained(other).eval()
    source = AutoModelForCausalLM.from_pretrained(folder / kind).eval()
    student: Any = load_pretrained(folder / f"{kind}_{name}", simulate=True).eval()
    # the folder has the rounded weights in place of the source's
    weights = dict(source.named_parameters())
    changed = [n for n, weight in student.named_parameters() if not torch.equal(weight, weights[n])]
    assert changed
    assert not any("layers.3" in n or "mlp" in n for n in changed)
    loss = mean_reverse_kl(reward, student, {"a": source, "b": second})
    loss.backward()
    [row] = log_rows(out, of="loss")
    assert row["loss"] == pytest.approx(loss.item(), rel=1e-4)
    trained = dict(AutoModelForCausalLM.from_pretrained(out).named_parameters())
    differences: list[torch.Tensor] = []
    gradients: list[torch.Tensor] = []
    for weight_name, weight in student.named_parameters():
        moved = weights[weight_name].detach() - trained[weight_name].detach()
        if weight.grad is None or weight_name.endswith("gate.weight"):  # routers are frozen
            assert not moved.any(), weight_name
            continue
        difference = (moved - weight.grad).flatten()
        # a batch and a row alone round a few activations to different neighbours
        assert difference.norm() <= 0.05 * weight.grad.norm() + 1e-7, weight_name
        differences.append(difference)
        gradients.append(weight.grad.flatten())
    assert torch.cat(differences).norm() <= 5e-3 * torch.cat(gradients).norm()


def test_what_is_saved_is_a_plain_checkpoint(folder: Path, tmp_path: Path):
    out, _ = run(folder, tmp_path / "out", "hybrid", "nvfp4", {"max_steps": 2}, objective="sampled")
    before = load_file(folder / "hybrid" / "model.safetensors")
    after = load_file(out / "model.safetensors")
    assert {n: t.shape for n, t in before.items()} == {n: t.shape for n, t in after.items()}
    assert not is_simulated(load_pretrained(out))
    simulated = read_artifact(folder / "hybrid_nvfp4").digest
    manifest = read_artifact(out, kind="checkpoint")
    assert manifest.stats["simulated"] == simulated
    assert manifest.config["simulate"] == simulated
    assert "the student rounds as hybrid_nvfp4" in (out / "README.md").read_text()


def test_a_killed_run_ends_with_the_bytes_of_an_undisturbed_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trainer = {"max_steps": 3, "save_steps": 1}
    whole, _ = run(folder, tmp_path / "whole", "attention", "nvfp4", trainer)
    with monkeypatch.context() as patch:
        numbers = iter(range(3))

        async def reward(*args: Any, **keys: Any) -> Any:
            if next(numbers) == 2:
                raise TrainingError("killed")
            return await plain_reward(*args, **keys)

        plain_reward = Keeping.reward
        patch.setattr(Keeping, "reward", reward)
        with pytest.raises(TrainingError, match="killed"):
            run(folder, tmp_path / "killed", "attention", "nvfp4", trainer)
    killed = tmp_path / "killed"
    [checkpoint] = (killed / "resume").glob("checkpoint-2")
    weights = load_file(checkpoint / "model.safetensors")
    assert weights.keys() == load_file(folder / "attention" / "model.safetensors").keys()
    run(folder, killed, "attention", "nvfp4", trainer)
    for file in ("model.safetensors", "log.jsonl", "config.json"):
        assert (killed / file).read_bytes() == (whole / file).read_bytes(), file


def test_rounding_to_nvfp4_passes_the_gradient_up_to_the_largest_value():
    """A layer by hand: y = R(x) R(W)ᵀ, where R is the nearest value of E2M1 in each block."""
    torch.manual_seed(0)
    quantisers: list[Any] = [TensorQuantizer(), TensorQuantizer()]
    inputs, weight, grad = torch.randn(3, 16), torch.randn(4, 16), torch.randn(3, 4)
    inputs[0, 0] = 7.0
    values = [inputs.clone().requires_grad_(), weight.clone().requires_grad_()]
    expected: list[torch.Tensor] = []
    for quantiser, tensor, amax in zip(quantisers, values, (3.0, 4.0), strict=True):
        round_to_nvfp4(quantiser)
        quantiser.amax = torch.tensor(amax)
        largest = tensor.detach().abs().amax(-1, keepdim=True)
        scale_2 = amax / (6 * 448)
        block = (largest / (6 * scale_2)).clamp(max=448).to(torch.float8_e4m3fn).float() * scale_2
        expected.append(rounded(tensor.detach() / block) * block)
    outputs = [quantiser(tensor) for quantiser, tensor in zip(quantisers, values, strict=True)]
    for output, value in zip(outputs, expected, strict=True):
        torch.testing.assert_close(output.detach(), value)
    (outputs[0] @ outputs[1].T * grad).sum().backward()
    assert values[0].grad is not None
    torch.testing.assert_close(values[0].grad, grad @ expected[1] * (inputs.abs() <= 3))
    torch.testing.assert_close(values[1].grad, grad.T @ expected[0])
    assert values[0].grad[0, 0] == 0


def test_weights_are_rounded_inside_the_block_alone(folder: Path):
    model = load_pretrained(folder / "attention").float()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    names = [*model.state_dict()]
    weights = RoundedWeights(model, folder / "attention_fp8")
    assert [*model.state_dict()] == names
    with weights.rounded(0):
        inside = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    after = dict(model.named_parameters())
    assert all(torch.equal(before[name], after[name]) for name in before)
    changed = [name for name in before if not torch.equal(before[name], inside[name])]
    assert len(changed) == 8
    assert weights.copied_bytes == sum(before[name].nbytes for name in changed)
    # a moved weight is rounded anew in the next step, by the scale that it has then
    [*_, name] = changed
    with torch.no_grad():
        after[name].mul_(3)
    with weights.rounded(1):
        torch.testing.assert_close(after[name].detach(), 3 * inside[name], rtol=0.1, atol=1e-3)
    assert torch.equal(after[name].detach(), before[name] * 3)


def test_a_folder_that_does_not_belong_to_the_student_is_refused(folder: Path, tmp_path: Path):
    source, quantised = f"{folder / 'attention'}", f"{folder / 'attention_fp8'}"
    with pytest.raises(ConfigError, match="these weights are not quantised by ModelOpt"):
        open_student(source, student=source, out=tmp_path)
    with pytest.raises(ConfigError, match=r"belong to no module|has no matrix"):
        QuantisedStudent(folder / "hybrid_fp8", "", None, "").round(load_pretrained(source))
    first = write_teacher(tmp_path / "first", folder / "attention", moved=0.0)
    second = write_teacher(tmp_path / "second", folder / "attention", moved=0.1)
    out = f"{tmp_path / 'quantised'}"
    data = f"{folder / 'data'}"
    keys: Any = {"keep": (), "samples": 4, "measured": 2, "measured_parts": 2}
    quantize(QuantizeConfig(out=out, checkpoint=f"{first}", data=data, **keys))
    parent = open_student(out, student=f"{first}", out=tmp_path / "run").parent
    assert parent is not None
    with pytest.raises(ConfigError, match="was made from another checkpoint"):
        open_student(out, student=f"{second}", out=tmp_path / "run")
    recipe = make_recipe(Path(source), tmp_path / "run", objective="full")
    with pytest.raises(ConfigError, match="without their scales"):
        distil(recipe, {"first": Path(quantised), "second": Path(quantised)})
