"""Remake the pictures of the report and the review page: `python docs/make_screenshots.py`.

Everything shown is scikit-learn's own data; the pages are those that the commands write. Needs the
extras [dev] and [review], and Chromium.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright
from sklearn.datasets import load_breast_cancer

IMAGES = Path(__file__).parent / "images"
SHOTS = (("desktop", 1280, 860, "light"), ("dark", 1280, 860, "dark"), ("phone", 390, 844, "light"))
COLOURS = 96
"""A palette keeps the pictures small."""
EXEMPLA = [sys.executable, "-m", "exempla.cli.main"]


def cells(path: Path) -> Path:
    """A table with some wrong labels, and a column that says which rows a person has checked."""
    table = load_breast_cancer(as_frame=True).frame.iloc[:, [0, 1, 6, 7, 20, 27, 30]]
    table = table.sample(frac=1, random_state=0)
    table["target"] = np.where(table["target"] == 1, "benign", "malignant")
    table["checked"] = (np.arange(len(table)) < 100).astype(int)
    rows = table.index[100:][::20]
    other = np.where(table.loc[rows, "target"] == "benign", "malignant", "benign")
    table.loc[rows, "target"] = other
    table.to_csv(path, index=False)
    return path


@contextmanager
def reviewed(folder: Path) -> Iterator[str]:
    """The address of the review page, while it is served."""
    command = [*EXEMPLA, "review", str(folder), "--no-browser", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield json.loads(server.stdout.readline())["address"]
    finally:
        server.terminate()
        server.wait()


def shoot(browser: Any, name: str, address: str) -> None:
    """The first screen at every width and scheme, in one tab: the review's address works once."""
    page = browser.new_page()
    page.goto(address)
    for kind, width, height, scheme in SHOTS:
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        page.wait_for_timeout(600)
        page.screenshot(path=IMAGES / f"{name}-{kind}.png")
        small(IMAGES / f"{name}-{kind}.png")
    page.close()


def small(source: Path, target: Path | None = None) -> None:
    """A picture with few colours."""
    picture = Image.open(source).convert("RGB").quantize(COLOURS)
    picture.save(target or source, optimize=True)


def run() -> None:
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        subprocess.run([*EXEMPLA, "demo", "--quiet", "--out", str(folder / "demo")], check=True)
        file = cells(folder / "cells.csv")
        words = ["--label", "target", "--curated-column", "checked", "--out", str(folder / "fix")]
        subprocess.run([*EXEMPLA, "fix-labels", str(file), *words, "--quiet"], check=True)
        small(folder / "demo" / "mistakes.png", IMAGES / "mistakes.png")
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        shoot(browser, "report", (folder / "demo" / "report.html").as_uri())
        with reviewed(folder / "fix") as address:
            shoot(browser, "review", address)
        browser.close()


if __name__ == "__main__":
    run()
