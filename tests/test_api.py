"""The doors agree: one spelling and one meaning of each option, results that hand on alike."""

from __future__ import annotations

import inspect
import json

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale

import exempla

JOBS = ("explain", "explain_errors", "fix_labels", "clean", "summarize", "attack")
X, y = load_breast_cancer(return_X_y=True)
X = scale(X)
TRAIN, TEST = (X[:300], y[:300]), (X[300:], y[300:])
NAMES = np.array([f"patient {i}" for i in range(300)])


def results() -> dict[str, exempla.Answer]:
    model = LogisticRegression().fit(*TRAIN)
    common = {"ids": NAMES, "seed": 3, "progress": False}
    return {
        "explain": exempla.explain(model, TRAIN, TEST, k=4, **common),
        "explain_errors": exempla.explain_errors(model, TRAIN, TEST, k=4, **common),
        "fix_labels": exempla.fix_labels(model, TRAIN, TEST, k=4, **common),
        "clean": exempla.clean(model, TRAIN, TEST, k=4, **common),
        "summarize": exempla.summarize(model, TRAIN, k=8, **common),
        "attack": exempla.attack(model, TRAIN, (X[300:305], y[300:305]), k=2, **common),
    }


@pytest.fixture(scope="module")
def answers() -> dict[str, exempla.Answer]:
    return results()


@pytest.mark.parametrize("job", JOBS)
def test_options_are_spelt_out_and_mean_the_same(job):
    options = dict(inspect.signature(getattr(exempla, job)).parameters)
    if options.pop("options", None) is not None:  # the options of the kernel, declared once
        shared = inspect.signature(exempla.Explainer).parameters
        options |= {name: shared[name] for name in ("seed", "progress", "damping")}
    if job == "explain_errors":
        options |= inspect.signature(exempla.explain).parameters
    assert not [p for name, p in options.items() if p.kind is p.VAR_KEYWORD and name != "options"]
    expected = {"seed": 0, "progress": True, "ids": None, "damping": "auto"}
    assert {name: options[name].default for name in expected} == expected
    if "side" in options:
        assert options["side"].default == "opponents"


@pytest.mark.parametrize("job", JOBS)
def test_every_result_hands_on_alike(answers, job, tmp_path):
    answer = answers[job]
    assert isinstance(answer, exempla.Answer)
    assert answer.ids.tolist() == NAMES[answer.indices].tolist()
    frame = answer.to_frame()
    assert frame["index"].tolist() == answer.indices.tolist()
    assert frame["id"].tolist() == answer.ids.tolist()
    pd.testing.assert_frame_equal(pd.read_csv(answer.to_csv(tmp_path / "a.csv")), frame)
    kept = json.loads(answer.to_json(tmp_path / "a.json").read_text())
    assert kept["indices"] == answer.indices.tolist()
    assert kept["weights"]
    assert {"side", "damping", "seed", "version"} <= set(kept)
    assert kept["seed"] == 3


@pytest.mark.parametrize("job", JOBS)
def test_the_repr_is_one_sentence(answers, job):
    said = repr(answers[job])
    assert said.startswith(f"{type(answers[job]).__name__}: ")
    assert said.endswith(".")
    assert "\n" not in said
    assert said.removeprefix(f"{type(answers[job]).__name__}: ") in str(answers[job])


def test_a_label_answer_claims_nothing_a_selection_would(answers):
    fixes = answers["fix_labels"]
    assert not hasattr(fixes, "verify")
    assert "in common" not in str(fixes)
    assert "labels are expected to be wrong" in repr(fixes)


def test_a_summary_has_no_side_and_invents_no_alignment(answers):
    summary = answers["summarize"]
    assert not hasattr(summary, "alignment")
    assert "alignment" not in summary.to_dict()
    assert summary.weights.sum() == pytest.approx(summary.total)


@pytest.mark.parametrize("job", ["explain", "fix_labels", "clean", "summarize", "attack"])
@pytest.mark.parametrize("seed", ["a", -1, 2**33, 1.5, True, None])
def test_seeds_are_checked_everywhere(job, seed):
    model = LogisticRegression().fit(*TRAIN)
    data = (TRAIN,) if job in ("fix_labels", "summarize") else (TRAIN, TEST)
    more = {} if job == "attack" else {"k": 3}
    with pytest.raises(exempla.ExemplaError, match="seed is"):
        getattr(exempla, job)(model, *data, **more, seed=seed, progress=False)


@pytest.mark.parametrize("job", JOBS)
def test_ids_must_fit_the_rows(job):
    model = LogisticRegression().fit(*TRAIN)
    data = (TRAIN,) if job in ("fix_labels", "summarize") else (TRAIN, TEST)
    more = {} if job == "attack" else {"k": 3}
    with pytest.raises(exempla.ExemplaError, match="ids has shape"):
        getattr(exempla, job)(model, *data, **more, ids=NAMES[:5], progress=False)


def test_flags_are_true_or_false():
    with pytest.raises(exempla.ExemplaError, match="normalize is 'no'"):
        exempla.Explainer(LogisticRegression().fit(*TRAIN), normalize="no")  # pyright: ignore
