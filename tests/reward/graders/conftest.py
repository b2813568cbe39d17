from __future__ import annotations

from collections.abc import Iterator

import pytest

from reward.graders.workers import Workers


@pytest.fixture(scope="session")
def workers() -> Iterator[Workers]:
    """Two workers with one CPU second a job, for all tests of graders: to start one takes longer."""
    made = Workers(size=2, cpu_seconds=1.0)
    yield made
    made.close()
