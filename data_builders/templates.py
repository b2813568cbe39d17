"""Prompts and training records in prompt templates: all for evaluation, one for training. Question
and right answer stay the same; only the words around them change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from data_builders.keyed import key64, unit
from posttrain.config.build_sft import SftAugment
from posttrain.config.prompts import AnySource
from posttrain.config.templates import PLACEHOLDER, PromptTemplate, fill
from posttrain.records import Example, with_messages
from posttrain.rollouts import Completion, ParsedCompletion, Prompt, Step
from reward.graders.base import Attempt, Grader

SHORT = 80  # characters of a reply that is a bare answer


def in_templates(
    prompt: Prompt, question: str | None, source: AnySource, *, seed: int
) -> list[Prompt]:
    """The prompt in every template of its source; or in one, or as it is, where it augments.

    Without a `question` the last user message is the question.
    """
    if source.templates is not None:
        return [_templated(prompt, question, template) for template in source.templates]
    augment = source.augment
    if augment is None or unit(seed, "augment", prompt.task) >= augment.share:
        return [prompt]
    place = key64(seed, "template", prompt.task) % len(augment.templates)
    return [_templated(prompt, question, augment.templates[place])]


def _templated(prompt: Prompt, question: str | None, template: PromptTemplate) -> Prompt:
    last = max(i for i, message in enumerate(prompt.messages) if message.role == "user")
    own = prompt.messages[last]
    options = json.loads(prompt.metadata)["options"] if template.shows_options else {}
    text = fill(template.text, own.content if question is None else question, options)
    messages = [*prompt.messages]
    messages[last] = replace(own, content=text)
    name = f"{prompt.id}/{template.name}"
    return replace(prompt, id=name, template=template.name, messages=tuple(messages))


def templates_refused(
    prompts: Sequence[Prompt], templates: Sequence[PromptTemplate], grader: Grader
) -> list[str | None]:
    """Per prompt: why its gold, written as its template requests, does not get the full mark.

    An answer format that the grader cannot read would pass for a model's sensitivity.
    """
    answers = {template.name: template.answer for template in templates}
    written = {
        k: Attempt(p, _reply(p, answer.replace("{answer}", p.gold)))
        for k, p in enumerate(prompts)
        if p.gold is not None and (answer := answers.get(p.template or "")) is not None
    }
    problems: list[str | None] = [None] * len(prompts)
    scores = grader.grade([*written.values()]) if written else []
    for k, score in zip(written, scores, strict=True):
        if score.value != 1.0:
            problems[k] = f"template_refused: {prompts[k].template}: {score.explanation}"
    return problems


def _reply(prompt: Prompt, text: str) -> Completion:
    parsed = ParsedCompletion(
        reasoning=None, answer=text, tool_calls=(), problems=(), finished=True
    )
    step = Step(text, parsed, "stop", reasoning_tokens=0, answer_tokens=1, prompt_tokens=1)
    return Completion(prompt.id, 0, (step,), "stop")


def augmented(example: Example, augment: SftAugment, *, seed: int) -> tuple[Example, str]:
    """The record in a template and the template's name; else the record and why it stays.

    A reply that is a bare answer is written as the template requests it; one that already gives its
    answer in some format stays word for word, and takes the templates that request this format.
    """
    if unit(seed, "augment", example.id) >= augment.share:
        return example, "not_chosen"
    messages = [*example.messages]
    users = [i for i, message in enumerate(messages) if message.role == "user"]
    reply = messages[-1]
    if len(users) != 1 or reply.role != "assistant" or reply.tool_calls:
        return example, "several_turns"
    asked = messages[users[0]].content
    found = re.fullmatch(augment.question or r"(?s)(?P<question>.*)", asked)
    if found is None:
        return example, "no_question"
    bare = _is_bare(reply.content, augment.templates)
    fitting = [one for one in augment.templates if bare or _fits(reply.content, one)]
    if not fitting:
        return example, "answer_format"
    template = fitting[key64(seed, "template", example.id) % len(fitting)]
    parts = found.groupdict()  # the options as the row lists them
    text = PLACEHOLDER.sub(lambda place: parts.get(place[1]) or place[0], template.text)
    messages[users[0]] = replace(messages[users[0]], content=text)
    if bare and template.answer is not None:
        answer = template.answer.replace("{answer}", reply.content.strip())
        messages[-1] = replace(reply, content=answer)
    return with_messages(example, messages), template.name


def _mark(template: PromptTemplate) -> str:
    """What stands before an answer in the template's format."""
    return (template.answer or "").partition("{answer}")[0]


def _is_bare(reply: str, templates: Sequence[PromptTemplate]) -> bool:
    text = reply.strip()
    marked = any((mark := _mark(one)) and mark in text for one in templates)
    return bool(text) and len(text) <= SHORT and "\n" not in text and not marked


def _fits(reply: str, template: PromptTemplate) -> bool:
    mark = _mark(template)
    return template.answer is None or (bool(mark) and mark in reply)
