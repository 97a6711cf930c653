"""The review page in a real browser, used as a person would use it: by keyboard."""

from __future__ import annotations

import csv
import http.server
import json
import re
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from exempla.review import export_decisions
from tests.review_case import make_folder, running, served

pytestmark = pytest.mark.browser

READY = "body[data-ready]"


def open_review(tab: Any, address: str) -> Any:
    page = tab(address)
    page.wait_for_selector(READY)
    return page


def decided(page: Any) -> int:
    return int(page.inner_text("#progress-text").split("/")[0])


def row(page: Any) -> int:
    return int(page.get_attribute("#card", "data-row"))


def wait_for_row(page: Any, row: int) -> None:
    page.wait_for_selector(f"#card[data-row='{row}']")


def counts(page: Any) -> dict[str, int]:
    return page.evaluate("fetch('/api/state').then((r) => r.json()).then((s) => s.counts)")


def version(page: Any) -> int:
    return page.evaluate("fetch('/api/state').then((r) => r.json()).then((s) => s.version)")


def states(page: Any) -> dict[int, str]:
    changes = page.evaluate("fetch('/api/state').then((r) => r.json()).then((s) => s.changes)")
    return {state["row"]: state["action"] for state in changes if state["action"] != "pending"}


def press_through(page: Any, keys: str) -> None:
    """One key per card, each once the card before it has gone."""
    for key in keys:
        here = row(page)
        page.keyboard.press("Space" if key == " " else key)
        page.wait_for_selector(f"#card:not([data-row='{here}'])")


def test_200_by_keyboard_with_a_crash_a_reload_and_an_export(tab, tmp_path):
    folder = make_folder(tmp_path, 200)
    keys = ("kr" * 3 + "x3k r") * 20  # 12 keys, repeated: 240, of which 200 are used
    with running(folder) as server:
        page = open_review(tab, server.address)
        assert page.url == f"{server.origin}/", "the token has left the address"
        press_through(page, keys[:20])
        page.keyboard.type(keys[20:100])  # as fast as it goes: no key is lost or misplaced
        wait_for_row(page, 300)
        acknowledged = states(page)
        server.kill()
    assert len(acknowledged) == 100
    with running(folder) as server:
        page.close()
        page = open_review(tab, server.address)
        assert states(page) == acknowledged, "nothing acknowledged is lost"
        page.reload()
        page.wait_for_selector(READY)
        assert states(page) == acknowledged
        page.keyboard.type(keys[100:200])
        page.wait_for_selector("text=Nothing left to decide here")
        meaning = {"k": "keep", "r": "relabel", "3": "relabel", "x": "remove", " ": "skip"}
        wanted = {3 * i: meaning[key] for i, key in enumerate(keys[:200])}
        assert states(page) == wanted
        assert counts(page) == {"pending": 0} | Counter(wanted.values())
        assert page.inner_text("#progress-text") == f"{200 - keys[:200].count(' ')}/200"
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
    third = [3 * i for i, key in enumerate(keys[:200]) if key == "3"]
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
        page.wait_for_selector("text=The server was started anew")
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
        page.click("#banner-retry")
        page.wait_for_selector("#banner", state="hidden")
        assert states(page) == {0: "remove"}
        assert (
            page.evaluate("fetch('/api/state').then((r) => r.json()).then((s) => s.version)") == 1
        )


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "javascript:alert(1)",
    "\"><iframe srcdoc='<script>alert(1)</script>'>",
]


@pytest.mark.parametrize("text", ["".join(HOSTILE)])
def test_hostile_text_everywhere_stays_text(tab, tmp_path, text):
    with served(make_folder(tmp_path, 4, hostile=text)) as address:
        page = open_review(tab, address)
        page.evaluate(
            "window.violations = [];"
            "document.addEventListener('securitypolicyviolation',"
            " (event) => violations.push(event.blockedURI))"
        )
        for part in ("#card", "#evidence", "#list", "#digits", "#filter-class", "#filter-side"):
            assert "<script>alert(1)</script>" in page.text_content(part), part
        page.keyboard.press("n")
        page.keyboard.type(text)
        page.keyboard.press("Enter")
        page.wait_for_selector(".note")
        page.keyboard.press("/")
        assert text in page.inner_text("#class-list")
        page.keyboard.press("Escape")
        page.keyboard.press("r")
        wait_for_row(page, 3)
        page.keyboard.press("ArrowLeft")
        wait_for_row(page, 0)
        assert text in page.inner_text("#card .status")
        page.click("#export")
        page.wait_for_selector("#export-result a")
        made = page.evaluate(
            "[...document.querySelectorAll('script, iframe, svg, img, [onerror], [onload], a')]"
            ".map((n) => n.getAttribute('src') ?? n.getAttribute('href') ?? n.outerHTML)"
        )
        own = re.compile(r"^(/static/|/api/image/|/api/export/|#card)")
        assert made
        assert all(own.match(source) for source in made), made
        assert page.evaluate("violations") == []
        exported = json.loads((tmp_path / "review" / "decisions.json").read_text(encoding="utf-8"))
        assert exported[0]["new_label"] == text
        assert exported[0]["note"] == text


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


ATTACK = """<!doctype html><title>evil</title>
<img id=i src="ORIGIN/api/image/train/0"><iframe src="ORIGIN/"></iframe>
<script>
const decision = {row: 0, action: "remove", label: null, note: "", seen: 0, once: "attack-attack"};
const sent = {method: "POST", credentials: "include", body: JSON.stringify(decision)};
const headers = {"Content-Type": "application/json", "X-Exempla": "1"};
const tries = {
  get: () => fetch("ORIGIN/api/review", {credentials: "include"}),
  blind: () => fetch("ORIGIN/api/decide", {...sent, mode: "no-cors"}),
  json: () => fetch("ORIGIN/api/decide", {...sent, headers}),
};
(async () => {
  const out = {};
  for (const [name, go] of Object.entries(tries)) {
    try { out[name] = (await go()).type; } catch (error) { out[name] = "blocked"; }
  }
  out.image = document.getElementById("i").naturalWidth;
  document.title = JSON.stringify(out);
})();
</script>"""


def test_a_page_of_another_origin_gets_and_does_nothing(chromium, tmp_path):
    (tmp_path / "evil").mkdir()
    with running(make_folder(tmp_path, 6)) as server:
        (tmp_path / "evil" / "index.html").write_text(ATTACK.replace("ORIGIN", server.origin))
        handler = partial(QuietHandler, directory=str(tmp_path / "evil"))
        evil = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=evil.serve_forever, daemon=True).start()
        context = chromium.new_context()
        page = context.new_page()
        page.goto(server.address)  # the victim is signed in
        page.wait_for_selector(READY)
        # The same host on another port is the same *site*: the hardest case.
        attacker = context.new_page()
        attacker.goto(f"http://127.0.0.1:{evil.server_port}/")
        attacker.wait_for_function("document.title.startsWith('{')")
        result = json.loads(attacker.title())
        assert result == {"get": "blocked", "blind": "blocked", "json": "blocked", "image": 0}
        assert states(page) == {}
        # Following a link is harmless: the person lands on the page, in the open.
        attacker.evaluate(f"location.href = '{server.origin}/'")
        attacker.wait_for_selector(READY)
        context.close()
        evil.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files and says nothing about it."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def test_a_wrong_token_is_refused_in_the_browser(tab, tmp_path):
    with served(make_folder(tmp_path, 3)) as address:
        page = tab(address.split("=")[0] + "=wrong")
        assert "start `exempla review` again" in page.inner_text("body")
        assert page.query_selector(READY) is None
