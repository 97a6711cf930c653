"""What `summarize` returns."""

from __future__ import annotations

from dataclasses import dataclass

from exempla.results import Selection

__all__ = ["Summary"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Summary(Selection):
    """Weighted training examples that stand for all of them.

    Attributes
    ----------
    weights : float array
        Nonnegative; hand them to `fit` as `sample_weight`.
    total : float
        What they sum to.
    explained : float
        Share of the mean score over the posterior that they match.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.preprocessing import scale
    >>> import exempla
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X, model = scale(X), LogisticRegression()
    >>> exempla.summarize(model, (X, y), k=20, total="n", progress=False)
    Summary: 20 weighted training examples stand for 569; their weights sum to 569.
    """

    k: int
    total: float
    n_train: int
    seed: int
    version: str
    damping: float = 0.0
    damping_rule: str = ""

    @property
    def finding(self) -> str:
        return (
            f"{len(self):,} weighted training examples stand for {self.n_train:,}; their weights "
            f"sum to {self.total:,.4g}."
        )
