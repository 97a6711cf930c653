"""`Explainer`: fit once on the training set, then ask any number of queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from threading import RLock
from typing import Any, Literal, TypedDict

import numpy as np

from exempla import __version__
from exempla.arrays import Array, real_numbers, refuse_overflow, to_numpy
from exempla.checks import (
    check_choice,
    check_flag,
    check_folder,
    check_ids,
    check_k,
    check_rows,
    check_seed,
)
from exempla.errors import ExemplaError
from exempla.kernel.damping import check_damping
from exempla.kernel.embed import FISHERS, Embedding, EmbeddingOptions, check_part, embed_models
from exempla.kernel.kernel import Kernel, KernelUse, Query, RemovalEffect, shares
from exempla.kernel.sketch import check_budget, check_sketch
from exempla.kernel.solve import SetInfluence, Solve, relative_influence
from exempla.memory import Forecast, explain_bytes
from exempla.oracles import make_oracles, unwrap, with_runs
from exempla.oracles.base import Labels
from exempla.progress import showing
from exempla.quality import disagreement
from exempla.results import Explanation, Features, Question
from exempla.selection import SBQ, Selector
from exempla.selection.certificate import chosen_and_certified
from exempla.selection.select import SIDES
from exempla.store import StoredRows, read_object, write_object

__all__ = ["Explainer", "KernelOptions", "Side"]

Side = Literal["opponents", "proponents", "both"]

DEFAULT_NOISE = 10.0
"""σ² of the default selector in units of a unit row: between a pure influence ranking (∞) and pure
diversity (0). Both extremes find fewer label errors."""


class KernelOptions(TypedDict, total=False):
    """Options of the Fisher kernel, accepted by every job: ``**options: Unpack[KernelOptions]``.

    They are passed on to `Explainer`, which documents and validates them.

    Examples
    --------
    >>> options: KernelOptions = {"sketch": 512, "seed": 1}
    >>> sorted(options)
    ['seed', 'sketch']
    """

    likelihood: Any
    fisher: str
    sketch: str | int
    budget: str | float
    damping: str | float
    normalize: bool
    parameters: Any
    store: Any
    device: Any
    seed: int
    progress: bool


class Explainer:
    """Find the training examples that are responsible for a set of predictions.

    Parameters
    ----------
    model : fitted model, or a list of them
        A scikit-learn model or Pipeline, boosted trees, a torch module (or a Trainer or pipeline
        around it), or your own scores (`exempla.ArrayScores`, `exempla.ScoreModel`). The kernels of
        several models are averaged. After a torch module you may give snapshots of its training:
        state dicts, files of them, or the folder of a `Recorder`, as in ``[model, "run/"]``.
    likelihood : str, function or likelihood
        "auto", the name of the likelihood the model was trained with, or for a torch model your own
        ``log_prob(model, batch)``, see `exempla.oracles.likelihoods.Custom`.
    fisher : {"true", "empirical", "diagonal", "identity"}
        The metric: the Fisher matrix under the model's own labels, under the given labels, its
        diagonal, or the identity (the paper's practical kernel).
    sketch : "auto", "exact" or int
        How scores are compressed: exactly where that fits, not at all, or to this many directions.
    budget : "auto", "exact" or float
        Largest cost of `fit` in epochs of training, which ``sketch="auto"`` keeps to. "auto" is 3
        for a torch network with one label per example, and no limit otherwise (language models,
        your own likelihood, other models); "exact" is no limit. The details of every answer state
        what a budget gave up.
    damping : "auto", rule or float
        Added to the eigenvalues of the metric; chosen from data by default, and recorded.
    normalize : bool
        Scale rows to unit length for selection, so that only directions are compared. Influence is
        never normalised.
    parameters : names, globs or modules
        The part of a torch model to use; all of it by default.
    store : path
        A folder for the training rows, to keep them on disk. A fit that was stopped continues from
        there.
    device : torch device
        The device a torch model runs on.
    seed : int
        Seed of every random choice.
    progress : bool
        Whether to show progress on long jobs.

    Notes
    -----
    Several threads may query a fitted Explainer.

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
        budget: str | float = "auto",
        damping: str | float = "auto",
        normalize: bool = True,
        parameters: Any = None,
        store: Any = None,
        device: Any = None,
        seed: int = 0,
        progress: bool = True,
    ) -> None:
        self.fisher = check_choice("fisher", fisher, FISHERS)
        self.sketch = check_sketch(sketch)
        self.budget, self.damping = check_budget(budget), check_damping(damping)
        self.normalize = check_flag("normalize", normalize)
        self.progress = check_flag("progress", progress)
        self.seed, self.store = check_seed(seed), check_folder("store", store)
        given = with_runs(list(model)) if isinstance(model, list | tuple) else [model]
        if not given:
            raise ExemplaError("no model was given: pass a fitted model, or a list of them.")
        self.model = unwrap(given if isinstance(model, list | tuple) else model)
        self.oracles = make_oracles(given, likelihood, parameters, device)
        self._score_options = {"likelihood": likelihood, "parameters": parameters}
        self._embeddings: list[Embedding] | None = None
        self._ids: np.ndarray | None = None
        self.train_data: Any = None
        """The training data as given to `fit`."""
        self._kernels: dict[KernelUse, Kernel] = {}
        self._lock = RLock()

    def fit(self, train: Any, ids: Any = None, *, part: tuple[int, int] | None = None) -> Explainer:
        """Embed the training set.

        Parameters
        ----------
        train : (X, y), (X, y, sample_weight), or a data set
            The data the model was trained on; a torch Dataset or DataLoader, or a Hugging Face
            Dataset will do.
        ids : sequence
            Your own names of the training examples; answers carry them.
        part : (int, int)
            (i, n) only adds the i-th of n parts of the rows to the store. n machines can share the
            work; a fit without `part` then finds all rows.

        Returns
        -------
        Explainer
            Itself.

        Raises
        ------
        ExemplaError
            If the model is not fitted, or the data, `ids` or `part` cannot be used.
        """
        return self._fit(train, ids, part)

    def _fit(
        self,
        train: Any,
        ids: Any = None,
        part: tuple[int, int] | None = None,
        forecast: Forecast = explain_bytes,
    ) -> Explainer:
        """Fit with the memory forecast of another job."""
        part = check_part(part, self.store)
        with showing(self.progress):
            trains = [oracle.read(train, role="train") for oracle in self.oracles]
            names = check_ids(trains[0].ids if ids is None else ids, len(trains[0]))
            options = EmbeddingOptions(self.fisher, self.sketch, self.seed, self.budget)
            fitted = embed_models(
                self.models, self.oracles, trains, train, options, self.store, part, forecast,
                **self._score_options,
            )  # fmt: skip
        if part is None:
            with self._lock:
                self._ids, self._embeddings, self._kernels = names, fitted, {}
                self.train_data = train
        return self

    @property
    def models(self) -> list[Any]:
        """The models, as a list."""
        return list(self.model) if isinstance(self.model, list | tuple) else [self.model]

    @property
    def embeddings(self) -> list[Embedding]:
        """One embedding per model; raises if `fit` has not been called."""
        if self._embeddings is None:
            raise ExemplaError("this Explainer has not seen training data yet: call fit first.")
        return self._embeddings

    @property
    def n_train(self) -> int:
        """Number of training examples."""
        return len(self.embeddings[0].train)

    @property
    def features(self) -> Features:
        """Whitened training rows; ``rows @ rows.T / n`` is influence, up to the sketch."""
        return self.kernel("influence").features

    def kernel(self, use: KernelUse | None = None) -> Kernel:
        """Return the kernel for influence or for selection; by default that of `explain`.

        Unit rows are damped for selection. The features computed last are kept for the next call.
        """
        use = use or ("selection" if self.normalize else "influence")
        with self._lock:
            if not self._kernels:
                first = Kernel(self.embeddings, self.damping, "influence")
                other = Kernel(self.embeddings, self.damping, "selection", beside=first)
                self._kernels = {"influence": first, "selection": other}
            return self._kernels[use]

    def set_damping(self, damping: str | float) -> Explainer:
        """Use another damping from now on; nothing is embedded again."""
        with self._lock:
            self.damping, self._kernels = check_damping(damping), {}
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
        """Select the k training examples most responsible for the queried predictions.

        Parameters
        ----------
        test : (X, y), X alone, or a data set
            The queried examples: one or more. Without labels the model's predictions are queried.
        k : int
            Number of training examples to select.
        side : {"opponents", "proponents", "both"}
            Examples that push against the queried labels, towards them, or either.
        labels : {"true", "predicted"}
            Whose labels the query is about.
        selector : Selector, default `SBQ(noise=10)`
            The selection algorithm; `TopInfluence()` is a plain ranking.
        weights : (n_test,) array
            Weight of each queried example.

        Returns
        -------
        Explanation
            `.indices` (rows of the training data, most important first), `.weights`, `.removal`
            (the predicted effect of removing them), `.verify()`, `.to_frame()`, `.plot()`.

        Raises
        ------
        ExemplaError
            If an argument cannot be used; arguments are checked before anything is computed.
        """
        check_k(k, self.n_train, "training examples")
        check_options(side, labels, selector, weights)
        with showing(self.progress):
            query = self._query(test, labels, weights)
            problem = self.kernel().rows_and_targets(query, weights)
            found = self._explanations(query, problem, k, side, selector)[0]
            counted = shares(weights, len(query))
            effect = self.kernel("influence").removal_effect(query, counted, found.indices)
        question = found.question._replace(shares=counted)  # type: ignore[union-attr]
        return replace(found, removal=asdict(effect), question=question)

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
        """Explain several targets in one pass over the training rows.

        Parameters
        ----------
        test, k, labels, selector
            As for `explain`.
        side : str or list of str
            One side for all targets, or one for each.
        weights : (T, n_test) array
            Weights of the queried examples in each of T targets. By default every queried example
            is a target by itself.

        Returns
        -------
        list of Explanation
            One per target.
        """
        check_k(k, self.n_train, "training examples")
        check_options(side, labels, selector, weights, each=True)
        with showing(self.progress):
            query = self._query(test, labels, weights)
            problem = self.kernel().rows_and_targets(query, weights, each=weights is None)
            return self._explanations(query, problem, k, side, selector)

    def _explanations(
        self,
        query: Query,
        problem: tuple[Array, Array],
        k: int,
        side: Side | Sequence[Side],
        selector: Selector | None,
    ) -> list[Explanation]:
        """Select for every target of a problem: training rows and targets, for this query."""
        if selector is None:
            selector = SBQ(noise=DEFAULT_NOISE if self.normalize else 0.0)
        features, (rows, targets) = self.kernel().features, problem
        question = Question(self, query.examples[0], query.test)
        return [
            Explanation.of(
                selection,
                alignment=to_numpy(rows[selection.indices] @ mu).astype(np.float64),
                certificate=proof.to_dict(),
                damping=features.damping,
                damping_rule=features.damping_rule,
                residual_used=rows is not features.rows,
                state=None,
                **self._provenance(selection.indices, question, query.labels, k),
                warnings=(*query.notes, *selection.warnings),
            )
            for selection, mu, proof in chosen_and_certified(rows, targets, k, selector, side)
        ]

    def _provenance(
        self, indices: np.ndarray, question: Question, labels: Labels, k: int
    ) -> dict[str, Any]:
        """Return the fields of an `Explanation` that do not depend on the selection algorithm."""
        return {
            "labels": labels,
            "k": int(k),
            "share": float(np.mean([e.evidence.share for e in self.embeddings])),
            "given_up": next((e.sketch.given_up for e in self.embeddings), ""),
            "n_train": self.n_train,
            "n_test": len(question.examples),
            "seed": self.seed,
            "version": __version__,
            "fisher": "identity" if self.embeddings[0].oracle.whitened else self.fisher,
            "ids": None if self._ids is None else self._ids[indices],
            "question": question,
        }

    def influence(
        self, test: Any, labels: Labels = "true", *, solve: Solve = "sketch", relative: bool = False
    ) -> np.ndarray:
        """Compute the influence of every training example on every queried example.

        Parameters
        ----------
        test : (X, y), X alone, or a data set
        labels : {"true", "predicted"}
            Whose labels the query is about.
        solve : {"sketch", "exact"}
            Apply the inverse of the sketched Fisher matrix, with one mean eigenvalue for its
            residual, or solve with the Fisher matrix of all parameters in a few more passes over
            the training set.
        relative : bool
            Divide by the root of each training example's self-influence: this favours examples that
            act on this query over those that act on everything.

        Returns
        -------
        (n_train, n_test) array
            s_iᵀ M⁻¹ s_j / n, in units of log-likelihood: what the queried example loses if the
            training example is removed. Positive where the training example helps.
        """
        check_choice("solve", solve, ("sketch", "exact"))
        check_flag("relative", relative)
        kernel = self.kernel("influence")
        with showing(self.progress):
            found = kernel.influence(kernel.query(test, labels), solve).values
            if relative:
                found = relative_influence(found, kernel.self_influence())
        return refuse_overflow(found, "influence")

    def set_influence(
        self,
        test: Any,
        labels: Labels = "true",
        weights: Any = None,
        *,
        solve: Solve = "exact",
    ) -> SetInfluence:
        """Compute the influence on the mean log-likelihood of the queried set.

        Parameters
        ----------
        test : (X, y), X alone, or a data set
        labels : {"true", "predicted"}
        weights : (n_test,) array
            Weight of each queried example.
        solve : {"exact", "sketch"}
            Solve with the Fisher matrix of all parameters where the model offers that (torch), or
            compute ``influence(test) @ weights`` without the (n_train, n_test) matrix.

        Returns
        -------
        SetInfluence
            `.values` (n_train,), `.solver`, `.residual` and `.steps` of the solution.
        """
        check_choice("solve", solve, ("sketch", "exact"))
        kernel = self.kernel("influence")
        with showing(self.progress):
            found = kernel.set_influence(kernel.query(test, labels), weights, solve)
        refuse_overflow(found.values, "influence")
        return found

    def removal_effect(
        self,
        indices: Any,
        test: Any,
        labels: Labels = "true",
        weights: Any = None,
        *,
        scale: float = 1.0,
    ) -> RemovalEffect:
        """Predict what removing these training examples does to the queried predictions.

        `scale` corrects the size of the prediction (`exempla.tasks.verify.SIZE`).
        """
        removed = check_rows(indices, self.n_train, "indices", "training examples")
        kernel = self.kernel("influence")
        with showing(self.progress):
            query = kernel.query(test, labels)
            return kernel.removal_effect(query, shares(weights, len(query)), removed, scale)

    def self_influence(self) -> np.ndarray:
        """Compute the influence of every training example on itself, (n_train,)."""
        with showing(self.progress):
            found = self.kernel("influence").self_influence()
        return refuse_overflow(found, "self-influence")

    def affinity(self, indices: Any, test: Any, labels: Labels = "true") -> np.ndarray:
        """Return the kernel of some training examples and each queried one, (k, n_test).

        It is the kernel that `explain` selects with: negative where a training example pushes
        against the label of a queried one.
        """
        chosen = check_rows(indices, self.n_train, "indices", "training examples")
        kernel = self.kernel()
        return refuse_overflow(kernel.affinity(chosen, kernel.query(test, labels)), "the kernel")

    def save(self, path: str | Path) -> Path:
        """Write the fitted Explainer to one file, with model and training rows.

        Rows in a store stay there; the file names their folder.
        """
        if self._embeddings is None:
            raise ExemplaError("there is nothing to save yet: call fit first.")
        return write_object(self, path)

    @staticmethod
    def load(path: str | Path) -> Explainer:
        """Read a saved Explainer. Loading runs code in the file: open only what you trust.

        The checksum of a stored shard is verified when it is first read.
        """
        found = read_object(path, Explainer)
        for embedding in found.embeddings:
            if isinstance(embedding.rows, StoredRows):
                embedding.rows.verify_when_read()
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None, "_kernels": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=RLock())

    def _query(self, test: Any, labels: Labels, weights: Any) -> Query:
        """Read the test data; collect what the user should know about model and query."""
        query = self.kernel().query(test, labels)
        shares(weights, len(query))  # refuses unusable weights before anything is computed
        note = disagreement(self.embeddings[0])
        query.notes[:0] = [note] if note else []
        query.notes.extend(dict.fromkeys(n for e in self.embeddings for n in e.oracle.notes))
        return query


def check_options(side: Any, labels: Any, selector: Any, weights: Any, each: bool = False) -> None:
    """Raise if an argument of `explain` is unusable whatever the data are.

    `explain_each` (`each`) takes a list of sides and a matrix of weights.
    """
    for one in side if each and isinstance(side, list | tuple) else [side]:
        check_choice("side", one, SIDES)
    check_choice("labels", labels, ("true", "predicted"))
    if selector is not None and not isinstance(selector, Selector):
        raise ExemplaError(
            f"selector={selector!r:.60} is not a selector: give for example exempla.SBQ() or "
            "exempla.TopInfluence()."
        )
    dimensions = 0 if weights is None else real_numbers(weights, "weights").ndim
    if not each and dimensions > 1:
        raise ExemplaError("explain takes one weight per test example: use explain_each for more.")
    if each and weights is not None and dimensions != 2:
        raise ExemplaError("explain_each takes one row of weights per target, (T, n_test).")
