"""From groups to rows to micro-batches: what is trained, what is not, and what is written of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.chat import parse_completion
from posttrain.config.grpo import GrpoLossConfig
from posttrain.errors import TrainingError
from posttrain.group_rewards import Group, GroupRewards
from posttrain.records import Message
from posttrain.rollouts import Completion, Finish, Prompt, Step
from posttrain.training.rl.batch import (
    ScoredGroup,
    collate,
    micro_batches,
    row_of,
    trained_rows,
    with_advantages,
)
from posttrain.training.rl.files import group_row, join_parts, rollout_file, write_part
from posttrain.training.rl.metrics import batch_metrics, group_stats

PROMPT = Prompt("a", "a", "made", (Message("user", "7*8?"),), thinking=True)


def step(ids: tuple[int, ...], **fields: object) -> Step:
    given_fields: dict[str, object] = {
        "text": "hm</think>56", "finish": "stop", "reasoning_tokens": 2, "answer_tokens": 1,
        "prompt_tokens": 2, "ids": ids, "logps": tuple(-0.1 * i for i in ids), **fields,
    }  # fmt: skip
    parsed = parse_completion(str(given_fields["text"]), thinking=True, tools=None)
    return Step(parsed=parsed, **given_fields)  # type: ignore[arg-type]  # test helper


def completion(index: int, *steps: Step, finish: Finish = "stop") -> Completion:
    return Completion("a", index, steps, finish, prompt_ids=(1, 9))


def group(*completions: Completion, rewards: tuple[float | None, ...]) -> ScoredGroup:
    made = Group(PROMPT, completions)
    given_rewards = GroupRewards(rewards, {"base": rewards}, counts={"judge_calls": 2})
    return with_advantages([3], [made], [given_rewards], GrpoLossConfig())[0]


def test_only_what_the_policy_sampled_is_trained():
    """A tool's result stands between two steps; in the second, two ids were put in."""
    first = step((10, 11), results_ids=(20, 21, 22), results=(Message("tool", "56"),))
    second = step((12, 13, 14, 15), logps=(-0.5, 0.0, 0.0, -0.7), forced=(1, 3))
    scored = group(completion(0, first, second), completion(1, step((10,))), rewards=(1.0, 0.0))
    batch = collate([row_of(scored, 0), row_of(scored, 1)], pad_id=0)
    assert batch["input_ids"].tolist() == [
        [1, 9, 10, 11, 20, 21, 22, 12, 13, 14, 15],
        [1, 9, 10, 0, 0, 0, 0, 0, 0, 0, 0],
    ]
    n = -100
    assert batch["labels"][0].tolist() == [n, n, 10, 11, n, n, n, 12, n, n, 15]
    assert batch["labels"][1].tolist() == [n, n, 10] + [n] * 8
    assert batch["attention_mask"].sum(-1).tolist() == [11, 3]
    expected = [0, 0, -1.0, -1.1, 0, 0, 0, -0.5, 0, 0, -0.7]
    assert batch["sampled"][0].tolist() == pytest.approx(expected)
    assert batch["advantages"].tolist() == [
        [0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 1],
        [0, 0, -1, 0, 0, 0, 0, 0, 0, 0, 0],
    ]
    assert batch["keys"] == [(3, 0), (3, 1)]


def test_advantages_are_clipped_and_malformed_completions_have_those_of_their_rewards():
    """An open call and two closings are malformed, one of them because a limit cut it."""
    texts = ("56", "<tool_call>", "a</think>b</think>c", "<tool_call>", "<tool_call>", "56")
    finishes: tuple[Finish, ...] = ("stop", "stop", "stop", "length", "stop", "stop")
    completions = tuple(
        completion(k, step((10,), text=f"hm</think>{text}"), finish=finish)
        for k, (text, finish) in enumerate(zip(texts, finishes, strict=True))
    )
    groups = [Group(PROMPT, completions)]
    rewards = [GroupRewards((1.0, 0.0, 0.0, 0.0, None, 0.0))]
    [plain] = with_advantages([0], groups, rewards, GrpoLossConfig())
    [clipped] = with_advantages([0], groups, rewards, GrpoLossConfig(advantage_clip=0.4))
    [best, *others] = [advantage for advantage in plain.advantages if advantage is not None]
    assert best > 0.4
    assert others == [others[0]] * 4
    assert clipped.advantages == tuple(
        None if a is None else max(-0.4, min(0.4, a)) for a in plain.advantages
    )


def mixed() -> ScoredGroup:
    """A long one, a truncated one, an unscored one, a failed one, a short one."""
    return group(
        completion(0, step((10, 11, 12, 13))),
        completion(1, step((10,) * 9, finish="length"), finish="length"),
        completion(2, step((10, 11))),
        Completion("a", 3, (), "failed", error="no room"),
        completion(4, step((10, 11))),
        rewards=(2.0, 1.0, None, None, 0.0),
    )


def test_truncated_ones_are_in_the_baseline_and_unscored_ones_in_nothing():
    scored = mixed()
    # the others of each: (1, 0), (2, 0), (2, 1)
    raw = (2 - 0.5, 1 - 1.0, 0 - 1.5)
    spread = [math.sqrt(0.5), math.sqrt(2), math.sqrt(0.5)]
    found = [scored.advantages[k] for k in (0, 1, 4)]
    assert found == pytest.approx([a / s for a, s in zip(raw, spread, strict=True)], abs=1e-5)
    assert (scored.advantages[2], scored.advantages[3]) == (None, None)
    assert [row.key for row in trained_rows([scored], overlong="mask")] == [(3, 0), (3, 4)]
    rows = trained_rows([scored], overlong="train")
    assert [row.key for row in rows] == [(3, 1), (3, 0), (3, 4)]


@given(st.integers(0, 30), st.integers(1, 12))
def test_micro_batches_keep_order_and_are_as_equal_as_can_be(count: int, parts: int):
    scored = mixed()
    rows = [replace(row_of(scored, 0), advantages=(float(k),) * 4) for k in range(count)]
    found = micro_batches(rows, [scored], count=parts)
    assert len(found) == parts
    real = [part for part in found if any(row.tokens for row in part)]
    assert [row.advantages for part in real for row in part] == [row.advantages for row in rows]
    sizes = [len(part) for part in found]
    assert max(sizes) - min(sizes) <= 1
    # one without rows runs the shortest, with nothing in the loss
    assert all(part[0].key == (3, 2) for part in found if part not in real)


def test_a_failed_rollout_is_not_trained_whatever_its_reward():
    failed = Completion("a", 0, (), "failed", error="no room")
    scored = group(failed, completion(1, step((10,))), rewards=(1.0, 0.0))
    assert scored.in_loss("train") == [1]


def test_a_batch_of_which_nothing_could_be_made_says_why():
    failed = Completion("a", 0, (), "failed", error="no room")
    scored = group(failed, failed, rewards=(None, None))
    with pytest.raises(TrainingError, match="no rollout of 1 prompts could be made: no room"):
        micro_batches([], [scored], count=2)


def test_the_figures_of_a_batch():
    stats = group_stats(mixed(), overlong="mask")
    assert stats["trained"] == [4, 0, 0, 0, 2]
    row = batch_metrics([stats])
    assert row["rollouts"] == 5
    assert row["reward"] == 1.0
    assert row["reward_std"] == pytest.approx(math.sqrt(2 / 3))
    assert row["unscored"] == 0.4
    assert (row["truncated"], row["failed"], row["zero_variance"]) == (0.2, 0.2, 0.0)
    assert row["completion_tokens"] == (4 + 9 + 2 + 0 + 2) / 5
    assert row["part/base"] == 1.0
    assert row["count/judge_calls"] == 2
    flat = group(completion(0, step((10,))), completion(1, step((11,))), rewards=(1.0, 1.0))
    assert batch_metrics([group_stats(flat, overlong="mask")])["zero_variance"] == 1.0


def test_parts_of_processes_are_joined_by_position(tmp_path: Path):
    file = rollout_file(tmp_path, 7)
    rows = [group_row(mixed(), step=7, ratios={}) | {"position": at} for at in range(4)]
    write_part(file, [rows[0], rows[2]], process=0)
    write_part(file, [rows[1], rows[3]], process=1)
    join_parts(file, processes=2)
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["position"] for row in found] == [0, 1, 2, 3]
    assert [path.name for path in file.parent.iterdir()] == ["step-00007.jsonl"]
    rollouts = found[0]["rollouts"]
    assert [one["finish"] for one in rollouts] == ["stop", "length", "stop", "failed", "stop"]
    assert rollouts[3]["error"] == "no room"
    assert [one["reward"] for one in rollouts] == [2.0, 1.0, None, None, 0.0]


def test_what_utf8_cannot_hold_is_written_as_an_escape(tmp_path: Path):
    scored = group(completion(0, step((10,), text="x\ud83d")), rewards=(None,))
    file = rollout_file(tmp_path, 1)
    write_part(file, [group_row(scored, step=1, ratios={})], process=0)
    join_parts(file, processes=1)
    [row] = map(json.loads, file.read_text("utf-8").splitlines())
    assert row["rollouts"][0]["text"] == "x\ud83d"
