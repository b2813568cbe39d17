"""What the detector finds in a labelled set: misses and false alarms, each listed.

tally(cases).recall → 0.9994;  tally(cases).lines() → a table by form and every case it got wrong
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from posttrain.chat.detect import detect_calls
from tests.chat.detect.labelled_set import Case


@dataclass
class Tally:
    """Counts by label and form, and the cases that were judged wrongly."""

    seen: Counter[tuple[bool, str]] = field(default_factory=Counter)
    wrong: list[Case] = field(default_factory=list)
    theirs: int = 0
    hard: int = 0

    def count(self, call: bool) -> int:
        return sum(n for (label, _), n in self.seen.items() if label is call)

    @property
    def misses(self) -> list[Case]:
        return [case for case in self.wrong if case.call]

    @property
    def false_alarms(self) -> list[Case]:
        return [case for case in self.wrong if not case.call]

    @property
    def recall(self) -> float:
        return 1 - len(self.misses) / self.count(True)

    @property
    def false_rate(self) -> float:
        return len(self.false_alarms) / self.count(False)

    @property
    def precision(self) -> float:
        """Of this set: it depends on how many of each kind the set holds."""
        found = self.count(True) - len(self.misses)
        return found / (found + len(self.false_alarms))

    def lines(self) -> Iterator[str]:
        yield (
            f"{self.count(True)} calls ({self.theirs} in text of others), "
            f"{self.count(False)} texts without ({self.hard} hard)"
        )
        yield f"recall {self.recall:.4%}  false alarms {self.false_rate:.4%}  precision {self.precision:.4%}"
        wrong = Counter((case.call, case.form) for case in self.wrong)
        for (call, form), n in sorted(
            self.seen.items(), key=lambda item: (not item[0][0], item[0][1])
        ):
            label = "missed" if call else "false"
            yield f"  {form:32} {n:6}  {label} {wrong[call, form]}"
        for case in self.wrong:
            yield f"{'MISS ' if case.call else 'FALSE'} {case.id}: {(case.answer or '')[:160]!r}"


def tally(cases: Iterable[Case]) -> Tally:
    """Run the detector over a labelled set, with no tools declared."""
    figures = Tally()
    for case in cases:
        verdict = detect_calls(
            reasoning=case.reasoning, answer=case.answer, tools=None, prompt=case.prompt
        )
        figures.seen[case.call, case.form] += 1
        figures.theirs += case.call and not case.ours
        figures.hard += case.hard
        if verdict.any is not case.call:
            figures.wrong.append(case)
    return figures
