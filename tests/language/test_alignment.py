"""Tokens on both sides of an answer: parts that sum to the whole, and the right ones marked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import exempla
from exempla import Completions, ExemplaError
from exempla.kernel import embed
from exempla.language import TokenAlignment
from exempla.report import marked_text, write_report

pytest.importorskip("transformers")

from tests.language.sums import WRONG, lines, model, tokenizer


@pytest.fixture(scope="module")
def train() -> Completions:
    return Completions(tokenizer(), lines())


@pytest.fixture(scope="module")
def answer(train):
    asked = Completions(tokenizer(), [("1+7=", "9")])
    return exempla.explain(model(), train, asked, k=4, side="proponents", progress=False)


def test_the_line_that_taught_it_comes_first(answer):
    assert answer.indices[0] == WRONG
    assert answer.alignment[0] == pytest.approx(1.0, abs=1e-4)  # it says the very same
    assert (answer.alignment > 0).all()


@pytest.mark.parametrize("share", [0.0, 0.99])
@pytest.mark.parametrize(
    "options", [{}, {"normalize": False}, {"sketch": 200}, {"sketch": 20, "normalize": False}]
)
def test_parts_of_tokens_sum_to_the_alignment(train, options, share, monkeypatch):
    monkeypatch.setattr(embed, "MAX_SKETCH_SHARE", share)  # whether the residual is added
    asked = Completions(tokenizer(), [("1+7=", "8"), ("2+3=", "5")])
    weights = np.array([3.0, 1.0])
    found = exempla.explain(
        model(), train, asked, k=5, side="both", weights=weights, progress=False, **options
    )
    tokens = TokenAlignment(found)
    for row, whole in zip(found.indices, found.alignment, strict=True):
        parts = tokens.train(int(row))
        assert len(parts) == len(train.pieces(int(row)))
        np.testing.assert_allclose(parts.sum(), whole, rtol=1e-4, atol=1e-5)
        assert (parts[:4] == 0).all()  # the prompt is given, not learned


@pytest.mark.parametrize("share", [0.0, 0.99])
@pytest.mark.parametrize("sketch", ["auto", 50])
def test_parts_of_a_questioned_text_sum_to_what_the_picked_ones_say_of_it(
    train, sketch, share, monkeypatch
):
    monkeypatch.setattr(embed, "MAX_SKETCH_SHARE", share)
    asked = Completions(tokenizer(), [("1+7=", "9")])
    answer = exempla.explain(
        model(), train, asked, k=4, side="proponents", sketch=sketch, progress=False
    )
    explainer = answer.question.explainer
    bearing = explainer.affinity(answer.indices, answer.question.test)[:, 0]
    parts = TokenAlignment(answer).test(0)
    np.testing.assert_allclose(parts.sum(), np.abs(answer.weights) @ bearing, rtol=1e-4)
    assert np.argmax(parts) == 4  # the 9 is what they speak for


def test_the_digit_is_what_is_marked(answer):
    text = marked_text(answer)
    asked, _, taught = text.partition("training texts:")
    assert "1+7=[+9]<|>" in asked
    assert "1+7=[+9]<|>" in taught


def test_the_report_marks_tokens_by_itself(answer, tmp_path):
    page = write_report(answer, tmp_path / "report.html").read_text()
    assert page.count('<mark class="for3">9</mark>') >= 2


def test_an_answer_without_its_question_is_refused(answer):
    with pytest.raises(ExemplaError, match="still knows its query"):
        TokenAlignment(replace(answer, question=None))


def test_an_answer_about_something_else_is_refused(tmp_path):
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression

    X, y = load_iris(return_X_y=True)
    fitted = LogisticRegression(max_iter=500).fit(X, y)
    other = exempla.explain(fitted, (X, y), (X[:2], y[:2]), k=2, progress=False)
    with pytest.raises(ExemplaError, match="for texts only"):
        TokenAlignment(other)
    with pytest.raises(ExemplaError, match="not about texts"):
        marked_text(other)
