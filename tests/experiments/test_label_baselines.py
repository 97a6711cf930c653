"""Every label-noise baseline ranks suspects through the same door."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale

from exempla.errors import ExemplaError
from exempla.explainer import Explainer
from exempla.tasks.labels.fisher import MULTIPLES
from experiments.baselines.labels import LABEL_BASELINES, rank, scores

X, Y = load_breast_cancer(return_X_y=True)
X = scale(X)
WRONG = np.zeros(400, dtype=bool)
WRONG[np.random.default_rng(0).choice(400, 40, replace=False)] = True
NOISY = np.where(WRONG, 1 - Y[:400], Y[:400])
TRAIN, CURATED = (X[:400], NOISY), (X[400:], Y[400:])
MODEL = LogisticRegression(C=0.1)

LEAST = {
    "self_influence": 0.55,
    "influence": 0.5,
    "training_loss": 0.7,
    "self_confidence": 0.7,
    "self_confidence_with_curated": 0.7,
    "curated_only": 0.7,
    "rbf_sbq": 0.3,
    "random": 0.0,
}


@pytest.mark.parametrize("name", LABEL_BASELINES)
def test_each_baseline_ranks_all_rows_and_finds_its_share(name: str) -> None:
    order = rank(name, MODEL, TRAIN, CURATED)
    assert sorted(order) == list(range(400))
    assert WRONG[order[:40]].mean() >= LEAST[name]
    assert (order == rank(name, MODEL, TRAIN, CURATED)).all()


def test_chance_is_no_better_than_chance() -> None:
    shares = [WRONG[rank("random", MODEL, TRAIN, CURATED, seed=s)[:40]].mean() for s in range(20)]
    assert np.mean(shares) == pytest.approx(0.1, abs=0.05)


def test_training_loss_is_the_loss_of_the_fitted_model() -> None:
    fitted = LogisticRegression(C=0.1).fit(
        np.concatenate([TRAIN[0], CURATED[0]]), np.concatenate([TRAIN[1], CURATED[1]])
    )
    expected = -np.log(fitted.predict_proba(TRAIN[0])[np.arange(400), NOISY])
    assert scores("training_loss", MODEL, TRAIN, CURATED) == pytest.approx(expected, abs=1e-6)


def test_influence_is_that_of_the_explainer_at_one_of_the_dampings_sbq_may_choose() -> None:
    fitted = LogisticRegression(C=0.1).fit(*TRAIN)
    unit = Explainer(fitted, damping="per-row", progress=False).fit(TRAIN).features.damping
    found = scores("influence", MODEL, TRAIN, CURATED)
    apart = []
    for multiple in (1.0, *MULTIPLES):
        explainer = Explainer(fitted, damping=multiple * unit, progress=False).fit(TRAIN)
        expected = -explainer.influence(CURATED).mean(1) * 400
        apart.append(np.abs(found - expected).max() / np.abs(expected).max())
    assert min(apart) < 1e-3


def test_the_model_of_curated_rows_has_a_penalty_of_its_own() -> None:
    weak, strong = (
        scores("curated_only", LogisticRegression(C=C), TRAIN, CURATED) for C in (1e-6, 1e3)
    )
    assert weak == pytest.approx(strong)


def test_curated_only_needs_curated_rows() -> None:
    with pytest.raises(ExemplaError, match="give some"):
        rank("curated_only", MODEL, TRAIN)


def test_an_unknown_baseline_is_named() -> None:
    with pytest.raises(ExemplaError, match="is no baseline"):
        rank("oracle", MODEL, TRAIN)
