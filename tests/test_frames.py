"""pandas, polars and Arrow tables are data alike: every job answers as it does for arrays."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import exempla
from exempla.data import as_matrix, stack_rows, take_rows

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(RNG.normal(size=(120, 3)), columns=["a", "b", "c"])
Y = np.where(FRAME["a"] + 0.5 * RNG.normal(size=120) > 0, "yes", "no")
TRAIN, TEST, TRUSTED = slice(0, 80), slice(80, 100), slice(100, 120)


def polars(frame):
    return pytest.importorskip("polars").from_pandas(frame)


def arrow(frame):
    if isinstance(frame, pd.Series):
        return pa.chunked_array([pa.array(frame)])
    return pa.Table.from_pandas(frame, preserve_index=False)


KINDS = {"pandas": lambda frame: frame, "polars": polars, "arrow": arrow}


@pytest.fixture(params=list(KINDS), name="made")
def _made(request):
    return KINDS[request.param]


def parts(made, which):
    rows = FRAME[which].reset_index(drop=True)
    return made(rows), made(pd.Series(Y[which], name="y"))


def test_every_job_answers_as_for_arrays(made):
    train, test, trusted = (parts(made, which) for which in (TRAIN, TEST, TRUSTED))
    arrays = [(FRAME[w].to_numpy(), Y[w]) for w in (TRAIN, TEST, TRUSTED)]
    plain = LogisticRegression().fit(*arrays[0])
    model = LogisticRegression().fit(FRAME[TRAIN], Y[TRAIN])
    found = exempla.explain(model, train, test, k=4, progress=False)
    same = exempla.explain(plain, *arrays[:2], k=4, progress=False)
    assert found.indices.tolist() == same.indices.tolist()
    assert found.verify(seeds=1).runs.equals(same.verify(seeds=1).runs)
    fixes = exempla.fix_labels(LogisticRegression(), train, trusted, k=5, progress=False)
    also = exempla.fix_labels(LogisticRegression(), arrays[0], arrays[2], k=5, progress=False)
    assert fixes.indices.tolist() == also.indices.tolist()
    few = exempla.summarize(model, train, k=8, progress=False)
    assert few.indices.tolist() == exempla.summarize(plain, arrays[0], k=8).indices.tolist()
    moved = exempla.attack(model, train, test, k=1, progress=False)
    assert moved.indices.tolist() == exempla.attack(plain, *arrays[:2], k=1).indices.tolist()
    cleaned = exempla.clean(model, train, test, k=3, ask="all", progress=False)
    assert len(cleaned) == 3
    weighted = (*train, made(pd.Series(np.ones(80), name="w")))
    assert exempla.explain(model, weighted, test, k=4, progress=False).indices.tolist() == (
        same.indices.tolist()
    )


def test_columns_of_text_go_through_the_models_own_preparation(made):
    frame = FRAME.assign(town=np.where(RNG.random(120) > 0.5, "here", "there"))
    prepare = make_column_transformer(
        (OneHotEncoder(), ["town"]), (StandardScaler(), ["a", "b", "c"])
    )
    model = make_pipeline(prepare, LogisticRegression()).fit(frame[TRAIN], Y[TRAIN])
    rows = [made(frame[w].reset_index(drop=True)) for w in (TRAIN, TEST)]
    found = exempla.explain(model, (rows[0], Y[TRAIN]), (rows[1], Y[TEST]), k=3, progress=False)
    same = exempla.explain(
        model, (frame[TRAIN], Y[TRAIN]), (frame[TEST], Y[TEST]), k=3, progress=False
    )
    assert found.indices.tolist() == same.indices.tolist()
    plain = LogisticRegression().fit(FRAME[TRAIN].assign(town=0.0), Y[TRAIN])
    with pytest.raises(exempla.ExemplaError, match=r"columns \['town'\] are not numeric"):
        exempla.explain(plain, (rows[0], Y[TRAIN]), (rows[1], Y[TEST]), k=3, progress=False)


def test_rows_are_taken_and_stacked(made):
    frame = made(FRAME)
    some = take_rows(frame, np.array([5, 2]))
    np.testing.assert_array_equal(as_matrix(some), FRAME.to_numpy()[[5, 2]])
    both = stack_rows(some, made(FRAME[:1]))
    np.testing.assert_array_equal(as_matrix(both), FRAME.to_numpy()[[5, 2, 0]])
    mixed = stack_rows(some, FRAME.to_numpy()[:1])
    np.testing.assert_array_equal(as_matrix(mixed), FRAME.to_numpy()[[5, 2, 0]])
    labels = take_rows(made(pd.Series(Y)), np.array([1, 0]))
    assert list(stack_rows(labels, made(pd.Series(["new"])))) == [Y[1], Y[0], "new"]


def test_two_columns_of_one_name_get_a_sentence() -> None:
    X = FRAME.set_axis(["a", "b", "a"], axis=1)
    model = LogisticRegression().fit(FRAME.to_numpy(), Y)
    with pytest.raises(exempla.ExemplaError, match=r"several columns called 'a'.*rename them"):
        exempla.explain(model, (X, Y), (X[:5], Y[:5]), k=3, progress=False)
