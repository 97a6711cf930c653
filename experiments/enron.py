"""Enron1: find the labels that were flipped, with a few hundred messages known to be right.

Run:  EXEMPLA_DATA=folder python -m experiments.enron --out results/enron [--fast]

4137 training and 1035 test messages, bag of words (min_df 5, English stop words); 500 training
messages are curated, 20 % of the other labels are flipped. Logistic regression with L2 1e-4 (it
memorises) and 1e-2 (it generalises), in units of the mean loss. Every method may use the curated
rows. Settings were developed on seeds from 100 on; the tables are of seeds 0 to 9.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from experiments.enron_literal import literal_sbq
from experiments.label_study import Trial, plot, run_trial, tables, verdicts

STRENGTHS = (1e-4, 1e-2)
KS = (50, 100, 200, 400, 727)
REPORTED, FURTHER = range(10), range(10, 20)
"""Seeds of the tables, and seeds that show how much of them is luck."""


def run(out: Path, fast: bool, data: Path, seeds: Iterable[int] = (*REPORTED, *FURTHER)) -> Path:
    """Run what is missing, then write enron.csv, enron.png, enron.svg and enron.md."""
    out.mkdir(parents=True, exist_ok=True)
    texts, labels = messages(data)
    sizes = (1300, 300, 200) if fast else (4137, 1035, 500)
    ks = (25, 50, 100, 220) if fast else KS
    parts = out / ("trials-fast" if fast else "trials")
    results = []
    for seed in list(seeds)[:1] if fast else seeds:
        for strength in STRENGTHS:
            trial = plant(texts, labels, seed, strength, sizes)
            results.append(run_trial(trial, ks, parts, {"literal": literal_sbq}))
    return write(pd.concat(results), out)


def messages(data: Path) -> tuple[list[str], np.ndarray]:
    """Subject and body of every message, and 1 for spam."""
    with gzip.open(data / "enron1" / "enron1.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    return [f"{r['subject']}\n{r['body']}" for r in rows], np.array([r["label"] for r in rows])


def plant(
    texts: list[str], labels: np.ndarray, seed: int, strength: float, sizes: tuple[int, int, int]
) -> Trial:
    """Split, curate and flip."""
    n_train, n_test, n_curated = sizes
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    train, test = order[:n_train], order[n_train : n_train + n_test]
    words = CountVectorizer(min_df=5, stop_words="english")
    X = words.fit_transform([texts[i] for i in train]).astype(np.float64)
    curated = rng.choice(n_train, n_curated, replace=False)
    rest = np.setdiff1d(np.arange(n_train), curated)
    truth = labels[train][rest]
    noisy = truth.copy()
    flipped = rng.choice(len(rest), int(0.2 * len(rest)), replace=False)
    noisy[flipped] = 1 - noisy[flipped]
    return Trial(
        name=f"enron-l2-{strength:g}",
        seed=seed,
        model=LogisticRegression(C=1.0 / (strength * len(rest)), max_iter=3000),
        train=(X[rest], noisy),
        truth=truth,
        curated=(X[curated], labels[train][curated]),
        test=(words.transform([texts[i] for i in test]).astype(np.float64), labels[test]),
    )


def write(results: pd.DataFrame, out: Path) -> Path:
    """The table, the figure and the page."""
    results.to_csv(out / "enron.csv", index=False, float_format="%.6g")
    by_strength = {f"L2 {s:g}": results[results["data"] == f"enron-l2-{s:g}"] for s in STRENGTHS}
    plot({title: reported(part) for title, part in by_strength.items()}, out / "enron")
    sections = [
        f"## {title}\n\n{tables(reported(part))}{on_further_seeds(part)}"
        for title, part in by_strength.items()
    ]
    page = out / "enron.md"
    page.write_text(INTRODUCTION + "\n".join(sections).rstrip() + "\n" + APPENDIX)
    return page


def reported(results: pd.DataFrame) -> pd.DataFrame:
    return results[results.seed.isin(REPORTED)]


def on_further_seeds(results: pd.DataFrame) -> str:
    """The comparisons on the other seeds, and on all of them."""
    more = results[results.seed.isin(FURTHER)]
    if more.seed.nunique() < 2:
        return ""
    ks, count = sorted(k for k in results.k.unique() if k > 0), results.seed.nunique()
    return (
        f"\nSeeds {FURTHER[0]} to {FURTHER[-1]} alone:\n\n{verdicts(more, 'calibrated', ks)}"
        f"\nAll {count} seeds:\n\n{verdicts(results, 'calibrated', ks)}\n"
    )


INTRODUCTION = """# Finding flipped labels in Enron1

**Verdict.** 727 of 3637 labels were flipped; 500 further messages are trusted.

- `fix_labels` (calibrated evidence) finds more flips than any single kind of evidence: 94 % of the
  first 727 rows it names are flipped, where a model of the trusted rows alone reaches 88 to 90 %.
- Its probabilities add up to the number planted to within a few per cent.
- Test accuracy after mending is that of the best baseline, not better, until most are mended.
- The paper's ranking (SBQ in Fisher space) beats self-influence, as claimed, once the true Fisher,
  opponents and noise are used; as printed it starts a little above chance and ends at it. It stays
  below the model of the trusted rows, which the paper did not compare.

How the settings were found, and what was tried: [appendix](#appendix-protocol-and-search).

![share found and test accuracy](enron.png)

"""
APPENDIX = """
## Appendix: protocol and search

**What the paper claims.** Fisher-kernel SBQ, run on the mistakes of a validation set, points an
expert to more of the flipped labels than self-influence, training loss or random checking do, and
test accuracy recovers faster.

**What we found.** Not as printed: with the empirical Fisher, the mistakes as target, no noise and
no sign, SBQ starts a little above chance and ends at it (last line but one of the tables). With the
true Fisher, unit rows, opponents only, noise 10, all curated rows as the target and the damping
that tells the curated rows' right and wrong labels apart best, the paper's ranking is far above
self-influence and training loss at L2 1e-4, as claimed, and above self-influence at 1e-2. But it
stays below something the paper did not compare: a model of the 500 curated rows alone. Weighing all
evidence as the curated rows teach (`fix_labels`, method "calibrated") finds more than any single
kind, and its probabilities add up to about the number of flips that were planted.

**Which flips first.** While only a few are mended, finding flips is not the same as helping the
model: long messages move it more. The curated-only model, whose loss grows with length, takes those
first. So among suspects that 500 curated rows cannot tell apart in certainty (probability above
500/503) ours are ordered by the log-odds against their label under models that have not learned
from suspects, and the nearly sure ones (above .95) by how much those exceed the log-odds of the
model that did. Where test accuracy is still below a baseline's beyond the paired interval is said
under the tables, for the seeds of the tables, for ten further ones, and for all: of 80 comparisons
with 95 % intervals one or two fall outside by luck.

The protocol: 4137 training and 1035 test messages, bag of words (min_df 5, English stop words),
500 curated messages, 20 % of the other 3637 labels flipped (727). Logistic regression, L2 in units
of the mean loss. Every method may use the curated rows. Settings were developed on seeds from 100
on (about 45 settings on three draws of this set and two each of Adult, SST-2 and digits). Two of
the reported seeds had been looked at with an earlier version before that was finished; nothing was
chosen on them. The order among the sure suspects was changed after a first table of seeds 0 to 9
had shown a gap in test accuracy. About 50 orders were tried for it on seeds 100 to 105, half of
them on seed 100 alone; chosen was the one with the best worst case of test accuracy among those
that found as many flips to within .001, and it was run once on seeds 0 to 9. Nine more, tried
afterwards on seeds 100 to 103, were no better. That left two gaps at L2 1e-2; for the larger k of
them, eleven orders of the nearly sure were tried on seeds 100 to 107, and the cheapest of four
equally good ones was taken and run once on seeds 0 to 9. Seeds 10 to 19 were run once, last of all.

**Two baselines that the tables make look weaker than they are.** In the tables influence has the
damping of one row, and the model of the curated rows alone the penalty of the model under test. By
now the first is given the choice of damping that SBQ has, and the second a penalty of its own,
chosen by cross-validation. The tables were not run again; seed 0 was
([lines](enron_baselines.csv)). There, among the first 727, influence finds .796 instead of .597 at
L2 1e-4 and .838 instead of .781 at 1e-2, the curated rows alone .886 instead of .884 and .876, and
ours, since the kind of mistakes is estimated (see [kinds of wrong labels](label_noise.md)), .939
instead of .924 and .934. An earlier check, of other draws, had .755 for influence and .898 for the
curated rows. So ours stays ahead, by .10 to .14 of influence instead of .15 to .33.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/enron"))
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="*", default=[*REPORTED, *FURTHER])
    options = parser.parse_args()
    if "EXEMPLA_DATA" not in os.environ:
        raise SystemExit("EXEMPLA_DATA is not set: name the folder that holds enron1/.")
    print(run(options.out, options.fast, Path(os.environ["EXEMPLA_DATA"]), options.seeds))


if __name__ == "__main__":
    main()
