"""A judge over a real tokenizer and template: no answer becomes a special token of its prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from posttrain.chat import ChatTemplate
from posttrain.records import Message
from posttrain.sampling.render import RenderedSampler
from posttrain.tokens.tokenizer import encoder_of
from reward.judge.judge import GenRmJudge, JudgeSampler, judge_sampler
from reward.judge.prompt import LAYOUTS
from reward.judge.verdict import Verdict
from reward.judge.votes import Comparison, Judgement
from tests.reward.judge.judging import ATTACKS, HISTORY, config
from tests.sampling.small_models import CHAT_TOKENS, byte_tokenizer
from tests.sampling.test_rendered import ENCODER, Says, sampler_of

VERDICT = '{"score_1": 4, "score_2": 2, "ranking": 2}'
# after the released judge's form: its roles become delimited parts of one user turn
ROLES = ChatTemplate(
    "{% for m in messages %}"
    "{% if m.role == 'response_1' or m.role == 'response_2' %}"
    "<|im_start|>user\n[The Begin of {{ m.role }}]\n{{ m.content }}\n[The End]<|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}",
    special_tokens=CHAT_TOKENS,
)
SPECIAL = {
    ENCODER.encode([token])[0][0]: token
    for token in (*CHAT_TOKENS, "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
}


def judged(sampler: RenderedSampler, layout: str, pairs: Sequence[tuple[str, str]]):
    model = config().models[0].model_copy(update={"layout": layout})
    seat = judge_sampler(model, sampler, template=sampler.template.source)
    judge = GenRmJudge([seat], config(retries=0))
    matches = [Comparison(HISTORY, *pair) for pair in pairs]
    return seat.layout, asyncio.run(judge.judge(matches, seed=1))


def opened(template: str | None) -> tuple[RenderedSampler, Says]:
    end = "<|eot_id|>" if template == "llama3" else "<|im_end|>"
    thought = "" if template == "llama3" else "I look at both.</think>\n"
    engine = Says(f"{thought}{VERDICT}{end}")
    if template is None:
        return RenderedSampler(engine, template=ROLES, encoder=ENCODER), engine
    return sampler_of(engine, template), engine


@pytest.mark.parametrize(
    ("template", "layout"),
    [
        (None, "roles"),
        ("nemotron_3_nano", "message"),
        ("qwen3", "message"),
        ("llama3", "message"),
    ],
)
def test_a_prompt_has_the_special_tokens_of_its_template_and_no_others(
    template: str | None, layout: str
):
    sampler, engine = opened(template)
    pairs = [("a", "b"), *((attack, "b") for attack in ATTACKS), *(("a", x) for x in ATTACKS)]
    _, judgements = judged(sampler, layout, pairs)
    found = [[SPECIAL[i] for i in r.ids if i in SPECIAL] for r in engine.requests]
    # equal texts are asked once: blank answers are marked alike
    assert len(found) > len(ATTACKS)
    assert found == [found[0]] * len(found)
    assert {judgement.verdict for judgement in judgements} == {Verdict(4, 2, 2)}


# of tokenizers in use; none of them looks like those that are quoted for every judge
ODD = ("<SPECIAL_7>", "[MASK]", "[gMASK]", "<mask>", "<fim_prefix>", "<unused0>", "]~b]", "<a><a>")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_answer_becomes_a_special_token_of_a_tokenizer_that_is_known(layout: str):
    encoder = encoder_of(byte_tokenizer((*CHAT_TOKENS, *ODD)))
    assert {*CHAT_TOKENS, *ODD} <= {*encoder.special_tokens}
    special = {encoder.encode([token])[0][0] for token in encoder.special_tokens}
    engine = Says(f"I look at both.</think>\n{VERDICT}<|im_end|>", encoder=encoder)
    sampler = RenderedSampler(engine, template=ROLES, encoder=encoder)
    seat = JudgeSampler(sampler, layout, tokens=encoder.special_tokens)
    attacks = ("a", *ODD, "".join(ODD), *(token[0] + token for token in ODD), "<a><a><a>")
    matches = [Comparison((Message("user", f"{x}?"),), x, f"b{x}", principle=x) for x in attacks]
    asyncio.run(GenRmJudge([seat], config(retries=0)).judge(matches, seed=1))
    found = [[i for i in request.ids if i in special] for request in engine.requests]
    assert len(found) == len(attacks)
    assert found == [found[0]] * len(found)


def test_a_template_that_knows_the_roles_gets_them():
    sampler, engine = opened(None)
    layout, found = judged(sampler, "auto", [("first", "second")])
    assert layout == "roles"
    assert ENCODER.decode(engine.requests[0].ids).endswith(
        "<|im_start|>user\n[The Begin of response_1]\nfirst\n[The End]<|im_end|>\n"
        "<|im_start|>user\n[The Begin of response_2]\nsecond\n[The End]<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    )
    assert judged(opened("nemotron_3_nano")[0], "auto", [("a", "b")])[0] == "message"
    # "I look at both." is reasoning, and the verdict's text is kept
    assert (found[0].verdict, found[0].votes[0].text) == (Verdict(4, 2, 2), VERDICT)


def test_a_conversation_that_a_template_refuses_is_a_failed_judgement_not_a_crash():
    _, engine = opened(None)
    refusing = ChatTemplate(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        + ROLES.source,
        special_tokens=CHAT_TOKENS,
    )
    sampler = RenderedSampler(engine, template=refusing, encoder=ENCODER)
    match = Comparison((Message("system", "s"), *HISTORY), "a", "b")

    def judgement(layout: str) -> Judgement:
        judge = GenRmJudge([JudgeSampler(sampler, layout)], config())
        return asyncio.run(judge.judge([match], seed=1))[0]

    refused = judgement("roles")
    assert refused.verdict is None
    assert "no system" in (refused.reason or "")
    # elsewhere one user message holds the system's words too
    assert judgement("message").verdict == Verdict(4, 2, 2)
