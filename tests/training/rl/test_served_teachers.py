"""Teachers behind a server: what is read of its answers, what fails, and what is compared before."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from posttrain.config.backend import Server
from posttrain.errors import ConfigError
from posttrain.runs import read_artifact
from posttrain.sampling.engines.http import Client
from posttrain.sampling.engines.vllm import CompletionsEngine
from posttrain.sampling.sampler import ScoreOutput, ScoreRequest
from posttrain.training.rl.teachers import Teachers
from reward.kept_scores import KeptScorer, ScoreStore
from tests.training.rl.conftest import command
from tests.training.rl.distilling import make_recipe, open_teachers_of, write_teacher
from tests.training.rl.policy import make_prompts, raw_recipe
from tests.training.rl.servers import serving
from tests.training.tiny import make_tokenizer

REQUESTS = [
    ScoreRequest((3, 4, 5, 6), (False, True, False, True)),
    ScoreRequest((3, 7), (False, True)),
]


class Vllm:
    """Answers as vLLM does, with the scores of a model; `spoil` changes an answer's choice."""

    def __init__(self, folder: Path, spoil: Callable[[dict[str, Any]], None] | None = None) -> None:
        self.folder = folder
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
        self.spoil = spoil
        self.bodies: list[Any] = []
        self.root: str | None = None
        # probes until it has loaded
        self.loading = 0
        self.tokenizer: Any = None

    def answer(self, _method: str, path: str, body: Any) -> tuple[int, Any]:
        if path == "/v1/models" and self.loading:
            self.loading -= 1
            return 503, "loading"
        if path == "/v1/models":
            return 200, {"data": [{"id": "teacher", "root": self.root}]}
        if path == "/tokenize":
            if self.tokenizer is None:
                return 404, "no such address"
            text = self.tokenizer.apply_chat_template(
                body["messages"], tokenize=False, add_generation_prompt=True
            )
            return 200, {"tokens": self.tokenizer(text, add_special_tokens=False)["input_ids"]}
        assert path == "/v1/completions"
        self.bodies.append(body)
        ids = body["prompt"]
        with torch.no_grad():
            logps_T_V = self.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        entries: list[Any] = [None]
        for column in range(1, len(ids)):
            logp = logps_T_V[column - 1, ids[column]].item()
            entries.append({str(ids[column]): {"logprob": logp, "rank": 1}})
        choice = {"prompt_token_ids": ids, "prompt_logprobs": entries, "token_ids": [1]}
        if self.spoil is not None:
            self.spoil(choice)
        return 200, {"choices": [choice]}


def score(url: str, **keys: Any) -> list[ScoreOutput]:
    async def run() -> list[ScoreOutput]:
        server = Server(url=url, model="teacher", **{"retries": 0, "wait": 0.0, **keys})
        client = Client(server, first_wait=0.0)
        try:
            engine = CompletionsEngine(client, model="teacher", identity={"weights": "teacher"})
            return await engine.score(REQUESTS)
        finally:
            await client.close()

    return asyncio.run(run())


def test_a_servers_scores_are_those_of_the_masked_ids(policy: Path):
    vllm = Vllm(policy)
    with serving(vllm.answer) as url:
        outputs = score(url)
    logps_T_V = vllm.model(torch.tensor([[3, 4, 5, 6]])).logits[0].log_softmax(-1)
    assert outputs[0].logps == pytest.approx([logps_T_V[0, 4].item(), logps_T_V[2, 6].item()])
    assert len(outputs[1].logps) == 1
    assert [output.error for output in outputs] == [None, None]
    [body, _] = sorted(vllm.bodies, key=lambda body: -len(body["prompt"]))
    assert body == {
        "model": "teacher",
        "prompt": [3, 4, 5, 6],
        "max_tokens": 1,
        "temperature": 0.0,
        "prompt_logprobs": 0,
        "return_token_ids": True,
    }


def truncates(choice: dict[str, Any]) -> None:
    choice["prompt_token_ids"] = choice["prompt_token_ids"][1:]
    choice["prompt_logprobs"] = choice["prompt_logprobs"][1:]


def tokenises_again(choice: dict[str, Any]) -> None:
    choice["prompt_token_ids"] = [token + 1 for token in choice["prompt_token_ids"]]


def gives_one_too_few(choice: dict[str, Any]) -> None:
    choice["prompt_logprobs"].pop()


def scores_another_id(choice: dict[str, Any]) -> None:
    choice["prompt_logprobs"][-1] = {"63": {"logprob": -1.0}}


def gives_no_number(choice: dict[str, Any]) -> None:
    for entry in choice["prompt_logprobs"][1:]:
        for scored in entry.values():
            scored["logprob"] = None


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (truncates, "other token ids"),
        (tokenises_again, "other token ids"),
        (gives_one_too_few, "not one for each of"),
        (scores_another_id, "no log-probability of id"),
        (gives_no_number, "no log-probability of id"),
    ],
)
def test_an_answer_about_anything_else_is_a_failure(
    policy: Path, spoil: Callable[[dict[str, Any]], None], message: str
):
    with serving(Vllm(policy, spoil).answer) as url:
        for output in score(url):
            assert output.logps == ()
            assert message in str(output.error)


def test_a_server_that_is_gone_is_a_failure_of_each_request():
    with serving(lambda *_: (500, "gone")) as url:
        errors = [str(output.error) for output in score(url)]
    assert ["status 500" in error for error in errors] == [True, True]


# ---- compared with the student before anything is sampled ----


@contextlib.contextmanager
def served(vllm: Vllm, policy: Path, out: Path) -> Iterator[Callable[[], Teachers]]:
    with serving(vllm.answer) as url:
        teacher = {"server": {"url": url, "model": "teacher", "wait": 0.0}}
        recipe = make_recipe(policy, out, teachers={"t": teacher}, routes={"a": "t", "b": "t"})
        yield lambda: open_teachers_of(recipe, contextlib.AsyncExitStack())


def test_a_server_that_tells_nothing_is_not_compared_and_the_plan_says_so(
    policy: Path, tmp_path: Path
):
    with served(Vllm(policy), policy, tmp_path) as open_:
        teachers = open_()
    assert "they are not compared" in teachers.lines[0][1]
    assert teachers.digests == {"t": "teacher"}


def test_a_server_that_is_not_there_is_refused_before_anything_is_sampled(
    policy: Path, tmp_path: Path
):
    """Started later than `wait` allows, it would never be compared with the student."""
    with serving(Vllm(policy).answer) as url:
        pass
    teacher = {"server": {"url": url, "model": "teacher", "wait": 0.0}}
    recipe = make_recipe(policy, tmp_path, teachers={"t": teacher}, routes={"a": "t", "b": "t"})
    with pytest.raises(ConfigError, match=rf"^teachers\.t\.server\.url {url}: nothing answers"):
        open_teachers_of(recipe, contextlib.AsyncExitStack())


def test_a_teacher_that_still_loads_is_waited_for_and_then_compared(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    vllm = Vllm(policy)
    vllm.loading = 1
    vllm.root = str(policy)
    with serving(vllm.answer) as url:
        teacher = {"server": {"url": url, "model": "teacher", "wait": 60.0}}
        recipe = make_recipe(
            policy, tmp_path, teachers={"t": teacher}, default_teacher="t", routes={}
        )
        teachers = open_teachers_of(recipe, contextlib.AsyncExitStack())
    assert f"{policy} are the student's" in teachers.lines[0][1]
    assert f"{url} does not answer: waiting up to 60 s" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["none", "template", "vocabulary"])
def test_a_server_that_tokenises_is_compared_by_a_probe(policy: Path, tmp_path: Path, change: str):
    vllm = Vllm(policy)
    vllm.tokenizer = make_tokenizer()
    vllm.tokenizer.chat_template = (policy / "chat_template.jinja").read_text()
    if change == "template":
        vllm.tokenizer.chat_template = "w3 " + vllm.tokenizer.chat_template
    elif change == "vocabulary":
        # a word of the probe that the student does not know
        vllm.tokenizer.add_tokens(["Distil"])
    with served(vllm, policy, tmp_path) as open_:
        if change == "none":
            assert "as the student does" in open_().lines[0][1]
        else:
            with pytest.raises(ConfigError, match="renders and tokenises a probe otherwise"):
                open_()


def test_a_server_that_names_its_folder_is_compared_by_its_tokenizer(policy: Path, tmp_path: Path):
    vllm = Vllm(policy)
    folder = tmp_path / "served"
    vllm.root = str(folder)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = (policy / "chat_template.jinja").read_text()
    tokenizer.save_pretrained(folder)
    with served(vllm, policy, tmp_path / "out") as open_:
        assert f"{folder} are the student's" in open_().lines[0][1]
        tokenizer.add_tokens(["novel"])
        tokenizer.save_pretrained(folder)
        with pytest.raises(ConfigError, match=r"'novel' is \d+ there and None"):
            open_()


# ---- killed and started again ----


def write_recipe(root: Path, policy: Path) -> Path:
    """4 steps of 8 prompts, resumable after each, with one teacher for all of them."""
    questions = root / "questions.jsonl"
    texts = dict.fromkeys(prompt.messages[0].content for prompt in make_prompts(40))
    questions.write_text(
        "".join(json.dumps({"question": text, "answer": "x"}) + "\n" for text in texts)
    )
    source = {"format": "question", "grader": None, "path": str(questions), "name": "a"}
    trainer = {"max_steps": 4, "save_steps": 1, "per_device_train_batch_size": 4}
    raw = raw_recipe(policy, Path("unset"), trainer) | {
        "num_generations": 1,
        "prompts_per_step": 8,
        "prompts": [source],
        "settings": [{"name": "plain", "thinking": 0.0}],
        "teachers": {
            "t": {"server": {"url": "unset", "model": "teacher", "concurrency": 2, "wait": 0.0}}
        },
        "default_teacher": "t",
    }
    recipe = root / "distill.yaml"
    recipe.write_text(yaml.safe_dump(raw))
    return recipe


@pytest.mark.parametrize(
    ("lag", "moment", "in_flight"),
    # when both requests under way may have been answered, and two more sent, before the first of the
    # scores is written; while step 2 trains, with all scores of lag 1 for step 3
    [(0, "scores:12", 4), (1, "train:1", 0)],
)
def test_a_killed_run_asks_its_teacher_nothing_twice(
    policy: Path, tmp_path: Path, lag: int, moment: str, in_flight: int
):
    recipe = write_recipe(tmp_path, policy)
    teacher = write_teacher(tmp_path / "teacher", policy, moved=0.1)
    vllm = Vllm(teacher)

    def prompts_asked() -> Counter[tuple[int, ...]]:
        return Counter(tuple(body["prompt"]) for body in vllm.bodies)

    with serving(vllm.answer) as url:
        keys = (f"teachers.t.server.url={url}", f"rollouts={{engine: in_process, lag: {lag}}}")
        command("distill", recipe, f"out={tmp_path / 'whole'}", *keys)
        undisturbed = prompts_asked()
        vllm.bodies.clear()
        out = f"out={tmp_path / 'killed'}"
        killed = command("distill", recipe, out, *keys, killed=moment, check=False)
        assert killed.codes == [-9]
        assert 0 < len(vllm.bodies) < undisturbed.total()
        command("distill", recipe, out, *keys)
    assert undisturbed.total() == 4 * 8
    asked_again = prompts_asked() - undisturbed
    assert asked_again.total() <= in_flight
    assert prompts_asked() - asked_again == undisturbed
    artifacts = [read_artifact(tmp_path / name).digest for name in ("whole", "killed")]
    assert artifacts[0] == artifacts[1]


def test_scores_of_three_checkpoints_stay_and_a_half_written_line_is_asked_for_again(
    tmp_path: Path,
):
    store = ScoreStore(tmp_path)
    for number in range(5):
        store.add(f"key-{number}", ScoreOutput((-0.1, -number / 3)))
        store.begin_file()
    store.add("last", ScoreOutput((-0.7,)))
    store.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [f"scores-0000{number}.jsonl" for number in (4, 5, 6)]
    files[-1].write_bytes(files[-1].read_bytes() + b'{"key":"half","logps":[-0.')
    reopened = ScoreStore(tmp_path)
    kept = {key: reopened.get(key) for key in ("key-2", "key-3", "key-4", "last", "half")}
    assert kept == {
        "key-2": None,
        "key-3": ScoreOutput((-0.1, -1.0)),
        "key-4": ScoreOutput((-0.1, -4 / 3)),
        "last": ScoreOutput((-0.7,)),
        "half": None,
    }
    # it goes on behind the last whole line
    reopened.add("next", ScoreOutput((-0.2,)))
    reopened.begin_file()
    assert reopened.get("key-3") is None
    reopened.close()
    again = ScoreStore(tmp_path)
    assert (again.get("last"), again.get("next")) == (ScoreOutput((-0.7,)), ScoreOutput((-0.2,)))
    again.close()


def test_a_score_that_is_no_use_is_not_kept(tmp_path: Path):
    class Failing:
        batched = False
        identity = {"weights": "teacher"}  # noqa: RUF012

        async def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreOutput]:
            assert len(requests) == 1
            return [outputs.pop(0)]

    good = ScoreOutput((-0.5, -0.25))
    outputs = [ScoreOutput((), error="gone"), ScoreOutput((-0.5, -math.inf)), good]
    request = REQUESTS[0]
    for expected in (*outputs, good):
        # as processes one after the other
        store = ScoreStore(tmp_path)
        assert asyncio.run(KeptScorer(Failing(), store).score([request])) == [expected]
        store.close()
