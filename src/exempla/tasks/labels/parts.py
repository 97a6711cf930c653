"""Which labels are wrong where a row has several: labels that may be present, or one per token.

Several labels: each label is judged by itself, as present or absent, by models that have not seen
the row. Tokens (names in sentences, parts of speech): sentences stay together, so a token is judged
by models that have seen none of its sentence. Without a model of the caller's, logistic regression
on each token's window is used: the word, its shape and its ends, and the words around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.feature_extraction import FeatureHasher
from sklearn.linear_model import LogisticRegression

from exempla.arrays import is_sparse
from exempla.data import listing
from exempla.errors import ExemplaError
from exempla.memory import announce
from exempla.progress import track
from exempla.tasks.labels.crossfit import SoftmaxRegression, make_learner, view_bytes
from exempla.tasks.labels.evidence import Evidence, Neighbours, assess_predictions
from exempla.tasks.labels.problem import LabelProblem, LabelRequest, read_rows
from exempla.tasks.labels.result import LabelFixes
from exempla.tasks.labels.wrong import Assessment

_WRAPPED = ("OneVsRestClassifier", "MultiOutputClassifier", "ClassifierChain")
"""Models for several labels at once; the model inside is taken for each label."""


def fix_label_sets(asked: LabelRequest) -> LabelFixes:
    """Rank (row, label) pairs by how likely they are wrong; see `exempla.fix_labels`."""
    (train, names), (curated, others) = (_dense(data) for data in (asked.train, asked.curated))
    if curated is not None and others != names:
        raise ExemplaError(
            f"the labels of curated are {', '.join(map(str, others[:5]))}, not those of train; "
            "give both the same columns, in the same order."
        )
    given = read_rows(train, curated, _checked_table)
    Y, n = given.y, given.n_train
    L = Y.shape[1]
    k, row_names = asked.listed(n * L, "labels"), asked.names(n, given.ids)
    model = asked.model
    model = model.estimator if type(model).__name__ in _WRAPPED else model
    both = np.array([0, 1])
    present = None if asked.probabilities is None else np.asarray(asked.probabilities)
    if present is not None and present.shape != Y.shape:
        raise ExemplaError(
            f"probabilities have shape {present.shape}; give that of every label to be present, "
            f"{Y.shape}."
        )
    learner: Any = make_learner(model, both, asked.fit) if present is None else None
    announce(view_bytes(len(Y), 2) + 80.0 * n * L, f"{n:,} rows of {L:,} labels")
    found: dict[int, Assessment] = {}
    warnings: list[str] = []
    near: Neighbours | None = None
    for place in track(range(L), "judging label by label", L):
        codes = Y[:, place]
        if np.bincount(codes[:n], minlength=2).min() < 2:
            same = "always" if codes[:n].mean() > 0.5 else "never"
            most = f"The label {names[place]} is {same} given, but for one row at most"
            warnings.append(f"{most}: it was not judged.")
            continue
        if present is not None:
            p = np.column_stack([1.0 - present[:, place], present[:, place]])
            found[place] = assess_predictions(p, codes, 2)
            continue
        problem = LabelProblem(given.X, codes, both, n, given.weights)
        evidence = Evidence(learner, problem, seed=asked.seed + place)
        if found:  # the same rows for every label
            evidence.neighbours = near
        near = evidence.neighbours
        found[place] = evidence.assess()
    joined = _joined(found, Y[:n])
    order = np.argsort(-joined.score, kind="stable")[:k]
    row, place = order // L, order % L
    return LabelFixes(
        part=np.asarray(names)[place],
        name=np.asarray(names)[place].astype(str),
        parts="labels",
        task="multi-label",
        warnings=tuple(warnings),
        **joined.listed(order, both),
        **asked.fields(row, row_names, n, n * L, len(Y) - n),
    )


def _joined(found: dict[int, Assessment], Y: np.ndarray) -> Assessment:
    """Return one assessment of all (row, label) pairs; those not judged come last."""

    def table(field: str, missing: float) -> np.ndarray:
        values = np.full(Y.shape, missing)
        for place, one in found.items():
            values[:, place] = getattr(one, field)
        return values.ravel()

    given, p = Y.ravel(), table("probabilities", 0.0)
    # the counts err for the same reason, that overlap may look like mistakes: the ends are added
    low, high = (sum(one.interval[end] for one in found.values()) for end in (0, 1))
    return Assessment(
        probabilities=p,
        score=table("score", -np.inf),
        flipped=table("flipped", 0.0),
        given=given,
        alternative=1 - given,
        given_chance=table("given_chance", np.nan),
        alternative_chance=table("alternative_chance", np.nan),
        expected_errors=float(p.sum()),
        interval=(float(low), float(min(high, Y.size))),
        used=tuple(dict.fromkeys(name for one in found.values() for name in one.used)),
    )


def _dense(data: Any) -> tuple[Any, list[Any]]:
    """Return the data with a dense table of labels, and the names of its columns."""
    if not isinstance(data, tuple) or len(data) < 2 or data[1] is None:
        return data, []
    Y = data[1].toarray() if is_sparse(data[1]) else data[1]
    width = int(np.prod(np.shape(Y)[1:]))
    return (data[0], Y, *data[2:]), list(getattr(Y, "columns", range(width)))


def _checked_table(y: np.ndarray, found: list[str]) -> np.ndarray:
    y = y.reshape(len(y), -1)
    if len(bad := np.flatnonzero(~np.isin(y, (0, 1)).all(axis=1))):
        found.append(f"Y must hold zeros and ones, and holds something else in {listing(bad)}")
        return np.array([])
    return y.astype(np.int64)


WIDTH = 2**17
"""Columns that features are hashed to."""
_LONGEST_RUN = 4
_MAX_LBFGS_WEIGHTS, _LBFGS_BYTES = 2_000_000, 200.0
"""Weights up to which L-BFGS is used, and the bytes that it takes for each of them."""
_TOKEN_BYTES = 20 * 12.0
"""Bytes of a token's window in a sparse row."""


def token_rows(sentences: Iterable[Sequence[str]]) -> sp.csr_matrix:
    """(tokens, WIDTH): one row for every token of every sentence, in order."""
    hasher = FeatureHasher(WIDTH, input_type="string", alternate_sign=False)
    rows = (features for words in sentences for features in _features(words))
    return sp.csr_matrix(hasher.transform(rows))


def _shape_of(word: str) -> str:
    """Letters and digits by kind, runs cut short: McDonald's becomes AaAaaaa'a."""
    kinds = "".join(
        "0" if c.isdigit() else "A" if c.isupper() else "a" if c.isalpha() else c for c in word
    )
    return re.sub(rf"(.)\1{{{_LONGEST_RUN},}}", r"\1" * _LONGEST_RUN, kinds)


def _features(words: Sequence[str]) -> Iterator[list[str]]:
    lower = [word.lower() for word in words]
    shapes = [_shape_of(word) for word in words]
    for i, word in enumerate(lower):
        found = ["bias", f"w={word}", f"s={shapes[i]}"]
        found += [f"end{k}={word[-k:]}" for k in (2, 3, 4)]
        found += [f"start{k}={word[:k]}" for k in (1, 3)]
        for step in (-2, -1, 1, 2):
            near = i + step
            inside = 0 <= near < len(words)
            found.append(f"w{step}={lower[near] if inside else '|'}")
            if abs(step) == 1:
                found.append(f"s{step}={shapes[near] if inside else '|'}")
        if i:
            found.append(f"w-1,w={lower[i - 1]} {word}")
        yield found


def fix_token_labels(asked: LabelRequest) -> LabelFixes:
    """Rank token labels by how likely they are wrong; see `exempla.fix_labels`."""
    problems: list[str] = []
    words, labels = _read_lists(asked.train, "train", problems)
    more, more_labels = [], []
    if asked.curated is not None:
        more, more_labels = _read_lists(asked.curated, "curated", problems)
    if problems:
        raise ExemplaError(f"the token labels cannot be checked: {'; '.join(problems)}.")
    flat = np.array([label for one in (*labels, *more_labels) for label in one])
    lengths = [len(one) for one in (*words, *more)]
    groups = np.repeat(np.arange(len(lengths)), lengths)
    sentence = groups[groups < len(words)]
    place = np.concatenate([np.arange(len(one)) for one in words])
    n = len(sentence)
    k, names = asked.listed(n, "tokens"), asked.names(len(words))
    classes, codes = np.unique(flat, return_inverse=True)
    if len(classes) < 2:
        raise ExemplaError(f"all tokens are labelled {flat[0]!r}, and two labels are needed.")
    n_weights = WIDTH * len(classes)
    fitting = max(_LBFGS_BYTES * min(n_weights, _MAX_LBFGS_WEIGHTS), 16.0 * n_weights)
    needed = 2 * _TOKEN_BYTES * len(flat) + view_bytes(len(flat), len(classes)) + fitting
    announce(needed, f"{len(flat):,} tokens, {len(classes):,} labels")
    problem = LabelProblem(None, codes, classes, n, groups=groups)
    if asked.probabilities is not None:
        if more:
            raise ExemplaError("probabilities are of the training tokens: leave curated out.")
        found = assess_predictions(_stacked(asked.probabilities, words), codes, len(classes))
    else:
        X: Any = token_rows([*words, *more])
        X = X[:, np.bincount(X.indices, minlength=X.shape[1]) > 1]  # others help no other token
        model = asked.model
        if model is None and X.shape[1] * len(classes) > _MAX_LBFGS_WEIGHTS:
            model = SoftmaxRegression(asked.seed)
        elif model is None:
            model = LogisticRegression(C=10.0, tol=1e-3, max_iter=200)
        learner = make_learner(model, classes, asked.fit)
        evidence = Evidence(learner, replace(problem, X=X), seed=asked.seed)
        evidence.neighbours = None
        found = evidence.assess()
    order = found.order[:k]
    tokens = [words[s][i] for s, i in zip(sentence[order], place[order], strict=True)]
    return LabelFixes(
        part=place[order],
        name=np.array(tokens, dtype=str),
        parts="tokens",
        task="tokens",
        **found.listed(order, classes),
        **asked.fields(sentence[order], names, len(words), n, len(flat) - n),
    )


def _stacked(probabilities: Any, words: Sequence[Sequence[str]]) -> np.ndarray:
    """One array of all sentences'."""
    try:
        parts = [np.asarray(one, dtype=np.float64) for one in probabilities]
        if [len(one) for one in parts] == [len(one) for one in words]:
            return np.concatenate(parts)
    except (TypeError, ValueError):
        pass
    raise ExemplaError(
        "probabilities must be a list with an array for each list of tokens, one row a token and "
        "one column a label."
    )


def _read_lists(data: Any, whose: str, problems: list[str]) -> tuple[list[list], list[list]]:
    """Return lists of words, and lists of labels as long."""
    if not isinstance(data, tuple) or len(data) != 2 or data[1] is None:
        raise ExemplaError(f"{whose} has no token labels: give (lists of tokens, lists of labels).")
    words, labels = ([list(one) for one in part] for part in data)
    if not words or len(words) != len(labels):
        problems.append(f"{whose}: {len(words):,} lists of tokens but {len(labels):,} of labels")
    for row, (tokens, own) in enumerate(zip(words, labels, strict=False)):
        if len(tokens) != len(own):
            problems.append(f"{whose}: row {row} has {len(tokens)} tokens but {len(own)} labels")
        elif not all(isinstance(token, str) for token in tokens):
            problems.append(f"{whose}: row {row} holds a token that is no text")
        elif not all(isinstance(label, str | int | np.integer) for label in own):
            problems.append(f"{whose}: row {row} holds a label that is neither text nor a number")
    del problems[5:]
    return words, labels
