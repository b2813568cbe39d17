"""RLVR with a verifier that hangs, raises or returns rubbish: the run ends, or stops and says why."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from data_builders import registry
from posttrain.hashing import digest_of
from posttrain.records import Score
from posttrain.rollouts import Completion, Prompt
from posttrain.runs import MANIFEST
from tests.training.rl.conftest import command
from tests.training.tiny import lines_of, log_rows

HANGS, RAISES, RUBBISH = "hangs", "raises", "rubbish"
FAILURE = {HANGS: "timeout", RAISES: "verifier_error", RUBBISH: "verifier_error"}
DOMAINS = ("domains.one.max_failure_rate=0.4", "domains.b.max_failure_rate=0.4")
# a hang costs as long; an honest verification on a busy machine must not
SECONDS = ("domains.one.verifier_seconds=0.5", "domains.b.verifier_seconds=0.5")


class FailingVerifier:
    """Right where the first word is even, and at fault for a share of the completions."""

    name = "failing"

    def __init__(self, kind: str, share: float) -> None:
        self._kind, self._share = kind, share

    async def verify(self, prompt: Prompt, completion: Completion) -> Any:
        key = digest_of([completion.prompt_id, completion.index, completion.answer])
        number = int(key[:8], 16)
        if number % 1000 >= self._share * 1000:
            words = completion.answer.split()
            return Score(float(bool(words) and words[0][-1:] in "02468"), None, "")
        which = number // 1000 % 4
        if self._kind == HANGS:
            time.sleep(3600)
        if self._kind == RAISES:
            raise (TypeError("a bug"), MemoryError(), SystemExit(0), KeyError("x"))[which]
        return (True, Score(float("inf"), None, ""), Score(1e300, None, ""), None)[which]

    def passes(self, score: Score) -> bool:
        return score.value == 1.0


@pytest.mark.parametrize("kind", [HANGS, RAISES, RUBBISH])
@pytest.mark.parametrize("share", [0.1, 0.6])
def test_a_failing_verifier_trains_nothing_on_what_it_fails_at(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, share: float
):
    monkeypatch.setattr(registry, "GraderVerifier", lambda *_: FailingVerifier(kind, share))
    out = tmp_path / "out"
    keys = (*DOMAINS, *SECONDS) if kind == HANGS else DOMAINS
    ended = command("rlvr", root / "rlvr.yaml", f"out={out}", *keys, check=False)
    assert "logits" not in ended.text
    if share == 0.6:
        last = ended.text.splitlines()[-1]
        assert ended.codes == [1]
        assert "verifications of this step failed" in last
        assert FAILURE[kind] in last
        assert "failing: " in last
        assert not (out / MANIFEST).exists()
        return
    assert ended.codes == [0], ended.text[-2000:]
    rows = [lines_of(file) for file in sorted((out / "rollouts").iterdir())]
    rollouts = [one for groups in rows for group in groups for one in group["rollouts"]]
    unscored = [one for one in rollouts if one["reward"] is None]
    assert unscored
    assert not any(one["in_loss"] or one["advantage"] is not None for one in unscored)
    assert {one["reward"] for one in rollouts} == {None, 0.0, 1.0}
    # a step without any has no such figure
    names = (f"domain/{domain}/unscored_{FAILURE[kind]}" for domain in ("one", "b"))
    assert any(name in log for name in names for log in log_rows(out, of="rollouts"))
