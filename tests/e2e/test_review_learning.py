"""The review page learns, checks itself and says when to stop: in a browser, killed between."""

from __future__ import annotations

import pytest

from tests.e2e.review_page import READY, decided, open_review, row, state, states
from tests.review.case import make_framed, running, served

pytestmark = pytest.mark.browser

ROWS = 400
SPAM_IS_HAM = frozenset(range(1, ROWS, 2))
"""Every row called spam is wrong, and none called ham: a kind of mistake to be learned."""


def next_card(page, wrong=SPAM_IS_HAM):
    """Decide rightly about the row shown; the row."""
    here = row(page)
    page.keyboard.press("r" if here in wrong else "k")
    page.wait_for_selector(f"#card:not([data-row='{here}'])")
    return here


def listed(page):
    """The rows in the order in which the list has them."""
    page.set_viewport_size({"width": 1280, "height": 6000})
    page.wait_for_timeout(150)
    nodes = page.eval_on_selector_all(
        ".item",
        "(all) => all.map((n) => [+n.ariaPosInSet, +n.dataset.row]).sort((a, b) => a[0] - b[0])",
    )
    page.set_viewport_size({"width": 1280, "height": 800})
    return [each for _, each in nodes]


def test_decisions_renew_the_order_and_never_move_what_was_opened(tab, tmp_path):
    with served(make_framed(tmp_path, 40, ROWS)) as address:
        page = open_review(tab, address)
        first = listed(page)
        assert first[:6] == [0, 1, 2, 3, 4, 5]
        opened = [next_card(page) for _ in range(4)]
        before = listed(page)
        opened.append(next_card(page))
        page.wait_for_selector("text=order updated after 5 decisions")
        here = row(page)
        after = listed(page)
        assert [after.index(each) for each in opened] == [before.index(each) for each in opened]
        assert after.index(here) == after.index(opened[-1]) + 1, "and so does the one at hand"
        assert row(page) == here
        for _ in range(10):
            next_card(page)
        page.wait_for_selector("text=order updated after 15 decisions")
        seen = {int(r) for r in states(page)}
        coming = [r for r in listed(page) if r not in seen and r != row(page)][:8]
        assert all(r in SPAM_IS_HAM for r in coming), coming
        chances = page.eval_on_selector_all(".item .p", "(all) => all.map((n) => n.textContent)")
        assert all("%" in said for said in chances)
        page.reload()
        page.wait_for_selector(READY)
        again = [r for r in listed(page) if r not in seen][:8]
        assert all(r in SPAM_IS_HAM for r in again), "the order is learned again from the log"


def test_every_third_row_is_a_spot_check_with_a_small_tag(tab, tmp_path):
    with served(make_framed(tmp_path, 40, ROWS)) as address:
        page = open_review(tab, address)
        assert "model estimate" in page.inner_text("#estimate")
        tags = []
        for _ in range(9):
            tags.append(page.locator("#card .tag").count())
            next_card(page)
        assert tags == [0, 0, 1] * 3
        said = page.inner_text("#estimate")
        assert "model estimate" not in said
        left = state(page)["remaining"]
        assert left["checks"] == 3
        assert f"({round(left['low'])}–{round(left['high'])})" in said
        page.click("#estimate")
        words = page.inner_text("#left-dialog")
        assert "3 spot checks" in words
        assert "any kind of mistake" in words
        page.keyboard.press("Escape")
        page.keyboard.press("s")  # one more, now
        page.wait_for_selector("#card .tag")
        assert page.inner_text("#card .tag") == "spot check"
        page.select_option("#filter-decision", "spot")
        assert page.inner_text("#list-count").startswith("4 of ")


def test_spot_checks_bound_what_is_left_and_the_page_says_stop(tab, tmp_path):
    with served(make_framed(tmp_path, 12, 40)) as address:
        page = open_review(tab, address)
        page.click("#estimate")
        page.fill("#stop-share", "nonsense")
        page.keyboard.press("Enter")
        assert "between 0 and 100" in page.inner_text("#stop-problem")
        page.fill("#stop-share", "25")
        page.keyboard.press("Enter")
        page.wait_for_selector("#stop-problem:empty", state="attached")
        page.keyboard.press("Escape")
        for _ in range(30):
            next_card(page, frozenset())
            if page.is_visible("#stop"):
                break
            if page.locator("#card .tag").count() == 0:
                here = page.get_attribute("#card", "data-row")
                page.keyboard.press("s")
                page.wait_for_selector(f"#card:not([data-row='{here}'])")
        assert "You can stop:" in page.inner_text("#stop-text")
        left = state(page)["remaining"]
        assert left["stop"]
        assert left["sure"] <= 0.25 * 40
        page.click("#stop-go-on")
        assert page.is_hidden("#stop")
        next_card(page, frozenset())
        assert page.is_hidden("#stop"), "said once"
        page.reload()
        page.wait_for_selector("#stop:visible")
        page.click("#stop-export")
        page.wait_for_selector("#export-result a")


def test_killed_between_decisions_the_review_goes_on_as_it_was(tab, tmp_path):
    folder = make_framed(tmp_path, 40, ROWS)
    with running(folder) as server:
        page = open_review(tab, server.address)
        for _ in range(8):
            next_card(page)
        known, spot = state(page), row(page)
        assert page.locator("#card .tag").count() == 1, "a spot check is on the screen"
        server.kill()
    page.close()
    with running(folder) as server:
        page = open_review(tab, server.address)
        again = state(page)
        for part in ("changes", "spots", "waiting", "remaining", "counts"):
            assert again[part] == known[part], part
        assert row(page) == spot
        assert page.locator("#card .tag").count() == 1
        next_card(page)
        assert decided(page) == 9


def test_a_random_sample_comes_first_and_careless_decisions_are_pointed_out(tab, tmp_path):
    with served(make_framed(tmp_path, 40, 400), initial_sample=20) as address:
        page = open_review(tab, address)
        assert "First, check 20 random rows (0 done)" in page.inner_text("#sample-text")
        for _ in range(3):
            assert page.inner_text("#card .tag") == "spot check"
            here = page.get_attribute("#card", "data-row")
            page.keyboard.press("x")
            page.wait_for_selector(f"#card:not([data-row='{here}'])")
        for _ in range(12):
            if page.is_visible("#doubt"):
                break
            here = page.get_attribute("#card", "data-row")
            page.keyboard.press("x")
            page.wait_for_selector(f"#card:not([data-row='{here}'])")
        assert "contradict confident evidence" in page.inner_text("#doubt-text")
        assert "⚠" in page.inner_text("#estimate")
        page.click("#doubt-show")
        assert page.locator(".item").count() >= 3
        page.click("#doubt-dismiss")
        assert page.is_hidden("#doubt")
        page.select_option("#filter-decision", "")
        page.click("#sample-skip")
        page.wait_for_selector("#sample", state="hidden")


def test_a_spot_check_says_what_the_model_says(tab, tmp_path):
    from exempla.review import Content, ReviewedFile, Suspect, write_review

    (tmp_path / "mails.jsonl").write_text("{}\n" * 9)
    text = Content(pieces=(("hello", 0.0),))
    suspects = [
        Suspect(1, "ham", "spam", 0.02, 0.02, content=text, model_label="ham"),
        Suspect(2, "ham", "spam", 0.9, 0.98, content=text, model_label="spam"),
        Suspect(3, "ham", "spam", 0.02, 0.02, content=text),
    ]
    source = ReviewedFile(tmp_path / "mails.jsonl", "jsonl")
    write_review(tmp_path / "review", suspects, source=source, classes=["ham", "spam"])
    with served(tmp_path / "review") as address:
        page = open_review(tab, address)
        for agrees in (True, False, True):
            words = " ".join(page.inner_text("#card .labels").split())
            assert ("model agrees ham" in words) == agrees
            assert ("model says, 98 % spam" in words) == (not agrees)
            page.keyboard.press("ArrowRight")
            page.wait_for_timeout(300)
