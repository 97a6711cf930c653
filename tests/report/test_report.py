"""The report: self-contained, inert whatever the data says, small, and true to the explanation."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_digits
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import exempla
from exempla import ExemplaError
from exempla.images import as_image
from exempla.report import (
    About,
    ImageView,
    TableView,
    TextView,
    View,
    evidence_of,
    plot_evidence,
    render_report,
    write_report,
)
from exempla.report.plots import BUDGET, Gallery, explained_shares
from exempla.report.views import LONGEST_TEXT, MOST_CELLS, decisive_parts, strongest_picks

HOSTILE = '<script>alert(1)</script><img src=x onerror=alert(2)>" onmouseover="alert(3)'


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    X = X / 16
    model = LogisticRegression(max_iter=300).fit(X[:300], y[:300])
    wrong = np.flatnonzero(model.predict(X[300:700]) != y[300:700]) + 300
    return X, y, model, wrong


@pytest.fixture(scope="module")
def answer(digits):
    X, y, model, wrong = digits
    return exempla.explain(model, (X[:300], y[:300]), (X[wrong], y[wrong]), k=12, progress=False)


@pytest.fixture(scope="module")
def views(digits):
    X, y, model, wrong = digits
    rows = (np.arange(300), wrong)
    return tuple(
        ImageView(X[r].reshape(-1, 8, 8), labels=y[r], predicted=model.predict(X[r])) for r in rows
    )


class Page(HTMLParser):
    """What a browser would make of the text: tags with attributes, and text by enclosing tag."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    handle_startendtag = handle_starttag

    def handle_data(self, data):
        self.text += data


def test_says_what_the_explanation_says(answer, views, tmp_path):
    about = About(
        command="exempla again --seed 0", accuracy="93.1%", model="a model", noun="errors"
    )
    path = write_report(
        answer, tmp_path / "deep" / "r.html", train_view=views[0], test_view=views[1], about=about
    )
    page = Page(path.read_text(encoding="utf-8"))
    for needed in (
        "exempla again --seed 0",
        "93.1%",
        answer.damping_rule,
        f"12 of {answer.n_train} training rows",
        f"seed {answer.seed}",
        f"exempla {exempla.__version__}",
        "Certificate",
    ):
        assert needed in page.text
    for index in answer.indices:
        assert f"#{index}" in page.text


def test_needs_nothing_from_outside(answer, views):
    text = render_report(answer, train_view=views[0], test_view=views[1])
    page = Page(text)
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form")
        for name in ("src", "href", "srcset", "action", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:image/webp;base64,"))
    assert not re.search(r"@import|url\(", text)


def test_policy_allows_exactly_its_own_style_and_script(answer):
    text = render_report(answer)
    policy = next(a["content"] for t, a in Page(text).tags if t == "meta" and "http-equiv" in a)
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        bodies = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert len(bodies) == 1
        digest = base64.b64encode(hashlib.sha256(bodies[0].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not any(name.startswith("on") for _, a in Page(text).tags for name in a)
    assert not any("style" in attributes for _, attributes in Page(text).tags)


@pytest.mark.parametrize("kind", ["text", "table", "image"])
def test_hostile_words_stay_words(answer, kind):
    n, m = answer.n_train, answer.n_test
    common = {"labels": [HOSTILE] * n, "predicted": ["x"] * n, "names": [HOSTILE] * n}
    view = {
        "text": TextView([HOSTILE] * n, decisive=lambda i: {"alert": 1.0}, **common),
        "table": TableView(pd.DataFrame({HOSTILE: [HOSTILE] * n}), **common),
        "image": ImageView(np.zeros((n, 4, 4)), **common),
    }[kind]
    fields = dict.fromkeys(("question", "answer", "data", "model", "accuracy"), HOSTILE)
    about = About(**fields, command=HOSTILE, notes=(HOSTILE,), warnings=(HOSTILE,), noun=HOSTILE)
    assert m <= n
    page = Page(render_report(answer, train_view=view, test_view=view, about=about))
    assert sum(tag == "script" for tag, _ in page.tags) == 1
    assert not any(tag == "img" for tag, _ in page.tags)
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    # In a text the word "alert" is marked, so it stands in a tag of its own; the text is the same.
    assert page.text.count(HOSTILE) > 10


def test_three_hundred_pictures_stay_small(answer, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (300, 200, 160, 3), dtype=np.uint8)
    n = answer.n_train
    view = ImageView([noise[i % 300] for i in range(n)], labels=["a"] * n)
    test = ImageView(noise[: answer.n_test], labels=["a"] * answer.n_test)
    gallery = Gallery()
    for picture in noise:
        thumbnail = gallery.add(picture)
        assert max(thumbnail.width, thumbnail.height) <= 128
    encoded = gallery.encoded()
    assert len(encoded) == 300
    assert sum(len(address) for _, address in encoded) <= BUDGET < 5_000_000
    path = write_report(answer, tmp_path / "r.html", train_view=view, test_view=test)
    assert path.stat().st_size < 5_000_000


def test_equal_pictures_are_kept_once(answer, views):
    text = render_report(answer, train_view=views[0], test_view=views[1])
    addresses = re.findall(r'href="(data:image/webp[^"]+)"', text)
    assert len(addresses) == len(set(addresses))
    assert text.count("<use href=") > len(addresses), "pictures are shown more often than kept"
    known = set(re.findall(r'<image id="(\w+)"', text))
    assert set(re.findall(r'<use href="#(\w+)"', text)) == known


def test_limits_are_stated(answer, views):
    page = Page(render_report(answer, train_view=views[0], test_view=views[1], limit=5))
    assert f"{answer.n_test - 5} more are not shown" in page.text
    assert f"{len(answer) - 5} more are listed in explanation.csv" in page.text


def test_evidence_averages_to_the_alignment(answer):
    evidence = evidence_of(answer)
    assert evidence is not None
    np.testing.assert_allclose(evidence.mean(1), answer.alignment, rtol=1e-5, atol=1e-7)


def test_evidence_of_several_models():
    """Checkpoints and ensembles have evidence too, and it averages to what was picked by."""
    X, y = load_digits(return_X_y=True)
    models = [LogisticRegression(C=c, max_iter=2000).fit(X[:200], y[:200]) for c in (0.01, 1.0)]
    found = exempla.explain_errors(
        models, (X[:200], y[:200]), (X[200:600], y[200:600]), k=5, progress=False
    )
    evidence = evidence_of(found)
    assert evidence is not None
    assert evidence.shape == (5, found.n_test)
    np.testing.assert_allclose(
        evidence @ found.question.shares, found.alignment, rtol=1e-5, atol=1e-7
    )


def test_strongest_keeps_to_its_side():
    evidence = np.array([[-0.5, 0.3], [0.9, -0.1], [-0.7, 0.2]])
    for side, expected in {
        "opponents": {0: [2, 0], 1: [1]},
        "proponents": {0: [1], 1: [0, 2]},
        "both": {0: [1, 2], 1: [0, 2]},
    }.items():
        found = strongest_picks(evidence, side, 2, View())
        assert {query: picks.tolist() for query, picks in found.items()} == expected


def test_without_views_the_rows_are_named(answer):
    page = Page(render_report(answer))
    assert f"#{answer.indices[0]}" in page.text


def test_explained_shares_end_where_the_explanation_does(answer):
    shares = explained_shares(answer)
    assert shares[-1] == pytest.approx(answer.explained)
    assert (np.diff(shares) >= 0).all()


def test_notebook_and_terminal_and_figure(answer, tmp_path):
    fragment = answer._repr_html_()
    assert "<script" not in fragment
    assert f"#{answer.indices[0]}" in Page(fragment).text
    text = str(answer)
    assert "these 12 of 300 training rows" in text
    assert "… and 2 more" in text
    assert len(answer.plot().axes) == 2


def test_picture_of_mistakes(answer, views, tmp_path):
    figure = plot_evidence(answer, *views, tmp_path / "m.png", questioned=4, others=3, columns=2)
    assert Image.open(tmp_path / "m.png").format == "PNG"
    titles = [axes.get_title() for axes in figure.axes]
    assert sum(title.startswith("true ") for title in titles) == 4


def test_long_text_is_cut_around_what_decided():
    text = "dull " * 500 + "viagra" + " dull" * 500
    pieces = TextView([text], decisive=lambda i: {"viagra": -2.0}).show(0).pieces
    assert ("viagra", -1.0) in pieces
    assert sum(len(piece) for piece, _ in pieces) <= LONGEST_TEXT + 4
    assert pieces[0][0].startswith("… ")


def test_words_are_marked_whole():
    pieces = TextView(["a cat concatenates"], decisive=lambda i: {"cat": 1.0}).show(0).pieces
    assert [piece for piece, strength in pieces if strength] == ["cat"]


def test_decisive_columns_come_first():
    frame = pd.DataFrame({f"c{i}": [float(i)] for i in range(MOST_CELLS + 3)})
    shown = TableView(frame, decisive=lambda i: {"c5": -3.0, "c2": 1.0}).show(0)
    assert [cell[0] for cell in shown.cells[:2]] == ["c5", "c2"]
    assert shown.cells[0][2] == -1.0


def test_decisive_parts_of_a_linear_model_speak_for_the_label():
    frame = pd.DataFrame({"text": ["cheap pills", "cheap meeting", "our meeting", "our lunch"]})
    labels = np.array(["spam", "spam", "ham", "ham"])
    prepare = ColumnTransformer([("text", TfidfVectorizer(), "text")])
    model = make_pipeline(prepare, LogisticRegression()).fit(frame, labels)
    found = decisive_parts(model, frame, labels)
    assert found is not None
    assert found.words[0]["cheap"] > 0
    other = decisive_parts(model, frame, np.array(["ham", "ham", "spam", "spam"]))
    assert other is not None
    assert other.words[0]["cheap"] == -found.words[0]["cheap"]
    # The column's strength is the margin without the intercept, w·x for the two classes.
    margin = model.decision_function(frame) - model[-1].intercept_
    signed = np.where(labels == model.classes_[1], margin, -margin)
    np.testing.assert_allclose([c["text"] for c in found.columns], signed)
    assert decisive_parts(LogisticRegression(), frame, labels) is None


def test_pictures_of_every_kind(tmp_path):
    Image.new("RGBA", (300, 100), (255, 0, 0, 128)).save(tmp_path / "a.png")
    assert as_image(tmp_path / "a.png").mode == "RGB"
    assert as_image(np.zeros((5, 5, 1), np.uint8)).size == (5, 5)
    assert Gallery().add(tmp_path / "a.png").width == 128
    (tmp_path / "b.png").write_text("<svg onload='alert(1)'/>")
    with pytest.raises(ExemplaError, match="cannot be read"):
        as_image(tmp_path / "b.png")


def test_mistakes_are_named(answer, tmp_path):
    with pytest.raises(ExemplaError, match="same rows, in the same order"):
        render_report(answer, train_view=View(labels=["a"]))
    with pytest.raises(ExemplaError, match=r"\(n, height, width"):
        ImageView(np.zeros((3, 64)))
    (tmp_path / "file").write_text("")
    with pytest.raises(ExemplaError, match="cannot be written"):
        write_report(answer, tmp_path / "file" / "r.html")
