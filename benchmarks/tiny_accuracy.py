"""What a tiny checkpoint learnt: accuracy on held-out prompts with reasoning on, off and budgeted.

python benchmarks/tiny_accuracy.py --checkpoint runs/tiny/sft --world runs/tiny/world --out a.json

Several --checkpoint are compared side by side (arms without stripping, without truncation).
Greedy and deterministic. Asked are the families, and the kinds of item, that the checkpoint was
trained on: its data recipe's `where` is read through its lineage.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tiny_episodes import Episode, Generate, held_out_items, play, taught
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from posttrain.chat import ChatTemplate
from posttrain.errors import ConfigError, PosttrainError
from posttrain.evaluation.intervals import wilson
from posttrain.models.chat_template import chat_template_of
from posttrain.runs import atomic_write_json, read_artifact
from posttrain.sampling.engines.decode import decode
from posttrain.sampling.sampler import Budget, EngineRequest, Parameters
from posttrain.tokens.tokenizer import load_tokenizer, special_tokens

CLOSE = "</think>\n"


@dataclass(frozen=True)
class Subject:
    """A checkpoint, ready to be asked."""

    name: str
    digest: str | None
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    template: ChatTemplate
    stop_ids: tuple[int, ...]
    close_id: int


@dataclass(frozen=True, slots=True)
class Written:
    """A completion as episodes take it. `forced_at`: how many tokens before a forced close."""

    ids: tuple[int, ...]
    finished: bool
    forced_at: int | None


@dataclass(frozen=True, slots=True)
class Condition:
    """How reasoning is controlled. `budget` in tokens, `None` for as much as the model likes."""

    name: str
    thinking: bool
    budget: int | None = None


def conditions(budgets: Sequence[int]) -> list[Condition]:
    """Reasoning on, off, and each budget."""
    forced = [Condition(f"budget {n}", True, n) for n in sorted(set(budgets))]
    return [Condition("on", True), Condition("off", False), *forced]


def load_subject(path: Path) -> Subject:
    """Load a checkpoint directory: an artifact of the SFT stage, or any plain transformers one."""
    digest = read_artifact(path).digest if (path / "manifest.json").is_file() else None
    tokenizer = load_tokenizer(path)
    special = special_tokens(tokenizer, end_token=None, pad_token=None)
    close_id = tokenizer.get_vocab().get("</think>")
    if close_id is None:
        raise ConfigError(f"{path}: </think> is no token of this tokenizer; budgets need it")
    return Subject(
        name=path.name,
        digest=digest,
        model=AutoModelForCausalLM.from_pretrained(str(path), local_files_only=True).eval(),
        tokenizer=tokenizer,
        template=chat_template_of(tokenizer),
        stop_ids=special.stop_ids,
        close_id=close_id,
    )


def generator(
    subject: Subject, condition: Condition, *, max_new_tokens: int, batch_size: int
) -> Generate:
    """The generator of one condition, as episodes take it."""
    encode = subject.tokenizer.encode

    def closing(reasoning: Sequence[int]) -> list[int]:
        # as a trace cut in training is rendered: on a line of its own, without a blank one before
        ends_line = subject.tokenizer.decode(reasoning).endswith("\n")
        return encode(CLOSE if ends_line else f"\n{CLOSE}", add_special_tokens=False)

    budget, limit = None, max_new_tokens
    if condition.budget is not None:
        budget = Budget(condition.budget, subject.close_id, closing)
        limit += condition.budget + len(closing([]))
    parameters = Parameters(temperature=0.0, max_tokens=limit)

    def generate(prompts: Sequence[Sequence[int]]) -> list[Written]:
        asked = [
            EngineRequest(tuple(ids), parameters, 0, subject.stop_ids, budget) for ids in prompts
        ]
        done = decode(subject.model, asked, batch_size=batch_size)
        return [
            Written(one.ids, one.finish == "stop", one.forced[0] if one.forced else None)
            for one in done
        ]

    return generate


def run(
    subject: Subject,
    items: Sequence[Mapping[str, Any]],
    condition: Condition,
    *,
    max_new_tokens: int,
    batch_size: int,
) -> dict[str, Any]:
    """Play all items under one condition and sum up."""
    tokenizer = subject.tokenizer
    episodes = play(
        items,
        subject.template,
        generate=generator(
            subject, condition, max_new_tokens=max_new_tokens, batch_size=batch_size
        ),
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
        decode=lambda ids: tokenizer.decode(ids, clean_up_tokenization_spaces=False),
        close_id=subject.close_id,
        thinking=condition.thinking,
    )
    return {"condition": condition.name, **summary(episodes)}


def summary(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Counts and means of finished episodes, over all and per family."""
    steps = [step for episode in episodes for step in episode.steps]
    families: dict[str, list[Episode]] = {}
    for episode in episodes:
        families.setdefault(episode.metadata["family"], []).append(episode)
    reasons = Counter(_reason(episode) for episode in episodes)
    return {
        "all": accuracy(episodes),
        "families": {name: accuracy(some) for name, some in families.items()},
        "reasons": dict(sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))),
        "completions": len(steps),
        "without_think_tag": sum(not step.has_think_tag for step in steps),
        "forced": sum(step.forced for step in steps),
        "truncated": sum(episode.truncated for episode in episodes),
        "reasoning_tokens": _mean([step.reasoning_tokens for step in steps]),
        "answer_tokens": _mean([step.answer_tokens for step in steps]),
        "samples": [_sample(some[0]) for some in families.values()],
    }


def _reason(episode: Episode) -> str:
    assert episode.grade is not None
    return "truncated" if episode.truncated else episode.grade.reason


def accuracy(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Correct episodes with Wilson's 95 % interval."""
    correct = sum(bool(episode.grade and episode.grade.correct) for episode in episodes)
    low, high = wilson(correct / len(episodes), len(episodes))
    return {
        "prompts": len(episodes),
        "correct": correct,
        "accuracy": round(correct / len(episodes), 6),
        "low": round(low, 6),
        "high": round(high, 6),
    }


def _mean(values: Sequence[int]) -> float:
    return round(sum(values) / len(values), 3) if values else 0.0


def _sample(episode: Episode) -> dict[str, Any]:
    return {
        "id": episode.item["id"],
        "family": episode.metadata["family"],
        "gold": episode.metadata["gold"],
        "reason": _reason(episode),
        "prompt": episode.item["messages"][-1]["content"],
        "completions": [step.text for step in episode.steps],
    }


def table(runs: Sequence[Mapping[str, Any]]) -> str:
    """All runs as text: one line a condition, then the families of each run side by side."""
    lines = [f"{'':<22}{'accuracy':>9} {'95 % interval':>16} {'reasoning':>10} {'answer':>7}"]
    for one in runs:
        for row in one["conditions"]:
            total = row["all"]
            lines.append(
                f"{one['name'][:12]:<12} {row['condition']:<9}{total['accuracy']:>9.1%} "
                f"{total['low']:>7.1%} – {total['high']:<6.1%} "
                f"{row['reasoning_tokens']:>10.1f} {row['answer_tokens']:>7.1f}"
                f"   {_remarks(row)}"
            )
    for one in runs:
        columns = one["conditions"]
        lines += ["", _cells(one["name"], [column["condition"] for column in columns])]
        for family in columns[0]["families"]:
            shares = [column["families"][family]["accuracy"] for column in columns]
            lines.append(_cells(f"  {family}", [f"{share:.1%}" for share in shares]))
    return "\n".join(lines)


def _cells(first: str, others: Sequence[str]) -> str:
    return f"{first[:22]:<22}" + "".join(f"{cell:>12}" for cell in others)


def _remarks(row: Mapping[str, Any]) -> str:
    parts = []
    if row["condition"] == "off":
        parts.append(f"adherence {row['without_think_tag'] / row['completions']:.1%}")
    if row["forced"]:
        parts.append(f"forced {row['forced'] / row['completions']:.0%}")
    if row["truncated"]:
        parts.append(f"truncated {row['truncated'] / row['all']['prompts']:.1%}")
    return ", ".join(parts)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--checkpoint", type=Path, required=True, action="append")
    parser.add_argument("--world", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=600, help="over all families")
    parser.add_argument("--families", help="comma-separated; default: those trained on")
    parser.add_argument("--budgets", default="8,24,64", help="reasoning tokens, comma-separated")
    parser.add_argument(
        "--max-new-tokens", type=int, default=320, help="of one completion, beside its budget"
    )
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--out", type=Path, help="write everything as JSON")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Ask every checkpoint under every condition; print, and write if asked to."""
    given = parse(argv)
    world = read_artifact(given.world, kind="tiny_world")
    budgets = [int(text) for text in given.budgets.split(",") if text]
    families = (
        dict.fromkeys(given.families.split(","), ())
        if given.families
        else taught(given.checkpoint[0], world)
    )
    items = held_out_items(given.world, families, given.prompts)
    runs: list[dict[str, Any]] = []
    for path in given.checkpoint:
        subject, rows = load_subject(path), []
        for condition in conditions(budgets):
            started = time.perf_counter()
            options = {"max_new_tokens": given.max_new_tokens, "batch_size": given.batch_size}
            rows.append(run(subject, items, condition, **options))
            seconds = time.perf_counter() - started
            print(f"{subject.name}: {condition.name} in {seconds:.1f} s", file=sys.stderr)
        runs.append({"name": subject.name, "checkpoint": subject.digest, "conditions": rows})
    print(f"{len(items)} held-out prompts of {', '.join(families)}\n{table(runs)}")
    if given.out:
        atomic_write_json(
            given.out,
            {
                "world": world.digest,
                "prompts": len(items),
                "families": list(families),
                "budgets": budgets,
                "max_new_tokens": given.max_new_tokens,
                "runs": runs,
            },
        )


if __name__ == "__main__":
    try:
        main()
    except PosttrainError as error:
        sys.exit(f"{type(error).__name__}: {error}")
