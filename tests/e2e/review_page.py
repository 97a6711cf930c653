"""Small steps on the review page that the browser tests share."""

from __future__ import annotations

from typing import Any

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


def state(page: Any) -> dict[str, Any]:
    """What the server says, asked as the page asks."""
    return page.evaluate(
        "fetch('/api/state', {headers: {'X-Exempla': localStorage.getItem('exempla-session')}})"
        ".then((answer) => answer.json())"
    )


def counts(page: Any) -> dict[str, int]:
    return state(page)["counts"]


def version(page: Any) -> int:
    return state(page)["version"]


def states(page: Any) -> dict[int, str]:
    changes = state(page)["changes"]
    return {change["row"]: change["action"] for change in changes if change["action"] != "pending"}


def press_through(page: Any, keys: str) -> None:
    """One key per card, each once the card before it has gone."""
    for key in keys:
        here = row(page)
        page.keyboard.press("Space" if key == " " else key)
        page.wait_for_selector(f"#card:not([data-row='{here}'])")
