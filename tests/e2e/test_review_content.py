"""What the page shows of a row, and to whom: texts, columns, search, numbers, parts, a stranger."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from exempla.report.words import chance
from exempla.review import Content, ReviewedFile, Suspect, write_review
from tests.e2e.review_page import READY, open_review, row, state, wait_for_row
from tests.review.case import make_folder, make_framed, served
from tests.review.test_items import numbers, parts

pytestmark = pytest.mark.browser


def test_the_whole_text_every_column_search_and_filters(tab, tmp_path):
    wrong = frozenset({4, 9, 11})
    with served(make_framed(tmp_path, 12, wrong=wrong)) as address:
        page = open_review(tab, address)
        assert "fine" not in page.inner_text("#card .text")
        assert "Show all 1,8" in page.inner_text(".show-all")
        page.keyboard.press("t")
        assert page.inner_text("#card .text").endswith("fine")
        page.keyboard.press("t")
        assert "fine" not in page.inner_text("#card .text")
        page.click("text=All columns of the row")
        assert "m0" in page.inner_text(".original")
        assert page.inner_text(".item[data-row='3'] .snippet").startswith("mail number 3")
        page.fill("#filter-find", "mislabelled")  # at the end of long texts, in small letters
        page.wait_for_selector("text=3 of 12 suspects")
        rows = page.eval_on_selector_all(".item", "(all) => all.map((n) => +n.dataset.row)")
        assert set(rows) == wrong
        page.fill("#filter-find", "")
        page.select_option("#filter-given", "ham")
        assert page.inner_text("#list-count").startswith("6 of 12")
        page.select_option("#filter-suggested", "ham")
        assert page.inner_text("#list-count").startswith("0 of 12")
        page.select_option("#filter-given", "")
        assert page.inner_text("#list-count").startswith("6 of 12")
        page.click("#legend summary")
        assert "probability that the given label is wrong" in page.inner_text("#legend")


def test_relabel_is_pressed_upon_nobody_where_the_label_is_probably_right(tab, tmp_path):
    suspects = [Suspect(r, "a", "b", p, 0.9) for r, p in enumerate((0.997, 0.5, 0.25, 0.004))]
    source = ReviewedFile(tmp_path / "rows.csv", "csv", "y")
    write_review(tmp_path / "review", suspects, source=source, classes=["a", "b"])
    with served(tmp_path / "review") as address:
        page = open_review(tab, address)
        accent = page.evaluate(
            "getComputedStyle(document.getElementById('export')).backgroundColor"
        )
        leaning = []
        for r, p in enumerate((0.997, 0.5, 0.25, 0.004)):
            wait_for_row(page, r)
            colour = "getComputedStyle(document.getElementById('do-relabel')).backgroundColor"
            leaning.append(page.evaluate(colour) == accent)
            assert page.inner_text(".label-box.doubt b") == chance(p)
            assert chance(p) in page.inner_text(f".item[data-row='{r}'] .p")
            page.keyboard.press("ArrowRight")
        assert leaning == [True, True, False, False]
        thousand = "Array.from({ length: 1001 }, (_, i) => chance(i / 1000))"
        both = page.evaluate(f"import('/static/dom.js').then(({{ chance }}) => {thousand})")
        assert both == [chance(i / 1000) for i in range(1001)], "one way, on page and in exports"


def test_images_show_their_file_names(tab, tmp_path):
    content = Content(image=np.zeros((8, 8)), name="cats/tom.png")
    source = ReviewedFile(tmp_path / "pets", "images", "label", fingerprint="any")
    suspect = Suspect(0, "cat", "dog", 0.6, 0.9, content=content)
    write_review(tmp_path / "review", [suspect], source=source, classes=["cat", "dog"])
    with served(tmp_path / "review") as address:
        page = open_review(tab, address)
        assert page.inner_text("#card .name") == "cats/tom.png"
        assert "cats/tom.png" in page.inner_text("#list")


def test_numbers_by_keyboard(tab, tmp_path):
    with served(numbers(tmp_path)) as address:
        page = open_review(tab, address)
        assert page.inner_text("#card .labels").split("\n")[1::2] == ["1200", "119.6 ± 8.0", "90 %"]
        assert "Accept → 120" in page.inner_text("#do-relabel")
        assert page.inner_text("#digits") == ""
        page.keyboard.press("r")
        wait_for_row(page, 1)
        page.keyboard.press("5")  # no class has a key here
        page.keyboard.press("/")
        page.keyboard.type("ninety")
        page.keyboard.press("Enter")
        assert page.inner_text("#number-problem") == "That is not a number."
        page.fill("#number-text", "91.5")
        page.keyboard.press("Enter")
        wait_for_row(page, 2)
        page.keyboard.press("k")
        page.wait_for_selector("text=Nothing left to decide here")
        made = {s["row"]: (s["action"], s["label"]) for s in state(page)["changes"]}
        assert made == {0: ("relabel", "120"), 1: ("relabel", "91.5"), 2: ("keep", None)}


def test_parts_are_marked_in_their_row(tab, tmp_path):
    with served(parts(tmp_path)) as address:
        page = open_review(tab, address)
        assert page.inner_text("#card mark.part") == "Berlin"
        assert page.inner_text(".label-box.part b") == "Berlin"
        first = row(page)
        page.keyboard.press("r")
        page.wait_for_selector(f"#card:not([data-row='{first}'])")
        assert page.inner_text("#card h2").startswith("Row 0")
        assert page.inner_text("#card mark.part") == "Paris"
        page.keyboard.press("k")
        page.wait_for_selector(".label-box.part >> text=travel")
        assert page.locator("#card mark.part").count() == 0
        page.click("#export")
        page.wait_for_selector("#export-result a")
        assert "corrected" not in page.inner_text("#export-result")


def test_a_second_browser_is_told_how_to_get_in(chromium, tab, tmp_path):
    with served(make_folder(tmp_path, 3)) as address:
        open_review(tab, address)
        other = chromium.new_context(viewport={"width": 1280, "height": 800})
        try:
            for place in (address, address.split("?")[0]):
                page = other.new_page()
                page.goto(place)
                page.wait_for_selector(".door")
                assert "press Enter" in page.inner_text(".door")
                assert page.query_selector(READY) is None
                assert page.is_hidden("#list-pane")
                assert page.is_hidden(".actions")
        finally:
            other.close()


AXE = """
axe.run(document, {resultTypes: ['violations']})
  .then((r) => r.violations.map((v) => [v.id, v.nodes.map((n) => n.html)]))
"""


def axe_source() -> str:
    package = pytest.importorskip(
        "axe_playwright_python", reason="no axe: `pip install axe-playwright-python`"
    )
    return (Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


def check_axe(page, source, name):
    """No violation, in light and dark, on a desktop and on a phone."""
    page.evaluate(source)
    for width, height in ((1280, 800), (390, 844)):
        page.set_viewport_size({"width": width, "height": height})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(100)
            assert page.evaluate(AXE) == [], (name, width, scheme)
            assert page.evaluate("document.scrollingElement.scrollWidth") <= width, (name, width)
    page.set_viewport_size({"width": 1280, "height": 800})


def test_axe_finds_nothing_on_page_dialogs_and_door(tab, chromium, tmp_path):
    source = axe_source()
    (tmp_path / "a").mkdir()
    with served(make_framed(tmp_path / "a", 12)) as address:
        page = open_review(tab, address)
        for key in "kr":
            here = row(page)
            page.keyboard.press(key)
            page.wait_for_selector(f"#card:not([data-row='{here}'])")
        page.click("#legend summary")
        page.click("text=All columns of the row")
        check_axe(page, source, "a spot check")
        for keys, dialog in (("?", "help"), ("/", "class"), ("n", "note"), ("g", "go")):
            page.keyboard.press(keys)
            page.wait_for_selector(f"#{dialog}-dialog[open]")
            check_axe(page, source, dialog)
            page.keyboard.press("Escape")
        page.click("#estimate")
        check_axe(page, source, "left")
    (tmp_path / "b").mkdir()
    with served(make_folder(tmp_path / "b", 6)) as address:
        other = chromium.new_context()
        page = other.new_page()
        page.goto(address.split("?")[0])
        page.wait_for_selector(".door")
        check_axe(page, source, "door")
        other.close()
        page = open_review(tab, address)
        check_axe(page, source, "cells and pictures")
