"""Which of the picked examples bear on which questioned prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from exempla.data import take_examples
from exempla.results import Explanation

__all__ = ["evidence_of", "strongest", "varied_order"]


def evidence_of(explanation: Explanation) -> np.ndarray | None:
    """(k, n_test) kernel values f_i·f_j, or None if the explanation came without its Explainer.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> import exempla
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LogisticRegression(max_iter=500).fit(X, y)
    >>> answer = exempla.explain(model, (X, y), (X[:2], y[:2]), k=3, progress=False)
    >>> evidence_of(answer).shape
    (3, 2)
    """
    question = explanation.question
    if question is None:
        return None
    asked = question.examples
    if len(question.explainer.oracles) > 1:  # each model reads the data in its own way
        asked = question.test
        if question.rows is not None:
            asked = take_examples(asked, question.rows)
    return question.explainer.affinity(explanation.indices, asked, explanation.labels)


def strongest(evidence: np.ndarray, side: str, count: int) -> list[np.ndarray]:
    """For each questioned prediction, positions of the picked examples that bear on it most.

    Opponents by the most negative value, proponents by the most positive, both by size; those that
    point the other way are left out.

    >>> import numpy as np
    >>> strongest(np.array([[-0.5], [0.2], [-0.9]]), "opponents", 5)[0].tolist()
    [2, 0]
    """
    pull = {"opponents": -evidence, "proponents": evidence}.get(side, np.abs(evidence))
    order = np.argsort(-pull, axis=0, kind="stable")[:count]
    return [order[pull[order[:, j], j] > 0, j] for j in range(evidence.shape[1])]


def varied_order(evidence: np.ndarray, best: list[np.ndarray], kinds: Sequence[Any]) -> list[int]:
    """Questioned predictions in the order to show them: first the clearest of every kind.

    A prediction is clear if the picked examples bear on it much; kinds (such as "true 3, said 5")
    take turns, so that the first screen is not the same confusion over and over.

    >>> import numpy as np
    >>> evidence = np.array([[-0.9, -0.8, -0.1]])
    >>> varied_order(evidence, [np.array([0])] * 3, ["a", "a", "b"])
    [0, 2, 1]
    """
    pull = np.array([float(np.abs(evidence[picks, j]).sum()) for j, picks in enumerate(best)])
    turn: dict[Any, int] = {}
    turns = np.zeros(len(pull), dtype=int)
    order = np.argsort(-pull, kind="stable")
    for j in order.tolist():
        turns[j] = turn.get(kinds[j], 0)
        turn[kinds[j]] = int(turns[j]) + 1
    return order[np.argsort(turns[order], kind="stable")].tolist()
