"""Prompts and training records in prompt templates: all for evaluation, one for training.

Question and right answer stay the same; only the words around them change.
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
from posttrain.rollouts import Prompt

LONGEST_BARE_ANSWER = 80  # characters, ours


def in_templates(
    prompt: Prompt, question: str | None, source: AnySource, *, seed: int
) -> list[Prompt]:
    """Put a prompt in all templates of its source; a source that augments gives one, or none.

    Args:
        question: question without the text around it; None: the whole last user message.
    """
    if source.templates is not None:
        return [_fill_template(prompt, question, template) for template in source.templates]
    augment = source.augment
    if augment is None or unit(seed, "augment", prompt.task) >= augment.share:
        return [prompt]
    template_index = key64(seed, "template", prompt.task) % len(augment.templates)
    return [_fill_template(prompt, question, augment.templates[template_index])]


def _fill_template(prompt: Prompt, question: str | None, template: PromptTemplate) -> Prompt:
    """Prompt whose last user message is the question in the template's words."""
    user_indices = [i for i, message in enumerate(prompt.messages) if message.role == "user"]
    user_message = prompt.messages[user_indices[-1]]
    options = json.loads(prompt.metadata)["options"] if template.shows_options else {}
    if question is None:
        question = user_message.content
    messages = [*prompt.messages]
    text = fill(template.text, question, options)
    messages[user_indices[-1]] = replace(user_message, content=text)
    return replace(
        prompt,
        id=f"{prompt.id}/{template.name}",
        template=template.name,
        messages=tuple(messages),
    )


def augmented(example: Example, augment: SftAugment, *, seed: int) -> tuple[Example, str]:
    """Put a training record in a template. Returns the record and the template's name.

    A record that stays as it is comes with the reason in place of a name. A reply that is a bare
    answer is written as the template requests it; one that already gives its answer in some format
    stays word for word, and takes the templates that request this format.
    """
    if unit(seed, "augment", example.id) >= augment.share:
        return example, "not_chosen"
    messages = [*example.messages]
    user_indices = [i for i, message in enumerate(messages) if message.role == "user"]
    reply = messages[-1]
    if len(user_indices) != 1 or reply.role != "assistant" or reply.tool_calls:
        return example, "several_turns"
    user_message = messages[user_indices[0]]
    question_pattern = augment.question or r"(?s)(?P<question>.*)"
    question_match = re.fullmatch(question_pattern, user_message.content)
    if question_match is None:
        return example, "no_question"
    is_bare = _is_bare_answer(reply.content, augment.templates)
    usable_templates: list[PromptTemplate] = []
    for template in augment.templates:
        if is_bare or _has_format(reply.content, template):
            usable_templates.append(template)
    if not usable_templates:
        return example, "answer_format"
    template = usable_templates[key64(seed, "template", example.id) % len(usable_templates)]
    # named groups of the pattern: the question, and the options as the row lists them
    parts = question_match.groupdict()
    text = PLACEHOLDER.sub(
        lambda placeholder: parts.get(placeholder[1]) or placeholder[0], template.text
    )
    messages[user_indices[0]] = replace(user_message, content=text)
    if is_bare and template.answer is not None:
        answer = template.answer.replace("{answer}", reply.content.strip())
        messages[-1] = replace(reply, content=answer)
    return with_messages(example, messages), template.name


def _answer_mark(template: PromptTemplate) -> str:
    """Text before an answer in the template's format: "The answer is "; "" without a format."""
    return (template.answer or "").partition("{answer}")[0]


def _is_bare_answer(reply: str, templates: Sequence[PromptTemplate]) -> bool:
    """True if a reply is one short line in none of the templates' formats."""
    text = reply.strip()
    if not text or len(text) > LONGEST_BARE_ANSWER or "\n" in text:
        return False
    marks = [_answer_mark(template) for template in templates]
    return not any(mark in text for mark in marks if mark)


def _has_format(reply: str, template: PromptTemplate) -> bool:
    """True if a reply gives its answer in the template's format, or the template has none."""
    mark = _answer_mark(template)
    return template.answer is None or (bool(mark) and mark in reply)
