"""A suite: rows, an environment's rows and a task of inspect in one recipe; costs and exports."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

pytest.importorskip("inspect_ai")

from data_builders.registry import EnvironmentGrader
from posttrain.config.eval import EvalSetting, InspectTask
from posttrain.config.judge import LabelJudgeConfig
from posttrain.errors import ConfigError, DataError
from posttrain.evaluation.inspect_adapter.tasks import task_prompts
from posttrain.evaluation.run import read_run
from posttrain.rollouts import Completion, ParsedCompletion, Step
from reward.environments.judged import EquivalenceEnvironment
from reward.graders.base import Attempt
from reward.judge.judge import JudgeSampler
from tests.evaluation.scripted import ScriptedSampler, turn
from tests.evaluation.small_eval import answer, evaluate, records, run_script, write_recipe

# test_stage.py draws the page of an evaluation
pytestmark = pytest.mark.usefixtures("charts_not_drawn")
TASKS = '''
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import match
from inspect_ai.solver import generate, system_message, use_tools
from inspect_ai.tool import tool


@tool
def calculate():
    async def execute(expression: str) -> str:
        """Arithmetic.

        Args:
            expression: What to work out.
        """
        return "56" if expression == "7*8" else "no"

    return execute


@task
def products(wrong: int = 0):
    samples = [Sample(input=f"{k}: 7*8?", target="55" if k < wrong else "56") for k in range(5)]
    solver = [system_message("Use a tool."), use_tools(calculate()), generate()]
    return Task(dataset=samples, solver=solver, scorer=match(), metadata={})
'''
SETTINGS = [
    {"name": "plain", "sources": ["sums", "office"], "sampling": {"temperature": 0.5}},
    {"name": "tools", "sources": ["products"], "n": 2, "thinking": "both",
     "sampling": {"max_turns": 3}},
]  # fmt: skip


def write_suite(folder: Path, **keys) -> Path:
    (folder / "tasks.py").write_text(TASKS)
    task = {"name": "products", "format": "inspect", "task": f"{folder / 'tasks.py'}@products"}
    task |= {"arguments": {"wrong": 2}, "count": 4}
    office = {"name": "office", "format": "environment", "environment": "workplace"}
    path = write_recipe(
        folder,
        checkpoints={"sft": str(folder / "checkpoint")},
        settings=SETTINGS,
        prices={"sft": {"input": 1.0, "output": 2.0}},
        **keys,
    )
    recipe = yaml.safe_load(path.read_text())
    recipe["prompts"] = [recipe["prompts"][0], office | {"generated": 3, "count": 4}, task]
    path.write_text(yaml.safe_dump(recipe))
    return path


def run(recipe: Path, *more: str, sampler: ScriptedSampler) -> None:
    evaluate(recipe, *more, samplers=[sampler])


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suite")
    run(write_suite(folder), sampler=ScriptedSampler(answer))
    return folder


def test_one_artifact_of_tasks_of_three_kinds(suite: Path):
    manifest, found = read_run(suite / "out")
    assert manifest.stats["units"] == ["sums.plain", "office.plain", "products.tools"]
    assert manifest.stats["inspect"]["products.tools"]["arguments"] == {"wrong": 2}
    assert manifest.counts.kept == 12 + 4 + 4 * 2
    own = [r for r in found["sft"] if r.prompt.source == "products"]
    assert len(own) == 4 * 2 * 2
    for record in own:
        prompt, completion = record.prompt, record.completion
        assert [m.role for m in prompt.messages] == ["system", "user"]
        assert json.loads(prompt.tools)[0]["function"]["name"] == "calculate"
        first, last = completion.steps
        assert [m.content for m in first.results] == ["56"]
        assert last.parsed.answer == "56"
        assert record.score.value == float(prompt.task not in ("products-1", "products-2"))
        assert (first.parsed.reasoning is not None) == prompt.thinking


class Broken(ScriptedSampler):
    """Breaks down at the second batch of the task of inspect."""

    async def sample(self, requests, *, progress=None):
        if sum('"calculate"' in (batch[0].tools or "") for batch in self.calls) == 1:
            raise RuntimeError("out of memory")
        return await super().sample(requests, progress=progress)


def test_stopped_inside_a_task_of_inspect_it_goes_on_with_what_it_had(
    suite: Path, monkeypatch: pytest.MonkeyPatch
):
    # to colour the traceback of each sample takes longer than the run
    monkeypatch.setattr("inspect_ai._util.rich.rich_traceback", lambda *_, **__: "")
    out = suite / "stopped"
    broken = Broken(answer)
    with pytest.raises(DataError, match="out of memory"):
        run(suite / "eval.yaml", f"out={out}", sampler=broken)
    # a setting samples as it says
    warm = {'"calculate"' in (r.tools or ""): r.parameters for b in broken.calls for r in b}
    assert (warm[False].temperature, warm[True].temperature) == (0.5, 1.0)
    assert not (out / "manifest.json").exists()
    kept = (out / "journals/sft/products.tools.jsonl").read_text().count("\n")
    assert kept > 0
    sampler = ScriptedSampler(answer)
    run(suite / "eval.yaml", f"out={out}", sampler=sampler)
    assert records(out) == records(suite / "out")
    for name in ("metrics.json", "manifest.json", "journals/sft/products.tools.jsonl"):
        assert (out / name).read_bytes() == (suite / "out" / name).read_bytes()
    made = [request for batch in sampler.calls for request in batch]
    assert len(made) == 4 * 2 * 2 * 2 - kept


def test_rescored_it_runs_tools_and_scorer_again_without_a_model(suite: Path, capsys):
    run_script(["rescore", f"out={suite / 'again'}", str(suite / "out")])
    assert "0 scores and 0 verdicts changed" in capsys.readouterr().out
    assert records(suite / "again") == records(suite / "out")
    assert (suite / "again/metrics.json").read_bytes() == (suite / "out/metrics.json").read_bytes()
    assert [p.kind for p in read_run(suite / "again")[0].parents] == ["evaluation"]
    # a gold that changed changes the score: nothing is copied (a file of another size, since Python
    # takes one of the same second and size for the one it has compiled)
    (suite / "tasks.py").write_text(TASKS.replace('else "56")', 'else "57.5")'))
    run_script(["rescore", str(suite / "out")])
    (suite / "tasks.py").write_text(TASKS)
    assert "8 scores and 0 verdicts changed" in capsys.readouterr().out


def test_costs_and_exports(suite: Path):
    costs = json.loads((suite / "out/costs.json").read_text())
    *units, every = costs
    assert [row["task"] for row in units] == ["sums", "office", "products"]
    assert every["money"] == pytest.approx(sum(row["money"] for row in units))
    export = suite / "out/export"
    rows = list(csv.DictReader((export / "scores.csv").read_text().splitlines()))
    (row,) = [
        r for r in rows
        if (r["task"], r["figure"], r["thinking"]) == ("products", "accuracy", "on")
    ]  # fmt: skip
    assert (float(row["value"]), row["samples"]) == (0.5, "8")
    exported = yaml.safe_load((export / "sft/results.yml").read_text())
    # the only fields that NeMo Evaluator's ConfigParams allow
    params = exported["config"]["params"]
    assert params.keys() == {"temperature", "top_p", "max_new_tokens", "extra"}
    assert exported["target"] == {"api_endpoint": {"model_id": "sft"}}
    metrics = exported["results"]["tasks"]["products"]["metrics"]
    score = metrics["accuracy"]["scores"]["tools_on"]
    assert (score["value"], score["stats"]["count"]) == (0.5, 8)
    assert "| products | tools | on | 4 | 2 | 50.0 [" in (export / "table.md").read_text()
    assert "<h2>Costs</h2>" in (suite / "out/report.html").read_text()


def test_changed_prices_need_no_second_run(suite: Path, capsys):
    out, before = suite / "out", (suite / "out/manifest.json").read_bytes()
    sampler = ScriptedSampler(lambda request: 1 / 0)
    old = json.loads((out / "costs.json").read_text())[-1]["money"]
    run(suite / "eval.yaml", "prices.sft.input=2.0", "prices.sft.output=4.0", sampler=sampler)
    assert json.loads((out / "costs.json").read_text())[-1]["money"] == pytest.approx(2 * old)
    assert f">{2 * old:.3g}</td>" in (out / "report.html").read_text()
    assert (out / "manifest.json").read_bytes() == before
    assert "is complete" in capsys.readouterr().out


def test_a_gate_decides_the_exit_code(suite: Path, capsys):
    out = str(suite / "out")
    gate = suite / "gate.yaml"
    gate.write_text("rules: [{figure: accuracy, task: sums}]\n")
    run_script(["compare", out, out, "--gate", str(gate)])
    worse = suite / "worse"
    tamed = ScriptedSampler(lambda request: turn("12", thinking=request.thinking))
    run(suite / "eval.yaml", f"out={worse}", sampler=tamed)
    with pytest.raises(SystemExit) as ended:
        run_script(["compare", out, str(worse), "--gate", str(gate)])
    assert ended.value.code == 1
    assert "fail" in capsys.readouterr().out
    gate.write_text("rules: [{figure: acuracy}]\n")
    with pytest.raises(ConfigError, match="did you mean 'accuracy'"):
        run_script(["compare", out, str(worse), "--gate", str(gate)])


def test_all_that_is_missing_is_listed_before_the_first_request(tmp_path: Path):
    path = write_suite(tmp_path)
    recipe = yaml.safe_load(path.read_text())
    recipe["prompts"][0] |= {"path": str(tmp_path / "none.jsonl"), "obtain": "ask the library"}
    recipe["prompts"][1] |= {"environment": "rubric", "path": str(tmp_path / "sums.jsonl")}
    del recipe["prompts"][1]["generated"]
    recipe["prompts"][2]["task"] = "no_such_package/products"
    path.write_text(yaml.safe_dump(recipe))
    with pytest.raises(ConfigError) as error:
        run(path, sampler=ScriptedSampler(lambda request: 1 / 0))
    listed = str(error.value).splitlines()[1:]
    assert [line.split(":")[0].strip() for line in listed] == ["sums", "office", "products"]
    assert "ask the library" in listed[0]
    assert "judge" in listed[1]
    assert "eval-suite" in listed[2]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ({"settings": [{"name": "a", "sampling": {"temperature": -1}}]}, "temperature"),
        ({"settings": [{"name": "a", "tools": "calculator"}]}, "its own tools"),
        ({"settings": [{"name": "a", "thinking": 0.5}]}, "0, 1 or both"),
        ({"prices": {"dpo": {"input": 1.0, "output": 1.0}}}, "no checkpoint 'dpo'"),
        (
            {"settings": [{"name": "a", "sources": ["sums", "office"]}]},
            "no setting asks .*products",
        ),
        ({"expect": {"workplce": [0, 1]}}, "did you mean 'workplace'"),
    ],
)
def test_what_cannot_be_is_refused_while_the_recipe_is_read(tmp_path, keys, wanted):
    path = write_suite(tmp_path)
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | keys))
    with pytest.raises(ConfigError, match=wanted):
        run(path, sampler=ScriptedSampler(answer))


@pytest.mark.parametrize(
    ("task", "keys", "wanted"),
    [
        (TASKS, {"score": "mach"}, "the task has match"),
        (TASKS, {"arguments": {"wrnog": 1}}, "did you mean 'wrong'"),
        (TASKS, {"task": "tasks.py"}, "tasks.py@NAME"),
        (TASKS + "def (", {}, "SyntaxError.*line 27"),
        (TASKS, {"count": 6}, "5 samples"),
        (TASKS.replace("Sample(", "Sample(id=7, "), {}, "share an id"),
        (TASKS.replace("Sample(", "Sample(id=7 if k < 2 else None, "), {}, "share an id"),
        # a sample without an id is named by its position
        (TASKS.replace("Sample(", "Sample(id='2' if k == 4 else None, "), {}, "share an id"),
        (TASKS.replace("dataset=samples", "dataset=samples, sandbox='none'"), {}, "cannot run"),
    ],
)
def test_a_task_of_inspect_is_checked_before_the_first_request(tmp_path, task, keys, wanted):
    path = write_suite(tmp_path)
    recipe = yaml.safe_load(path.read_text())
    recipe["prompts"] = [recipe["prompts"][2] | keys]
    recipe["settings"] = recipe["settings"][1:]
    path.write_text(yaml.safe_dump(recipe))
    (tmp_path / "tasks.py").write_text(task)
    with pytest.raises(ConfigError, match=wanted):
        run(path, sampler=ScriptedSampler(lambda request: 1 / 0))


def test_a_task_that_shuffles_is_the_same_whenever_it_is_loaded(tmp_path: Path):
    shuffled = TASKS.replace("import Sample", "import MemoryDataset, Sample")
    shuffled = shuffled.replace("Sample(input", "Sample(id=f'k{k}', input").replace(
        "    solver =", "    samples = MemoryDataset(samples)\n    samples.shuffle()\n    solver ="
    )
    (tmp_path / "tasks.py").write_text(shuffled)
    task = InspectTask(format="inspect", name="t", task=f"{tmp_path / 'tasks.py'}@products")
    for _ in range(3):
        names = [prompt.task for prompt in task_prompts(task, EvalSetting(name="s"))]
        assert names == [f"t-k{k}" for k in range(5)]


def test_a_task_without_a_usable_row_is_an_error(tmp_path: Path):
    path = write_recipe(tmp_path)
    (tmp_path / "sums.jsonl").write_text('{"question": "?", "answer": ["56"]}')
    with pytest.raises(DataError, match="'sums' has no usable row"):
        run(path, sampler=ScriptedSampler(lambda request: 1 / 0))


def test_the_dry_run_writes_nothing_counts_prices_and_shows_each_first_prompt(tmp_path, capsys):
    path = write_suite(tmp_path, estimate={"output_tokens": 50})
    run(path, "--dry-run", "--limit", "3", sampler=ScriptedSampler(lambda request: 1 / 0))
    shown = capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    (line,) = [line for line in shown.splitlines() if "│ products.tools" in line]
    requests, most, tokens, output, *_ = [part.strip() for part in line.split("│")[3:]]
    assert (requests, most, output) == ("6", "18", "300")
    for unit in ("sums.plain: 3 prompts × 2", "first prompt of office.plain for sft:", "<think>"):
        assert unit in shown
    # what the solver adds is shown and counted: its system message and its tools
    first = shown.partition("first prompt of products.tools")[2]
    assert "Use a tool." in first
    assert "calculate" in first
    assert int(tokens.replace(",", "")) > 1000 * 6


def test_a_judges_answers_are_kept_and_given_again_without_it(tmp_path: Path, monkeypatch):
    task = {"environment": "equivalence", "question": "Who?", "gold": "Charles Darwin"}
    prompt = EquivalenceEnvironment().prompt(task)
    parsed = ParsedCompletion(None, "Darwin", (), (), True)
    completion = Completion(prompt.id, 0, (Step("Darwin", parsed, "stop", 0, 1, 9),), "stop")
    model = ScriptedSampler(lambda request: turn('{"equivalent": true}'))

    async def opened(models, stack):
        return [JudgeSampler(model, "message", tokens=("<|im_end|>",))]

    monkeypatch.setattr("data_builders.registry.open_judges", opened)
    backend = {"kind": "chat", "url": "http://localhost:1/v1", "model": "judge"}
    judge = LabelJudgeConfig.model_validate({"backend": backend, "sampling": {"temperature": 0.0}})
    labels = tmp_path / "journals/judge.jsonl"
    (score,) = EnvironmentGrader(judge, labels).grade([Attempt(prompt, completion)])
    assert (score.value, len(model.calls)) == (1.0, 2)  # both orders
    assert EnvironmentGrader(None, labels).grade([Attempt(prompt, completion)]) == [score]
    assert len(model.calls) == 2
    step = replace(completion.steps[0], parsed=replace(parsed, answer="Wallace"))
    other = replace(completion, steps=(step,))
    (unknown,) = EnvironmentGrader(None, labels).grade([Attempt(prompt, other)])
    assert (unknown.value, unknown.failure) == (None, "service")
