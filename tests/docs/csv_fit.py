"""Tables of what a fit costs beside an epoch, and of whole jobs beside peers."""

from __future__ import annotations

from typing import Any

import pandas as pd

from tests.docs.csv_lines import line, table

MODELS = {"mlp": "MLP, 203 530 parameters, 60 000 images", "cnn": "CNN, 105 194, 20 000 images"}


def fitting() -> list[str]:
    """A line for each model and loader: before and now, in epochs of the same run."""
    found, out = table("fit_cost"), []
    for (model, loader), part in found.groupby(["model", "loader"]):
        both = {row.code: row for row in part.itertuples()}
        before, now = both["before"], both["now"]
        out.append(
            line(
                MODELS[model],
                loader,
                f"{now.batch_of_fit:,}".replace(",", " "),
                f"{now.epoch_s} s, {now.epoch_mib:.1f} MiB",
                f"{before.fisher_times:.1f} × → {now.fisher_times:.1f} ×",
                f"{before.fit_times:.1f} × → {now.fit_times:.1f} ×",
                f"{passing(before):.0f} → {passing(now):.0f} MiB",
            )
        )
    return out


def budgets() -> list[str]:
    """A line for each network and budget: cost, and what is lost beside the exact embedding."""
    out = []
    for row in table("budget").itertuples():
        lds = f"{row.lds_first:.3f} / {row.lds_second:.3f}"
        cells = (f"{row.fit_epochs:.1f}", f"{row.error_picks} of 50", f"{row.correlation:.3f}", lds)
        out.append(line(f"{row.parameters:,}", row.budget, *cells))
    return out


def passing(row: Any) -> float:
    return row.fit_mib - row.kept_mib


def whole_jobs() -> list[str]:
    out = []
    for row in table("bench_jobs").itertuples():
        quality = "" if pd.isna(row.quality) else f"{row.judged_by} {row.quality:.3f}"
        cells = (f"{row.seconds:.2f} s", f"{row.times:.2f} ×", f"{row.mib:.0f} MiB", quality)
        out.append(line(row.title, row.who, *cells).replace("|  |", "| |"))
    return out
