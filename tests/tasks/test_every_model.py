"""Every supported scikit-learn model through every job: it works, or a sentence says what does."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import exempla
from tests.oracles.sklearn.zoo import CASES, fitted, name_of, test_of, train_of


def explain(model, train, test):
    answer = exempla.explain(model, train, test, k=5, side="both", progress=False)
    assert len(answer) == 5
    assert np.isfinite(answer.weights).all()
    assert answer.verify(seeds=1).runs["log_likelihood"].notna().all()


def influence(model, train, test):
    found = exempla.Explainer(model, progress=False).fit(train).influence(test)
    assert found.shape == (len(train[0]), len(test[0]))
    assert np.abs(found).max() > 0


def fix_labels(model, train, test):
    fixes = exempla.fix_labels(model, train, k=10, progress=False)
    wrong = np.flatnonzero(np.arange(150)[np.arange(150) % 3 > 0] % 15 == 0)
    assert len(wrong) == 0 or np.isin(fixes.indices, wrong).any()
    assert len(fixes) == 10


def clean(model, train, test):
    found = exempla.clean(model, train, test, k=3, ask="all", progress=False)
    assert (found.effect > 0).all()


def summarize(model, train, test):
    few = exempla.summarize(model, train, k=20, progress=False)
    assert (few.weights > 0).all()


def attack(model, train, test):
    found = exempla.attack(model, train, test, k=1, budget=0.3, progress=False)
    assert found.expected < 0


ALWAYS = (explain, influence, clean)
"""Jobs that no supported model may refuse."""


@pytest.mark.parametrize(
    "job", [explain, influence, fix_labels, clean, summarize, attack], ids=lambda j: j.__name__
)
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_job_works_or_refuses_in_one_sentence(case, job):
    model = fitted(case)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            job(model, train_of(case), test_of(case))
        except exempla.ExemplaError as refusal:
            said = str(refusal)
            assert job not in ALWAYS, said
            assert said.endswith(".")
            assert said.count(". ") == 0, said
            assert "\n" not in said
