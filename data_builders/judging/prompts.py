"""A pair → its judging prompts, with the gold verdict that their answers are rewarded against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from data_builders.dialects import RowProblem
from data_builders.judging.pair import PreferencePair
from posttrain.config.build_genrm import BuildGenRmConfig
from posttrain.config.build_sft import TokenizerConfig
from posttrain.errors import RenderError
from posttrain.models.chat_template import load_renderer
from posttrain.records import Message, json_text
from posttrain.rollouts import Prompt
from posttrain.tokens.tokenizer import encoder_of
from reward.judge.prompt import judging_messages, quoted, verdict_text
from reward.judge.verdict import Gold, Verdict, parse_verdict, training_reward

CountTokens = Callable[[Sequence[Prompt]], list[int]]
GRADER = "genrm"
SETTING = "judging"
GIVEN, SWAPPED = "given", "swapped"


def prompts_of(
    pair: PreferencePair,
    *,
    source: str,
    recipe: BuildGenRmConfig,
    swap: bool,
    count: CountTokens | None = None,
) -> list[Prompt]:
    """The pair asked as it came and, with `swap`, in the other order; both share `task`.

    Args:
        count: tokens of rendered prompts; where it is given they go by `max_tokens`.

    Raises:
        RowProblem: `too_long`; `render_error`; `gold_refused` by the reader of verdicts.
    """
    name = f"{source}-{pair.key}"
    orders = ((GIVEN, pair), (SWAPPED, pair.swapped()))[: 2 if swap else 1]
    prompts = [_prompt(one, name, order, source, recipe) for order, one in orders]
    if count is not None and recipe.max_tokens is not None:
        try:
            long = max(count(prompts))
        except RenderError as error:
            raise RowProblem("render_error", "the judging prompt", str(error)) from None
        if long > recipe.max_tokens:
            raise RowProblem("too_long", "the judging prompt", f"{long:,} tokens")
    return prompts


def _prompt(
    pair: PreferencePair, task: str, order: str, source: str, recipe: BuildGenRmConfig
) -> Prompt:
    messages = messages_of(pair, recipe)
    long = sum(len(message.content) for message in messages)
    if recipe.max_characters is not None and long > recipe.max_characters:
        raise RowProblem("too_long", "the judging prompt", f"{long:,} characters")
    check_gold(pair.gold)
    return Prompt(
        id=f"{task}/{order}",
        task=task,
        setting=SETTING,
        messages=messages,
        thinking=recipe.thinking,
        grader=GRADER,
        gold=gold_text(pair.gold),
        source=source,
        metadata=json_text(
            {
                "pair": task,
                "question": pair.question,
                "swapped": order == SWAPPED,
                "source": source,
            }
        ),
    )


def messages_of(pair: PreferencePair, recipe: BuildGenRmConfig) -> tuple[Message, ...]:
    if pair.frame is not None:
        # as it came, but for what would frame a message of its own
        whole = pair.frame.around(pair.response_1, pair.response_2)
        return (Message("user", quoted(whole)),)
    return judging_messages(
        pair.history,
        pair.response_1,
        pair.response_2,
        layout=recipe.layout,
        principle=pair.principle or recipe.principle,
    )


def check_gold(gold: Gold) -> None:
    """A gold that its own reader refuses would punish every answer. Raises RowProblem."""
    # of a gold without scores the ranking alone is compared
    scores = [1 if score is None else score for score in (gold.score_1, gold.score_2)]
    found = parse_verdict(verdict_text(Verdict(*scores, gold.ranking)))
    if found is None or training_reward(found, gold) != 0:
        raise RowProblem("gold_refused", "the gold verdict", gold_text(gold))


def gold_text(gold: Gold) -> str:
    return json_text({"score_1": gold.score_1, "score_2": gold.score_2, "ranking": gold.ranking})


def sft_row(pair: PreferencePair, prompt: Prompt) -> dict[str, Any] | None:
    """A warm-up conversation in the openai dialect; None where the row brought no reasoning."""
    gold = pair.gold
    if pair.reasoning is None or gold.score_1 is None or gold.score_2 is None:
        return None
    answer = verdict_text(Verdict(gold.score_1, gold.score_2, gold.ranking))
    reply = {"role": "assistant", "reasoning_content": pair.reasoning, "content": answer}
    prompted = [{"role": m.role, "content": m.content} for m in prompt.messages]
    return {"id": prompt.id, "source": prompt.source, "messages": [*prompted, reply]}


def token_counter(config: TokenizerConfig) -> CountTokens:
    """Counts the tokens of prompts as the judge gets them."""
    renderer = load_renderer(config)
    encoder = encoder_of(renderer.tokenizer)
    return lambda prompts: [len(ids) for ids in encoder.encode([*map(renderer.text, prompts)])]
