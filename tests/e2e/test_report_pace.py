"""A report of 300 pictures: small, ready at once, and smooth to scroll.

Times are judged against a fixed loop run in the same page at the same moment, so that a busy
machine slows the mark as much as the page.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import exempla
from exempla.report import ImageView, write_report

pytestmark = pytest.mark.browser

ORDINARY_MS = 60.0
"""What LOOP takes on an ordinary laptop."""
LOOP = """
() => {
  const start = performance.now();
  let x = 0;
  for (let i = 0; i < 5e7; i++) x = (x * 31 + i) | 0;
  return [performance.now() - start, x][0];
}
"""
WATCH = """
() => {
  window.longest = 0;
  new PerformanceObserver((list) => {
    const times = list.getEntries().map((entry) => entry.duration);
    window.longest = Math.max(window.longest, ...times);
  }).observe({ entryTypes: ["longtask"] });
}
"""
READY = "() => performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    X, y = load_digits(return_X_y=True)
    model = LogisticRegression(max_iter=300).fit(X[:400] / 16, y[:400])
    asked = (X[400:430] / 16, y[400:430])
    options = {"k": 300, "side": "both", "progress": False}
    answer = exempla.explain(model, (X[:400] / 16, y[:400]), asked, **options)
    noise = np.random.default_rng(0).integers(0, 256, (430, 128, 128, 3), dtype=np.uint8)
    path = tmp_path_factory.mktemp("pace") / "report.html"
    return write_report(
        answer,
        path,
        train_view=ImageView(noise[:400], labels=y[:400]),
        test_view=ImageView(noise[400:], labels=y[400:430]),
        limit=300,
    )


def test_small_ready_and_smooth(report: Any, tab: Any) -> None:
    assert report.stat().st_size < 5_000_000
    page = tab(report.as_uri())
    pictures = page.evaluate("() => document.querySelectorAll('image').length")
    assert pictures >= 300
    slowness = max(1.0, page.evaluate(LOOP) / ORDINARY_MS)
    assert page.evaluate(READY) < 1000 * slowness
    page.evaluate(WATCH)
    height = page.evaluate("() => document.body.scrollHeight")
    for position in range(0, height, 800):
        page.evaluate("(y) => window.scrollTo(0, y)", position)
        page.evaluate("() => new Promise(requestAnimationFrame)")
    assert page.evaluate("() => window.scrollY") > 0
    assert page.evaluate("() => window.longest") < 200 * slowness
