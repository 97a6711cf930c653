"""What users hand over as arrays: hidden and imaginary parts are never quietly dropped."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import exempla
from exempla import ExemplaError
from exempla.arrays import native, nbytes_of, real_numbers, refuse_masked
from exempla.data import absent_labels, arrays_of, count_examples, listing, plain_labels
from exempla.oracles.scores import ArrayScores

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 3))
Y = (X[:, 0] > 0).astype(int)
MODEL = LogisticRegression().fit(X, Y)
HIDDEN = np.arange(40) == 7


def masked(values):
    mask = np.broadcast_to(HIDDEN.reshape(-1, *[1] * (values.ndim - 1)), values.shape)
    return np.ma.masked_array(values, mask)


def fitted(data):
    return exempla.Explainer(MODEL, progress=False).fit(data)


DOORS = {
    "X": lambda: fitted((masked(X), Y)),
    "y": lambda: fitted((X, masked(Y))),
    "weights": lambda: fitted((X, Y, masked(np.ones(40)))),
    "rows in a list": lambda: fitted((list(masked(X)), Y)),
    "test": lambda: fitted((X, Y)).explain((masked(X), Y), 2),
    "question weights": lambda: fitted((X, Y)).explain((X, Y), 2, weights=masked(np.ones(40))),
    "scores": lambda: exempla.Explainer(ArrayScores(), progress=False).fit(masked(X)),
    "summarize": lambda: exempla.summarize(LogisticRegression(), (masked(X), Y), 5),
    "fix_labels": lambda: exempla.fix_labels(MODEL, (masked(X), Y)),
    "clean": lambda: exempla.clean(MODEL, (masked(X), Y), (X, Y), 3),
    "estimator": lambda: exempla.FisherExplainer().fit(masked(X), Y),
    "refit": lambda: arrays_of((masked(X), Y), "training data"),
    "select": lambda: exempla.select(masked(X), X[0], 2),
}


@pytest.mark.parametrize("door", DOORS)
def test_hidden_entries_are_refused_at_every_door(door):
    with pytest.raises(ExemplaError, match="masked array with hidden entries"):
        DOORS[door]()


def test_hidden_entries_are_refused_for_networks():
    torch = pytest.importorskip("torch")
    network = torch.nn.Linear(3, 2)
    with pytest.raises(ExemplaError, match="masked array with hidden entries"):
        exempla.Explainer(network, progress=False).fit((masked(X.astype(np.float32)), Y))


def test_a_mask_that_hides_nothing_is_no_obstacle():
    open_X = np.ma.masked_array(X, np.zeros(X.shape, bool))
    refuse_masked(open_X, "X")
    one, two = (fitted((given, Y)).explain((X, Y), 3, "proponents") for given in (X, open_X))
    np.testing.assert_array_equal(one.indices, two.indices)


def test_complex_weights_are_refused():
    with pytest.raises(ExemplaError, match="sample_weight is complex"):
        fitted((X, Y, np.full(40, 1 + 1j)))


@pytest.mark.parametrize("given", [["a"], [[1.0], [2.0, 3.0]], [None, {}]])
def test_what_is_no_array_of_numbers_is_named(given):
    with pytest.raises(ExemplaError, match="weights is not an array of numbers"):
        real_numbers(given, "weights")


def test_small_helpers_of_arrays_and_data():
    assert nbytes_of(np.zeros((10, 2))) == 160
    assert nbytes_of("text") == 0
    assert native(np.array([1, 2], dtype=">i4")).dtype.isnative
    assert absent_labels(np.array(["a", "b", "a"]), np.array(["a"])).tolist() == ["b"]
    assert (listing(np.array([3])), listing(np.arange(7))) == (
        "row 3",
        "rows 0, 1, 2, 3, 4 and 2 more",
    )
    assert (count_examples(([1, 2, 3], [0, 1, 0])), count_examples(iter([1]))) == (3, None)
    assert plain_labels([["yes"], ["no"]]).tolist() == ["yes", "no"]
