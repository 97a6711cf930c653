"""Fixtures of the label jobs."""

from __future__ import annotations

import pytest

from exempla.tasks.labels import evidence


@pytest.fixture
def few_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cross-validate once and at one regularisation: a third of the trainings."""
    monkeypatch.setattr(evidence, "_DRAWS", 1)
    monkeypatch.setattr(evidence, "_REGULARISATION", {})
