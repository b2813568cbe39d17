"""Damaged rows of every dialect, alone and in one build."""

from __future__ import annotations

from tests.data_builders.rows.mutated_runs import Run, build_all, preparer_for, run
from tests.data_builders.rows.mutations import MUTATIONS, ROWS


def test_each_is_kept_or_dropped_for_a_reason_alone_and_in_a_build(tmp_path):
    preparer = preparer_for(tmp_path)
    runs = dict[str, Run]()
    for dialect in ROWS:
        named = run(dialect, tmp_path, rows=30, preparer=preparer, named=True)
        assert named.nameless == []
        # its file stays, and is built below
        runs[dialect] = run(dialect, tmp_path, rows=80, preparer=preparer)
        assert runs[dialect].nameless == []
        assert runs[dialect].sequences > 0
    assert {damage for one in runs.values() for damage, _ in one.outcomes} == set(MUTATIONS)
    body = build_all(tmp_path, runs, workers=1)
    assert body["counts"]["in"] == 6 * 80


def test_a_message_of_five_megabytes_passes_through(tmp_path):
    found = run("alpaca", tmp_path, rows=2, big=1, preparer=preparer_for(tmp_path))
    assert found.outcomes.total() == 2
    assert {damage for damage, _ in found.outcomes} >= {"big_message"}
