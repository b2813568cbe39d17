"""Markup per character: what counts as a mark and what is not looked at."""

from __future__ import annotations

import pytest

from reward.length import style_density


def marks(text: str) -> float:
    return style_density(text) * len(text.strip())


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Plain prose, 3 * 4 = 12, a # and a - in the middle.", 0),
        ("# Sum\n\n- **four**", 3),
        ("###### six\n####### seven is none", 1),
        ("#hashtag", 0),
        ("1. one\n2) two\n* three\n  + four", 4),
        ("-dash\n3.14 is pi", 0),
        ("**a** and **b** and __c__", 3),
        ("snake__case__name and ** x **", 0),
        ("fine 👍 and 🚀✨", 3),
        ("no \u4e2d\u6587 \u03b1 \u2192 emoji", 0),
    ],
)
def test_marks(text: str, count: int):
    assert marks(text) == pytest.approx(count)


@pytest.mark.parametrize("fence", ["```", "~~~", "````"])
def test_fenced_code_is_neither_counted_nor_measured(fence: str):
    code = f"{fence}python\n# not a header\n- x\n**y**\n{fence}"
    assert style_density(f"- item\n{code}\ntail") == pytest.approx(1 / len("- item\n\ntail"))
    assert style_density(code) == 0
    assert style_density(f"- item\n{fence}\n# an open fence\n- runs to the end") == 1 / 6


@pytest.mark.parametrize("piece", ["`", "```\n", "*", "**a", "__", "# ", "1", "~~~x\n```\n"])
def test_long_texts_take_linear_time(piece: str):
    assert style_density(piece * 50_000) >= 0
