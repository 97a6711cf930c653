"""The review page under attack in a real browser: hostile data, hostile pages, wrong tokens."""

from __future__ import annotations

import http.server
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import ClassVar

import httpx
import pytest

from tests.e2e.review_page import READY, open_review, states, wait_for_row
from tests.review.case import make_folder, running, served

pytestmark = pytest.mark.browser

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
        own = re.compile(r"^(/static/|blob:http://127\.0\.0\.1:\d+/|/api/export/|#card)")
        assert made
        assert all(own.match(source) for source in made), made
        assert page.evaluate("violations") == []
        exported = json.loads((tmp_path / "review" / "decisions.json").read_text(encoding="utf-8"))
        assert exported[0]["new_label"] == text
        assert exported[0]["note"] == text


def test_bidirectional_controls_are_shown_and_kept(tab, tmp_path):
    # Drawn as it stands, this would read "ham" followed by "exe.gnp" turned round.
    label = "ham\u202egnp.exe\u2066\u202a"
    shown = "ham[U+202E]gnp.exe[U+2066][U+202A]"
    with served(make_folder(tmp_path, 4, hostile=label)) as address:
        page = open_review(tab, address)
        for part in ("#card", "#evidence", "#list", "#digits", "#filter-class", "#do-relabel"):
            assert shown in page.text_content(part), part
        page.keyboard.press("n")
        page.keyboard.insert_text(label)
        page.keyboard.press("Enter")
        page.wait_for_selector(".note")
        page.keyboard.press("/")
        assert shown in page.text_content("#class-list")
        page.keyboard.press("Enter")  # the suggested class is this one
        wait_for_row(page, 3)
        page.keyboard.press("ArrowLeft")
        wait_for_row(page, 0)
        assert f"relabelled \u2068{shown}\u2069" in page.text_content("#card .status")
        assert re.search("[\u202a-\u202e\u2066\u2067]", page.text_content("body")) is None
        isolated = page.eval_on_selector_all(
            "#card .labels bdi, #list bdi, #digits bdi",
            "(nodes) => nodes.map((node) => getComputedStyle(node).unicodeBidi)",
        )
        assert set(isolated) == {"isolate"}
        page.click("#export")
        page.wait_for_selector("#export-result a")
    exported = json.loads((tmp_path / "review" / "decisions.json").read_text(encoding="utf-8"))
    assert (exported[0]["new_label"], exported[0]["note"]) == (label, label)
    lines = (tmp_path / "review" / "corrected.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[0])["label"] == label


ATTACK = """<!doctype html><title>evil</title>
<img id=i src="ORIGIN/api/image/train/0"><iframe src="ORIGIN/"></iframe>
<script>
const decision = {row: 0, action: "remove", label: null, note: "", seen: 0, once: "attack-attack"};
const sent = {method: "POST", credentials: "include", body: JSON.stringify(decision)};
const key = localStorage.getItem("exempla-session") ?? "guess";
const headers = {"Content-Type": "application/json", "X-Exempla": key};
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


@contextmanager
def evil_program(folder: Path, page: str) -> Iterator[http.server.ThreadingHTTPServer]:
    """Another program on this machine, with a page of its own; it notes what browsers send it."""
    folder.mkdir()
    (folder / "index.html").write_text(page)
    handler = partial(NotingHandler, directory=str(folder))
    evil = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=evil.serve_forever, daemon=True).start()
    NotingHandler.seen.clear()
    try:
        yield evil
    finally:
        evil.shutdown()
        evil.server_close()


class NotingHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files and keeps the headers of every request."""

    seen: ClassVar[list[dict[str, str]]] = []

    def do_GET(self) -> None:
        self.seen.append(dict(self.headers.items()))
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def test_a_program_on_another_port_is_sent_nothing_it_could_use(chromium, tmp_path):
    # Cookies ignore ports: with one, this program could read and decide in the person's name.
    with (
        running(make_folder(tmp_path, 6)) as server,
        evil_program(tmp_path / "evil", "<!doctype html><title>evil</title>") as evil,
    ):
        context = chromium.new_context()
        page = context.new_page()
        page.goto(server.address)
        page.wait_for_selector(READY)
        page.keyboard.press("k")
        wait_for_row(page, 3)
        key = page.evaluate("localStorage.getItem('exempla-session')")
        attacker = context.new_page()
        attacker.goto(f"http://127.0.0.1:{evil.server_port}/")
        assert attacker.evaluate("[document.cookie, localStorage.length]") == ["", 0]
        assert context.cookies() == []
        stolen = NotingHandler.seen
        assert stolen
        assert all(key not in value for headers in stolen for value in headers.values())
        for headers in stolen:  # what came along opens nothing
            sent = {k: v for k, v in headers.items() if k not in ("Host", "Connection")}
            sent |= {"Origin": server.origin, "Sec-Fetch-Site": "same-origin"}
            for route in ("/api/review", "/api/state", "/api/image/train/0"):
                answer = httpx.get(server.origin + route, headers=sent, trust_env=False)
                assert answer.status_code == 403
            body = {"row": 3, "action": "remove", "seen": 0, "once": "stolen-stolen"}
            answer = httpx.post(
                f"{server.origin}/api/decide", json=body, headers=sent, trust_env=False
            )
            assert answer.status_code == 403
        assert states(page) == {0: "keep"}
        context.close()


def test_a_page_of_another_origin_gets_and_does_nothing(chromium, tmp_path):
    with (
        running(make_folder(tmp_path, 6)) as server,
        evil_program(tmp_path / "evil", ATTACK.replace("ORIGIN", server.origin)) as evil,
    ):
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


def test_a_second_tab_and_one_opened_again_need_no_new_address(tab, tmp_path):
    with served(make_folder(tmp_path, 3)) as address:
        stranger = tab(address.split("?")[0])
        stranger.wait_for_selector("#banner:visible")
        assert "Open the address that `exempla review` printed" in stranger.inner_text("#banner")
        first = open_review(tab, address)
        assert "token" not in first.url
        stranger.wait_for_selector(READY)  # let in by the other tab
        first.close()
        stranger.close()
        again = open_review(tab, address.split("?")[0])
        again.reload()
        again.wait_for_selector(READY)
        used = open_review(tab, address)  # the used address, in a browser that is signed in
        assert "token" not in used.url


def test_pictures_are_shown_from_memory(tab, tmp_path):
    # Not wait_for_function: its second look is an eval, which the page's own policy forbids.
    from playwright.sync_api import expect

    with served(make_folder(tmp_path, 3)) as address:
        page = open_review(tab, address)
        expect(page.locator("#card img")).to_have_js_property("naturalWidth", 28, timeout=60_000)
        assert page.get_attribute("#card img", "src").startswith("blob:http://127.0.0.1:")


def test_a_wrong_token_is_refused_in_the_browser(tab, tmp_path):
    with served(make_folder(tmp_path, 3)) as address:
        page = tab(address.split("=")[0] + "=wrong")
        page.wait_for_selector("text=start `exempla review` again")
        assert page.query_selector(READY) is None
