"""`Explainer`: fit once on the training set, then ask as many questions as you like."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from exempla.arrays import Array, concatenate, on_device_of, products, to_numpy
from exempla.embedding import Embedding, check_fisher, embed_training_set
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.fisher import Damping, check_damping, resolve_damping
from exempla.influence import self_influence
from exempla.oracles import make_oracles
from exempla.oracles.base import Examples, Labels
from exempla.progress import showing
from exempla.results import Explanation, Features, Selection
from exempla.selection import SBQ, Selector, select
from exempla.selection.certificate import certificate
from exempla.sketch import check_sketch
from exempla.store import on_disk, read_object, write_object
from exempla.target import mean_embedding, unit_rows
from exempla.version import __version__

__all__ = ["Explainer", "explain"]

Side = Literal["opponents", "proponents", "both"]
Use = Literal["influence", "selection"]

DEFAULT_NOISE = 10.0
"""σ² of the default selector, in units of a unit row: between pure influence ranking (∞) and
pure diversity (0); both ends lose to the middle on label errors."""


class Explainer:
    """Which training examples are responsible for these predictions?

    Parameters
    ----------
    model : fitted model, or a list of them
        A scikit-learn model or Pipeline, a torch module, or your own scores
        (`exempla.oracles.scores`). The kernels of several models are averaged; after a torch
        module, further checkpoints may be state dicts or files of them.
    likelihood : str, function or likelihood
        "auto", the name of the likelihood the model was trained with, or for a torch model one of
        your own: log_prob(model, batch), see `exempla.likelihoods.Custom`.
    fisher : {"true", "empirical", "diagonal", "identity"}
        The metric: expectation over the model's own labels, over the given labels, only its
        diagonal, or none (the paper's practical kernel).
    sketch : "auto", "exact" or int
        Exact where that fits; otherwise the number of K-FAC directions to keep.
    damping : "auto" or float
        Added to the metric's eigenvalues; by default chosen from data and recorded.
    normalize : bool
        Compare directions only: rows of unit length, for selection (never for influence).
    parameters : names, globs or modules
        Part of the model to look at (torch), all by default.
    store : path
        A folder for the training rows, where they should live on disk rather than in memory.
    device, seed, progress
        Where torch runs, the seed of every random choice, and whether to show progress.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LogisticRegression(max_iter=500).fit(X, y)
    >>> explainer = Explainer(model, progress=False).fit((X, y))
    >>> answer = explainer.explain((X[100:110], y[100:110]), k=3)
    >>> len(answer.indices), answer.side
    (3, 'opponents')
    """

    def __init__(
        self,
        model: Any,
        *,
        likelihood: Any = "auto",
        fisher: str = "true",
        sketch: str | int = "auto",
        damping: str | float = "auto",
        normalize: bool = True,
        parameters: Any = None,
        store: Any = None,
        device: Any = None,
        seed: int = 0,
        progress: bool = True,
    ) -> None:
        self.model = model
        if not self.models:
            raise ExemplaError("no model was given: pass a fitted model, or a list of them.")
        self.oracles = make_oracles(self.models, likelihood, parameters, device)
        self.fisher, self.sketch = check_fisher(fisher), check_sketch(sketch)
        self.damping = check_damping(damping)
        self.normalize, self.seed, self.progress, self.store = normalize, seed, progress, store
        self._embeddings: list[Embedding] | None = None
        self._features: dict[Use, Features] = {}
        """Of the use asked for last: one at a time, as they are large."""

    def fit(self, train: Any) -> Explainer:
        """Embed the training set: (X, y), (X, y, sample_weight), a torch Dataset or DataLoader."""
        fitted = []
        for i, oracle in enumerate(self.oracles):
            with showing(self.progress):
                embedding = embed_training_set(
                    oracle, train, fisher=self.fisher, sketch=self.sketch, seed=self.seed
                )
            if self.store is not None:
                rows = on_disk(embedding.rows, self.store, f"rows-{i}")
                embedding = replace(embedding, rows=rows)
            fitted.append(embedding)
        self._embeddings = fitted
        self._features = {}
        self._train_data = train
        return self

    @property
    def models(self) -> list[Any]:
        """What was given as model, as a list."""
        return list(self.model) if isinstance(self.model, list | tuple) else [self.model]

    @property
    def embeddings(self) -> list[Embedding]:
        """One per model; raises if `fit` has not been called."""
        if self._embeddings is None:
            raise ExemplaError("this Explainer has not seen training data yet: call fit first.")
        return self._embeddings

    @property
    def n_train(self) -> int:
        return len(self.embeddings[0].train)

    @property
    def features(self) -> Features:
        """Whitened training rows as `influence` uses them: `rows @ rows.T / n` is influence."""
        return self.features_for("influence")

    def features_for(self, use: Use) -> Features:
        """Training rows whitened at the damping of this use, of unit length for selection; the last
        ones are kept."""
        if use not in self._features:
            chosen = self._dampings(use)
            pairs = zip(self.embeddings, chosen)
            rows = self._joined([e.metric.whiten(e.rows_near_model(), d.value) for e, d in pairs])
            self._features = {
                use: Features(
                    rows=unit_rows(rows) if use == "selection" else rows,
                    damping=float(np.mean([d.value for d in chosen])),
                    damping_rule=chosen[0].rule,
                    share=float(np.mean([e.evidence.share for e in self.embeddings])),
                )
            }
        return self._features[use]

    def set_damping(self, damping: str | float) -> Explainer:
        """Use another damping from now on; nothing is embedded again."""
        self.damping, self._features = check_damping(damping), {}
        return self

    def explain(
        self,
        test: Any,
        k: int = 50,
        side: Side = "opponents",
        labels: Labels = "true",
        selector: Selector | None = None,
        *,
        weights: Any = None,
    ) -> Explanation:
        """The k training examples most responsible for the questioned predictions.

        Parameters
        ----------
        test : (X, y), X alone, or a data set
            The questioned examples: any number of them, one included.
        k : int
            How many training examples to pick.
        side : {"opponents", "proponents", "both"}
            Those that push against the questioned labels, for them, or either.
        labels : {"true", "predicted"}
            Whose labels the question is about.
        selector : Selector
            `SBQ(noise=10)` by default.
        weights : (n_test,) array
            How much each questioned example counts.
        """
        if weights is not None and np.ndim(weights) > 1:
            raise ExemplaError(
                "explain answers one question, with one weight per questioned example: "
                "use explain_each for several."
            )
        mean = partial(mean_embedding, weights=weights)
        return self._answers(test, k, side, labels, selector, mean)[0]

    def explain_each(
        self,
        test: Any,
        k: int = 50,
        side: Side | Sequence[Side] = "opponents",
        labels: Labels = "true",
        selector: Selector | None = None,
        *,
        weights: Any = None,
    ) -> list[Explanation]:
        """Several questions in one pass over the training rows, an explanation for each.

        By default every questioned example is a question of its own; a (T, n_test) array of
        `weights` makes T questions. The other options are those of `explain`; `side` may be a
        list, one for each question.

        >>> from sklearn.datasets import load_iris
        >>> from sklearn.linear_model import LogisticRegression
        >>> X, y = load_iris(return_X_y=True)
        >>> model = LogisticRegression(max_iter=500).fit(X, y)
        >>> explainer = Explainer(model, progress=False).fit((X, y))
        >>> [len(answer) for answer in explainer.explain_each((X[:3], y[:3]), k=2)]
        [2, 2, 2]
        """
        if weights is not None and np.ndim(weights) != 2:
            raise ExemplaError("explain_each takes a line of weights per question, (T, n_test).")
        means = partial(mean_embedding, weights=weights)
        return self._answers(
            test, k, side, labels, selector, means if weights is not None else lambda rows: rows
        )

    def _answers(
        self,
        test: Any,
        k: int,
        side: Side | Sequence[Side],
        labels: Labels,
        selector: Selector | None,
        targets_of: Callable[[Array], Array],
    ) -> list[Explanation]:
        """An explanation per target; `targets_of` makes one (p,) or many (T, p) of the rows."""
        notes: list[str] = []
        if selector is None:
            selector = SBQ(noise=DEFAULT_NOISE if self.normalize else 0.0)
        examples, labels = self._questioned(test, labels, notes)
        with showing(self.progress):
            targets = targets_of(self._test_rows(examples, labels, self._use))
            features = self.features_for(self._use)
        with warnings.catch_warnings(record=True) as caught, showing(self.progress):
            warnings.simplefilter("always")
            found = select(features.rows, targets, k, selector, side)
        for warning in caught:
            warnings.warn(warning.message, warning.category, stacklevel=3)
            if issubclass(warning.category, ExemplaWarning):
                notes.append(str(warning.message))
        pairs = zip(found, targets, strict=True) if isinstance(found, list) else [(found, targets)]
        return [
            replace(
                self._explanation(selection, features, mu, examples[0], labels, k, notes),
                asked=(test, None),
            )
            for selection, mu in pairs
        ]

    def influence(self, test: Any, labels: Labels = "true") -> np.ndarray:
        """What each questioned example's log-likelihood loses if a training example is removed.

        Returns an (n_train, n_test) array: s_iᵀ M⁻¹ s_j / n, positive where the training example
        helps. The whole matrix is built because you asked for it.
        """
        examples, labels = self._questioned(test, labels, [])
        total = np.zeros((self.n_train, len(examples[0])))
        for e, x, d in zip(self.embeddings, examples, self._dampings("influence")):
            with showing(self.progress):
                rows, _ = e.embed(x, labels)
            # the training rows as they are: only the few questioned ones meet M⁻¹
            total += products(e.rows_near_model(), e.metric.solve(rows, d.value))
        total /= len(self.embeddings) * self.n_train
        return total

    def self_influence(self) -> np.ndarray:
        """What each training example's own log-likelihood loses if it is removed."""
        return self_influence(self.features.rows)

    def affinity(self, indices: Any, test: Any, labels: Labels = "true") -> np.ndarray:
        """How these training examples bear on each questioned one, (k, n_test).

        f_i·f_j, the kernel that `explain` selects with: negative where the training example pushes
        against the questioned label. Its mean over the questioned examples is their alignment.
        """
        if isinstance(test, Examples):
            examples = [test]
        else:
            examples, labels = self._questioned(test, labels, [])
        rows = self.features_for(self._use).rows[np.asarray(indices)]
        questioned = self._test_rows(examples, labels, self._use)
        return to_numpy(rows @ questioned.T).astype(np.float64)

    def save(self, path: str | Path) -> Path:
        """Keep the fitted Explainer in one file, model and training rows included.

        >>> import tempfile
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.linear_model import LogisticRegression
        >>> X, y = load_iris(return_X_y=True)
        >>> model = LogisticRegression(max_iter=500).fit(X, y)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     kept = Explainer(model, progress=False).fit((X, y)).save(folder + "/iris.joblib")
        ...     Explainer.load(kept).n_train
        150
        """
        if self._embeddings is None:
            raise ExemplaError("there is nothing to save yet: call fit first.")
        return write_object(self, path)

    @staticmethod
    def load(path: str | Path) -> Explainer:
        """An Explainer that was saved. Loading runs code in the file: open only what you trust."""
        return read_object(path, Explainer)

    @property
    def _use(self) -> Use:
        """What the rows of an explanation are for: unit rows are damped for selection."""
        return "selection" if self.normalize else "influence"

    def _dampings(self, use: Use) -> list[Damping]:
        return [
            resolve_damping(self.damping, e.evidence, e.metric.name, use) for e in self.embeddings
        ]

    def _joined(self, parts: list[Array]) -> Array:
        """Features of several models side by side: their kernels averaged."""
        if len(parts) == 1:
            return parts[0]
        return concatenate(parts, axis=1) / np.sqrt(len(parts))

    def _questioned(
        self, test: Any, labels: Labels, notes: list[str]
    ) -> tuple[list[Examples], Labels]:
        """The questioned examples, read by each model's oracle, and whose labels to use."""
        if labels not in ("true", "predicted"):
            raise ExemplaError(f"labels={labels!r} is not known: use 'true' or 'predicted'.")
        examples = [e.oracle.read(test, role="test") for e in self.embeddings]
        if labels == "true" and examples[0].labels is None and examples[0].needs_labels:
            notes.append("the questioned examples have no labels: the predicted ones were used.")
            labels = "predicted"
        return examples, labels

    def _test_rows(self, examples: list[Examples], labels: Labels, use: Use) -> Array:
        """Whitened rows of the questioned examples, of unit length for selection on unit rows."""
        parts, outside = [], np.zeros(len(examples[0]))
        for e, x, d in zip(self.embeddings, examples, self._dampings(use)):
            rows, beyond = e.embed(x, labels)
            parts.append(on_device_of(e.metric.whiten(rows, d.value), self.features_for(use).rows))
            if e.sketch.outside is not None:
                scale = e.metric.outside(e.sketch.outside, d.value)
                outside = outside + beyond * scale / len(self.embeddings)
        joined = self._joined(parts)
        return unit_rows(joined, outside) if use == "selection" else joined

    def _explanation(
        self,
        selection: Selection,
        features: Features,
        mu: Array,
        examples: Examples,
        labels: Labels,
        k: int,
        notes: list[str],
    ) -> Explanation:
        train = self.embeddings[0].train
        picked = selection.indices
        return Explanation(
            indices=picked,
            weights=selection.weights,
            side=selection.side,
            gains=selection.gains,
            explained=selection.explained,
            variance=selection.variance,
            mmd2=selection.mmd2,
            rank=selection.rank,
            k=k,
            damping=features.damping,
            damping_rule=features.damping_rule,
            share=features.share,
            selector=selection.selector,
            noise=selection.noise,
            labels=labels,
            alignment=to_numpy(features.rows[picked] @ mu).astype(np.float64),
            n_train=self.n_train,
            n_test=len(examples),
            seed=self.seed,
            version=__version__,
            fisher=self.fisher,
            ids=None if train.ids is None else np.asarray(train.ids)[picked],
            certificate=certificate(features.rows, selection, mu).to_dict(),
            warnings=tuple(notes),
            context=(self, examples),
        )


def explain(model: Any, train: Any, test: Any, k: int = 50, **options: Any) -> Explanation:
    """The k training examples most responsible for the questioned predictions.

    Options go where they belong: `side`, `labels`, `selector`, `weights` to the question, the
    rest to `Explainer`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LogisticRegression(max_iter=500).fit(X, y)
    >>> answer = explain(model, (X, y), (X[:2], y[:2]), k=3, side="proponents", progress=False)
    >>> [int(y[i]) for i in answer.indices]
    [0, 0, 0]
    """
    question: Sequence[str] = ("side", "labels", "selector", "weights")
    asked = {name: options.pop(name) for name in question if name in options}
    return Explainer(model, **options).fit(train).explain(test, k, **asked)
