"""Matplotlib figures: the explained-share curve, and mistakes beside their causes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from exempla.atomic import replacing
from exempla.checks import renamed_options
from exempla.report.drawings.curve import explained_shares
from exempla.report.drawings.thumbnails import as_image
from exempla.report.evidence import evidence_of, strongest, varied_order
from exempla.report.views import Content, View, confusions
from exempla.results import Explanation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_evidence", "plot_explanation"]

OPPONENT, PROPONENT, INK = "#b3261e", "#1f6f4a", "#333333"


def plot_explanation(explanation: Explanation) -> Figure:
    """Weights of the picked examples, and how much each pick added.

    >>> import numpy as np
    >>> from exempla.report.drawings.plots import plot_explanation
    >>> callable(plot_explanation)
    True
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    ranks = np.arange(1, len(explanation) + 1)
    colours = np.where(np.asarray(explanation.alignment) < 0, OPPONENT, PROPONENT)
    left.bar(ranks, explanation.weights, color=list(colours), width=0.8)
    left.axhline(0, color=INK, linewidth=0.6)
    left.set(xlabel="pick", ylabel="weight", title="Weights (red: opponents)")
    right.plot(np.r_[0, ranks], 100 * np.r_[0, explained_shares(explanation)], color=PROPONENT)
    right.set(xlabel="picks", ylabel="% explained", title="Explained share", ylim=(0, None))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


@renamed_options(beside="others")
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
    """Questioned images, each beside the training images that bear on it most.

    Those come first on which the picked examples bear most, confusions (true, predicted) taking
    turns. With `path`, a PNG is written there.

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
    best = strongest(found, explanation.side, others)
    shown = varied_order(found, best, confusions(test_view, len(best)))[:questioned]
    columns = max(1, min(columns, len(shown)))
    rows, width = -(-len(shown) // columns), 1 + others + 1  # the last is a gap between blocks
    ratios = ([1.0] * (width - 1) + [0.12]) * columns
    figure = Figure(figsize=(0.95 * sum(ratios) + 0.1, 1.14 * rows + 0.1), layout="constrained")
    grid: Any = figure.subplots(rows, len(ratios), squeeze=False, width_ratios=ratios)
    for axes in grid.flat:
        axes.axis("off")
    for place, j in enumerate(shown):
        row, column = divmod(place, columns)
        line = grid[row, column * width : (column + 1) * width]
        content = test_view.show(j)
        said = f", said {content.predicted}" if content.predicted is not None else ""
        _draw(line[0], content, f"true {content.label}{said}", INK, bold=True)
        for axes, i in zip(line[1:-1], best[j]):
            example = train_view.show(int(explanation.indices[i]))
            colour = OPPONENT if found[i, j] < 0 else PROPONENT
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
