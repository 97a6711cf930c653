"""How far to trust an answer, and what to do next, in sentences for people."""

from __future__ import annotations

from exempla.agreement import Judged, disagreement, poor_sentence
from exempla.report.words.about import About
from exempla.report.words.unseen import on_training_rows, on_unseen_rows
from exempla.results import Explanation

__all__ = ["next_steps", "poor_model", "stands_out", "trust_sentences"]

CLEAR = 3.0
"""Spreads of a random removal from which on an effect is called clear."""
BY_HEART = 0.1
"""How much better a model is on its training rows before that is worth a word."""


def poor_model(explanation: Explanation) -> str:
    """A sentence that says first of all if the model does not agree with its own training rows, or
    is no better on rows it has not seen than an answer that looks at no row; "" otherwise, or where
    that cannot be told.

    >>> import exempla, numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> X = np.random.default_rng(0).normal(size=(300, 2)); y = np.arange(300) % 3 > 0
    >>> model = LogisticRegression().fit(X, y)
    >>> poor_model(exempla.explain(model, (X, y), (X[:5], y[:5]), k=3, progress=False))[:48]
    'The model is hardly better than always giving th'
    """
    question = explanation.question
    embeddings = getattr(getattr(question, "explainer", None), "embeddings", ())
    if embeddings and (said := disagreement(embeddings[0])):
        return said
    unseen = on_unseen_rows(explanation)
    if unseen is None or not unseen.poor:
        return ""
    where = f"on {len(unseen.labels):,} {unseen.rows}"
    if unseen.chosen:
        return poor_sentence(
            unseen, f"on {unseen.rows}", "unless these were chosen for being hard, "
        )
    learned = on_training_rows(explanation)
    heart = learned is not None and learned.score - unseen.score > BY_HEART
    return poor_sentence(unseen, where + (f", though right on {_share(learned)}" if heart else ""))


def _share(learned: Judged | None) -> str:
    """How well it knows its training rows."""
    assert learned is not None
    if learned.classes:
        return f"{learned.score:.1%} of its training rows"
    return f"its training rows (R² {learned.score:.2f})"


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
        out.append(f"The model is {about.model}. {_how_good(explanation)}")
    else:
        out.append(_how_good(explanation))
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


def _how_good(explanation: Explanation) -> str:
    """How good the model is on rows it has not seen, as far as that can be told."""
    found = on_unseen_rows(explanation)
    if found is None or found.chosen:
        return "How good the model is was not measured: trust the answer as far as the model."
    n = f"{len(found.labels):,} {found.rows}"
    if not found.classes:
        return f"The model has an R² of {found.score:.2f} on {n}."
    return (
        f"The model is right for {found.score:.1%} of {n}; the commonest class alone gets "
        f"{found.commonest:.1%}."
    )


def _against_chance(far: float) -> str:
    if far >= CLEAR:
        return f"The predicted effect is clear: {far:.0f} times the spread of random removals."
    return (
        f"The predicted effect is not clear: {far:.1f} times the spread of random removals. As "
        "many rows drawn by chance could do as much."
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
