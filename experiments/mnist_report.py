"""The MNIST experiment's table, figures and page, from the results written so far."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from scipy import stats

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from experiments.paper_cnn import Digits

__all__ = ["CLEAN", "SBQ_NAME", "WITHOUT", "write"]

Run = dict[str, str]
"""A line of runs.csv: one training."""

CLEAN = "influence, three layers, checkpoints"
"""What `clean` does, given the networks with five moments of their training."""
WITHOUT = "influence, three layers"
"""What it does with the trained networks alone."""
SBQ_NAME = "SBQ cosine, three layers"
DEVELOPMENT = ("0", "2", "3")
"""Seeds on which checkpoints were found to help; what they show is no fresh evidence."""
FRESH = "mean of the fresh sets"
COMPARED = {
    CLEAN: "clean",
    WITHOUT: "without checkpoints",
    f"{CLEAN}, re-weighed": "targets re-weighed",
    "random": "random",
}
"""What was run on other networks too, and its heading."""
CONFIRMED, DISPUTED = "label confirmed", "label disputed"
DRAWS = 4000
MEASURES = ("target_fixed", "other_fixed", "accuracy")
SHEET = 60


def write(out: Path, digits: Digits, data: Path) -> Path:
    """mnist.csv, mnist.png, mnist.svg, mnist_digits.png and mnist.md."""
    sets = {name: read(folder) for name, folder in folders(out).items()}
    question, runs = sets["1"]
    cells = pd.DataFrame([row for run in runs for row in cells_of(run, question)])
    table = summary(cells[cells.method != "base"])
    table.to_csv(out / "mnist.csv", index=False)
    rankings = dict(np.load(out / "rankings.npz"))
    plot(table, question["sizes"], out)
    contact_sheet(digits, question, rankings, out)
    votes = read_votes(data / "mnist" / "mnist_test_mturk_cleanlab.json")
    judged = people(cells_per_digit(runs, question), votes)
    judged.to_csv(out / "mnist_people.csv", index=False)
    page = out / "mnist.md"
    others = pd.concat([largest_removal(name, *one) for name, one in sets.items()])
    others.to_csv(out / "mnist_seeds.csv", index=False)
    left = left_wrong([one for name, one in sets.items() if name not in DEVELOPMENT], votes)
    told = words(table, question, runs, judged, others, left)
    page.write_text(told)
    return page


def read(folder: Path) -> tuple[dict[str, Any], list[Run]]:
    """What was asked of one set of networks, and its trainings."""
    with (folder / "runs.csv").open(newline="") as file:
        return json.loads((folder / "question.json").read_text()), list(csv.DictReader(file))


def folders(out: Path) -> dict[str, Path]:
    """The sets of networks by their seeds."""
    return {"1": out} | {f.name.removeprefix("seed"): f for f in sorted(out.glob("seed*"))}


def largest_removal(name: str, question: dict[str, Any], runs: list[Run]) -> pd.DataFrame:
    """The trainings of the compared methods on one set of networks, at the largest removal."""
    cells = pd.DataFrame([cell for run in runs for cell in cells_of(run, question)])
    kept = cells.method.isin(list(COMPARED)) & (cells.removed == max(question["sizes"]))
    return cells[kept].assign(networks=name, split=name + "/" + cells.split.astype(str))


def by_seed(cells: pd.DataFrame) -> pd.DataFrame:
    """Each set of networks summarised: the share of the target that the compared methods repair."""
    groups = cells[cells.method.isin(list(COMPARED))].groupby("networks")
    return pd.concat([summary(g, ("target_fixed",)).assign(networks=n) for n, g in groups])


def over_sets(
    cells: pd.DataFrame, method: str, less: str | None = None
) -> tuple[float, float, int]:
    """Mean over the fresh sets of networks, half of its 95 % interval, and how many sets.

    A set of networks is what was drawn anew; its splits and trainings share networks and targets.
    So each set counts once, and the interval is Student's over sets. `less`: the difference to
    another method on the same sets.
    """
    fresh = cells[~cells.networks.astype(str).isin(DEVELOPMENT)]
    splits = fresh.groupby(["method", "networks", "split"]).target_fixed.mean()
    means = splits.groupby(["method", "networks"]).mean()
    found = means[method] if less is None else (means[method] - means[less]).dropna()
    half = stats.t.ppf(0.975, len(found) - 1) * found.std(ddof=1) / len(found) ** 0.5
    return float(found.mean()), float(half), len(found)


def verdict(cells: pd.DataFrame) -> str:
    """Return what the fresh sets of networks show, as the page states it."""

    def text(method: str, less: str) -> str:
        mean, half, _ = over_sets(cells, method, less)
        return f"{mean:+.3f} ± {half:.3f}"

    mean, half, sets = over_sets(cells, CLEAN, WITHOUT)
    shown = "is shown" if mean > half else "is not shown"
    ours, plain, random = (sets_text(cells, m) for m in (CLEAN, WITHOUT, "random"))
    return f"""Over the {sets} fresh sets of networks (mean and 95 % interval over sets), `clean`
corrects {ours} of the target digits, {plain} without snapshots; removing random digits
corrects {random}. `clean` minus random is {text(CLEAN, "random")}: removal corrects the
queried digits. Snapshots (checkpoints) add {text(CLEAN, WITHOUT)}:
a gain from checkpoints {shown} by {sets} sets."""


def sets_text(cells: pd.DataFrame, method: str) -> str:
    mean, half, _ = over_sets(cells, method)
    return f"{mean:.2f} ± {half:.2f}"


def cells_of(run: Run, question: dict[str, Any]) -> list[dict[str, Any]]:
    """One line per split: a training that knew no target counts for all of them."""
    wrong = np.array(run["wrong"].split(), dtype=np.int64)
    splits = range(len(question["targets"])) if int(run["split"]) < 0 else [int(run["split"])]
    return [
        {
            "method": run["method"],
            "removed": int(run["removed"]),
            "split": split,
            "seed": int(run["seed"]),
            "target_fixed": 1.0 - np.isin(question["targets"][split], wrong).mean(),
            "other_fixed": 1.0 - np.isin(question["others"][split], wrong).mean()
            if question["others"][split]
            else np.nan,
            "accuracy": float(run["accuracy"]),
        }
        for split in splits
    ]


def summary(cells: pd.DataFrame, measures: tuple[str, ...] = MEASURES) -> pd.DataFrame:
    """Means over splits with 95% intervals: splits are drawn anew, then trainings within each."""
    rows = []
    for (method, removed), part in cells.groupby(["method", "removed"], sort=False):
        row: dict[str, Any] = {
            "method": method,
            "removed": removed,
            "splits": part.split.nunique(),
            "trainings": part.groupby("split").seed.nunique().sum()
            if method not in ("nothing", "random", "loss", "self-influence")
            else part.seed.nunique(),
        }
        for name in measures:
            groups = [g[name].to_numpy() for _, g in part.groupby("split")]
            mean, low, high = interval(groups)
            row |= {name: mean, f"{name}_low": low, f"{name}_high": high}
        rows.append(row)
    table = pd.DataFrame(rows)
    return table.sort_values(["removed", "target_fixed"], ascending=[True, False])


def interval(groups: list[np.ndarray]) -> tuple[float, float, float]:
    rng = np.random.default_rng(0)
    draws = np.empty(DRAWS)
    for i in range(DRAWS):
        picked = rng.integers(len(groups), size=len(groups))
        draws[i] = np.mean([rng.choice(groups[j], len(groups[j])).mean() for j in picked])
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(np.mean([g.mean() for g in groups])), float(low), float(high)


def plot(table: pd.DataFrame, sizes: list[int], out: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5), width_ratios=(3, 2))
    largest = table[(table.removed == max(sizes)) | (table.method == "nothing")]
    largest = largest.sort_values("target_fixed")
    at = np.arange(len(largest))
    for offset, name, colour, label in (
        (0.2, "target_fixed", "#1b6ca8", "target half"),
        (-0.2, "other_fixed", "#b0b7bf", "half never used as target"),
    ):
        mean = largest[name].to_numpy()
        error = np.abs(np.stack([largest[f"{name}_low"], largest[f"{name}_high"]]) - mean)
        left.barh(at + offset, mean, 0.38, xerr=error, color=colour, label=label)
    left.set_yticks(at, largest.method)
    left.set_xlabel(f"share of wrong 4s and 9s judged right after removing {max(sizes)}")
    left.legend(loc="lower right")
    for method in table.method.unique():
        part = table[(table.method == method)].sort_values("removed")
        if len(part) < 2:
            continue
        right.plot(part.removed, part.target_fixed, "o-", label=method)
        right.fill_between(part.removed, part.target_fixed_low, part.target_fixed_high, alpha=0.15)
    nothing = table[table.method == "nothing"]
    if len(nothing):
        right.axhline(nothing.target_fixed.iloc[0], ls=":", color="black", label="nothing removed")
    right.set_xlabel("training digits removed")
    right.set_ylabel("share of the target judged right")
    # under the axes: some names are longer than the panel is wide
    right.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.12))
    figure.tight_layout()
    for ending in ("png", "svg"):
        figure.savefig(out / f"mnist.{ending}", dpi=150)
    plt.close(figure)


def contact_sheet(
    digits: Digits, question: dict[str, Any], rankings: dict[str, np.ndarray], out: Path
) -> None:
    """The first target and the digits that influence and SBQ blame for it."""
    shown = [("the questioned digits", digits.test_x, digits.test_y, question["targets"][0])]
    for key, rows in rankings.items():
        name, split = key.rsplit("|", 1)
        if split == "0" and name in (CLEAN, SBQ_NAME):
            shown.append((name, digits.train_x, digits.train_y, list(rows[:SHEET])))
    lines = [max(1, -(-len(rows) // 15)) for *_, rows in shown]
    figure = plt.figure(figsize=(11, 1.0 * sum(lines) + 0.5 * len(shown)))
    heights = [n + 0.5 for n in lines]
    parts: Any = figure.subfigures(len(shown), 1, height_ratios=heights, squeeze=False).ravel()
    for part, (title, images, labels, rows), height in zip(parts, shown, lines, strict=True):
        part.suptitle(title, fontsize=10)
        axes = part.subplots(height, 15, squeeze=False).ravel()
        for axis in axes:
            axis.axis("off")
        for axis, row in zip(axes, rows, strict=False):
            axis.imshow(images[row], cmap="gray_r")
            axis.set_title(str(labels[row]), fontsize=7, pad=1)
    figure.savefig(out / "mnist_digits.png", dpi=130)
    plt.close(figure)


def cells_per_digit(runs: list[Run], question: dict[str, Any]) -> pd.DataFrame:
    """Each questioned digit in each training with the largest removal, or none."""
    rows = []
    for run in runs:
        wrong = set(run["wrong"].split())
        if int(run["removed"]) not in (0, max(question["sizes"])) or run["method"] == "base":
            continue
        splits = range(len(question["targets"])) if int(run["split"]) < 0 else [int(run["split"])]
        for split in splits:
            for digit in question["targets"][split]:
                rows.append((run["method"], digit, str(digit) not in wrong))
    return pd.DataFrame(rows, columns=["method", "digit", "right"])


def read_votes(path: Path) -> dict[int, str]:
    """What most of five people said of a test digit's label."""
    if not path.exists():
        return {}
    given = {entry["id"]: entry["mturk"]["given"] for entry in json.loads(path.read_text())}
    return {digit: CONFIRMED if votes >= 3 else DISPUTED for digit, votes in given.items()}


def left_wrong(fresh: list[tuple[dict[str, Any], list[Run]]], votes: dict[int, str]) -> str:
    """On which digits `clean` fails, over all trainings of the fresh networks."""
    cells = pd.concat([cells_per_digit(runs, question) for question, runs in fresh])
    wrong = cells[(cells.method == CLEAN) & ~cells.right]
    disputed = wrong[wrong.digit.map(votes) == DISPUTED]
    return (
        f"Of {len(wrong)} failures of `clean` on fresh networks, {len(disputed)} are on "
        f"{disputed.digit.nunique()} digits whose labels people dispute."
    )


def people(cells: pd.DataFrame, votes: dict[int, str]) -> pd.DataFrame:
    """Share of targets judged right, by what five people said of the digit's label."""
    verdict = cells.digit.map(votes).fillna("not judged by people")
    cells = cells.assign(verdict=verdict)
    counted = cells.groupby("verdict").digit.nunique()
    shares = cells.pivot_table(index="method", columns="verdict", values="right")
    shares = shares.sort_values(shares.columns[0], ascending=False)
    return shares.rename(columns=lambda v: f"{v} ({counted[v]})").reset_index()


def markdown(frame: pd.DataFrame) -> str:
    """A table in Markdown, numbers to three or four digits."""

    def cell(value: Any) -> str:
        return f"{value:.4f}" if isinstance(value, float) else str(value)

    lines = [list(frame.columns), ["---"] * len(frame.columns)]
    lines += [[cell(v) for v in row] for row in frame.itertuples(index=False)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def interval_text(row: Any, name: str = "target_fixed", digits: int = 2) -> str:
    mean, low, high = (getattr(row, name + end) for end in ("", "_low", "_high"))
    return f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def by_networks(cells: pd.DataFrame) -> pd.DataFrame:
    """A line per set of networks, a column per method: share of the target repaired."""
    others = by_seed(cells)
    cell = others.apply(lambda row: f"{interval_text(row)} ({row.trainings})", axis=1)
    wide = others.assign(cell=cell).pivot(index="networks", columns="method", values="cell")
    wide = wide.reindex(columns=[m for m in COMPARED if m in wide]).fillna("")
    fresh = cells[~cells.networks.astype(str).isin(DEVELOPMENT)].method.unique()
    wide.loc[FRESH] = [sets_text(cells, m) if m in fresh else "" for m in wide]
    return wide.rename(columns=COMPARED).reset_index()


def with_intervals(table: pd.DataFrame) -> pd.DataFrame:
    """The summary as people read it: intervals beside their means."""
    rows = [
        {
            "method": row.method,
            "removed": row.removed,
            "trainings": row.trainings,
            "target judged right": interval_text(row),
            "other half judged right": interval_text(row, "other_fixed"),
            "accuracy": interval_text(row, "accuracy", 4),
        }
        for row in table.itertuples(index=False)
    ]
    return pd.DataFrame(rows)


def words(
    table: pd.DataFrame,
    question: dict[str, Any],
    runs: list[Run],
    judged: pd.DataFrame,
    others: pd.DataFrame,
    left: str,
) -> str:
    largest = max(question["sizes"])

    def line(method: str, removed: int) -> str:
        found = table[(table.method == method) & (table.removed == removed)]
        return interval_text(found.iloc[0]) if len(found) else "not measured"

    base = [float(r["accuracy"]) for r in runs if r["method"] == "base"]
    ours, blank = line(CLEAN, largest), line("nothing", 0)
    return f"""# MNIST: removing the digits behind wrong 4s and 9s

**The paper's claim.** Removing the training digits that SBQ selects for the misjudged 4s and 9s
raises accuracy up to 200 removed, while removing digits by chance lowers it.

**What was run.** {question["train"]} training and {question["test"]} test digits; the paper's
network ({len(base)} of them explained, test accuracy {np.mean(base):.4f}); {len(runs)} trainings
in all. Targets per split: {", ".join(str(len(t)) for t in question["targets"])} digits that most
of these networks get wrong. A training with nothing removed judges {blank} of them right by luck.

**What was found.** {verdict(others)}

`clean` is influence over convolution 2, the fully connected layer and the softmax, of the networks
with five moments of their training each; {largest} digits are removed. On the networks of seed 1,
with intervals over splits and trainings: `clean` {ours}, without checkpoints
{line(WITHOUT, largest)}; the last layer alone {line("influence, last layer", largest)}; the paper's
SBQ on unit rows
{line(SBQ_NAME, largest)} (three layers), {line(SBQ_NAME + ", checkpoints", largest)} (with
checkpoints) and {line("SBQ cosine, last layer", largest)} (last layer); the paper to the letter
{line("SBQ literal, last layer", largest)}; by chance {line("random", largest)}. The columns
`other half` and `accuracy` say what happened to the half never asked about and to the whole test
set: removal mends what was questioned.

![shares](mnist.png)

**Choices.** The damping is the rule of influence everywhere; three rules were compared on seeds 0
and 1, without checkpoints ([first](mnist_seed0.csv) and [later](mnist_earlier.csv) figures by
split; [all methods then](mnist_earlier_methods.csv)). On seeds {", ".join(DEVELOPMENT)} three ways
of doing better were tried: checkpoints, which were kept for their gain there; re-weighing the
targets after every pick by how wrong they still should be; and both. Re-weighing made no clear
difference. The other seeds, called fresh, were run once, afterwards (though seed 1 had seen the
choice of the damping).

Share of the target repaired, with 95 % intervals over splits and trainings (how many trainings).
These say how sure the figure of one set is; from set to set it differs by more, which is why the
figures above are by sets. Every training behind this table: [mnist_seeds.csv](mnist_seeds.csv).

{markdown(by_networks(others))}

Cur50 in the paper was picked by hand from the training digits. No person has judged those for us,
so it is replaced by the selected digits of highest loss, which is not the same thing.

## Every method, on the networks and splits of seed 1

{markdown(with_intervals(table))}

## By what people said of the questioned digits

Five people each re-judged 100 test digits that other models doubted. {left}
Share of the targets judged right on the networks of seed 1, by verdict (how many digits):

{markdown(judged)}

## What was removed

![digits](mnist_digits.png)
"""
