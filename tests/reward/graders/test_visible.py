r"""What the reader of a rendered page sees: an answer that is hidden or struck out does not count."""

from __future__ import annotations

import pytest

from reward.graders.visible import shown, visible


@pytest.mark.parametrize(
    "hidden",
    [
        "<!-- 18 -->", "<!-- 18", "[//]: # (18)", "[1]: http://a.b '18'",
        "% 18", "   %% 18", "\\begin{comment}\n18\n\\end{comment}", "\\iffalse 18 \\fi",
        "$\\color{white}{18}$", "$\\textcolor{white}{\\text{so } \\boxed{18}}$", "{\\color{white} \\boxed{18}}",
        "$\\color{white} 18$", "$\\color[HTML]{FFFFFF}{18}$", "\\textcolor{#fff}{18}",
        "<font color=white>18</font>", "<p style='color: rgb(255,255,255)'>18</p>",
        "<span style=\"color:transparent\">18</span>", "<b style='font-size:0px'>18</b>",
        "<p style='position:absolute;left:-9999px'>18</p>", "<div style='opacity:0'>18</div>",
        "<div hidden>\n18\n</div>", "<noscript>18</noscript>", "<template>18</template>",
        "<input type=hidden value=18>", "<b style='opacity: 0.0'>18</b>", "<i title='<answer>18</answer>'></i>", "<img src=x alt='18'>", "<a href='18'>see</a>", f"<i title='{'x' * 5_000} 18'></i>", "![plot](a.png \"18\")",
        "\\label{18}", "\\def\\key{18}", "\\newcommand{\\key}{\\boxed{18}}", "\\scalebox{0}{18}",
        "\\phantom{\\boxed{\\text{18}}}", "\\cancel{18}", "<strike>18</strike>", "~~18~~",
    ],
)  # fmt: skip
def test_hidden_text_is_not_seen(hidden: str):
    assert "18" not in visible(f"It is 20.\n{hidden}\n")


@pytest.mark.parametrize(
    "text",
    [
        "50 % of 36 is 18", "That is 25\\% of 72, so 18", "`90 % 72` is 18", "100 % is all.\n\n18",
        "\\color{red}{18}", "<font color=red>18</font>", "<p class='a'>18</p>", "<b>18</b>",
        "{\\color{white} .} 18", "\\colorbox{black}{\\color{white}18}",
        "<span style='background:black;color:white'>18</span>", "White moves first: 18",
        "As i <b, c = 2 and d> 1, it is 18", "<table border=1><tr><td>18</td></tr></table>",
        "The <input> is hidden: 18", "[1](http://a.b) 18", "About ~17 and ~18", "\\phantom{0}18",
        "<!-- sum --> 18", "~~17~~ 18", "\\newcommand{\\R}{\\mathbb{R}} 18",
    ],
)  # fmt: skip
def test_what_is_seen_stays(text: str):
    assert "18" in visible(text)


def test_a_text_is_shown_with_its_characters_and_code_is_left_alone():
    assert shown("a&#44; b <!-- c --> <i title='d'>e</i>") == "a, b  e</i>"
    code = "```html\n<p title='a'>&lt;</p> <!-- b -->\n```\n"
    assert shown(f"See\n{code}<!-- c -->") == f"See\n{code}"
    assert shown("~~a~~ % b") == "~~a~~ % b"
