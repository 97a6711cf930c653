"""What `fix_labels` returns.

What the label jobs return, beside `LabelFixes` of classes.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np

from exempla.results import Answer


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
        """Write the suspects for another tool; see `review.integrations.export_suspects`."""
        from exempla.review.integrations import export_suspects

        return export_suspects(self, path, format, **view)

    def _columns(self) -> dict[str, Any]:
        return {
            "given": self.given,
            "suggested": self.suggested,
            "probability": self.probabilities,
            "alignment": self.alignment,
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class JobFixes(Answer):
    """Likely wrong labels, most suspicious first: what all label jobs say alike.

    Attributes
    ----------
    indices : int64 array
        Rows of the training set; one may be listed for several of its labels.
    probabilities : float array
        Of each listed label: that it is wrong.
    given, suggested : arrays
        The label, and the likeliest one, which is the given one where that is the better bet.
    expected_errors : float
        Expected number of wrong labels in the whole training set.
    interval : (float, float)
        Between which that number lies with 90 % probability, by the same model.
    n_labels : int
        How many labels were judged: one a row, or one for each of its parts.
    """

    probabilities: np.ndarray
    given: np.ndarray
    suggested: np.ndarray
    expected_errors: float
    interval: tuple[float, float]
    method: str
    k: int
    n_train: int
    n_labels: int
    n_trusted: int
    seed: int
    version: str

    def first(self, count: int) -> Self:
        """The same answer with only the first labels listed."""
        return self.at(np.arange(min(count, len(self))))

    def at(self, places: np.ndarray) -> Self:
        """The same answer with only the labels at these ranks listed, in this order."""
        n = len(self)
        cut = {
            f.name: value[places]
            for f in fields(self)
            if isinstance(value := getattr(self, f.name), np.ndarray) and len(value) == n
        }
        return replace(self, **cut, k=len(places))

    @property
    def noun(self) -> str:
        """What is judged, in the plural."""
        return "labels"

    @property
    def finding(self) -> str:
        """How many are expected to be wrong, in one sentence."""
        likely = int((self.probabilities > 0.5).sum())
        low, high = self.interval
        return (
            f"About {self.expected_errors:,.0f} ({low:,.0f} to {high:,.0f}) of {self.n_labels:,} "
            f"{self.noun} are expected to be wrong; {likely:,} of the {len(self):,} listed here "
            "more likely than not."
        )

    def export(self, path: Any, format: str, **view: Any) -> Any:
        """Write the suspects for another tool; see `review.integrations.export_suspects`."""
        from exempla.review.integrations import export_suspects

        return export_suspects(self, path, format, **view)


@dataclass(frozen=True, kw_only=True, repr=False)
class NumberFixes(JobFixes):
    """Likely wrong numbers, most suspicious first, with what was expected of them.

    Attributes
    ----------
    expected, spread : float arrays
        What models that have not seen the number expect, and the standard deviation of right
        numbers around it.
    kind : array of str
        The likeliest mistake if it is one: "×10", "÷10", "sign", "another row's value", …
    tail : float
        ν of the Student distribution that right numbers were found to have: small is heavy-tailed.
    spread_rule : str
        How the spread was found.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> import exempla
    >>> X, y = load_diabetes(return_X_y=True)
    >>> y[7] *= 10
    >>> fixes = exempla.fix_labels(Ridge(0.1), (X, y), k=3, progress=False)
    >>> int(fixes.indices[0]), str(fixes.kind[0]), float(fixes.suggested[0])
    (7, '×10', 63.0)
    """

    expected: np.ndarray
    spread: np.ndarray
    kind: np.ndarray
    tail: float
    spread_rule: str

    @property
    def noun(self) -> str:
        """What is judged, in the plural."""
        return "numbers"

    def _columns(self) -> dict[str, Any]:
        return {
            "given": self.given,
            "suggested": self.suggested,
            "expected": self.expected,
            "spread": self.spread,
            "kind": self.kind,
            "probability": self.probabilities,
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class PartFixes(JobFixes):
    """Likely wrong labels of rows that have several: one of many labels, or one token's.

    Attributes
    ----------
    part : array
        The label's name, or the token's place in its row.
    name : array of str
        The label's name, or the token itself.
    alternative : array
        The likeliest label beside the given one.
    parts : str
        "labels" or "tokens".

    Examples
    --------
    >>> import exempla
    >>> words = [["Ada", "went", "to", "Rome"], ["Bo", "saw", "Oslo"]] * 40
    >>> labels = [["PER", "O", "O", "LOC"], ["PER", "O", "LOC"]] * 40
    >>> labels[4] = ["LOC", "O", "O", "LOC"]
    >>> fixes = exempla.fix_labels(None, (words, labels), k=1, progress=False)
    >>> fixes.to_frame()[["index", "token", "given", "suggested"]].values.tolist()
    [[4, 'Ada', 'LOC', 'PER']]
    """

    part: np.ndarray
    name: np.ndarray
    alternative: np.ndarray
    parts: str

    @property
    def noun(self) -> str:
        """What is judged, in the plural."""
        return "token labels" if self.parts == "tokens" else "labels"

    def _columns(self) -> dict[str, Any]:
        named = {"token": self.name, "place": self.part} if self.parts == "tokens" else {
            "label": self.name
        }  # fmt: skip
        return {
            **named,
            "given": self.given,
            "suggested": self.suggested,
            "probability": self.probabilities,
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class ClassFixes(JobFixes):
    """Likely wrong labels of very many classes.

    Attributes
    ----------
    level : int array
        Where classes are paths such as `animal/dog/terrier`: at which level the suggested one parts
        from the given one, 1 for the first; 0 where they are the same.
    alternative : array
        The likeliest label beside the given one.

    Examples
    --------
    >>> import numpy as np, exempla
    >>> y = np.repeat(["animal/cat", "animal/dog", "plant/oak"], 50)
    >>> sure = np.where(np.unique(y) == y[:, None], 0.96, 0.02)  # by a model of your own
    >>> y[7] = "plant/oak"
    >>> rows = np.arange(150)
    >>> fixes = exempla.fix_labels(None, (rows, y), probabilities=sure, k=1, progress=False)
    >>> fixes.to_frame()[["index", "given", "suggested", "level"]].values.tolist()
    [[7, 'plant/oak', 'animal/cat', 1]]
    """

    level: np.ndarray
    alternative: np.ndarray

    def _columns(self) -> dict[str, Any]:
        return {
            "given": self.given,
            "suggested": self.suggested,
            "level": self.level,
            "probability": self.probabilities,
        }
