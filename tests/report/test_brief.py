"""The top of an answer: plain words first, a poor model before all else, the effect drawn."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_diabetes, load_digits
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import exempla
from exempla.report import About, ImageView, TableView, View, render_report, words
from exempla.report.plots import effect_plot
from exempla.report.views import decisive_parts
from exempla.report.words import on_unseen_rows, percent, poor_model, stands_out
from exempla.tasks import retrain
from tests.report.test_report import Page

COMPUTED = ("Damping", "Kept of the Fisher information", "Selection", "Certificate")


@pytest.fixture(scope="module")
def asked():
    X, y = load_digits(return_X_y=True)
    X = X / 16
    model = LogisticRegression(max_iter=300).fit(X[:400], y[:400])
    wrong = np.flatnonzero(model.predict(X[400:]) != y[400:]) + 400
    test = (X[wrong], y[wrong])
    return X, y, model, exempla.explain(model, (X[:400], y[:400]), test, k=60, progress=False)


@pytest.fixture(scope="module")
def hopeless():
    X = np.random.default_rng(0).normal(size=(300, 3))
    y = np.where(np.arange(300) % 3 > 0, "yes", "no")
    model = LogisticRegression().fit(X, y)
    return exempla.explain(model, (X, y), (X[:9], y[:9]), k=5, progress=False)


def test_technical_choices_stand_under_how_this_was_computed(asked):
    text = Page(render_report(asked[3])).text
    top, _, bottom = text.partition("How this was computed")
    assert "What was found" in top
    assert "How reliable is this?" in top
    assert "answer.verify()" in top.partition("What to do next")[2]
    for word in COMPUTED:
        assert word not in top
        assert word in bottom
    for word in ("damping", "Fisher", "SBQ", "certificate"):
        assert word not in top


def test_printed_answer_ends_with_how_it_was_computed(asked):
    lines = str(asked[3]).splitlines()
    assert lines[0] == asked[3].finding
    assert lines[-1] == "How this was computed: answer.details"
    assert not [line for line in lines if "damping" in line]
    assert asked[3].details.startswith("side opponents · labels true · selector SBQ")


def test_a_poor_model_is_said_first_everywhere(hopeless, asked):
    said = poor_model(hopeless)
    assert "hardly better than the majority-class baseline" in said
    assert str(hopeless).splitlines()[0] == f"warning: {said}"
    page = Page(render_report(hopeless)).text
    assert page.index(said) < page.index("What was found")
    card = Page(hopeless._repr_html_()).text
    assert card.index(said) < card.index("Retrained without these")
    assert poor_model(asked[3]) == ""


def test_a_poor_regression_is_said_too():
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(200, 2)), rng.normal(size=200)
    model = Ridge(alpha=50.0).fit(X, y)
    answer = exempla.explain(model, (X, y), (X[:5], y[:5]), k=3, progress=False)
    assert "hardly better than predicting the mean" in poor_model(answer)


@pytest.fixture(scope="module")
def by_heart():
    """All training rows right, test rows at chance."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 600)), rng.integers(0, 2, 400)
    model = LogisticRegression(C=1e3, max_iter=2000).fit(X[:200], y[:200])
    assert model.score(X[:200], y[:200]) == 1
    return X, y, model


def test_a_model_that_learned_by_heart_is_found_out_by_its_test_rows(by_heart):
    X, y, model = by_heart
    answer = exempla.explain_errors(
        model, (X[:200], y[:200]), (X[200:], y[200:]), k=3, progress=False
    )
    said = poor_model(answer)
    right = model.score(X[200:], y[200:])
    assert (
        f"on 200 test rows, though right on 100.0% of its training rows (accuracy {right:.1%}"
        in said
    )
    assert str(answer).splitlines()[0] == f"warning: {said}"
    assert f"right for {right:.1%} of 200 test rows" in Page(render_report(answer)).text


def test_and_by_rows_held_out_where_only_errors_are_asked_about(by_heart):
    X, y, model = by_heart
    wrong = np.flatnonzero(model.predict(X[200:]) != y[200:])[:9] + 200
    answer = exempla.explain(model, (X[:200], y[:200]), (X[wrong], y[wrong]), k=3, progress=False)
    assert "on 200 training rows held out from a copy of it, though right on" in poor_model(answer)


def test_held_out_rows_judge_as_cross_validation_does(asked):
    X, y, model, answer = asked
    found = on_unseen_rows(answer)
    assert found is not None
    assert found.score == pytest.approx(cross_val_score(model, X[:400], y[:400]).mean(), abs=0.03)


def test_a_slow_model_is_not_fitted_again(asked, monkeypatch):
    X, y, model, _ = asked
    monkeypatch.setattr(retrain, "MAX_JUDGE_SECONDS", 0.0)
    answer = exempla.explain(model, (X[:400], y[:400]), (X[400:410], y[400:410]), progress=False)
    assert on_unseen_rows(answer) is None
    assert "was not measured" in Page(render_report(answer)).text


def test_a_network_is_judged_by_what_is_asked_unless_all_of_it_is_wrong():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    X, y = torch.randn(300, 20), torch.randint(0, 2, (300,))
    net = torch.nn.Sequential(torch.nn.Linear(20, 100), torch.nn.ReLU(), torch.nn.Linear(100, 2))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(X[:150]), y[:150]).backward()
        optimizer.step()
    train, wrong = (X[:150], y[:150]), (net(X[150:]).argmax(1) != y[150:]).nonzero()[:, 0] + 150
    everything = exempla.explain(net, train, (X[150:], y[150:]), k=3, progress=False)
    assert "unless these were chosen for being hard" in poor_model(everything)
    errors = exempla.explain(net, train, (X[wrong], y[wrong]), k=3, progress=False)
    assert poor_model(errors) == ""
    rows = torch.utils.data.TensorDataset(X[150:], y[150:])
    loader = torch.utils.data.DataLoader(rows, batch_size=64)
    found = exempla.explain_errors(net, train, loader, k=3, progress=False)
    assert "on 150 test rows, though right on" in poor_model(found)


def test_the_effect_is_drawn_beside_chance_and_after_retraining(asked):
    found = asked[3]
    plot = effect_plot(found)
    assert plot is not None
    ours, chance = plot["marks"]
    assert (ours["kind"], chance["kind"]) == ("ours", "chance")
    # a bar from zero to the value; a band of two spreads around the random mean
    assert ours["x"] == pytest.approx(plot["zero"], abs=0.2)
    scale = ours["width"] / found.removal["log_likelihood"]
    assert chance["width"] == pytest.approx(4 * found.removal["random_sd"] * scale, rel=0.02)
    checked = found.verify(seeds=2)
    later = effect_plot(found, checked)
    assert later is not None
    assert [mark["name"] for mark in later["marks"]][:2] == [
        "removing these, measured",
        "removing these, retrained",
    ]
    text = Page(render_report(found, verification=checked)).text
    assert f"{checked.retrained:+.2g} (predicted: {checked.predicted:+.2g})" in text


def test_an_effect_no_larger_than_chance_is_called_unclear(asked):
    X, y, model, _ = asked
    train, test = (X[:400], y[:400]), (X[400:], y[400:])
    answer = exempla.explain(model, train, test, k=3, side="both", progress=False)
    clear = render_report(asked[3])
    assert stands_out(asked[3]) > 3
    assert "The measured effect is clear" in clear
    far = stands_out(answer)
    assert far is not None
    assert ("is not clear" in render_report(answer)) == (far < 3)


def test_every_card_is_on_the_page_and_errors_are_counted_by_class(asked):
    X, y, model, answer = asked
    said = model.predict(X)
    view = ImageView(X.reshape(-1, 8, 8), labels=y, predicted=said)
    text = render_report(answer, train_view=view, test_view=view)
    assert text.count("<article") == answer.n_test
    assert text.count('data-rank="') >= 60
    n = answer.n_test
    cells = re.findall(r'data-true="(\w+)" data-predicted="(\w+)" aria-pressed.*?>(\d+)<', text)
    assert sum(int(count) for *_, count in cells) == n
    for true, predicted, count in cells:
        wanted = np.sum((y[:n] == int(true)) & (said[:n] == int(predicted)))
        assert int(count) == wanted


def test_warnings_that_differ_in_numbers_are_one_line(asked):
    warnings = tuple(f"Rows {i} and {i + 1} are the same." for i in range(20))
    text = render_report(asked[3], about=About(warnings=(*warnings, "Another.")))
    lines = text.partition('<ul class="warnings">')[2].partition("</ul>")[0]
    assert lines.count("<li>") == 2
    assert "Rows 0 and 1 are the same. (19 more)" in lines
    assert text.index("<h1>") < text.index('<ul class="warnings">'), "the title comes first"


def test_next_steps_are_the_callers_where_given(asked):
    about = About(steps=(("Then do this:", "exempla clean a.csv --label y"),))
    text = Page(render_report(asked[3], about=about)).text
    assert "Then do this:exempla clean a.csv --label y" in text
    assert "answer.verify()" not in text


def test_numbers_are_rounded_and_never_doubted():
    view = TableView(
        pd.DataFrame({"bmi": [32.10000001, 123456.789]}),
        labels=[151.0, 75.25],
        predicted=[206.1166714, 68.0712],
    )
    first, second = view.show(0), view.show(1)
    assert (first.label, first.predicted, first.doubted) == ("151", "206.1", False)
    assert (first.cells[0][1], second.cells[0][1]) == ("32.1", "123457")
    assert View(labels=[1, 2], predicted=[1, 3]).show(1).doubted


def test_decisive_columns_of_a_regression():
    X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    prepare = ColumnTransformer([("number", StandardScaler(), list(X.columns))])
    model = make_pipeline(prepare, Ridge()).fit(X, y)
    found = decisive_parts(model, X, y)
    assert found is not None
    # all columns together are the prediction's distance from the mean, towards the label's side
    whole = np.array([sum(row.values()) for row in found.columns])
    away = model.predict(X) - model[-1].intercept_
    np.testing.assert_allclose(whole, away * np.where(y < model[-1].intercept_, -1, 1), atol=1e-9)


def test_probabilities_are_written_one_way():
    assert [percent(p) for p in (0.9951, 0.994, 0.25, 0.0049, 0.0099, 1.0, 0.0)] == [
        "> 99 %", "> 99 %", "25 %", "< 1 %", "< 1 %", "100 %", "0 %",
    ]  # fmt: skip


def test_changes_of_log_likelihood_are_said_in_words():
    changes = (0.7, 0.24, -0.5, 1.5, 9.0, 0.0004, -2.0)
    assert [words._how_likely(change) for change in changes] == [
        "about twice as likely", "27 % more likely", "39 % less likely", "4.5 times as likely",
        "more than 1,000 times as likely", "hardly more or less likely", "86 % less likely",
    ]  # fmt: skip
    changes = (0.031, -0.1, 0.0, 1.5)
    assert [words._percent_change(c) for c in changes] == ["+3 %", "−10 %", "± 0 %", "× 4.5"]
    assert [words.signed(c) for c in (0.2446, -0.00031, -5.6e-08)] == [
        "+0.24",
        "-0.00031",
        "0.0000",
    ]
    spreads = ((0.00017, 0.0281), (-0.5, 0.2), (0.1, 0.0))
    assert [words.within(*s) for s in spreads] == ["0.000 ± 0.028", "-0.50 ± 0.20", "0.1 ± 0"]
