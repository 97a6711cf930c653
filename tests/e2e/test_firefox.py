"""A second browser: the review page by keyboard and the report, in Firefox."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import exempla
from exempla.report import ImageView, write_report
from exempla.review import export_decisions
from tests.e2e.firefox import Firefox, Tab, started
from tests.review.case import make_folder, served

pytestmark = pytest.mark.browser

STATE = (
    "fetch('/api/state', {headers: {'X-Exempla': localStorage.getItem('exempla-session')}})"
    ".then((answer) => answer.json())"
)
ROW = "document.querySelector('#card').dataset.row"


@pytest.fixture(scope="module")
def firefox(tmp_path_factory) -> Iterator[Firefox]:
    with started(tmp_path_factory.mktemp("firefox")) as browser:
        yield browser


@pytest.fixture
def pictures(tmp_path) -> Path:
    """Where pictures go: a folder to look at them in, if one is named."""
    folder = Path(os.environ.get("EXEMPLA_PICTURES", tmp_path))
    folder.mkdir(exist_ok=True, parents=True)
    return folder


def decide(tab: Tab, keys: str) -> None:
    """One key per card, each once the card before it has gone."""
    for key in keys:
        here = tab.value(ROW)
        tab.press(key)
        tab.until(f"{ROW} !== '{here}'")


def actions(tab: Tab) -> dict[int, str]:
    changes = tab.value(STATE)["changes"]
    return {one["row"]: one["action"] for one in changes if one["action"] != "pending"}


def test_deciding_undoing_and_exporting_by_keyboard(firefox, pictures, tmp_path):
    folder = make_folder(tmp_path, 8)
    with served(folder) as address:
        tab = firefox.open(address)
        tab.until("document.body.hasAttribute('data-ready')")
        assert tab.value("location.search") == "", "the token has left the address"
        tab.picture(pictures / "firefox-review.png")
        decide(tab, "krx3 ")
        wanted = {0: "keep", 3: "relabel", 6: "remove", 9: "relabel", 12: "skip"}
        assert actions(tab) == wanted
        tab.press("z")
        tab.until(f"{ROW} === '12'")
        tab.press("z")
        tab.until(f"{ROW} === '9'")
        assert actions(tab) == {0: "keep", 3: "relabel", 6: "remove"}
        tab.reload()
        tab.until("document.body.hasAttribute('data-ready')")
        tab.press("Shift+Z")
        tab.until(f"{STATE}.then((now) => now.changes.some((c) => c.row === 9))")
        assert actions(tab)[9] == "relabel"
        # keys in a field of text decide nothing
        tab.value("document.querySelector('#filter-find').focus()")
        tab.press("k", "x")
        assert tab.value("document.querySelector('#filter-find').value") == "kx"
        assert actions(tab) == {r: a for r, a in wanted.items() if r != 12}
        tab.value("document.querySelector('#export').click()")
        tab.until("!!document.querySelector('#export-result a')")
        tab.picture(pictures / "firefox-export.png")
    assert {d.row: d.action for d in export_decisions(folder)} == actions_of(wanted)
    assert not firefox.problems


def actions_of(wanted: dict[int, str]) -> dict[int, str]:
    """What is exported: the skipped row was taken back."""
    return {row: action for row, action in wanted.items() if action != "skip"}


def test_the_page_fits_a_phone_and_the_dark(firefox, pictures, tmp_path):
    with served(make_folder(tmp_path, 4)) as address:
        tab = firefox.open(address, width=390, height=800)
        tab.until("document.body.hasAttribute('data-ready')")
        assert tab.value("document.documentElement.scrollWidth") <= 390
        paper = "getComputedStyle(document.body).backgroundColor"
        before = tab.value(paper)
        tab.value("document.querySelector('#theme').click()")
        tab.until(f"{paper} !== {before!r}")
        tab.picture(pictures / "firefox-review-phone-dark.png")


def test_the_report_opens_unfolds_and_stays_quiet(firefox, pictures, tmp_path):
    X, y = load_digits(return_X_y=True)
    model = LogisticRegression(max_iter=300).fit(X[:400], y[:400])
    asked = (X[400:430], y[400:430])
    answer = exempla.explain(model, (X[:400], y[:400]), asked, k=30, side="both", progress=False)
    train = ImageView(X[:400].reshape(-1, 8, 8), labels=y[:400], predicted=model.predict(X[:400]))
    test = ImageView(asked[0].reshape(-1, 8, 8), labels=asked[1])
    path = write_report(answer, tmp_path / "report.html", train_view=train, test_view=test)
    for width in (1280, 390):
        tab = firefox.open(path.as_uri(), width=width)
        assert tab.value("document.querySelector('h1').innerText")
        assert tab.value("document.documentElement.scrollWidth") <= width
        assert tab.value("performance.getEntriesByType('resource').length") == 0
        seen = "document.querySelector('.comparison .picture').getBoundingClientRect().width"
        assert tab.value(seen) > 30
        tab.picture(pictures / f"firefox-report-{width}.png")
    folds = "document.querySelectorAll('details:not([open])').length"
    before = tab.value(folds)
    for _ in range(30):
        tab.press("Tab")
        if tab.value("document.activeElement.tagName") == "SUMMARY":
            tab.press("Enter")
            break
    assert tab.value(folds) == before - 1
    assert not firefox.problems
    assert np.isfinite(answer.explained)
