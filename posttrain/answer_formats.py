"""The answer formats that a prompt asks for: what decides whether silence is wrong in training.

requested_formats(prompt) == ["\\\\boxed{…}"]

It is read from what the model is given, so that a template, a system message and a question that
names its own format count alike, and from the record's `output_regex`.
"""

from __future__ import annotations

import re

from posttrain.rollouts import Prompt, metadata_of

# name → how a prompt asks for it
_REQUESTS = {
    "\\boxed{…}": r"\\(?:boxed|fbox)(?![A-Za-z])",
    "<answer>…</answer>": r"(?i)</?answer>",
    "#### …": r"\#{4}",
    # quoted, or with what is to be filled in behind it; "Answer:" at the end asks for nothing
    "Answer: …": (
        r"(?<!\w)[\"'`“‘][^\"'`”’\n]{0,30}\b[Aa](?:nswer|NSWER)\b(?:[ \t]+is\b|[ \t*]*:)"
        r"|\b[Aa](?:nswer|NSWER)[ \t*]*:[ \t*]*(?:\$?[A-Z]{3,}\b|X\b|[<\[({_]|\$[a-z]|\.\.\.|…)"
    ),
    "JSON": (
        r"(?i)\b(?:in|as|with|return|output|produce|write|give|valid)\s+"
        r"(?:(?:an?|one|only|valid|the|following|single)\s+)*JSON\b"
    ),
}


def requested_formats(prompt: Prompt) -> list[str]:
    """Names of the formats in which a prompt wants its answer; [] where it wants none."""
    texts = (m.content for m in prompt.messages if m.role in ("system", "user"))
    question = "\n".join(texts)
    names = [name for name, request in _REQUESTS.items() if re.search(request, question)]
    if metadata_of(prompt).get("output_regex"):
        names.append("what its output_regex matches")
    return names
