"""`Explainer`: fit once on the training set, then ask as many questions as you like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from threading import RLock
from typing import Any, Literal, TypedDict

import numpy as np

from exempla.arrays import real_numbers, to_numpy
from exempla.checks import check_choice, check_flag, check_folder, check_ids, check_rows, check_seed
from exempla.errors import ExemplaError
from exempla.influence import (
    Effect,
    SetInfluence,
    each_influence,
    predicted_effect,
    refuse_overflow,
    relative_influence,
    self_influence,
    self_outside,
    set_influence,
    sketch_influence,
)
from exempla.kernel.damping import check_damping
from exempla.kernel.embed import Embedding, check_fisher
from exempla.kernel.query import Asked, Use, dampings, scored, shares, training_features
from exempla.kernel.residual import Beyond, affinity, kernel_of
from exempla.kernel.sketch import check_sketch
from exempla.kernel.stored import check_part, embed_models
from exempla.memory import Forecast, explain_bytes
from exempla.oracles import make_oracles, unwrap, with_runs
from exempla.oracles.base import Examples, Labels
from exempla.progress import showing
from exempla.quality import disagreement
from exempla.results import Explanation, Features, Question
from exempla.selection import SBQ, Selector
from exempla.selection.certificate import chosen_and_certified
from exempla.store import StoredRows, read_object, write_object
from exempla.version import __version__

__all__ = ["Explainer", "KernelOptions", "Side"]

Side = Literal["opponents", "proponents", "both"]


class KernelOptions(TypedDict, total=False):
    """Options of the Fisher kernel, accepted by every job: ``**options: Unpack[KernelOptions]``.

    They are passed on to `Explainer`, which documents and validates them.
    """

    likelihood: Any
    """What the model's outputs mean: "auto", a name, or a likelihood object."""
    fisher: str
    """The metric: "true", "empirical", "diagonal" or "identity"."""
    sketch: str | int
    """"auto", "exact", or the number of directions to keep."""
    damping: str | float
    """"auto", the name of a rule, or a number."""
    normalize: bool
    """Whether training rows are scaled to unit length before selection."""
    parameters: Any
    """The part of a torch model to use: names, globs or modules."""
    store: Any
    """A folder for the training rows, to keep them on disk."""
    device: Any
    """The torch device to run on."""
    seed: int
    """Seed of every random choice."""
    progress: bool
    """Whether to show progress."""


DEFAULT_NOISE = 10.0
"""σ² of the default selector, in units of a unit row: between pure influence ranking (∞) and
pure diversity (0); both ends lose to the middle on label errors."""


class Explainer:
    """Which training examples are responsible for these predictions?

    Parameters
    ----------
    model : fitted model, or a list of them
        A scikit-learn model or Pipeline, a torch module (or a Trainer or pipeline around it), your
        own scores (`exempla.oracles.scores`). The kernels of several are averaged; after a model,
        state dicts (torch), files of them, or the folder a `Recorder` filled: `[model, "run/"]`.
    likelihood : str, function or likelihood
        "auto", the name of the likelihood the model was trained with, or for a torch model one of
        your own: log_prob(model, batch), see `exempla.oracles.likelihoods.Custom`.
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
        A folder for the training rows, where they should live on disk rather than in memory: they
        go there as they are made, and a fit that was stopped goes on from there.
    device : torch device
        Where a torch model runs.
    seed : int
        The seed of every random choice.
    progress : bool
        Whether to show progress on long work. A fitted Explainer may be asked by several threads.

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
        given = with_runs(list(model)) if isinstance(model, list | tuple) else [model]
        if not given:
            raise ExemplaError("no model was given: pass a fitted model, or a list of them.")
        self.model = unwrap(given if isinstance(model, list | tuple) else model)
        self.oracles = make_oracles(given, likelihood, parameters, device)
        self._told = {"likelihood": likelihood, "parameters": parameters}
        self.fisher, self.sketch = check_fisher(fisher), check_sketch(sketch)
        self.damping = check_damping(damping)
        self.normalize = check_flag("normalize", normalize)
        self.progress = check_flag("progress", progress)
        self.seed, self.store = check_seed(seed), check_folder("store", store)
        self._embeddings: list[Embedding] | None = None
        self._ids: np.ndarray | None = None
        # features of the use asked for last: one at a time, as they are large
        self._features: tuple[Use, Features] | None = None
        self._lock = RLock()

    def fit(self, train: Any, ids: Any = None, *, part: tuple[int, int] | None = None) -> Explainer:
        """Embed the training set: (X, y), (X, y, sample_weight), a torch Dataset or DataLoader.

        `ids` are your own names of its examples; answers then carry them. A fit that was stopped
        goes on where its `store` ends. `part=(i, n)` only adds the i-th of n parts to the store:
        n machines may share the work, and a fit without it then finds all.
        """
        return self._fit(train, ids, part)

    def _fit(
        self,
        train: Any,
        ids: Any = None,
        part: tuple[int, int] | None = None,
        forecast: Forecast = explain_bytes,
    ) -> Explainer:
        """Fit, announcing the memory that the job `forecast` describes will need."""
        with showing(self.progress):
            fitted = embed_models(
                self.models, self.oracles, train, fisher=self.fisher, sketch=self.sketch,
                seed=self.seed, store=self.store, part=check_part(part, self.store),
                forecast=forecast, **self._told,
            )  # fmt: skip
        if part is not None:
            return self
        named = fitted[0].train.ids if ids is None else ids
        with self._lock:
            self._ids = check_ids(named, len(fitted[0].train))
            self._embeddings, self._features = fitted, None
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
        """Number of training examples."""
        return len(self.embeddings[0].train)

    @property
    def train_data(self) -> Any:
        """The training data as given to `fit`."""
        return self._train_data

    @property
    def features(self) -> Features:
        """Whitened training rows: `rows @ rows.T / n` is influence, as far as the sketch shows."""
        return self.features_for("influence")

    def features_for(self, use: Use) -> Features:
        """Training rows at the damping of this use, of unit length for selection; kept for next."""
        with self._lock:
            if self._features is None or self._features[0] != use:
                self._features = None  # the old ones make room first
                self._features = (use, training_features(self.embeddings, self.damping, use))
            return self._features[1]

    def set_damping(self, damping: str | float) -> Explainer:
        """Use another damping from now on; nothing is embedded again."""
        with self._lock:
            self.damping, self._features = check_damping(damping), None
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
        selector : Selector, `SBQ(noise=10)` by default
        weights : (n_test,) array
            How much each questioned example counts.
        """
        weights = None if weights is None else real_numbers(weights, "weights")
        if weights is not None and weights.ndim > 1:
            raise ExemplaError("explain answers one question: use explain_each for several.")
        with showing(self.progress):
            asked = self._asked(test, labels)
            found = self._answers(asked, k, side, selector, weights, each=False)[0]
            counted, chosen = shares(weights, found.n_test), self._influence_dampings()
            effect = predicted_effect(
                self.embeddings, asked.rows, asked.examples[0], asked.labels, chosen, counted,
                found.indices,
            )  # fmt: skip
        asked_of = found.question._replace(shares=counted)  # type: ignore[union-attr]
        return replace(found, removal=asdict(effect), question=asked_of)

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
        `weights` makes T questions. `side` may be a list, one for each question.
        """
        weights = None if weights is None else real_numbers(weights, "weights")
        if weights is not None and weights.ndim != 2:
            raise ExemplaError("explain_each takes a line of weights per question, (T, n_test).")
        with showing(self.progress):
            asked = self._asked(test, labels)
            return self._answers(asked, k, side, selector, weights, each=weights is None)

    def _answers(
        self,
        asked: Asked,
        k: int,
        side: Side | Sequence[Side],
        selector: Selector | None,
        weights: np.ndarray | None,
        each: bool,
    ) -> list[Explanation]:
        """An explanation per question: of all examples as `weights` count them, or of each."""
        if selector is None:
            selector = SBQ(noise=DEFAULT_NOISE if self.normalize else 0.0)
        features = self.features_for(self.use)
        rows, targets = kernel_of(self._beyond, features, asked, weights, each)
        question = Question(self, asked.examples[0], asked.test)
        answers = []
        for selection, mu, proof in chosen_and_certified(rows, targets, k, selector, side):
            alignment = to_numpy(rows[selection.indices] @ mu).astype(np.float64)
            answers.append(
                Explanation.of(
                    selection,
                    alignment=alignment,
                    certificate=proof.to_dict(),
                    damping=features.damping,
                    damping_rule=features.damping_rule,
                    beyond_sketch=rows is not features.rows,
                    state=None,
                    **self.circumstances(selection.indices, question, asked.labels, k),
                    warnings=(*asked.notes, *selection.warnings),
                )
            )
        return answers

    def circumstances(
        self, indices: np.ndarray, question: Question, labels: Labels, k: int
    ) -> dict[str, Any]:
        """Fields of an `Explanation` that do not depend on how its examples were chosen."""
        return {
            "labels": labels,
            "k": int(k),
            "share": float(np.mean([e.evidence.share for e in self.embeddings])),
            "n_train": self.n_train,
            "n_test": len(question.examples),
            "seed": self.seed,
            "version": __version__,
            "fisher": "identity" if self.embeddings[0].oracle.whitened else self.fisher,
            "ids": None if self._ids is None else self._ids[indices],
            "question": question,
        }

    def influence(
        self, test: Any, labels: Labels = "true", past_sketch: bool = False, *,
        relative: bool = False,
    ) -> np.ndarray:  # fmt: skip
        """What each questioned example's log-likelihood loses if a training example is removed.

        Returns an (n_train, n_test) array: s_iᵀ M⁻¹ s_j / n, positive where the training example
        helps, the whole matrix because you asked for it. What a sketch leaves out counts by one
        mean eigenvalue (`exempla.kernel.residual`). `past_sketch` solves with the Fisher of all
        parameters, as `set_influence` does, in some passes over the training set. `relative`
        divides by the root of each training example's own influence: who speaks about this
        question, where plain influence also names those that have a say in everything.
        """
        way = each_influence if check_flag("past_sketch", past_sketch) else sketch_influence
        divided = check_flag("relative", relative)
        with showing(self.progress):
            found = way(self.embeddings, *self._influenced(test, labels)).values
            if divided:
                found = relative_influence(found, self.self_influence())
        return refuse_overflow(found, "influence")

    def set_influence(
        self, test: Any, labels: Labels = "true", weights: Any = None
    ) -> SetInfluence:
        """Influence on the mean log-likelihood of the questioned set, past the sketch if any."""
        with showing(self.progress):
            return set_influence(self.embeddings, *self._influenced(test, labels), weights)

    def mean_influence(self, test: Any, labels: Labels = "true", weights: Any = None) -> np.ndarray:
        """Return the influence on the (weighted) mean log-likelihood of the queried set.

        Like ``influence(test) @ weights`` without the (n_train, n_test) matrix. `set_influence`
        solves with the Fisher of all parameters instead; this method uses the sketch.
        """
        with showing(self.progress):
            examples, labels, chosen = self._influenced(test, labels)
            share = shares(weights, len(examples[0]))[:, None]
            found = sketch_influence(self.embeddings, examples, labels, chosen, share)
        return refuse_overflow(found.values[:, 0], "influence")

    def removal_effect(
        self,
        indices: Any,
        test: Any,
        labels: Labels = "true",
        weights: Any = None,
        *,
        scale: float = 1.0,
    ) -> Effect:
        """Predict what removing these training examples does to the queried predictions.

        `scale` corrects the size of the prediction (`exempla.tasks.removal.SIZE`).
        """
        removed = check_rows(indices, self.n_train, "indices", "training examples")
        with showing(self.progress):
            examples, labels, chosen = self._influenced(test, labels)
            rows = scored(self.embeddings, examples, labels)
            counted = shares(weights, len(examples[0]))
            return predicted_effect(
                self.embeddings, rows, examples[0], labels, chosen, counted, removed, scale
            )

    def self_influence(self) -> np.ndarray:
        """What each training example's own log-likelihood loses if it is removed."""
        with showing(self.progress):
            found = self_influence(self.features.rows)
            found = found + self_outside(self.embeddings, self._influence_dampings())
        return refuse_overflow(found, "self-influence")

    def affinity(self, indices: Any, test: Any, labels: Labels = "true") -> np.ndarray:
        """f_i·f_j of these training examples and each questioned one, (k, n_test).

        The kernel that `explain` selects with: negative where one pushes against the other's label.
        """
        chosen = check_rows(indices, self.n_train, "indices", "training examples")
        read = isinstance(test, Examples)
        examples, labels = ([test], labels) if read else self._questioned(test, labels, [])
        features = self.features_for(self.use)
        asked = Asked(test, examples, labels, scored(self.embeddings, examples, labels), [])
        found = affinity(self._beyond, features, chosen, asked)
        return refuse_overflow(found, "the kernel")

    def save(self, path: str | Path) -> Path:
        """Keep the fitted Explainer in one file, model and training rows included; rows in a store
        stay there, and the file names their folder."""
        if self._embeddings is None:
            raise ExemplaError("there is nothing to save yet: call fit first.")
        return write_object(self, path)

    @staticmethod
    def load(path: str | Path) -> Explainer:
        """An Explainer that was saved. Loading runs code in the file: open only what you trust."""
        found = read_object(path, Explainer)
        for embedding in found.embeddings:
            if isinstance(embedding.rows, StoredRows):
                embedding.rows.refuse_missing()
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=RLock())

    @property
    def use(self) -> Use:
        """What the rows of an explanation are for: unit rows are damped for selection."""
        return "selection" if self.normalize else "influence"

    @property
    def _beyond(self) -> Beyond:
        return Beyond(self.embeddings, self.damping, self.use)

    def _questioned(
        self, test: Any, labels: Labels, notes: list[str]
    ) -> tuple[list[Examples], Labels]:
        """The questioned examples, read by each model's oracle, and whose labels to use."""
        check_choice("labels", labels, ("true", "predicted"))
        examples = [e.oracle.read(test, role="test") for e in self.embeddings]
        if labels == "true" and examples[0].labels is None and examples[0].needs_labels:
            notes.append("the questioned examples have no labels: the predicted ones were used.")
            labels = "predicted"
        return examples, labels

    def _influenced(self, test: Any, labels: Labels) -> tuple[list[Examples], Labels, list[float]]:
        """Questioned examples, whose labels, and the damping of each model for influence."""
        return *self._questioned(test, labels, []), self._influence_dampings()

    def _influence_dampings(self) -> list[float]:
        return [d.value for d in dampings(self.embeddings, self.damping, "influence")]

    def _asked(self, test: Any, labels: Labels) -> Asked:
        """The questioned examples, read and scored once for all that is said of them."""
        notes = [said for said in (disagreement(self.embeddings[0]),) if said]
        examples, labels = self._questioned(test, labels, notes)
        notes.extend(dict.fromkeys(note for e in self.embeddings for note in e.oracle.notes))
        return Asked(test, examples, labels, scored(self.embeddings, examples, labels), notes)
