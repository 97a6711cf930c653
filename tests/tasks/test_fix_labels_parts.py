"""Several labels a row, tokens, and very many classes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_digits, make_multilabel_classification
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

import exempla
from exempla.errors import ExemplaError
from exempla.tasks.labels.crossfit import SoftmaxRegression, view_bytes
from exempla.tasks.labels.fix_labels import job_of
from exempla.tasks.labels.result import levels_apart


def several(rate=0.05, seed=0, n=600):
    X, Y = make_multilabel_classification(n, 20, n_classes=4, n_labels=2, random_state=seed)
    wrong = np.random.default_rng(seed).random(Y.shape) < rate
    return X, Y, np.where(wrong, 1 - Y, Y), wrong


def test_wrong_labels_of_several_come_first():
    X, _, given, wrong = several()
    names = ["sun", "rain", "wind", "snow"]
    fixes = exempla.fix_labels(
        LogisticRegression(max_iter=500), (X, pd.DataFrame(given, columns=names)), progress=False
    )
    assert isinstance(fixes, exempla.LabelFixes)
    assert fixes.n_labels == 2400
    hits = [wrong[row, names.index(name)] for row, name in zip(fixes.indices, fixes.name)]
    assert np.mean(hits[:60]) > 7 * wrong.mean()
    assert set(fixes.to_frame()) >= {"label", "given", "suggested", "probability"}
    sure = fixes.probabilities > 0.5
    np.testing.assert_array_equal(fixes.suggested[sure], 1 - fixes.given[sure])


def test_a_sparse_indicator_and_a_wrapped_model_are_the_same_job():
    X, _, given, _ = several(n=200)
    plain = exempla.fix_labels(LogisticRegression(), (X, given), k=20, progress=False)
    wrapped = OneVsRestClassifier(LogisticRegression())
    sparse = exempla.fix_labels(wrapped, (X, sp.csr_matrix(given)), k=20, progress=False)
    np.testing.assert_array_equal(plain.indices, sparse.indices)


def test_curated_rows_make_the_number_of_wrong_labels_good():
    X, truth, given, wrong = several(0.1, n=1000)
    fixes = exempla.fix_labels(
        LogisticRegression(max_iter=500), (X[:700], given[:700]), (X[700:], truth[700:]),
        progress=False,
    )  # fmt: skip
    assert 0.6 < fixes.expected_errors / wrong[:700].sum() < 1.5


def test_a_label_that_is_always_given_is_said_not_to_be_judged():
    X, _, given, _ = several(n=200)
    given[:, 2] = 1
    fixes = exempla.fix_labels(LogisticRegression(), (X, given), progress=False)
    assert any("label 2 is always given" in said for said in fixes.warnings)


def sentences(n=200, seed=0):
    rng = np.random.default_rng(seed)
    people, places = ["Ada", "Bo", "Cy", "Dora"], ["Rome", "Oslo", "Lima"]
    words, labels = [], []
    for _ in range(n):
        words.append([str(rng.choice(people)), "went", "to", str(rng.choice(places)), "today", "."])
        labels.append(["PER", "O", "O", "LOC", "O", "O"])
    planted = set()
    for row in range(0, n, 10):
        place = int(rng.integers(0, 6))
        labels[row][place] = "LOC" if labels[row][place] != "LOC" else "O"
        planted.add((row, place))
    return words, labels, planted


def test_wrong_token_labels_are_found_and_mended():
    words, labels, planted = sentences()
    fixes = exempla.fix_labels(None, (words, labels), k=20, progress=False)
    assert fixes.parts == "tokens"
    found = set(zip(fixes.indices.tolist(), fixes.part.tolist(), strict=True))
    assert len(found & planted) >= 18
    assert fixes.name[0] == words[fixes.indices[0]][fixes.part[0]]
    true = ["PER", "O", "O", "LOC", "O", "O"]
    planted_first = [p in planted for p in zip(fixes.indices.tolist(), fixes.part.tolist())]
    mended = [fixes.alternative[i] == true[fixes.part[i]] for i in np.flatnonzero(planted_first)]
    assert np.mean(mended) > 0.9
    assert 8 < fixes.expected_errors < 30
    assert fixes.interval[0] <= 20 <= fixes.interval[1] + 5


def test_probabilities_of_ones_own_model_need_no_training():
    words, labels, planted = sentences()
    classes = ["LOC", "O", "PER"]
    true = ["PER", "O", "O", "LOC", "O", "O"]
    sure = [np.array([[0.98 if c == t else 0.01 for c in classes] for t in true]) for _ in words]
    fixes = exempla.fix_labels(None, (words, labels), progress=False, probabilities=sure, k=20)
    assert set(zip(fixes.indices.tolist(), fixes.part.tolist(), strict=True)) == planted
    with pytest.raises(ExemplaError, match="one row a token"):
        exempla.fix_labels(None, (words, labels), progress=False, probabilities=sure[:5])


def test_probabilities_for_classes():
    y = np.repeat([0, 1], 100)
    sure = np.where(y[:, None] == [0, 1], 0.95, 0.05)
    y = y.copy()
    y[[3, 150]] = 1 - y[[3, 150]]
    fixes = exempla.fix_labels(None, (np.zeros((200, 1)), y), probabilities=sure, progress=False)
    assert isinstance(fixes, exempla.LabelFixes)
    assert set(fixes.indices[:2]) == {3, 150}


@pytest.mark.parametrize(
    ("train", "said"),
    [
        (([["a", "b"]], [["O"]]), "row 0 has 2 tokens but 1 labels"),
        (([["a"], ["b"]], [["O"]]), "2 lists of tokens but 1"),
        (([["a"], ["b"]], [["O"], ["O"]]), "two labels are needed"),
    ],
)
def test_token_lists_that_do_not_fit_are_refused(train, said):
    with pytest.raises(ExemplaError, match=said):
        exempla.fix_labels(None, train, progress=False, task="tokens")


def test_what_was_given_tells_the_job():
    X = np.zeros((4, 2))
    model = LogisticRegression()
    assert job_of(model, (X, np.array([[0, 1], [1, 1], [0, 0], [1, 0]]))) == "multi-label"
    assert job_of(model, (X, np.array([0, 1, 1, 0]))) == "classes"
    assert job_of(model, (X, np.array([[0], [1], [1], [0]]))) == "classes"
    assert job_of(model, (["a b", "c"], ["x", "y"])) == "classes"
    assert job_of(None, ([["a", "b"], ["c"]], [["x", "y"], ["x"]])) == "tokens"
    assert job_of(model, (np.zeros((3000, 1)), np.arange(3000) % 1500)) == "classes"
    votes = np.array([["a", None], ["b", "b"]], dtype=object)
    assert job_of(model, (X[:2], votes)) == "votes"


def test_a_few_classes_go_the_usual_way():
    X, y = load_digits(return_X_y=True)
    fixes = exempla.fix_labels(LogisticRegression(), (X[:120], y[:120]), k=2, progress=False)
    assert isinstance(fixes, exempla.LabelFixes)


MANY = """
import resource, sys
import numpy as np, exempla
C, n = int(sys.argv[1]), 12000
rng = np.random.default_rng(0)
centers = rng.normal(size=(C, 32)) * 3
y = rng.integers(0, C, n)
X = (centers[y] + rng.normal(size=(n, 32))).astype(np.float32)
bad = rng.choice(n, 600, replace=False)
given = y.copy()
given[bad] = (y[bad] + rng.integers(1, C, 600)) % C
names = np.array([f"kind{c % 20}/sort{c}" for c in range(C)])
exempla.fix_labels(None, ([["a", "b"]] * 30, [["X", "O"]] * 30), progress=False)  # imports
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
fixes = exempla.fix_labels(None, (X, names[given]), progress=False)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(np.isin(fixes.indices[:600], bad).mean(), fixes.expected_errors, (after - before) * 1024)
"""


@pytest.mark.slow
def test_two_thousand_classes_in_bounded_memory():
    run = [sys.executable, "-c", MANY, "2000"]
    said = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
    found, expected, used = map(float, said)
    assert found > 0.9
    assert 350 < expected < 900
    # one (rows × classes) array of float64 alone would take 192 MB, and ten would be held
    assert used < 1.1 * view_bytes(12000, 2000)


def test_softmax_regression_is_a_scikit_learn_classifier():
    X, y = load_digits(return_X_y=True)
    dense = SoftmaxRegression().fit(X[:1000] / 16, y[:1000])
    assert dense.score(X[1000:] / 16, y[1000:]) > 0.85
    sparse = SoftmaxRegression().fit(sp.csr_matrix(X[:1000] / 16), y[:1000])
    np.testing.assert_allclose(
        sparse.predict_proba(X[:5] / 16), dense.predict_proba(X[:5] / 16), atol=0.05
    )
    weights = np.ones(1000)
    weights[y[:1000] == 3] = 0.0
    assert not (SoftmaxRegression().fit(X[:1000], y[:1000], weights).predict(X) == 3).any()


def test_at_which_level_classes_part():
    given = np.array(["animal/dog/terrier", "animal/dog/terrier", "plant/tree/oak"])
    other = np.array(["animal/dog/poodle", "plant/tree/oak", "plant/tree/oak"])
    assert levels_apart(given, other).tolist() == [3, 1, 0]
