"""How far to trust an answer, and what to do next, in sentences for people."""

from __future__ import annotations

import numpy as np

from exempla.effect import CLASSES
from exempla.report.about import About
from exempla.results import Explanation

__all__ = ["next_steps", "poor_model", "stands_out", "trust_sentences"]

LOOKED_AT = 2_000
"""Training rows a model is tried on, evenly spaced, to see whether it learned anything."""
FEW = 20
"""With fewer rows a share says nothing."""
CLEAR = 3.0
"""Spreads of a random removal from which on an effect is called clear."""
LEAST_R2 = 0.05


def poor_model(explanation: Explanation) -> str:
    """A sentence that says first of all if the model has hardly learned its own training rows; ""
    otherwise, or where that cannot be told.

    >>> import exempla, numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> X = np.random.default_rng(0).normal(size=(300, 2)); y = np.arange(300) % 3 > 0
    >>> model = LogisticRegression().fit(X, y)
    >>> poor_model(exempla.explain(model, (X, y), (X[:5], y[:5]), k=3, progress=False))[:48]
    'The model is hardly better than always giving th'
    """
    question = explanation.question
    embeddings = getattr(getattr(question, "explainer", None), "embeddings", ())
    if not embeddings or embeddings[0].train.labels is None:
        return ""
    oracle, train = embeddings[0].oracle, embeddings[0].train
    rows = np.unique(np.linspace(0, len(train) - 1, min(len(train), LOOKED_AT)).astype(int))
    labels = np.asarray(train.labels)[rows]
    if labels.ndim != 1 or len(rows) < FEW or oracle.likelihood not in (*CLASSES, "gaussian"):
        return ""
    said = np.asarray(oracle.predict(train.take(rows)))
    if said.shape != labels.shape:
        return ""
    return (
        _poor_classes(said, labels) if oracle.likelihood in CLASSES else _poor_numbers(said, labels)
    )


def _poor_classes(said: np.ndarray, labels: np.ndarray) -> str:
    right = float(np.mean(said.astype(str) == labels.astype(str)))
    commonest = float(np.unique(labels, return_counts=True)[1].max() / len(labels))
    if right > commonest + 2 * np.sqrt(right * (1 - right) / len(labels)):
        return ""
    return (
        f"The model is hardly better than always giving the commonest answer, even on its training "
        f"rows ({right:.1%} right against {commonest:.1%}): what it blames says little about the "
        "data."
    )


def _poor_numbers(said: np.ndarray, labels: np.ndarray) -> str:
    spread = float(np.var(labels.astype(np.float64)))
    share = 1 - float(np.mean((said - labels) ** 2)) / spread if spread > 0 else 1.0
    if share > LEAST_R2:
        return ""
    return (
        f"The model is hardly better than always giving the mean, even on its training rows "
        f"(R² {share:.2f}): what it blames says little about the data."
    )


def stands_out(explanation: Explanation) -> float | None:
    """How many spreads of a random removal the predicted effect lies from the random mean."""
    effect = explanation.removal
    if not effect or not effect["by_chance_sd"] > 0:
        return None
    return abs(effect["log_likelihood"] - effect["by_chance"]) / effect["by_chance_sd"]


def trust_sentences(explanation: Explanation, about: About, doubted: int) -> list[str]:
    """What speaks for and against the answer, most important first."""
    out = []
    if about.accuracy:
        out.append(f"The model: {about.accuracy}, {about.model}.")
    elif about.model:
        out.append(f"The model is {about.model}; how good it is was not measured.")
    else:
        out.append("How good the model is was not measured: trust the answer as far as the model.")
    if (far := stands_out(explanation)) is not None:
        out.append(_against_chance(far))
    if explanation.share < 0.9995:
        out.append("The model is large: the answer rests on a compressed view of its parameters.")
    if doubted:
        carry = "carries" if doubted == 1 else "carry"
        out.append(
            f"{doubted:,} of the {len(explanation):,} examples {carry} a label that the model "
            "itself would not give: worth a look first."
        )
    return out


def _against_chance(far: float) -> str:
    if far >= CLEAR:
        return f"The predicted effect is clear: {far:.0f} times the spread of random removals."
    return (
        f"The predicted effect is small: {far:.1f} times the spread of random removals. As many "
        "rows drawn by chance could do as much."
    )


def next_steps(explanation: Explanation, about: About) -> tuple[tuple[str, str], ...]:
    """What to do with the answer, each with what to type."""
    if about.steps:
        return about.steps
    if explanation.question is None:
        return ()
    return (
        ("Train again without these examples and see whether the prediction holds:",
         "answer.verify()"),
        ("Hand the list on as a table:", 'answer.to_csv("explanation.csv")'),
    )  # fmt: skip
