"""The review page in a real browser, used as a person would use it: by keyboard."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import pytest

from exempla.review import ReviewedFile, Suspect, export_decisions, write_review
from tests.e2e.review_page import (
    READY,
    counts,
    decided,
    open_review,
    press_through,
    row,
    state,
    states,
    version,
    wait_for_row,
)
from tests.review.case import make_folder, running, served

pytestmark = pytest.mark.browser


def test_80_by_keyboard_with_a_crash_a_reload_and_an_export(tab, tmp_path):
    folder = make_folder(tmp_path, 80)
    keys = ("kr" * 3 + "x3k r") * 8  # 11 keys, repeated: 88, of which 80 are used
    with running(folder) as server:
        page = open_review(tab, server.address)
        assert page.url == f"{server.origin}/", "the token has left the address"
        press_through(page, keys[:10])
        page.keyboard.type(keys[10:40])  # as fast as it goes: no key is lost or misplaced
        wait_for_row(page, 120)
        acknowledged = states(page)
        server.kill()
    assert len(acknowledged) == 40
    with running(folder) as server:
        page.close()
        page = open_review(tab, server.address)
        assert states(page) == acknowledged, "nothing acknowledged is lost"
        page.reload()
        page.wait_for_selector(READY)
        assert states(page) == acknowledged
        page.keyboard.type(keys[40:80])
        page.wait_for_selector("text=Nothing left to decide here")
        meaning = {"k": "keep", "r": "relabel", "3": "relabel", "x": "remove", " ": "skip"}
        wanted = {3 * i: meaning[key] for i, key in enumerate(keys[:80])}
        assert states(page) == wanted
        assert counts(page) == {"pending": 0} | Counter(wanted.values())
        assert page.inner_text("#progress-text") == f"{80 - keys[:80].count(' ')}/80"
        page.click("#export")
        page.wait_for_selector("#export-result a")
        with page.expect_download() as download:
            page.click("text=patch.csv")
        patch = Path(download.value.path()).read_text(encoding="utf-8")
        with page.expect_download() as download:
            page.click("text=corrected.jsonl")
        corrected = Path(download.value.path()).read_text(encoding="utf-8")
    final = export_decisions(folder)
    assert {d.row: d.action for d in final} == wanted
    changes = {int(line["row"]): line for line in csv.DictReader(patch.splitlines())}
    assert set(changes) == {r for r, a in wanted.items() if a in ("relabel", "remove")}
    # The corrected file, read again, is the original with exactly these decisions.
    labels = {r: changes[r]["new"] for r in changes if wanted[r] == "relabel"}
    rows = [json.loads(line) for line in (tmp_path / "mails.jsonl").open(encoding="utf-8")]
    assert [json.loads(line) for line in corrected.splitlines()] == [
        mail | {"label": labels.get(r, mail["label"])}
        for r, mail in enumerate(rows)
        if wanted.get(r) != "remove"
    ]
    third = [3 * i for i, key in enumerate(keys[:80]) if key == "3"]
    assert {changes[r]["new"] for r in third} == {"news"}


def test_two_tabs_show_each_other_and_overwrite_nothing(tab, tmp_path):
    with served(make_folder(tmp_path, 6)) as address:
        one = open_review(tab, address)
        two = tab(address.split("?")[0])
        two.wait_for_selector(READY)
        # Keep the second tab from hearing of the first one's decision.
        two.route("**/api/state*", lambda route: route.abort())
        assert row(one) == row(two) == 0
        one.bring_to_front()
        press_through(one, "x")
        two.bring_to_front()
        two.keyboard.press("k")
        two.wait_for_selector(".conflict")
        said = two.inner_text(".conflict")
        assert "row 0: removed" in said
        assert "not saved" in said
        assert row(two) == 0, "the card stays"
        assert states(one) == {0: "remove"}
        two.unroute("**/api/state*")
        two.click("text=Use mine: kept")
        wait_for_row(two, 3)
        assert states(two) == {0: "keep"}
        # The first tab learns of it by itself.
        one.bring_to_front()
        one.wait_for_selector(".item[data-row='0'][data-action='keep']")


def test_undo_20_reload_redo_20(tab, tmp_path):
    with served(make_folder(tmp_path, 25)) as address:
        page = open_review(tab, address)
        press_through(page, "krx k" * 4 + "k")
        made = states(page)
        assert len(made) == 21
        for left in range(20, 0, -1):
            page.keyboard.press("z")
            wait_for_row(page, 3 * left)
        assert states(page) == {0: "keep"}
        page.reload()
        page.wait_for_selector(READY)
        for done in range(1, 21):
            page.keyboard.press("Shift+Z")
            wait_for_row(page, 3 * done)
        assert states(page) == made
        assert page.is_disabled("#do-redo")


def test_keys_in_fields_and_held_keys(tab, tmp_path):
    with served(make_folder(tmp_path, 8)) as address:
        page = open_review(tab, address)
        page.keyboard.press("n")
        page.keyboard.type("krx z 123 ?")
        page.keyboard.press("Enter")
        page.wait_for_selector(".note")
        assert page.inner_text(".note") == "Note: krx z 123 ?"
        assert row(page) == 0
        assert states(page) == {}, "typing decides nothing"
        page.focus("#filter-find")
        page.keyboard.type("k r x")
        assert states(page) == {}
        page.fill("#filter-find", "")
        page.keyboard.press("Escape")
        for _ in range(6):  # down again without up: the browser marks these as repeats
            page.keyboard.down("k")
        page.keyboard.up("k")
        wait_for_row(page, 3)
        page.wait_for_timeout(200)
        assert states(page) == {0: "keep"}, "a held key decides once"
        page.keyboard.press("Control+x")
        page.keyboard.press("Alt+k")
        page.keyboard.press("?")
        page.wait_for_selector("#help-dialog[open]")
        page.keyboard.press("k")  # a dialog is open
        page.uncheck("#keys-on")
        page.keyboard.press("Escape")
        page.keyboard.press("x")
        page.wait_for_timeout(200)
        assert states(page) == {0: "keep"}, "switched off, keys do nothing"


def test_every_other_key(tab, tmp_path):
    with served(make_folder(tmp_path, 30)) as address:
        page = open_review(tab, address)
        page.keyboard.press("ArrowRight")
        wait_for_row(page, 3)
        page.keyboard.press("ArrowLeft")
        wait_for_row(page, 0)
        page.keyboard.press("g")
        page.keyboard.type("1")
        page.keyboard.press("Enter")
        assert "No suspect" in page.inner_text("#go-problem")
        page.fill("#go-row", "m60")
        page.keyboard.press("Enter")
        wait_for_row(page, 60)
        page.keyboard.press("/")
        first = page.inner_text("#class-list li:first-child")
        assert "spam" in first
        assert "suggested" in first, "the suggested class comes first"
        page.keyboard.type("new")
        page.keyboard.press("Enter")
        wait_for_row(page, 63)
        page.keyboard.press("2")  # the label row 63 has: keeping it
        wait_for_row(page, 66)
        assert states(page) == {60: "relabel", 63: "keep"}
        page.keyboard.press("e")
        page.wait_for_selector("#evidence.full")
        page.keyboard.press("f")
        assert page.evaluate("document.activeElement.id") == "filter-class"
        page.select_option("#filter-decision", "relabel")
        assert page.inner_text("#list-count") == "1 of 30 suspects"
        page.select_option("#filter-decision", "")
        page.select_option("#filter-side", "opponent")
        assert page.inner_text("#list-count") == "15 of 30 suspects"
        page.select_option("#filter-side", "")
        page.select_option("#filter-class", "news")
        assert page.inner_text("#list-count") == "1 of 30 suspects"


def test_server_down_the_card_stays_and_recovery_sends_once(tab, tmp_path):
    folder = make_folder(tmp_path, 6)
    with running(folder) as server:
        page = open_review(tab, server.address)
        press_through(page, "k")
        server.kill()
    page.keyboard.press("x")
    page.wait_for_selector("#banner:visible")
    assert "Not saved yet: row 3: removed" in page.inner_text("#banner-text")
    assert page.inner_text("#saved") == "not saved"
    red, green, blue = page.evaluate(
        "getComputedStyle(document.getElementById('banner')).backgroundColor.match(/\\d+/g).map(Number)"
    )
    assert red > 120 > 2 * max(green, blue) - 20
    page.keyboard.press("k")  # nothing more is taken while one waits
    assert row(page) == 3
    with running(folder) as again:
        assert again.port == server.port
        page.wait_for_selector("text=The server was restarted")
        other = open_review(
            tab, again.address
        )  # signs this browser in again; also sends what waits
        page.bring_to_front()
        page.wait_for_selector("#banner", state="hidden")
        wait_for_row(page, 6)
        assert version(page) == 2, "one event for the first key, one for the one that waited"
        assert states(page) == {0: "keep", 3: "remove"}
        other.reload()
        other.wait_for_selector(READY)
        assert version(page) == 2
        assert page.evaluate("Object.keys(localStorage).filter((k) => k.includes('unsent'))") == []


def test_a_reload_does_not_lose_what_waits(tab, tmp_path):
    with served(make_folder(tmp_path, 6)) as address:
        page = open_review(tab, address)
        page.route("**/api/decide", lambda route: route.abort())
        page.keyboard.press("x")
        page.wait_for_selector("#banner:visible")
        page.unroute("**/api/decide")
        page.route("**/api/decide", lambda route: (route.fetch(), route.abort()))  # answer lost
        page.reload()
        page.wait_for_selector("#banner:visible")
        page.unroute("**/api/decide")
        # not page.click: the page may have tried again by itself, and then the button is hidden
        page.evaluate("document.getElementById('banner-retry').click()")
        page.wait_for_selector("#banner", state="hidden")
        assert states(page) == {0: "remove"}
        assert version(page) == 1


def test_words_and_columns_are_marked_by_what_they_say_about_the_label(tab, tmp_path):
    with served(make_folder(tmp_path, 3)) as address:
        page = open_review(tab, address)
        texts = "(nodes) => nodes.map((node) => node.textContent)"
        assert page.eval_on_selector_all("#card mark.backs", texts) == ["meeting"]
        doubts = page.eval_on_selector_all("#card mark.doubts", texts)
        assert doubts == ["cheap pills", "click here"]
        assert page.eval_on_selector_all("#card tr.doubts th", texts) == ["hour"]
        assert page.eval_on_selector_all("#card tr.backs th", texts) == ["sender"]
        # In a row that contradicts the label, what speaks for its own label speaks against ours.
        assert page.eval_on_selector_all(".contradicts mark.doubts", texts) == ["cheap pills"]
        assert page.eval_on_selector_all(".contradicts tr.doubts th", texts) == ["sender"]
        assert page.eval_on_selector_all(".supports mark.backs", texts) == ["meeting"]
        assert "Contradicted by" in page.inner_text("#evidence")


CONTRAST = """
() => {
  const parse = (c) => (c.match(/[\\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
  const lum = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (node) => {
    for (let n = node; n; n = n.parentElement) {
      const c = parse(getComputedStyle(n).backgroundColor);
      if (c.length < 4 || c[3] > 0.99) return c;
    }
    return [255, 255, 255];
  };
  const bad = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const node = text.parentElement;
    const shown = text.data.trim() && node.checkVisibility();
    if (!shown || node.closest('.hidden, :disabled, option')) continue;
    const style = getComputedStyle(node);
    const [a, b] = [lum(parse(style.color)), lum(ground(node))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    seen += 1;
    const name = node.className || node.id || node.tagName;
    if (ratio < 4.5) bad.push(`${ratio.toFixed(2)} ${name}: ${text.data.slice(0, 30)}`);
  }
  return { bad, seen };
}
"""
WIDE = """
() => [...document.querySelectorAll('body *')]
  .filter((n) => n.checkVisibility() && !n.closest('.hidden, .skip-link'))
  .filter((n) => n.getBoundingClientRect().right > innerWidth + 0.5)
  .map((n) => n.id || n.className || n.tagName)
"""


def test_phone_width_and_contrast_in_light_and_dark(tab, tmp_path):
    with served(make_folder(tmp_path, 12)) as address:
        page = open_review(tab, address)
        press_through(page, "krx ")
        page.keyboard.press("ArrowLeft")
        page.wait_for_selector(".status")
        for width in (1280, 900, 375):
            page.set_viewport_size({"width": width, "height": 740})
            page.wait_for_timeout(100)
            assert page.evaluate("document.scrollingElement.scrollWidth") <= width
            assert page.evaluate(WIDE) == []
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                found = page.evaluate(CONTRAST)
                assert found["seen"] > 25
                assert found["bad"] == [], (width, scheme)
        page.click("#toggle-list")
        page.wait_for_selector(".item:visible")
        page.click(".item[data-row='15']")
        wait_for_row(page, 15)
        assert page.evaluate("document.scrollingElement.scrollWidth") <= 375
        page.click("#help")
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate(CONTRAST)["bad"] == []
        assert page.evaluate("document.scrollingElement.scrollWidth") <= 375


def test_every_control_has_a_name(tab, tmp_path):
    with served(make_folder(tmp_path, 3)) as address:
        page = open_review(tab, address)
        nameless = page.evaluate(
            "[...document.querySelectorAll('button, input, select, textarea, img')].filter((n) =>"
            " !(n.textContent.trim() || n.getAttribute('aria-label') || n.alt || n.labels?.length))"
            ".map((n) => n.outerHTML)"
        )
        assert nameless == []
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement !== document.body")


def test_thousands_of_suspects_stay_a_short_page(tab, tmp_path):
    with served(make_folder(tmp_path, 5000)) as address:
        page = open_review(tab, address)
        assert page.evaluate("document.querySelectorAll('.item').length") < 60
        page.evaluate("document.getElementById('list').scrollTop = 1e9")
        page.wait_for_selector(".item[data-row='14997']")
        assert page.evaluate("document.querySelectorAll('*').length") < 1000
        press_through(page, "krxk")
        assert decided(page) == 4


def test_a_class_that_is_a_digit_has_its_own_key(tab, tmp_path):
    classes = [str(digit) for digit in range(10)]
    suspects = [Suspect(row, "3", "8", 0.5, 0.5) for row in range(4)]
    source = ReviewedFile(tmp_path / "digits.npz", "npz", "y")
    write_review(tmp_path / "review", suspects, source=source, classes=classes)
    with served(tmp_path / "review") as address:
        page = open_review(tab, address)
        assert page.inner_text("#digits").split() == [
            d for digit in classes for d in (digit, digit)
        ]
        press_through(page, "703")
        made = {s["row"]: (s["action"], s["label"]) for s in state(page)["changes"]}
        assert made == {0: ("relabel", "7"), 1: ("relabel", "0"), 2: ("keep", None)}
