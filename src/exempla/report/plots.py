"""Drawings of a report: effects as inline SVG, thumbnails, and Matplotlib figures.

`effect_plot` returns coordinates, which the templates draw without a script.
`Gallery` stores each thumbnail once, as WebP, within a size limit.
"""

from __future__ import annotations

import base64
import hashlib
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from exempla.images import as_image, fitted, webp
from exempla.io import replacing
from exempla.report.views import Content, View, evidence_of, strongest_picks
from exempla.report.words import signed, within
from exempla.results import Explanation, Selection

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_OPPONENT, _PROPONENT, _INK = "#b3261e", "#1f6f4a", "#333333"


def explained_shares(explanation: Selection) -> np.ndarray:
    """Return the share of ‖μ‖² explained after each pick: Σ_{i≤j} gain_i / ‖μ‖²."""
    return np.cumsum(explanation.gains) / (explanation.target_norm2 or 1.0)


def plot_explanation(explanation: Explanation) -> Figure:
    """Plot the weights of the picked examples and the explained share."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    ranks = np.arange(1, len(explanation) + 1)
    colours = np.where(np.asarray(explanation.alignment) < 0, _OPPONENT, _PROPONENT)
    left.bar(ranks, explanation.weights, color=list(colours), width=0.8)
    left.axhline(0, color=_INK, linewidth=0.6)
    left.set(xlabel="pick", ylabel="weight", title="Weights (red: opponents)")
    right.plot(np.r_[0, ranks], 100 * np.r_[0, explained_shares(explanation)], color=_PROPONENT)
    right.set(xlabel="picks", ylabel="% explained", title="Explained share", ylim=(0, None))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def plot_evidence(
    explanation: Explanation,
    train_view: View,
    test_view: View,
    path: str | Path | None = None,
    *,
    questioned: int = 8,
    others: int = 4,
    columns: int = 2,
    evidence: np.ndarray | None = None,
) -> Figure:
    """Plot queried images, each beside the training images with the largest influence on it.

    Confusions (true, predicted) take turns. If `path` is given, a PNG is written there.

    >>> from sklearn.datasets import load_digits
    >>> from sklearn.linear_model import LogisticRegression
    >>> import exempla
    >>> from exempla.report import ImageView, plot_evidence
    >>> X, y = load_digits(return_X_y=True)
    >>> model = LogisticRegression(max_iter=500).fit(X[:200] / 16, y[:200])
    >>> answer = exempla.explain(model, (X[:200] / 16, y[:200]), (X[200:220] / 16, y[200:220]), k=9)
    >>> train, test = (ImageView(X[s].reshape(-1, 8, 8), labels=y[s]) for s in (
    ...     slice(200), slice(200, 220)))
    >>> len(plot_evidence(answer, train, test, questioned=2).axes)
    12
    """
    from matplotlib.figure import Figure

    found = evidence_of(explanation) if evidence is None else evidence
    if found is None:
        found = np.repeat(np.asarray(explanation.alignment)[:, None], explanation.n_test, axis=1)
    best = strongest_picks(found, explanation.side, others, test_view)
    shown = list(best)[:questioned]
    columns = max(1, min(columns, len(shown)))
    rows, width = -(-len(shown) // columns), 1 + others + 1  # the last one separates blocks
    ratios = ([1.0] * (width - 1) + [0.12]) * columns
    figure = Figure(figsize=(0.95 * sum(ratios) + 0.1, 1.14 * rows + 0.1), layout="constrained")
    grid: Any = figure.subplots(rows, len(ratios), squeeze=False, width_ratios=ratios)
    for axes in grid.flat:
        axes.axis("off")
    for place, j in enumerate(shown):
        row, column = divmod(place, columns)
        line = grid[row, column * width : (column + 1) * width]
        content = test_view.show(j)
        said = f", predicted {content.predicted}" if content.predicted is not None else ""
        _draw(line[0], content, f"true {content.label}{said}", _INK, bold=True)
        for axes, i in zip(line[1:-1], best[j]):
            example = train_view.show(int(explanation.indices[i]))
            colour = _OPPONENT if found[i, j] < 0 else _PROPONENT
            _draw(axes, example, f"label {example.label}  {found[i, j]:+.2f}", colour)
    if path is not None:
        with replacing(path) as file:
            figure.savefig(file, dpi=110, format="png")
    return figure


def _draw(axes: Any, content: Content, caption: str, colour: str, bold: bool = False) -> None:
    axes.axis("on")
    axes.set(xticks=[], yticks=[])
    if content.image is not None:
        image = np.asarray(as_image(content.image))
        grey = "gray_r" if image.ndim == 2 else None
        axes.imshow(image, cmap=grey, vmin=0, vmax=255, interpolation="bicubic")
    axes.set_title(caption, fontsize=7.5, color=colour, pad=3, weight="bold" if bold else "normal")
    for spine in axes.spines.values():
        spine.set(color=colour, linewidth=2.2 if bold else 1.1)


_EFFECTS_WIDTH, _LINE = 360.0, 40.0


def effect_plot(explanation: Explanation, verification: Any = None) -> dict[str, Any] | None:
    """Return bars of the change in log-likelihood; None without an effect.

    `verification` is the result of `verify`. Each mark is a bar from zero, or a band around a mean:
    its name, its value in words, its kind ("ours", "chance" or "seen"), where it lies, and where
    its value is (`at`).
    """
    effect = explanation.removal
    if not effect or not math.isfinite(effect["log_likelihood"]):
        return None
    how = "measured" if effect.get("measured") else "predicted"
    mean, spread = effect["random_baseline"], effect["random_sd"]
    lines = [
        (f"removing these, {how}", "ours", effect["log_likelihood"], 0.0, 0.0),
        (f"random rows, {how}", "chance", mean, 2 * spread, spread),
    ]
    if verification is not None:
        found, half = _retrained(verification, "selected removed")
        lines.insert(1, ("removing these, retrained", "seen", found, half, half))
        found, half = _retrained(verification, "random removed")
        lines.append(("random rows, retrained", "chance", found, half, half))
    # A bar starts at zero; a deterministic model has no spread.
    ends = [(v - half, v + half) if half else sorted((0.0, v)) for _, _, v, half, _ in lines]
    low, high = min(0.0, *(a for a, _ in ends)), max(0.0, *(b for _, b in ends))
    scale = (_EFFECTS_WIDTH - 4.0) / ((high - low) or 1.0)
    marks = [
        {
            "name": name,
            "said": (within(value, spread) if half else signed(value)).replace("-", "−"),
            "kind": kind,
            "y": number * _LINE + 18,
            "x": round(2.0 + (first - low) * scale, 1),
            "width": round(max((last - first) * scale, 2.0), 1),
            "at": round(2.0 + (value - low) * scale, 1),
        }
        for number, ((name, kind, value, half, spread), (first, last)) in enumerate(
            zip(lines, ends, strict=True)
        )
    ]
    return {
        "marks": marks,
        "zero": round(2.0 - low * scale, 1),
        "width": _EFFECTS_WIDTH,
        "height": len(lines) * _LINE,
        "words": "; ".join(f"{mark['name']} {mark['said']}" for mark in marks),
    }


def _retrained(verification: Any, arm: str) -> tuple[float, float]:
    """Return the change of the queries' mean log-likelihood and half its 95 % interval."""
    runs = verification.runs
    asked = runs[runs.judged == "queried"].pivot(
        index="seed", columns="arm", values="log_likelihood"
    )
    change = (asked[arm] - asked["nothing removed"]).to_numpy(dtype=np.float64)
    spread = change.std(ddof=1) / np.sqrt(len(change)) if len(change) > 1 else 0.0
    return float(change.mean()), float(1.96 * spread)


_LARGEST = 128
"""Pixels on the longer side of a thumbnail."""
_TINY = 48
"""Up to this size, an image is stored losslessly."""
BUDGET = 3_600_000
"""Characters of all images of a page; the sizes and qualities below are tried until they fit."""
_LADDER = ((_LARGEST, 80), (96, 50), (48, 30))


class Thumbnail(NamedTuple):
    """The key and the size of an image on the page."""

    key: str
    width: int
    height: int


@dataclass
class Gallery:
    """Collects the images of a page; equal images are stored once."""

    pictures: dict[str, tuple[Thumbnail, Image.Image]] = field(default_factory=dict)

    def add(self, picture: Any) -> Thumbnail:
        """Add an image (array, Pillow image or path) and return its thumbnail."""
        image = fitted(as_image(picture, _LARGEST), _LARGEST)
        digest = hashlib.sha256(repr(image.size).encode() + image.tobytes()).hexdigest()[:16]
        if digest not in self.pictures:
            key = f"p{len(self.pictures)}"
            self.pictures[digest] = (Thumbnail(key, *image.size), image)
        return self.pictures[digest][0]

    def encoded(self) -> list[tuple[Thumbnail, str]]:
        """Return every image as a data URL, at the best quality that fits the limit."""
        out: list[tuple[Thumbnail, str]] = []
        for size, quality in _LADDER:
            out = [(t, _address(image, size, quality)) for t, image in self.pictures.values()]
            if sum(len(address) for _, address in out) <= BUDGET:
                break
        return out


def _address(image: Image.Image, size: int, quality: int) -> str:
    data = webp(fitted(image, size), quality=quality, lossless=max(image.size) <= _TINY)
    return "data:image/webp;base64," + base64.b64encode(data).decode()
