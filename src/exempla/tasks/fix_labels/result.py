"""What `fix_labels` returns."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from exempla.results import Answer

__all__ = ["LabelFixes"]


@dataclass(frozen=True, kw_only=True, repr=False)
class LabelFixes(Answer):
    """Likely wrong labels, most suspicious first, and what they should be.

    Attributes
    ----------
    indices : int64 array
        Rows of the training set.
    probabilities : float array
        Of each listed row: that its given label is wrong.
    given, suggested : arrays
        Its label, and the likeliest one, which is the given one where that is the better bet.
    expected_errors : float
        Expected number of wrong labels in the whole training set.
    expected_errors_interval : (float, float)
        From where to where it may lie, with 90 % certainty as far as the evidence carries.
    kind_told : bool
        Whether the kind of mistakes could be told from the labels; if not, mistakes on hard rows
        may be missing from the expected number, and the interval says how many.
    informed : bool
        Whether the models can tell the classes apart at all; if not, nothing is known.
    alternative, alternative_chance, given_chance : arrays
        Of each listed row: the likeliest label but the given one, and what models that have not
        seen its label give that one and the given one.
    conflicts : sequence
        Pairs of equal or nearly equal training rows with different labels.
    evidence_used : tuple of str
        The kinds of evidence that help to tell what a row is.
    contradicting : sequence
        Of each listed row: the curated rows that speak against its label, worked out when looked
        at.
    method : str
        "calibrated" or "sbq".
    alignment : float array
        Mean Fisher similarity with the trusted rows: negative where the row pushes against them.
    weights : float array
        What the rows were ordered by: the probabilities, or the quadrature weights of "sbq".
    explained : float
        Share of the expected errors that the listed rows hold; for "sbq" of ‖μ‖².
    variance : float
        Variance of the number of wrong labels among the listed rows; for "sbq" the posterior's.
    n_trusted : int
        How many rows the evidence was calibrated on.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.preprocessing import scale
    >>> import exempla
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X, model = scale(X), LogisticRegression()
    >>> fixes = exempla.fix_labels(model, (X[:400], y[:400]), (X[400:], y[400:]), k=5)
    >>> fixes.to_frame().columns.tolist()
    ['rank', 'index', 'given', 'suggested', 'probability', 'alignment']
    """

    probabilities: np.ndarray
    given: np.ndarray
    suggested: np.ndarray
    expected_errors: float
    method: str
    weights: np.ndarray
    alignment: np.ndarray
    explained: float
    variance: float
    damping: float
    damping_rule: str
    share: float
    selector: str
    k: int
    n_train: int
    n_trusted: int
    seed: int
    version: str
    alternative: np.ndarray = field(default_factory=lambda: np.array([]))
    alternative_chance: np.ndarray = field(default_factory=lambda: np.array([]))
    given_chance: np.ndarray = field(default_factory=lambda: np.array([]))
    expected_errors_interval: tuple[float, float] | None = None
    trusted: bool = True
    informed: bool = True
    kind_told: bool = True
    evidence_used: tuple[str, ...] = ()
    noise: float = 0.0
    side: str = "opponents"
    conflicts: Any = field(default=(), repr=False)
    contradicting: Any = field(default=(), repr=False, compare=False)

    def renumbered(self, rows: np.ndarray) -> LabelFixes:
        """The same answer where training example i is row `rows[i]` of a file."""
        rows = np.asarray(rows)
        pairs = tuple(
            replace(pair, rows=(int(rows[pair.rows[0]]), int(rows[pair.rows[1]])))
            for pair in self.conflicts
        )
        return replace(self, indices=rows[self.indices], conflicts=pairs)

    def first(self, count: int) -> LabelFixes:
        """The same answer with only the first rows listed."""
        n = len(self)
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        cut = {
            name: value[:count]
            for name, value in values.items()
            if isinstance(value, np.ndarray) and len(value) == n
        }
        return replace(self, **cut, k=min(count, n))

    @property
    def accusers(self) -> Any:
        """The old name of `contradicting`."""
        warnings.warn(
            "LabelFixes.accusers is now LabelFixes.contradicting.", FutureWarning, stacklevel=2
        )
        return self.contradicting

    @property
    def finding(self) -> str:
        if not self.informed:
            return (
                f"Nothing is known about these {self.n_train:,} labels: models that have not seen "
                "a row's label predict it no better than chance."
            )
        likely = int((self.probabilities > 0.5).sum())
        between = ""
        if self.expected_errors_interval is not None:
            low, high = (f"{round(end):,}" for end in self.expected_errors_interval)
            between = f" (between {low} and {high})"
        said = (
            f"About {self.expected_errors:,.0f} of {self.n_train:,} labels are expected to be "
            f"wrong{between}; {likely:,} of the {len(self):,} listed here more likely than not."
        )
        if self.conflicts:  # the surest finding
            said += f" {len(self.conflicts):,} pairs of (nearly) equal rows have different labels."
        if not self.trusted:
            return said + (
                " Mistakes on rows that could be either are not counted: that takes rows whose "
                "labels are known to be right."
            )
        if not self.kind_told:
            return said + (
                " What kind of mistakes there are cannot be told from these labels: mistakes on "
                "rows that could be either may not be counted."
            )
        return said

    def export(self, path: Any, format: str, **view: Any) -> Any:
        """Write the suspects for another tool; see `exempla.review.exchange.export_suspects`."""
        from exempla.review.exchange import export_suspects

        return export_suspects(self, path, format, **view)

    def _columns(self) -> dict[str, Any]:
        return {
            "given": self.given,
            "suggested": self.suggested,
            "probability": self.probabilities,
            "alignment": self.alignment,
        }
