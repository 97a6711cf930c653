"""What the criteria of `benchmarks.truths.settings` choose, and the tables of the study.

    python -m benchmarks.truths.chosen --results FOLDER [--out docs/experiments]

FOLDER holds what `benchmarks.truths.removals` wrote. Three files are made of it: truths_choices.csv
(every candidate's mean LDS on the settings chosen on and on those reported), truths_left_out.csv
(every method on every truth) and truths_removal_test.csv.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

CHOSEN_ON, REPORTED_ON = ("choose", "choose new"), ("report", "report new")
PRESENT = {"one model": (2.0, 0.0), "five seeds": (2.0, 0.0), "eight snapshots": (1.0, 0.5)}
"""Damping and exponent of the library when the truths were made."""
NOW = PRESENT | {"eight snapshots": (1.0, 0.75)}
"""After the choice."""
SMALLEST_GAIN, LARGEST_LOSS, FORM_GAIN = 0.001, 0.02, 0.01


def candidates(lds: pd.DataFrame) -> pd.DataFrame:
    """One line for each candidate: the means, and the largest loss against the present value."""
    own = lds[(lds.method == "exempla") & (lds.seeds == "fresh") & lds["left out"].ne("1 %")]
    made = []
    for (models, form), group in own.groupby(["models", "form"], sort=False):
        table, plain = (
            lines.pivot_table(
                index=["part", "setting", "left out"], columns=["damping", "exponent"], values="lds"
            )
            for lines in (group, own[(own.models == models) & (own.form == "one")])
        )
        part = table.index.get_level_values("part")
        present = plain[PRESENT[str(models)]]
        for damping, exponent in table.columns:
            value = table[damping, exponent]
            on, reported = value[part.isin(CHOSEN_ON)], value[part.isin(REPORTED_ON)]
            loss = (present - value)[part.isin(REPORTED_ON)].max()
            made.append({
                "models": models, "form": form, "damping": damping, "exponent": exponent,
                "present": (damping, exponent) == PRESENT[str(models)] and form == "one",
                "settings chosen on": on.index.get_level_values("setting").nunique(),
                "mean, chosen on": round(on.mean(), 4),
                "settings reported": reported.index.get_level_values("setting").nunique(),
                "mean, reported": round(reported.mean(), 4),
                "largest loss, reported": round(loss, 4),
            })  # fmt: skip
    return pd.DataFrame(made)


def verdicts(table: pd.DataFrame) -> list[str]:
    """What is chosen for each use, and whether it is applied."""
    said = []
    for models, own in table.groupby("models", sort=False):
        plain = own[own.form == "one"]
        present = plain[plain.present].iloc[0]
        best = plain.loc[plain["mean, chosen on"].idxmax()]
        other = own[own.form != "one"]
        gain = best["mean, chosen on"] - present["mean, chosen on"]
        better = best["mean, reported"] > present["mean, reported"]
        applied = gain > SMALLEST_GAIN and better and best["largest loss, reported"] <= LARGEST_LOSS
        said.append(
            f"{models}: best {best.damping:g}, exponent {best.exponent:g} "
            f"({best['mean, chosen on']:.4f} against {present['mean, chosen on']:.4f}; reported "
            f"{best['mean, reported']:.4f} against {present['mean, reported']:.4f}, largest loss "
            f"{best['largest loss, reported']:.4f}): {'applied' if applied else 'not changed'}"
        )
        if len(other):
            form = other["mean, chosen on"].max() - best["mean, chosen on"]
            said.append(f"{models}: each layer's own weights {form:+.4f} (needed {FORM_GAIN})")
    return said


def left_out(lds: pd.DataFrame) -> pd.DataFrame:
    """Every method at the library's values on every truth."""
    ours = pd.concat(
        lds[(lds.method == "exempla") & (lds.models == models) & (lds.form == "one")
            & (lds.damping == damping) & (lds.exponent == exponent)]
        for models, (damping, exponent) in NOW.items()
    )  # fmt: skip
    best = (
        lds[(lds.method == "exempla") & (lds.form == "one") & (lds.exponent.isin((0.0, 0.75)))]
        .groupby(["setting", "left out", "seeds", "models"])["lds"]
        .max()
        .rename("best damping")
    )
    whole = pd.concat([ours, lds[lds.method != "exempla"]])
    whole = whole.merge(
        best.reset_index(), how="left", on=["setting", "left out", "seeds", "models"]
    )
    whole.loc[whole.method != "exempla", "best damping"] = None
    kept = ["setting", "part", "left out", "seeds", "retrainings", "method", "models", "lds",
            "best damping"]  # fmt: skip
    return whole[kept].sort_values(["part", "setting", "left out", "seeds"], kind="stable")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("docs/experiments"))
    options = parser.parse_args()
    lds = pd.read_csv(options.results / "lds.csv", low_memory=False)
    table = candidates(lds)
    print(*verdicts(table), sep="\n")
    table.to_csv(options.out / "truths_choices.csv", index=False)
    left_out(lds).to_csv(options.out / "truths_left_out.csv", index=False)
    removal = pd.read_csv(options.results / "removal.csv").drop(columns="rows")
    removal.to_csv(options.out / "truths_removal_test.csv", index=False)


if __name__ == "__main__":
    main()
