"""The report in a real browser: inert, offline, readable on a phone, in print, in the dark."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import exempla
from exempla.report import About, ImageView, TableView, TextView, write_report

pytestmark = pytest.mark.browser

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)><svg onload=alert(3)>"
    "<a href='javascript:alert(4)'>x</a>\" onmouseover=\"alert(5)"
)

CONTRAST = """
() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => {
      v /= 255;
      return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = rgb(getComputedStyle(node).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || node.closest("svg")) continue;
    const [a, b] = [light(rgb(getComputedStyle(node).color)), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push([walker.currentNode.data.trim().slice(0, 40), ratio]);
  }
  return poor;
}
"""


@pytest.fixture(scope="module")
def answer() -> Any:
    X, y = load_digits(return_X_y=True)
    model = LogisticRegression(max_iter=300).fit(X[:400] / 16, y[:400])
    asked = (X[400:430] / 16, y[400:430])
    return exempla.explain(
        model, (X[:400] / 16, y[:400]), asked, k=300, side="both", progress=False
    )


@pytest.fixture(scope="module")
def pages(answer, tmp_path_factory) -> dict[str, str]:
    """Three reports: 300 photographs, hostile texts, hostile tables."""
    folder = tmp_path_factory.mktemp("reports")
    n, m = answer.n_train, answer.n_test
    photos = np.random.default_rng(0).integers(0, 256, (n, 96, 128, 3), dtype=np.uint8)
    hostile = {"labels": [HOSTILE] * n, "predicted": ["b"] * n, "names": [HOSTILE] * n}
    frame = pd.DataFrame({f"{HOSTILE}{i}": [HOSTILE] * n for i in range(10)})
    views = {
        "images": ImageView(photos, labels=["a"] * n, predicted=["b"] * n),
        "few": ImageView(photos, labels=["a"] * n, predicted=["b"] * n),
        "texts": TextView([HOSTILE] * n, decisive=lambda i: {"alert": 1.0, "x": -0.5}, **hostile),
        "tables": TableView(frame, decisive=lambda i: {f"{HOSTILE}1": -1.0}, **hostile),
    }
    about = About(data=HOSTILE, model=HOSTILE, accuracy="93%", command=HOSTILE, warnings=(HOSTILE,))
    assert m < n
    out = {}
    for name, view in views.items():
        path = folder / f"{name}.html"
        write_report(
            answer,
            path,
            train_view=view,
            test_view=view,
            about=about,
            limit=300 if name == "images" else 12,
        )
        out[name] = path.as_uri()
    return out


@pytest.mark.parametrize("kind", ["images", "texts", "tables"])
def test_inert_and_offline(tab, pages, kind):
    seen: list[str] = []
    tab.context.on("request", lambda request: seen.append(request.url))
    page = tab(pages[kind])  # the fixture fails the test on a dialog, an error or a CSP complaint
    page.mouse.move(300, 500)
    for height in range(0, 20_000, 2_000):
        page.evaluate(f"scrollTo(0, {height})")
    assert [url for url in seen if not url.startswith(("file:", "data:"))] == []
    assert page.locator("script").count() == 1
    assert page.locator("main img, main a").count() == 0
    assert "<script>alert(1)</script>" in page.inner_text("header")


def test_pictures_are_drawn(tab, pages, answer):
    page = tab(pages["images"])
    assert page.locator("defs image").count() == len(set(answer.indices.tolist()) | set(range(30)))
    shot = page.locator(".comparison .picture").first.screenshot()
    import io

    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(shot)).convert("RGB"), dtype=float)
    assert pixels.std() > 15, "an empty frame would be of one colour"


@pytest.mark.parametrize("kind", ["images", "texts", "tables"])
def test_phone_has_no_sideways_scroll(chromium, pages, kind):
    page = chromium.new_page(viewport={"width": 375, "height": 800})
    page.goto(pages[kind])
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["images", "tables"])
def test_contrast(chromium, pages, kind, scheme):
    page = chromium.new_page(color_scheme=scheme)
    page.goto(pages[kind])
    assert page.evaluate(CONTRAST) == []
    page.close()


def test_theme_button_overrules_the_system(chromium, pages):
    page = chromium.new_page(color_scheme="light")
    page.goto(pages["images"])
    paper = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(paper)
    page.click("#theme")
    dark = page.evaluate(paper)
    page.click("#theme")
    assert before != dark
    assert page.evaluate(paper) == before
    page.close()


def test_readable_without_script(chromium, pages, answer):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages["tables"])
    assert not page.locator("#theme").is_visible()
    assert page.locator(".comparison .card").first.is_visible()
    page.locator("summary").first.click()
    assert page.locator("details[open]").count() >= 1
    context.close()


def test_print_opens_what_is_folded(chromium, pages):
    page = chromium.new_page()
    page.goto(pages["tables"])
    page.emulate_media(media="print")
    assert not page.locator("#print").is_visible()
    folded = page.locator("details:not([open]) table").first
    assert folded.bounding_box()["height"] > 0
    assert len(page.pdf()) > 10_000
    page.close()


@pytest.mark.parametrize("kind", ["images", "tables"])
def test_a_print_and_a_full_screenshot_show_every_card(chromium, pages, kind):
    page = chromium.new_page()
    page.goto(pages[kind])
    cards = page.locator(".comparison > .card, .grid > .card")
    assert cards.count() == (330 if kind == "images" else 24)
    for media in ("screen", "print"):
        page.emulate_media(media=media)
        heights = cards.evaluate_all("all => all.map((one) => one.getBoundingClientRect().height)")
        assert min(heights) > 30, media
    page.close()


def test_a_cell_shows_its_errors_and_rows_are_searched_sorted_and_enlarged(tab, pages):
    page = tab(pages["images"])
    page.locator(".matrix .cell").first.click()
    assert "true a, predicted b: 30 of 30 shown" in page.locator(".count").first.inner_text()
    picked = page.locator("section", has=page.locator("select"))
    first = picked.locator(".card").first
    name = first.locator(".name").inner_text()
    picked.locator("input").fill(name)
    assert 1 <= picked.locator(".card:visible").count() < 300
    picked.locator(".all").click()
    assert picked.locator(".card:visible").count() == 300
    picked.locator("select").select_option("row")
    rows = picked.locator(".card").evaluate_all("all => all.map((one) => +one.dataset.row)")
    assert rows == sorted(rows)
    picked.locator(".card").first.click()
    assert page.locator("#enlarged .card").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#enlarged .card").is_visible()


def test_everything_unfolds_by_keyboard(tab, pages):
    page = tab(pages["tables"])
    folds = page.locator("details").count()
    assert folds >= 3
    names = set()
    for _ in range(60 + 2 * folds):
        page.keyboard.press("Tab")
        tag = page.evaluate("document.activeElement.tagName")
        names.add(tag)
        if tag == "SUMMARY":
            page.keyboard.press("Enter")
        if tag == "BODY":
            break
    assert {"BUTTON", "SUMMARY"} <= names
    assert page.locator("details:not([open])").count() == 0


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
@pytest.mark.parametrize("kind", ["few", "texts", "tables"])
def test_axe_finds_nothing(chromium, pages, kind, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = chromium.new_page(color_scheme=scheme, viewport={"width": width, "height": 844})
    page.goto(pages[kind])
    # one of each fold is opened: axe looks at what is visible, and takes its time
    page.evaluate(
        "for (const kind of ['columns', 'more', 'method'])"
        " document.querySelectorAll('details.' + kind).forEach((part, i) => { part.open = !i })"
    )
    found = axe.run(page)
    assert found.violations_count == 0, found.generate_report()
    page.close()


def test_the_notebook_card_sorts_and_filters_without_script(chromium, answer, tmp_path):
    path = tmp_path / "card.html"
    # two cards of one answer: the buttons of one leave the other alone
    path.write_text(f"<!doctype html><body>{answer._repr_html_()}{answer._repr_html_()}")
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    card, other = page.locator(".exempla-card").all()
    rows = card.locator("tbody tr")
    # where a notebook strips styles the buttons, which could do nothing, go with them
    assert card.locator(".choices").is_visible()
    page.evaluate("document.querySelectorAll('style').forEach((one) => { one.disabled = true })")
    assert not card.locator(".choices").is_visible()
    assert rows.first.is_visible()
    page.reload()
    card, other = page.locator(".exempla-card").all()

    def places() -> list[str]:
        shown = [row for row in rows.all() if row.is_visible()]
        shown.sort(key=lambda row: row.bounding_box()["y"])
        return [row.locator("td").nth(1).inner_text() for row in shown]

    before = places()
    assert before == [f"#{i}" for i in answer.indices[:50]]
    card.locator(".by-row").check()
    assert places() == sorted(before, key=lambda name: int(name[1:]))
    card.locator(".opponents").check()
    picked = {f"#{i}" for i, z in zip(answer.indices[:50], answer.alignment[:50]) if z < 0}
    assert set(places()) == picked
    card.locator("fieldset").nth(1).locator("input").first.check()
    card.locator(".half").check()
    weights = np.abs(answer.weights)
    large = {f"#{i}" for i, w in zip(answer.indices[:50], weights[:50]) if w >= weights.max() / 2}
    assert set(places()) == large
    assert 0 < len(large) < 50
    assert other.locator("tbody tr:visible").count() == 50
    context.close()
