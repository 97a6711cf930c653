"""What comes back: `Answer`, the base of every result, and on top of it `Selection`, `Explanation`.

    Answer        rows of the training set, most important first, and how to hand them on
      Selection     + weights of a quadrature and what they explain
        Explanation   + the question, the metric, and the means to check itself

Results are frozen and small: k entries or a number each. Data and model are only referred to.
Shapes, fixed once:  t training examples · p width of a feature row · k selected examples
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from exempla.arrays import Array

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["Answer", "Explanation", "Features", "Question", "Selection"]


@dataclass(frozen=True)
class Features:
    """Whitened training rows: from here on the kernel is a dot product.

    Attributes
    ----------
    rows : (t, p) array
        One row per training example; ``rows @ rows.T`` is the damped Fisher kernel.
    damping : float
        What was added to every eigenvalue of the metric.
    damping_rule : str
        How that value was chosen, in words.
    share : float
        Share of the Fisher's trace that the rows can express (1.0 = exact).
    lengths : (t,) array
        How long rows were that were brought to unit length; None otherwise.

    >>> import exempla
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LogisticRegression(max_iter=500).fit(X, y)
    >>> features = exempla.Explainer(model, progress=False).fit((X, y)).features
    >>> len(features.rows), features.damping > 0
    (150, True)
    """

    rows: Array
    damping: float
    damping_rule: str
    share: float = 1.0
    lengths: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class Answer:
    """Some rows of the training set, most important first: what every job returns.

    A field declared with `repr=False` is for the program alone: it is not written to files.

    >>> answer = Answer(indices=np.array([7, 3]), ids=np.array(["g", "c"]))
    >>> answer.to_frame().to_dict("list")
    {'rank': [1, 2], 'index': [7, 3], 'id': ['g', 'c']}
    """

    indices: np.ndarray
    """Rows of the training set (int64)."""
    ids: np.ndarray | None = None
    """The user's own names of these rows, if given."""
    warnings: tuple[str, ...] = ()
    """What was done differently than asked, in sentences."""

    @classmethod
    def of(cls, other: Answer, **more: Any) -> Self:
        """Return an answer of this kind with the fields of another, and more."""
        mine = {f.name for f in fields(cls)}
        shared = {f.name: getattr(other, f.name) for f in fields(other) if f.name in mine}
        return cls(**{**shared, **more})

    def renumbered(self, rows: np.ndarray) -> Self:
        """The same answer where training example i is row `rows[i]` of a file."""
        return replace(self, indices=np.asarray(rows)[self.indices])

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def finding(self) -> str:
        """What was found, in one sentence."""
        return f"{len(self):,} training examples."

    @property
    def details(self) -> str:
        """How the answer was computed, in technical terms; "" if there is nothing to add."""
        return ""

    def to_dict(self) -> dict[str, Any]:
        """Everything in the answer as plain Python values."""
        out: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if not each.repr or (each.name == "ids" and value is None):
                continue
            plain = value.tolist() if isinstance(value, np.ndarray) else value
            out[each.name] = list(plain) if isinstance(plain, tuple) else plain
        return out

    def to_frame(self) -> pd.DataFrame:
        """One line per example, most important first."""
        import pandas as pd

        columns = {"rank": np.arange(1, len(self) + 1), "index": self.indices, **self._columns()}
        if self.ids is not None:
            columns["id"] = self.ids
        return pd.DataFrame(columns)

    def _columns(self) -> dict[str, Any]:
        """What the table says of each example beyond its place."""
        return {}

    def to_json(self, path: str | Path) -> Path:
        """Write the answer as JSON and return the path."""
        from exempla.io import write_text

        return write_text(path, json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")

    def to_csv(self, path: str | Path) -> Path:
        """Write `to_frame` as CSV and return the path."""
        from exempla.io import replacing

        with replacing(path) as file:
            self.to_frame().to_csv(file, index=False)
        return Path(path)

    def log(self, folder: str | Path = "exempla-log") -> list[str]:
        """Log the answer to the active MLflow and Weights & Biases runs, or write files.

        Numbers of the answer become metrics, the finding a text, the rows a table. Without an
        active run, `answer.json`, `answer.csv` and `finding.txt` go to `folder`. Returns where the
        answer was logged: "MLflow run …", "W&B run …", or the paths of the files.
        """
        about, places = self.to_dict(), []
        values = {
            f"exempla.{name}": float(value)
            for name, value in about.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        # A run can only be active in this process if its library has been imported.
        mlflow, wandb = sys.modules.get("mlflow"), sys.modules.get("wandb")
        if mlflow is not None and (run := mlflow.active_run()) is not None:
            mlflow.log_metrics(values)
            mlflow.log_text(self.finding, "exempla/finding.txt")
            mlflow.log_text(self.to_frame().to_csv(index=False), "exempla/answer.csv")
            mlflow.log_dict(about, "exempla/answer.json")
            places.append(f"MLflow run {run.info.run_id}")
        if wandb is not None and (run := wandb.run) is not None:
            rows = wandb.Table(dataframe=self.to_frame())
            run.log({**values, "exempla.finding": self.finding, "exempla.rows": rows})
            places.append(f"W&B run {run.id}")
        if places:
            return places
        from exempla.io import write_text

        where = Path(folder)
        where.mkdir(parents=True, exist_ok=True)
        finding = write_text(where / "finding.txt", self.finding + "\n")
        table = self.to_csv(where / "answer.csv")
        return [str(self.to_json(where / "answer.json")), str(table), str(finding)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {self.finding}"

    def __str__(self) -> str:
        from exempla.report.words import terminal_text

        return terminal_text(self)


@dataclass(frozen=True, kw_only=True, repr=False)
class Selection(Answer):
    """A weighted set of examples that stands in for a target mean embedding.

    Attributes
    ----------
    indices : int64 array
        Rows of the features, in the order they were picked.
    weights : float64 array
        Quadrature weights, w = (K_SS + σ²I)⁻¹ z_S unless the selector says otherwise.
    gains : float64 array
        How much each pick lowered the posterior variance.
    explained : float
        Share of ‖μ‖² that the selection accounts for (Σ gains / ‖μ‖²).
    variance : float
        Posterior variance of the quadrature: ‖μ‖² − Σ gains.
    mmd2 : float
        ‖μ − Σ w_i f_i‖²; equal to `variance` only without noise.
    rank : int
        Number of linearly independent picks found (without noise, no k above it is possible).

    >>> import numpy as np, exempla
    >>> exempla.select(np.eye(3), np.array([0.5, 0.25, 0.0]), 1)
    Selection: 1 row picked by SBQ accounts for 80% of the target.
    """

    weights: np.ndarray
    gains: np.ndarray
    explained: float
    variance: float
    mmd2: float
    rank: int
    target_norm2: float
    noise: float = 0.0
    side: str = "both"
    selector: str = "SBQ"
    candidates: int = 0
    stopped: str = "k"
    """Why the loop ended: "k", "rank", "candidates" or "residual"."""
    state: Any = field(default=None, repr=False, compare=False)
    """What a later call needs to continue from here (`select(..., start=selection)`)."""

    def estimate(self, values: Array) -> Any:
        """Estimate the target's mean of a function from its values on the training rows.

        >>> import numpy as np, exempla
        >>> rows = np.eye(3)
        >>> exempla.select(rows, np.array([0.5, 0.25, 0.0]), 2).estimate(np.array([4.0, 8.0, 1.0]))
        4.0
        """
        picked = np.asarray(values)[self.indices]
        result = np.tensordot(self.weights, picked, axes=1)
        return float(result) if result.ndim == 0 else result

    @property
    def finding(self) -> str:
        """How much of the target the picks account for, in one sentence."""
        rows, verb = ("row", "accounts") if len(self) == 1 else ("rows", "account")
        return (
            f"{len(self):,} {rows} picked by {self.selector} {verb} for {self.explained:.0%} of "
            "the target."
        )

    def _columns(self) -> dict[str, Any]:
        return {"weight": self.weights, "gain": self.gains}


class Question(NamedTuple):
    """What an explanation answers: kept so that it can be checked and shown."""

    explainer: Any
    """The fitted Explainer."""
    examples: Any
    """The queried examples as the first model's oracle read them."""
    test: Any
    """The test data as given."""
    rows: np.ndarray | None = None
    """Positions of the queried examples in the test data; None for all."""
    shares: np.ndarray | None = None
    """The weight of each queried example in the query, if it is a single one."""
    quality: Any = None
    """How good the model is on unseen rows (`exempla.quality.Judged`), if known."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Explanation(Selection):
    """The answer to "which training examples are responsible?", with its evidence.

    >>> import exempla
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LogisticRegression(max_iter=500).fit(X, y)
    >>> answer = exempla.explain(model, (X, y), (X[:5], y[:5]), k=3, progress=False)
    >>> answer.to_frame().columns.tolist()
    ['rank', 'index', 'weight', 'alignment', 'side', 'gain', 'copies']
    """

    alignment: np.ndarray
    """z_j = f_j·μ for each selected example: negative for opponents, positive for proponents."""
    labels: str
    """Whose labels the target used: "true" or "predicted"."""
    k: int
    damping: float
    damping_rule: str
    share: float
    n_train: int
    n_test: int
    seed: int
    version: str
    fisher: str = "true"
    given_up: str = ""
    """What the budget of the fit did not allow, in words."""
    residual_used: bool = False
    """Whether the residual of the sketch was added to the rows."""
    certificate: dict[str, Any] = field(default_factory=dict)
    removal: dict[str, Any] = field(default_factory=dict)
    """Predicted effect of removing these examples (`kernel.RemovalEffect`); empty if it was not
    computed, as for each of many targets."""
    copies: tuple[list[int], ...] = ()
    """For each selected example all training rows that are copies of it, itself included. Copies
    count as one example, and removing it means removing all of them."""
    diffuse: bool = False
    """Whether no small set of training rows causes the queried errors (k="auto" only)."""
    test_labels: dict[str, Any] = field(default_factory=dict)
    """Errors that look like wrong test labels (`exempla.tasks.question.TestLabelCheck`)."""
    question: Question | None = field(default=None, repr=False, compare=False)

    @property
    def removed(self) -> np.ndarray:
        """All training rows to remove: the selected examples and their copies."""
        if not self.copies:
            return self.indices
        return np.concatenate([np.asarray(rows, dtype=np.int64) for rows in self.copies])

    @property
    def predicted_change(self) -> float:
        """Change of the queries' mean log-likelihood if these examples are removed."""
        return float(self.removal.get("log_likelihood", np.nan))

    def renumbered(self, rows: np.ndarray) -> Self:
        """The same answer where training example i is row `rows[i]` of a file."""
        # the question speaks of the training set as it was numbered before
        copies = tuple(np.asarray(rows)[group].tolist() for group in self.copies)
        return replace(super().renumbered(rows), copies=copies, question=None)

    @property
    def finding(self) -> str:
        """What the picks are predicted to have done, in one sentence."""
        from exempla.report.words import removal_sentence

        return removal_sentence(self)

    @property
    def details(self) -> str:
        """How the answer was computed: side, labels, selector, damping, share of the Fisher."""
        from exempla.report.words import computed

        return computed(self)

    def _columns(self) -> dict[str, Any]:
        return {
            "weight": self.weights,
            "alignment": self.alignment,
            "side": np.where(self.alignment < 0, "opponent", "proponent"),
            "gain": self.gains,
            "copies": [len(rows) for rows in self.copies] or np.ones(len(self), dtype=np.int64),
        }

    def verify(self, fit: Any = None, seeds: int = 5, holdout: Any = None, **more: Any) -> Any:
        """Does it hold? Refit without these examples, and without as many chosen by chance.

        See `exempla.tasks.verify.verify`; a torch module needs
        `fit=callable(module, X, y, sample_weight) -> module`.
        """
        from exempla.tasks.verify import verify

        return verify(self, fit, seeds, holdout, **more)

    def plot(self) -> Figure:
        """Weights and explained share as a matplotlib figure."""
        from exempla.report.plots import plot_explanation

        return plot_explanation(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from exempla.report.page import explanation_fragment

        return explanation_fragment(self)
