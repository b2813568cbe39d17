"""Samples in a page: as many as it holds, never as markup, filtered and sorted by its script."""

from __future__ import annotations

import html
import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from posttrain.pages.write import write_report
from posttrain.report import section as ui
from posttrain.report.html import page_html
from posttrain.rollouts import TRUNCATED
from posttrain.runs import Counts, Run
from tests.pages.conftest import write_rows
from tests.pages.reading import Reader, section

HOSTILE = "</script></pre></details><img src=x onerror=alert(1)><script>alert(1)</script> \"'&"
ROWS, SHOWN = 300, 200
FINISH = dict.fromkeys(("stop", *TRUNCATED), 0)
SETTING = {
    "prompts": 10, "samples": ROWS, "thinking_on": 10, "tokens": 100, "reasoning_tokens": 1,
    "answer_tokens": 1, "steps": ROWS, "samples_with_calls": 0, "tool_results": 0, "problems": {},
}  # fmt: skip


def completion(number: int) -> dict:
    step = {
        "text": f"{HOSTILE} word{number} " + "long " * 200, "reasoning_tokens": number,
        "answer_tokens": 1, "results": [],
    }  # fmt: skip
    return {"prompt_id": f"p{number % 10}", "steps": [step], "finish": "stop"}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of more samples, long and hostile, than a page holds."""
    out = tmp_path_factory.mktemp("samples") / "samples"
    run = Run.open(out, kind="samples", config={})
    prompts = [
        {"id": f"p{n}", "setting": HOSTILE, "source": f"source {n % 2} {HOSTILE}",
         "messages": [{"role": "user", "content": HOSTILE}], "thinking": True, "gold": "1"}
        for n in range(10)
    ]  # fmt: skip
    files = {"prompts.jsonl": prompts, "samples.jsonl": [completion(n) for n in range(ROWS)]}
    sizes = {name: write_rows(out / name, rows) for name, rows in files.items()}
    stats = {"settings": {"x": {**SETTING, "finish": FINISH}}, "sources": {}, "skipped": {}}
    run.finish(counts=Counts(ROWS, ROWS), files=sizes, stats=stats)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ui, "MOST_SAMPLES", SHOWN)
        patch.setattr(ui, "MOST_CHARACTERS", 1000 * SHOWN)
        return write_report(out).read_text()


def test_a_page_holds_so_many_samples_and_says_what_it_leaves_out(page: str):
    part = section(page, "Samples to read")
    assert part.count("<details") == SHOWN
    assert "200 of 300, evenly spread" in part
    shown = [int(number) for number in re.findall(r"word(\d+) ", part)]
    assert shown[-1] == ROWS - 1
    assert {b - a for a, b in itertools.pairwise(shown)} == {1, 2}
    assert "characters … " in part
    assert len(part) < 2500 * SHOWN  # a prompt, a completion, markup


def test_no_text_of_a_sample_becomes_markup(page: str):
    reader = Reader(page)  # every tag closes where it was opened
    assert reader.loads == []
    assert page.count("<script") == page.count("</script>") == 1
    assert "<img" not in page


def test_few_samples_of_many_texts_are_shown_as_long_as_many_of_one():
    assert ui.room(32, 9) == ui.room(1) == ui.SHOWN_CHARACTERS
    assert 2000 * 3 * ui.room(2000, 3) <= ui.MOST_CHARACTERS
    assert ui.each(3000, 50) == 200
    assert ui.shortened("abcdefghij", 5) == "abc … 5 characters … ij"


def sample(source: str, finish: str, reward: float | None, text: str) -> ui.Sample:
    values = {"source": source, "finish": finish}
    return ui.Sample(text, [ui.Dialogue(f"{text} of {source}")], values, {"reward": reward})


SMALL = [
    sample("maths", "stop", 0.5, "first"),
    sample("logs", "length", float("nan"), "second </script>"),
    sample("maths", "length", 2.0, "third"),
    sample("maths", "stop", -1.0, "fourth"),
]
PICKED = [
    (("", "", "", "0 -1"), "third, first, fourth, second </script>; 4 of 4"),
    (("", "", "", "0 1"), "fourth, first, third, second </script>; 4 of 4"),
    (("of MATHS", "", "0", ""), "third; 1 of 4"),
    (("</SCRIPT", "", "", ""), "second </script>; 1 of 4"),
    (("", "1", "1", ""), "first, fourth; 2 of 4"),
]
PICK = """<script>
const controls = document.querySelectorAll(".pick input, .pick select");
document.title = JSON.stringify(%s.map((picked) => {
  controls.forEach((control, k) => (control.value = picked[k]));
  controls[0].dispatchEvent(new Event("input", {bubbles: true}));
  return [...document.querySelectorAll(".samples>details:not([hidden])>summary")]
    .map((line) => line.textContent).join(", ") + "; " + document.querySelector("output").textContent;
}));
</script></body>"""


def test_a_browser_filters_and_sorts_them(tmp_path: Path):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("there is no Chromium here")
    page = page_html([ui.Section("Samples", [ui.Samples(SMALL)])], title="t")
    picked = json.dumps([one for one, _ in PICKED]).replace("</", "<\\/")
    (tmp_path / "page.html").write_text(page.replace("</body>", PICK % picked))
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    made = subprocess.run(
        [*command, f"--user-data-dir={tmp_path / 'browser'}", f"file://{tmp_path}/page.html"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    title = re.search(r"<title>(.*?)</title>", made.stdout)
    assert title
    assert json.loads(html.unescape(title[1])) == [shown for _, shown in PICKED]
