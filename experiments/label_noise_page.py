"""The tables, the reliability diagrams and the page of `label_noise`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t as student

from experiments.label_cases import KINDS, REPORT, TUNED

__all__ = ["write"]


def write(found: pd.DataFrame, before: pd.DataFrame | None, edges: np.ndarray, out: Path) -> Path:
    """label_noise.csv, the figure and the page."""
    found.to_csv(out / "label_noise.csv", index=False, float_format="%.5g")
    plot(found, edges, out / "label_noise.png")
    parts = [INTRODUCTION, counted(found), orders(found, before), numbers(found)]
    page = out / "label_noise.md"
    page.write_text("\n".join(parts))
    return page


def counted(found: pd.DataFrame) -> str:
    """Which cases there are."""
    seeds = found.groupby("data").seed.nunique()
    said = ", ".join(
        f"{name} ({count}{'' if name in TUNED else ', never tuned on'})"
        for name, count in seeds.items()
    )
    done = f"{len(found)} of the {len(REPORT)} planned cases were run"
    return f"{done}. Seeds of each set, not all with every kind: {said}.\n"


def numbers(found: pd.DataFrame) -> str:
    """Expected ÷ true, and how often the interval contains the truth."""
    ratio = found.assign(ratio=found.expected / found.planted)
    inside = (found.low <= found.planted) & (found.planted <= found.high)
    lines = [row(["data", *KINDS]), row(["---"] * (1 + len(KINDS)))]
    for data, part in ratio.groupby("data"):
        cells = []
        for kind in KINDS:
            r = part[part.kind == kind].ratio
            cells.append(f"{r.mean():.2f} ({r.min():.2f} – {r.max():.2f})" if len(r) else "")
        lines.append(row([data, *cells]))
    for title, good in (
        ("**within 0.7 to 1.4**", ratio.ratio.between(0.7, 1.4)),
        ("**in the 90 % interval**", inside),
    ):
        lines.append(row([title, *(f"{good[found.kind == kind].mean():.0%}" for kind in KINDS)]))
    return "\n".join(lines) + "\n"


def orders(found: pd.DataFrame, before: pd.DataFrame | None) -> str:
    """Share of wrong labels among as many first rows: ours, the earlier version's, others'."""
    both = found
    rivals = {name: column for name, column in RIVALS.items() if column in found}
    if before is not None:
        keys = ["data", "kind", "rate", "seed"]
        both = found.merge(before[[*keys, "found"]], on=keys, suffixes=("", "_before"), how="left")
        rivals["earlier version"] = "found_before"
    lines = []
    for by, names in (("kind", KINDS), ("data", sorted(both["data"].unique()))):
        lines += ["", row([by, "`fix_labels`", *rivals]), row(["---"] * (2 + len(rivals)))]
        for name in names:
            part = both[both[by] == name]
            if len(part):
                cells = (difference(part.found, part[column]) for column in rivals.values())
                lines.append(row([name, f"{part.found.mean():.3f}", *cells]))
    return "\n".join(lines[1:]) + "\n"


RIVALS = {
    "curated rows alone": "curated_only",
    "training loss": "training_loss",
    "5-fold self-confidence": "self_confidence",
    "cleanlab, normalized margin": "cleanlab_normalized_margin",
}
"""Columns of the CSV that are compared; docs/measure_label_baselines.py makes the first two."""


def difference(ours: pd.Series, theirs: pd.Series) -> str:
    """Their mean, and ours minus theirs."""
    both = theirs.notna()
    d = (ours[both] - theirs[both]).to_numpy()
    if len(d) < 2:
        return ""
    half = student.ppf(0.975, len(d) - 1) * d.std(ddof=1) / np.sqrt(len(d))
    return f"{theirs[both].mean():.3f} ({d.mean():+.3f} ± {half:.3f})"


def row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def plot(found: pd.DataFrame, edges: np.ndarray, path: Path) -> None:
    """How often rows of each probability are wrong, one panel a kind."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, len(KINDS), figsize=(3.2 * len(KINDS), 3.4), layout="constrained")
    bins = range(len(edges) - 1)
    colours = {data: f"C{i}" for i, data in enumerate(sorted(found["data"].unique()))}
    for ax, kind in zip(axes, KINDS, strict=True):
        for data, part in found[found.kind == kind].groupby("data"):
            rows = np.array([part[f"rows_{b}"].sum() for b in bins])
            many = rows >= 30
            if many.any():
                p = np.array([part[f"sum_{b}"].sum() for b in bins])[many] / rows[many]
                w = np.array([part[f"wrong_{b}"].sum() for b in bins])[many] / rows[many]
                ax.plot(p, w, marker="o", ms=3, lw=1, label=data, color=colours[str(data)])
        ax.plot([0, 1], [0, 1], color="grey", lw=1, ls=":")
        ax.set(
            title=kind, xlabel="stated probability", ylabel="share wrong" if ax is axes[0] else ""
        )
    axes[0].legend(fontsize=6)
    fig.savefig(path, dpi=110)
    plt.close(fig)


INTRODUCTION = """# Kinds of wrong labels

The tables of docs/studies/label_noise.md; the page says what they mean.

![reliability](label_noise.png)
"""
