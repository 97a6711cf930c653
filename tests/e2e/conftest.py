"""A real browser for the end-to-end tests, where there is one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")  # not longer: Playwright's event loop blocks asyncio in other tests
def chromium() -> Iterator[Any]:
    """Headless Chromium, driven by Playwright; the tests that need it skip where it is missing."""
    path = next(
        filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None
    )
    if path is None:
        pytest.skip("no browser: install one with `apt-get install chromium` to run this test")
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="no Playwright: install it with `pip install playwright`"
    )
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium: Any) -> Iterator[Any]:
    """A function that opens a page of one fresh profile; errors on it fail the test."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(60_000)
    problems: list[str] = []
    context.on(
        "dialog", lambda dialog: (problems.append(f"dialog: {dialog.message}"), dialog.dismiss())
    )
    context.on("weberror", lambda error: problems.append(f"error: {error.error}"))
    context.on(
        "console",
        lambda message: (
            problems.append(f"console: {message.text}")
            if "Content Security Policy" in message.text
            else None
        ),
    )

    def open_page(address: str) -> Any:
        page = context.new_page()
        page.goto(address)
        return page

    open_page.context = context  # type: ignore[attr-defined]
    yield open_page
    context.close()
    assert not problems
