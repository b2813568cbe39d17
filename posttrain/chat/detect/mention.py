"""Is it called, or is it shown? The rules of position and context, in one place.

    Ground(page, question, known).shows(candidate, since=0) → True: spoken of or shown; no call

A call stands on a line of its own, or at a sentence's end with nothing behind it. In inline code,
in quotation marks, in the middle of a sentence, or in a block that answers a question about calls,
it is shown. A fenced block holds a call only if it holds nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from posttrain.chat.detect.candidate import Candidate
from posttrain.chat.detect.page import Fence, Page
from posttrain.chat.detect.question import Question
from posttrain.chat.detect.requested import RequestedCall, placeholder, tool_name

_LEAD_END = re.compile(r"(?:[.!?…:;,。！？：；，)\]>*_`|→\-]|minimax\[>\[|^)$")
_BULLET = re.compile(r"(?:[>*+\-•#]|\d{1,3}[.)]|\[\d+\])*\s*$")
_QUOTE = re.compile(r"[\"'“‘«„「『(=]$")
_TRAIL = re.compile(r"[\s,;.\]})]*(?:$|<|\[/?[A-Z]|[\[{]|`{3}|✿)")
_THING = (
    r"(?:call|request|response|format|output|usage|json|payload|invocation|syntax|message|block|"
    r"answer|tool|function)s?"
)
_EXAMPLE = re.compile(
    r"(?:\b(?:for example|for instance|e\.g\.?|such as|like so)|例如|比如|示例)\W*$|"
    r"\bexamples?\s*[:：]\W*$|"
    rf"\b(?:example|sample)\b[^.!?\n]{{0,40}}\b{_THING}\b[^.!?\n]{{0,60}}[:：]\W*$|"
    rf"\b{_THING}\s+(?:example|sample)s?\b[^.!?\n]{{0,60}}[:：]\W*$|"
    r"\b(?:looks?|written|formatted) (?:something |exactly )?(?:like|as)"
    r"(?: this| so| follows)?\W*$",
    re.I,
)
# the words of whoever explains a notation to someone else; nobody who calls speaks so
_INSTRUCTS = re.compile(
    r"\bto (?:call|use|invoke|make) (?:a |an |any |the |one |your )?(?:tool|function|call)|"
    r"\b(?:exact(?:ly)?|this|following|call(?:ing)?) (?:\w+ )?format\b|\bexactly one of\b|"
    r"\b(?:respond|reply|return|output|emit|write|include)\b[^.\n]{0,80}\b(?:format|block|xml|"
    r"tags?|object|json)\b|"
    r"\b(?:the|an?) (?:model|assistant|llm|agent|api|server|response|client|system)\b[^.\n]{0,60}"
    r"\b(?:outputs?|emits?|returns?|responds?|replies|generates?|produces?|sends?|writes?|would|"
    r"will|might|looks?|contains?|calls?|is)\b|"
    r"\byou (?:would|can|could|should|must|need to|might|may|will|have to)\b",
    re.I,
)
_MYSELF = re.compile(r"\b(?:I|I'll|I'm|let me|let's|we|my)\b", re.I)
_CUE = re.compile(
    r"\b(?:as follows|formats?|syntax|template|structured?|should|would|could|might|is written|"
    r"in the form|using|here(?:'s| is| are)|following|this is|like this|turn|output|emit|write|"
    r"respon[ds])\w*\b|[:：]\s*[*_`]*$",
    re.I,
)


@dataclass(frozen=True, slots=True)
class Ground:
    """A part of an answer, the question it answers and the names of the declared tools."""

    page: Page
    question: Question
    known: Collection[str]

    def declares(self, requested: Collection[RequestedCall]) -> bool:
        """Whether every one of these calls names a declared tool."""
        return bool(requested) and all(tool_name(a.name) in self.known for a in requested)

    def shows(self, candidate: Candidate, since: int) -> bool:
        """Whether a candidate is shown or spoken of, not called.

        Args:
            candidate: what was found.
            since: where the call before this one ended.
        """
        start, end, requested = candidate.start, candidate.end, candidate.requested
        if any(placeholder(a) for a in requested):
            return True
        if candidate.plain and (self.question.wants_code or self.question.wants_data):
            return True
        span = self.page.inline_span(start)
        fence = self.page.fence(start)
        if fence is not None:
            return self._fenced(fence, start, end, requested, since)
        if span is not None:
            return self._amid(span[0], span[1], lone=True) or self.question.about_calls
        if self.question.wants_example and not self.declares(requested):
            return True
        return self._amid(start, end) or self._introduced(start)

    def _fenced(
        self, fence: Fence, start: int, end: int, requested: Collection[RequestedCall], since: int
    ) -> bool:
        """A block is a call only if the question is not about such blocks, and it holds no more."""
        question = self.question
        if question.about_calls:
            return True
        if self.page.text[max(fence.body, min(since, start)) : start].strip(" \t\n,;"):
            return True
        behind = self.page.text[end : fence.end].strip()
        if behind and not re.match(r"[\[{<,;✿]|[\w.]+\(|tool|function", behind):
            return True
        return self._introduced(fence.start)

    def _amid(self, start: int, end: int, *, lone: bool = False) -> bool:
        """Whether it is quoted or stands within a sentence."""
        before = self.page.before(start)
        stripped = before.rstrip()
        if _QUOTE.search(stripped) and not lone:
            return True
        leads = not _BULLET.sub("", stripped) or _LEAD_END.search(stripped) is not None
        trails = _TRAIL.match(self.page.after(end)) is not None
        if lone:  # in inline code only as a whole line
            return not (trails and not stripped.strip("*- "))
        if self.question.about_calls and not (leads and trails):
            return True
        return not leads and not trails

    def _introduced(self, start: int) -> bool:
        """Whether the words before it call it an example."""
        lead = self.page.lead_in(start)
        if _EXAMPLE.search(lead):
            return True
        explains = lead.rstrip(" *_`").endswith((":", "：")) and not _MYSELF.search(lead)
        if explains and _INSTRUCTS.search(lead):
            return True
        return self.question.about_calls and _CUE.search(lead) is not None
