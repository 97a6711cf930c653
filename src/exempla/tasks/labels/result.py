"""`LabelFixes`: what `fix_labels` returns, for every kind of label."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from itertools import takewhile
from typing import Any, Self

import numpy as np
from scipy.stats import beta

from exempla.results import Answer

_NOUNS = {"regression": "numbers", "tokens": "token labels"}
_SPOT_CHECKS = 50
_SEPARATORS = ("/", ">", "::", "|")


@dataclass(frozen=True, kw_only=True, repr=False)
class LabelFixes(Answer):
    """Labels that are probably wrong, most suspicious first, and what they should be.

    Attributes
    ----------
    indices : int64 array
        Rows of the training set. A row with several labels or tokens may occur several times.
    probabilities : float array
        P(the given label is wrong) of each listed label.
    given, suggested : arrays
        The label, and the label it should have: the given one unless it is more likely wrong.
    alternative, alternative_chance, given_chance : arrays
        The most likely other label, and the probability of it and of the given label by models that
        have not seen the given label.
    verdict : array of str
        "wrong", "ambiguous" (two labels are about equally likely, the given one among them) or
        "right".
    n_ambiguous : int
        Number of ambiguous labels in the whole training set. They are not counted as wrong.
    expected_errors : float
        Expected number of wrong labels in the whole training set.
    interval : (float, float)
        90 % interval of that number. Also available as `expected_errors_interval`.
    task : str
        "classes", "multi-label", "tokens" or "regression".
    n_labels : int
        Number of labels judged: one per row, or one for each of its parts.
    n_trusted : int
        Number of trusted labels.
    trusted : bool
        Whether trusted rows were given.
    has_signal : bool
        False if no model predicts labels better than chance; then nothing is known.
    noise_identified : bool
        Whether the count rests on labels whose truth is known (`original_labels`).
    evidence_used : tuple of str
        Names of the predictions that entered the order.
    conflicts : sequence
        Pairs of equal or nearly equal training rows with different labels.
    contradicting : sequence
        For each listed row the trusted rows that contradict its label, computed when accessed.
    method : str
        "calibrated", "sbq", "residuals" (regression) or "votes" (several annotators).
    weights : float array
        What the rows are ordered by: the probabilities, or the quadrature weights of "sbq".
    alignment : float array
        Mean Fisher similarity to the trusted rows; negative if the row pushes against them.
    explained : float
        Share of the expected errors that the listed rows hold; for "sbq" of ‖μ‖².
    variance : float
        Variance of the number of wrong labels among the listed rows; for "sbq" of the quadrature.
    part, name, parts : array, array of str, str
        For several labels or tokens: the label's name or the token's place, the label's name or the
        token itself, and which of the two ("labels" or "tokens").
    expected, spread, kind : arrays
        For numbers: the predicted number, the standard deviation of right numbers around it, and
        the most likely mistake ("×10", "sign", "another row's value", …).
    tail, spread_rule : float, str
        For numbers: ν of the Student distribution of right numbers, and how `spread` was found.
    annotators : Annotators
        For votes: how often each annotator errs, and how.

    Examples
    --------
    See `fix_labels` for classes. Tokens and numbers:

    >>> import exempla
    >>> words = [["Ada", "went", "to", "Rome"], ["Bo", "saw", "Oslo"]] * 40
    >>> labels = [["PER", "O", "O", "LOC"], ["PER", "O", "LOC"]] * 40
    >>> labels[4] = ["LOC", "O", "O", "LOC"]
    >>> fixes = exempla.fix_labels(None, (words, labels), k=1, progress=False)
    >>> fixes.to_frame()[["index", "token", "given", "suggested"]].values.tolist()
    [[4, 'Ada', 'LOC', 'PER']]

    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> X, y = load_diabetes(return_X_y=True)
    >>> y[7] *= 10
    >>> fixes = exempla.fix_labels(Ridge(0.1), (X, y), k=3, progress=False)
    >>> int(fixes.indices[0]), str(fixes.kind[0]), float(fixes.suggested[0])
    (7, '×10', 63.0)
    """

    probabilities: np.ndarray
    given: np.ndarray
    suggested: np.ndarray
    expected_errors: float
    interval: tuple[float, float]
    method: str
    k: int
    n_train: int
    n_trusted: int
    seed: int
    version: str
    n_labels: int
    task: str = "classes"
    alternative: np.ndarray = field(default_factory=lambda: np.array([]))
    alternative_chance: np.ndarray = field(default_factory=lambda: np.array([]))
    given_chance: np.ndarray = field(default_factory=lambda: np.array([]))
    verdict: np.ndarray = field(default_factory=lambda: np.array([], dtype=str))
    n_ambiguous: int = 0
    trusted: bool = False
    has_signal: bool = True
    noise_identified: bool = False
    evidence_used: tuple[str, ...] = ()
    weights: np.ndarray = field(default_factory=lambda: np.array([]))
    alignment: np.ndarray = field(default_factory=lambda: np.array([]))
    explained: float = 0.0
    variance: float = 0.0
    damping: float = 0.0
    damping_rule: str = "no Fisher evidence"
    share: float = 0.0
    selector: str = "stacked predictions"
    noise: float = 0.0
    side: str = "opponents"
    part: np.ndarray | None = None
    name: np.ndarray | None = None
    parts: str = ""
    expected: np.ndarray | None = None
    spread: np.ndarray | None = None
    kind: np.ndarray | None = None
    tail: float | None = None
    spread_rule: str = ""
    annotators: Any = field(default=None, repr=False)
    conflicts: Any = field(default=(), repr=False)
    contradicting: Any = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        n = len(self.indices)
        p = self.probabilities
        filled = {
            "weights": self.weights if len(self.weights) else p,
            "alignment": self.alignment if len(self.alignment) else np.zeros(n),
            "verdict": self.verdict if len(self.verdict) else np.where(p > 0.5, "wrong", "right"),
        }
        for name, value in filled.items():
            object.__setattr__(self, name, value)

    @property
    def expected_errors_interval(self) -> tuple[float, float]:
        """The same as `interval`."""
        return self.interval

    @property
    def noun(self) -> str:
        """What is judged, in the plural: "labels", "token labels" or "numbers"."""
        return _NOUNS.get(self.task, "labels")

    @property
    def level(self) -> np.ndarray:
        """For classes such as `animal/dog/terrier`, the level where the suggestion differs (0 if it
        does not)."""
        return levels_apart(self.given, self.suggested)

    def to_dict(self) -> dict[str, Any]:
        """Return everything in the answer as plain Python values; what does not apply is absent."""
        return {name: value for name, value in super().to_dict().items() if value is not None}

    def renumbered(self, rows: np.ndarray) -> Self:
        """Return the same answer where training example i is row `rows[i]` of a file."""
        rows = np.asarray(rows)
        pairs = tuple(
            replace(pair, rows=(int(rows[pair.rows[0]]), int(rows[pair.rows[1]])))
            for pair in self.conflicts
        )
        return replace(self, indices=rows[self.indices], conflicts=pairs)

    def first(self, count: int) -> Self:
        """Return the same answer with only the first labels listed."""
        return self.at(np.arange(min(count, len(self))))

    def at(self, places: np.ndarray) -> Self:
        """Return the same answer with only the labels at these ranks listed, in this order."""
        n = len(self)
        cut = {
            f.name: value[places]
            for f in fields(self)
            if isinstance(value := getattr(self, f.name), np.ndarray) and len(value) == n
        }
        return replace(self, **cut, k=len(places))

    @property
    def finding(self) -> str:
        """How many labels are expected to be wrong, in words."""
        if not self.has_signal:
            return (
                f"Nothing is known about these {self.n_train:,} labels: models that have not seen "
                "a row's label predict it no better than chance."
            )
        likely = int((self.probabilities > 0.5).sum())
        low, high = (f"{round(end):,}" for end in self.interval)
        about = f"{self.expected_errors:,.0f} of {self.n_labels:,} {self.noun}"
        said = f"About {about} are expected to be wrong (90 % interval: {low} to {high})"
        said += f"; {likely:,} of the {len(self):,} listed are more likely wrong than right."
        if self.n_ambiguous:
            said += (
                f" {self.n_ambiguous:,} more are ambiguous: two labels are about equally likely."
            )
        if self.conflicts:
            said += f" {len(self.conflicts):,} pairs of (nearly) equal rows have different labels."
        if self.task != "regression" and not self.noise_identified:
            said += f" {self._advice()}"
        return said

    def _advice(self) -> str:
        """What checking a few random labels would do to the interval."""
        rate = float(np.clip(self.expected_errors / max(self.n_labels, 1), 0.0, 1.0))
        m = min(_SPOT_CHECKS, self.n_labels)
        ends: Any = beta.ppf([0.05, 0.95], m * rate + 0.5, m * (1.0 - rate) + 0.5)
        low, high = ends * self.n_labels
        said = "The labels alone cannot show how many mistakes are on hard rows"
        if high - low > 0.8 * (self.interval[1] - self.interval[0]):
            return f"{said}."
        return (
            f"{said}: checking {m} random {self.noun} would narrow the interval to about "
            f"{low:,.0f} to {high:,.0f}."
        )

    def export(self, path: Any, format: str, **view: Any) -> Any:
        """Write the suspects for another tool; see `review.integrations.export_suspects`."""
        from exempla.review.integrations import export_suspects

        return export_suspects(self, path, format, **view)

    def _columns(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.parts == "tokens":
            out |= {"token": self.name, "place": self.part}
        elif self.parts:
            out |= {"label": self.name}
        out |= {"given": self.given, "suggested": self.suggested}
        if self.task == "regression":
            out |= {"expected": self.expected, "spread": self.spread, "kind": self.kind}
        elif not self.parts and _separator([*map(str, self.given[:100])]):
            out["level"] = self.level
        out["probability"] = self.probabilities
        if self.task != "regression":
            out["verdict"] = self.verdict
        if self.task == "classes":
            out["alignment"] = self.alignment
        return out


def levels_apart(given: np.ndarray, suggested: np.ndarray) -> np.ndarray:
    """Return the level, from 1, at which each pair of classes differs; 0 where they are equal."""
    mark = _separator([str(label) for label in (*given, *suggested)]) or "\0"

    def level(a: Any, b: Any) -> int:
        steps = zip(str(a).split(mark), str(b).split(mark), strict=False)
        return 0 if a == b else 1 + len(list(takewhile(lambda pair: pair[0] == pair[1], steps)))

    return np.array([level(a, b) for a, b in zip(given, suggested, strict=True)], dtype=np.int64)


def _separator(labels: list[str]) -> str | None:
    """Return the separator that all labels contain, if any."""
    return next((m for m in _SEPARATORS if labels and all(m in label for label in labels)), None)
