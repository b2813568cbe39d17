"""The formats for the final answer that a prompt asks for, and whether a completion has one.

asked_formats(Prompt(messages=(Message("user", "… your answer in \\\\boxed{}."),), …))
    → [Format("\\\\boxed{…}", …)]

What is not found here is not asked for. Where it is, an answer in another place still counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from posttrain.rollouts import Prompt, metadata_of
from reward.boxes import joined_boxes
from reward.final_answer import LABEL, TAG


@dataclass(frozen=True, slots=True)
class Format:
    """`asked` finds it in a prompt; `used` says whether a completion's answer has it."""

    name: str
    asked: re.Pattern[str]
    used: Callable[[str], object]


_FORMATS = (
    Format("\\boxed{…}", re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])"), joined_boxes),
    Format(
        "<answer>…</answer>",
        re.compile(r"</?answer>", re.IGNORECASE),
        lambda answer: any(tag.strip() for tag in TAG.findall(answer)),
    ),
    Format(
        "#### …", re.compile(r"\#{4}"), re.compile(r"^[ \t]*\#{4}[ \t]*\S", re.MULTILINE).search
    ),
    # quoted, or with what is to be filled in behind it; "Answer:" at the end asks for nothing
    Format(
        "Answer: …",
        re.compile(
            r"(?<!\w)[\"'`“‘][^\"'`”’\n]{0,30}\b[Aa](?:nswer|NSWER)\b(?:[ \t]+is\b|[ \t*]*:)"
            r"|\b[Aa](?:nswer|NSWER)[ \t*]*:[ \t*]*(?:\$?[A-Z]{3,}\b|X\b|[<\[({_]|\$[a-z]|\.\.\.|…)"
        ),
        LABEL.search,
    ),
    Format(
        "JSON",
        re.compile(
            r"\b(?:in|as|with|return|output|produce|write|give|valid)\s+"
            r"(?:(?:an?|one|only|valid|the|following|single)\s+)*JSON\b",
            re.IGNORECASE,
        ),
        re.compile(r"[{\[]").search,
    ),
)
_OUTPUT_REGEX = Format("what its output_regex matches", re.compile(r"(?!)"), lambda answer: False)


def asked_formats(prompt: Prompt) -> list[Format]:
    """The formats that a prompt's system and user messages, or its `output_regex`, ask for."""
    said = "\n".join(m.content for m in prompt.messages if m.role in ("system", "user"))
    found = [form for form in _FORMATS if form.asked.search(said)]
    return [*found, _OUTPUT_REGEX] if metadata_of(prompt).get("output_regex") else found
