"""Fixtures of the command-line tests."""

from __future__ import annotations

import pytest

from exempla.tables.models import choose


@pytest.fixture(autouse=True)
def _quick_choice(monkeypatch):
    """Compare models on two folds, with few rounds of boosting; `tests/tables` tests the choice."""
    monkeypatch.setattr(choose, "_FOLDS", 2)
    monkeypatch.setattr(choose, "_ROUNDS", 15)
