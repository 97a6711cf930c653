"""`fix_labels` finds flipped labels, says how sure it is, and leaves the caller's things alone."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.ensemble import AdaBoostClassifier
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale
from sklearn.svm import LinearSVC
from sklearn.utils.validation import check_is_fitted

from exempla.errors import ExemplaError, ExemplaWarning
from exempla.tasks.labels.fix_labels import fix_labels
from exempla.tasks.labels.result import LabelFixes
from experiments.simulate_curation import simulate_curation


def flipped(
    X: Any, y: np.ndarray, share: float = 0.1, seed: int = 0, n_curated: int = 150
) -> tuple[tuple[Any, np.ndarray], tuple[Any, np.ndarray], np.ndarray]:
    """(train, curated, truth): a share of the training labels replaced by others."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    X, y = X[order], y[order]
    n = len(y) - n_curated
    classes, codes = np.unique(y[:n], return_inverse=True)
    wrong = rng.choice(n, int(share * n), replace=False)
    codes[wrong] = (codes[wrong] + rng.integers(1, len(classes), len(wrong))) % len(classes)
    return (X[:n], classes[codes]), (X[n:], y[n:]), y[:n]


def found(fixes: LabelFixes, noisy: np.ndarray, truth: np.ndarray) -> float:
    """Share of the flipped labels among as many first suspects."""
    wrong = noisy != truth
    return float(wrong[fixes.indices[: wrong.sum()]].mean())


@pytest.fixture(scope="module")
def cancer() -> tuple[Any, Any, np.ndarray]:
    X, y = load_breast_cancer(return_X_y=True)
    return flipped(scale(X), y, share=0.15)


@pytest.fixture(scope="module")
def cancer_fixes(cancer: Any) -> LabelFixes:
    train, curated, _ = cancer
    return fix_labels(LogisticRegression(C=0.1), train, curated, progress=False)


def overlapping(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two classes that overlap, so that being sure is not always right."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    return rng.normal(size=(n, 5)) + 1.0 * y[:, None], y


# ---- what it finds


def test_finds_most_flipped_labels_and_counts_them(cancer: Any, cancer_fixes: LabelFixes) -> None:
    train, _, truth = cancer
    wrong = train[1] != truth
    assert found(cancer_fixes, train[1], truth) >= 0.85
    assert cancer_fixes.expected_errors == pytest.approx(wrong.sum(), rel=0.2)
    top = cancer_fixes.indices[:40]
    assert np.mean(cancer_fixes.suggested[:40] == truth[top]) >= 0.9


def test_probabilities_are_calibrated_on_overlapping_classes() -> None:
    probability, wrong = [], []
    for seed in range(4):
        X, y = overlapping(1300, seed)
        train, curated, truth = flipped(X, y, share=0.2, seed=seed, n_curated=300)
        fixes = fix_labels(LogisticRegression(), train, curated, seed=seed, progress=False)
        probability.append(fixes.probabilities)
        wrong.append((train[1] != truth)[fixes.indices])
    p, w = np.concatenate(probability), np.concatenate(wrong)
    assert p.sum() == pytest.approx(w.sum(), rel=0.15)
    edges = [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0]
    for low, high in itertools.pairwise(edges):
        inside = (p >= low) & (p < high)
        if inside.sum() >= 50:
            assert w[inside].mean() == pytest.approx(p[inside].mean(), abs=0.12), (low, high)


def test_a_clean_training_set_has_no_suspects() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    train, curated, _ = flipped(scale(X), y, share=0.0)
    fixes = fix_labels(LogisticRegression(C=0.1), train, curated, progress=False)
    assert fixes.expected_errors < 0.03 * len(train[1])


def test_without_curated_rows() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    train, _, truth = flipped(scale(X), y, share=0.15, n_curated=1)
    fixes = fix_labels(LogisticRegression(C=0.1), train, progress=False)
    assert found(fixes, train[1], truth) >= 0.8
    assert fixes.expected_errors == pytest.approx((train[1] != truth).sum(), rel=0.35)
    contradiction = fixes.contradicting[0]
    assert contradiction.source == "train"
    assert fixes.indices[0] not in contradiction.indices


def test_without_curated_rows_a_model_that_memorises_counts_too() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 300)
    X = rng.normal(size=(300, 400)) + np.where(np.arange(400) < 40, 1.0, 0.0) * y[:, None]
    train, _, truth = flipped(X, y, share=0.15, n_curated=1)
    model = LogisticRegression(C=10.0)
    assert model.fit(*train).score(*train) == 1.0
    fixes = fix_labels(model, train, progress=False)
    assert found(fixes, train[1], truth) >= 0.6
    assert fixes.expected_errors == pytest.approx((train[1] != truth).sum(), rel=0.35)


def test_more_than_two_classes() -> None:
    X, y = load_digits(return_X_y=True)
    train, curated, truth = flipped(X[:700] / 16.0, y[:700], share=0.1, n_curated=200)
    model = LogisticRegression(max_iter=200)
    fixes = fix_labels(model, train, curated, progress=False)
    wrong = train[1] != truth
    assert found(fixes, train[1], truth) >= 0.85
    top = fixes.indices[: wrong.sum()]
    right = fixes.suggested[: wrong.sum()] == truth[top]
    assert right[wrong[top]].mean() >= 0.9
    assert fixes.expected_errors == pytest.approx(wrong.sum(), rel=0.3)


def test_sbq_lists_opponents_and_finds_most(cancer: Any) -> None:
    train, curated, truth = cancer
    wrong = train[1] != truth
    fixes = fix_labels(
        LogisticRegression(C=0.1), train, curated, k=int(wrong.sum()), method="sbq", progress=False
    )
    assert wrong[fixes.indices].mean() >= 0.7
    assert (fixes.alignment < 0).all()
    assert (fixes.weights != 0).all()
    assert 0.0 < fixes.explained < 1.0
    assert fixes.damping > 0
    assert "per-row" in fixes.damping_rule
    everyone = fix_labels(LogisticRegression(C=0.1), train, curated, method="sbq", progress=False)
    assert sorted(everyone.indices) == list(range(len(wrong)))
    assert everyone.indices[: len(fixes)].tolist() == fixes.indices.tolist()


def test_damping_is_auto_a_rule_or_a_number(cancer: Any) -> None:
    train, curated, _ = cancer
    listed: dict[Any, LabelFixes] = {
        damping: fix_labels(
            LogisticRegression(C=0.1), train, curated, k=10, method="sbq", damping=damping,
            progress=False,
        )
        for damping in ("auto", None, "per-row", 0.5, 1)
    }  # fmt: skip
    assert listed["auto"].indices.tolist() == listed[None].indices.tolist()
    assert listed["auto"].damping == listed[None].damping
    assert "tells wrong from right labels best" in listed["auto"].damping_rule
    assert listed["per-row"].damping_rule.startswith("per-row")
    assert (listed[0.5].damping, listed[0.5].damping_rule) == (0.5, "given")
    assert listed[1].damping == 1.0


# ---- what the result holds


def test_all_rows_are_listed_by_falling_probability(cancer: Any, cancer_fixes: LabelFixes) -> None:
    train, curated, _ = cancer
    assert sorted(cancer_fixes.indices) == list(range(len(train[1])))
    assert (np.diff(cancer_fixes.probabilities) <= 0).all()
    assert cancer_fixes.probabilities.max() <= len(curated[1]) / (len(curated[1]) + 3)
    assert cancer_fixes.expected_errors == pytest.approx(cancer_fixes.probabilities.sum())
    assert (cancer_fixes.given == train[1][cancer_fixes.indices]).all()
    changed = cancer_fixes.suggested != cancer_fixes.given
    assert (changed == (cancer_fixes.probabilities > 0.5)).all()  # two classes: the better bet


def test_k_cuts_the_same_list(cancer: Any, cancer_fixes: LabelFixes) -> None:
    train, curated, _ = cancer
    short = fix_labels(LogisticRegression(C=0.1), train, curated, k=7, progress=False)
    assert short.indices.tolist() == cancer_fixes.indices[:7].tolist()
    assert len(short) == short.k == len(short.contradicting) == 7
    assert short.expected_errors == pytest.approx(cancer_fixes.expected_errors)


def test_curated_rows_of_another_label_contradict(cancer: Any, cancer_fixes: LabelFixes) -> None:
    _, curated, _ = cancer
    for rank in range(5):
        contradiction = cancer_fixes.contradicting[rank]
        assert contradiction.source == "curated"
        assert contradiction.row == cancer_fixes.indices[rank]
        assert 1 <= len(contradiction) <= 5
        assert (contradiction.labels == curated[1][contradiction.indices]).all()
        assert (contradiction.labels != cancer_fixes.given[rank]).all()
        assert (contradiction.weights > 0).all()
        assert (np.diff(contradiction.weights) <= 0).all()
    with pytest.raises(IndexError):
        cancer_fixes.contradicting[len(cancer_fixes)]


def test_the_result_becomes_a_table_and_json(cancer_fixes: LabelFixes, tmp_path: Any) -> None:
    table = cancer_fixes.to_frame()
    assert list(table.columns[:5]) == ["rank", "index", "given", "suggested", "probability"]
    assert len(table) == len(cancer_fixes)
    stored = json.loads(cancer_fixes.to_json(tmp_path / "fixes.json").read_text())
    wanted = {"indices", "weights", "side", "explained", "variance", "damping", "damping_rule"}
    assert wanted | {"k", "seed", "version"} <= set(stored)
    assert stored["expected_errors"] == pytest.approx(cancer_fixes.expected_errors)


def test_the_same_seed_gives_the_same_answer(cancer: Any, cancer_fixes: LabelFixes) -> None:
    train, curated, _ = cancer
    again = fix_labels(LogisticRegression(C=0.1), train, curated, progress=False)
    assert (again.indices == cancer_fixes.indices).all()
    assert np.array_equal(again.probabilities, cancer_fixes.probabilities)


# ---- kinds of models and data


def test_string_labels_and_data_frames() -> None:
    X, y = load_wine(return_X_y=True)
    names = np.array(["barolo", "grignolino", "barbera"])[y]
    train, curated, truth = flipped(X, names, share=0.1, n_curated=50)
    index = [f"row-{i}" for i in range(len(truth))]
    frame = pd.DataFrame(train[0], index=index)
    model = make_pipeline(StandardScaler(), LogisticRegression())
    fixes = fix_labels(
        model, (frame, pd.Series(train[1], index=index)), (pd.DataFrame(curated[0]), curated[1]),
        progress=False,
    )  # fmt: skip
    assert found(fixes, train[1], truth) >= 0.75
    assert set(fixes.suggested) <= {"barolo", "grignolino", "barbera"}
    assert fixes.ids is not None
    assert fixes.ids[0] == f"row-{fixes.indices[0]}"


def test_raw_text() -> None:
    rng = np.random.default_rng(0)
    topics = (
        ["goal", "match", "team", "coach", "league"],
        ["vote", "law", "party", "court", "tax"],
    )
    common = ["the", "new", "year", "people", "said", "day", "time", "city"]
    y = rng.integers(0, 2, 260)
    texts = [
        " ".join([*rng.choice(topics[c], 3), *rng.choice(common, 4), *rng.choice(topics[1 - c], 1)])
        for c in y
    ]
    labels = np.array(["sport", "politics"])[y]
    (_, noisy), _, _ = flipped(np.arange(200)[:, None], labels[:200], n_curated=1)
    wrong = np.zeros(200, dtype=bool)
    wrong[rng.choice(200, 20, replace=False)] = True
    noisy = np.where(wrong, np.where(labels[:200] == "sport", "politics", "sport"), labels[:200])
    model = make_pipeline(CountVectorizer(), LogisticRegression())
    fixes = fix_labels(
        model, (texts[:200], noisy), (texts[200:], labels[200:]), k=20, progress=False
    )
    assert wrong[fixes.indices].mean() >= 0.8
    assert set(fixes.suggested) <= {"sport", "politics"}


def test_the_callers_model_is_not_changed(cancer: Any) -> None:
    train, curated, _ = cancer
    unfitted = LogisticRegression(C=0.1)
    fix_labels(unfitted, train, curated, k=3, progress=False)
    with pytest.raises(NotFittedError):
        check_is_fitted(unfitted)
    fitted = LogisticRegression(C=0.1).fit(*curated)
    before = fitted.coef_.copy()
    again = fix_labels(fitted, train, curated, k=3, progress=False)
    assert np.array_equal(fitted.coef_, before)
    assert len(again) == 3


def test_nothing_is_learnt_from_rows_of_weight_zero(cancer: Any) -> None:
    train, curated, truth = cancer
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(200, train[0].shape[1])) * 3
    X = np.concatenate([train[0], noise])
    y = np.concatenate([train[1], rng.integers(0, 2, 200)])
    weights = np.concatenate([np.ones(len(train[1])), np.zeros(200)])
    fixes = fix_labels(LogisticRegression(C=0.1), (X, y, weights), curated, progress=False)
    ours = fixes.indices[fixes.indices < len(truth)]
    wrong = train[1] != truth
    assert wrong[ours[: wrong.sum()]].mean() >= 0.8


def test_of_a_model_without_scores_only_predictions_count(cancer: Any) -> None:
    train, curated, truth = cancer
    boosted = AdaBoostClassifier(n_estimators=30, random_state=0)
    with pytest.warns(ExemplaWarning, match="Fisher evidence is left out"):
        fixes = fix_labels(boosted, train, curated, progress=False)
    assert found(fixes, train[1], truth) >= 0.7
    nearest = fixes.contradicting[0]  # without scores the rows that resemble it most
    assert len(nearest) > 0
    assert (nearest.labels != fixes.given[0]).all()
    with (
        pytest.warns(ExemplaWarning),
        pytest.raises(ExemplaError, match="needs a model with scores"),
    ):
        fix_labels(boosted, train, curated, method="sbq", progress=False)


def test_torch_modules_come_with_their_fit(cancer: Any) -> None:
    torch = pytest.importorskip("torch")
    train, curated, truth = cancer
    torch.manual_seed(0)
    module = torch.nn.Linear(train[0].shape[1], 2)
    before = module.weight.detach().clone()

    def fit(module: Any, X: Any, y: np.ndarray, sample_weight: Any) -> Any:
        inputs = torch.as_tensor(np.asarray(X), dtype=torch.float32)
        labels = torch.as_tensor(np.asarray(y), dtype=torch.long)
        for _ in range(60):  # plain gradient descent: torch.optim is slow to import
            loss = torch.nn.functional.cross_entropy(module(inputs), labels)
            slopes = torch.autograd.grad(loss, list(module.parameters()))
            with torch.no_grad():
                for parameter, slope in zip(module.parameters(), slopes, strict=True):
                    parameter -= 0.3 * slope + 1e-3 * parameter
        return module

    given = (torch.as_tensor(train[0], dtype=torch.float32), torch.as_tensor(train[1]))
    trusted = (torch.as_tensor(curated[0], dtype=torch.float32), torch.as_tensor(curated[1]))
    fixes = fix_labels(module, given, trusted, fit=fit, progress=False)
    assert found(fixes, train[1], truth) >= 0.75
    assert torch.equal(module.weight.detach(), before)
    assert len(fixes.contradicting[0]) >= 1
    with pytest.raises(ExemplaError, match="give fit="):
        fix_labels(module, given, trusted)


# ---- mistakes

ROWS = np.arange(20.0).reshape(10, 2)
TWO = np.arange(10) % 2
HIDDEN = np.arange(10) == 3
TEXT = ROWS.astype(str)


def objects(values: list) -> np.ndarray:
    """Labels as they are, of any kind."""
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


@pytest.mark.parametrize(
    ("train", "curated", "options", "message"),
    [
        ((ROWS, TWO), (ROWS, TWO + 5), {}, "never occur in train"),
        ((ROWS, TWO), (ROWS[:0], TWO[:0]), {}, "curated set is empty"),
        ((ROWS, TWO), (ROWS, np.zeros(10, int)), {}, "only one class"),
        ((ROWS, TWO), (ROWS[:, :1], TWO), {}, "same columns"),
        ((ROWS, TWO), (ROWS, TWO[:5]), {}, "10 rows but y has 5"),
        ((ROWS, np.zeros(10, int)), None, {}, "two classes are needed"),
        ((ROWS, [0, 1, None] * 3 + [1]), None, {}, "labels are missing in rows 2"),
        ((ROWS, np.stack([TWO, TWO + 1], 1)), None, {}, "one label per row"),
        ((ROWS, [[0, 2]] * 10), None, {}, r"one label per row, but has shape \(10, 2\)"),
        ((ROWS, [[0]] * 9 + [[0, 1]]), None, {}, "one label"),
        ((ROWS, objects([[0], [1]] * 5)), None, {}, "of the kinds list"),
        ((ROWS, objects([0, "a"] * 5)), None, {}, "of the kinds int, str: give all as text"),
        ((ROWS, np.where(HIDDEN, np.nan, TWO)), None, {}, "labels are missing in row 3"),
        ((ROWS, np.where(HIDDEN, np.inf, TWO)), None, {}, "not measure like inf in row 3"),
        ((ROWS, TWO + 0.25), None, {}, "not measure like 0.25 in row 0"),
        ((ROWS, TWO + 1j), None, {}, "of type complex128"),
        ((ROWS, np.array([b"a", b"b"] * 5)), None, {}, "give text or whole numbers"),
        ((ROWS, np.ma.array(TWO, mask=HIDDEN)), None, {}, "y is a masked array"),
        ((np.ma.array(ROWS, mask=ROWS == 4), TWO), None, {}, "X is a masked array"),
        ((ROWS, TWO, np.ma.array(TWO, mask=HIDDEN)), None, {}, "sample_weight is a masked"),
        ((ROWS, TWO), (np.ma.array(ROWS, mask=ROWS == 4), TWO), {}, "X is a masked array"),
        ((ROWS, TWO, TWO), None, {}, "labelled 0 has weight zero"),
        ((ROWS, TWO), (ROWS[:, :, None], TWO), {}, r"curated: X has shape \(10, 2, 1\)"),
        ((ROWS, TWO), (None, TWO), {}, "X must be an array"),
        ((ROWS, TWO), (iter(ROWS), TWO), {}, "X must be an array"),
        ((pd.DataFrame(ROWS), TWO), (pd.DataFrame(ROWS, columns=[0, 9]), TWO), {}, "has 1, 9"),
        ((ROWS * np.nan, TWO), None, {}, "could not be fitted to ndarray .* contains NaN"),
        ((TEXT, TWO), None, {}, "cannot predict|could not be fitted"),
        ((ROWS, TWO), None, {"ids": [[1], [1, 2]] * 5}, "ids is nested"),
        ((ROWS, TWO), None, {"progress": "no"}, "progress is 'no'"),
        (ROWS, None, {}, "train has no labels"),
        ((ROWS, TWO), ROWS, {}, "curated has no labels"),
        ((ROWS, TWO), None, {"k": 11}, "at most 10"),
        ((ROWS, TWO), None, {"k": 0}, "at least one of the 10"),
        ((ROWS, TWO), None, {"k": 2.5}, "1 to 10"),
        ((ROWS, TWO), None, {"method": "magic"}, "use one of calibrated, sbq"),
        ((ROWS, TWO), None, {"method": ["sbq"]}, "use one of calibrated, sbq"),
        ((ROWS, TWO), None, {"damping": "strong"}, "damping='strong' is not known"),
        ((ROWS, TWO), None, {"damping": -1.0, "method": "sbq"}, "at least zero"),
        ((ROWS, TWO), None, {"damping": [1.0], "method": "sbq"}, "neither a number nor"),
        ((ROWS, TWO), None, {"noise": "a", "method": "sbq"}, "noise is 'a'"),
        ((ROWS, TWO), None, {"sketch": "wide"}, "sketch"),
        ((ROWS, TWO), None, {"seed": "a"}, "seed is 'a'"),
        ((ROWS, TWO), None, {"seed": -1}, "seed"),
        ((ROWS, TWO), None, {"ids": [1, 2]}, "one for each of the 10 rows"),
        ((ROWS, TWO), None, {"fit": "adam"}, "fit must be a function"),
    ],
)
def test_mistakes_are_named(train: Any, curated: Any, options: dict, message: str) -> None:
    with pytest.raises(ExemplaError, match=message) as caught:
        fix_labels(LogisticRegression(), train, curated, **{"progress": False, **options})
    assert "\n" not in str(caught.value)


def test_models_that_cannot_do_it_are_refused() -> None:
    with pytest.raises(ExemplaError, match="no class probabilities"):
        fix_labels(LinearSVC(), (ROWS, TWO))
    with pytest.raises(ExemplaError, match="is a class"):
        fix_labels(LogisticRegression, (ROWS, TWO))


def test_a_handful_of_rows_is_enough_to_run() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 3)) + 3 * TWO.repeat(2)[:, None]
    fixes = fix_labels(
        LogisticRegression(), (X, TWO.repeat(2)), (X[:4] + 0.1, TWO.repeat(2)[:4]), progress=False
    )
    assert sorted(fixes.indices) == list(range(20))
    assert np.isfinite(fixes.probabilities).all()


@pytest.mark.parametrize("method", ["calibrated", "sbq"])
@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize(
    "labels",
    [
        np.arange(20) == 7,  # one row of its class: some folds have a single class
        np.where(np.arange(20) == 7, 2, np.arange(20) % 2),
        np.arange(20),  # and no class with a second row
        np.arange(20)[:, None] % 2,
        (np.arange(20) % 2).astype(">i8"),
    ],
    ids=["one row", "one row of three classes", "all alone", "a column", "big-endian"],
)
def test_rare_classes_are_no_hindrance(labels: np.ndarray, trusted: bool, method: str) -> None:
    X = np.random.default_rng(0).normal(size=(20, 3))
    curated = (X[:8] + 0.1, labels[:8]) if trusted else None
    fixes = fix_labels(LogisticRegression(), (X, labels), curated, method=method, progress=False)
    assert sorted(fixes.indices) == list(range(20))
    assert np.isfinite(fixes.probabilities).all()


@pytest.mark.parametrize("rows", [2, 3])
def test_two_rows_are_enough_to_run(rows: int) -> None:
    fixes = fix_labels(LogisticRegression(), (ROWS[:rows], TWO[:rows]), progress=False)
    assert len(fixes) == rows


def test_folds_in_which_one_class_weighs_nothing() -> None:
    X = np.random.default_rng(0).normal(size=(20, 3))
    weights = np.where((np.arange(20) % 2 == 0) | (np.arange(20) == 7), 1.0, 0.0)
    labels = np.arange(20) % 2
    fixes = fix_labels(LogisticRegression(), (X, labels, weights), progress=False)
    assert np.isfinite(fixes.probabilities).all()


def test_torch_inputs_that_do_not_fit_are_named() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(2, 2)

    def cast(module: Any, X: Any, *_: Any) -> Any:
        module(X.float())
        return module

    def as_given(module: Any, X: Any, *_: Any) -> Any:
        module(X)
        return module

    whole = torch.as_tensor(ROWS).long()
    with pytest.raises(ExemplaError, match=r"fit\(.*failed on Tensor .*int64.* RuntimeError"):
        fix_labels(module, (whole, TWO), fit=as_given, progress=False)
    with pytest.raises(ExemplaError, match="X holds whole numbers"):
        fix_labels(module, (whole, TWO), fit=cast, progress=False)
    with pytest.raises(ExemplaError, match="sparse tensor"):
        fix_labels(module, (torch.as_tensor(ROWS).to_sparse(), TWO), fit=cast, progress=False)
    with pytest.raises(ExemplaError, match="one label per row"):
        fix_labels(module, (whole, whole), fit=cast, progress=False)


def test_simulated_curation_finds_more_with_each_batch(cancer: Any) -> None:
    train, curated, truth = cancer
    trace = simulate_curation(
        LogisticRegression(C=0.1), train, truth, curated, batch=25, rounds=2, progress=False
    )
    assert trace.checked.tolist() == [25, 50]
    assert trace.found.iloc[0] >= 22
    assert trace.found.iloc[1] >= trace.found.iloc[0] + 15
    assert trace.expected_before.iloc[1] < trace.expected_before.iloc[0]
    with pytest.raises(ExemplaError, match="cannot be checked"):
        simulate_curation(LogisticRegression(), train, truth, curated, batch=500, rounds=2)
