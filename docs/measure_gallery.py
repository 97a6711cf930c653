"""The figures of the gallery, from the commands on its page: `EXEMPLA_DATA=… python
docs/measure_gallery.py`.

The samples are drawn as the page says; every figure is a line of docs/experiments/gallery.csv.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from sklearn.datasets import load_diabetes

ROOT = Path(__file__).parents[1]
ADULT = [
    "age", "workclass", "fnlwgt", "education", "education_num", "marital", "occupation",
    "relationship", "race", "sex", "gain", "loss", "hours", "country", "income",
]  # fmt: skip

Figure = tuple[str, float]


def draw(folder: Path) -> None:
    """The samples, as the page draws them."""
    data = Path(os.environ["EXEMPLA_DATA"])
    with gzip.open(data / "enron1" / "enron1.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    random.Random(0).shuffle(rows)
    mails = pd.DataFrame(rows[:1500])[["subject", "body", "label"]]
    mails["label"] = mails["label"].map({0: "ham", 1: "spam"})
    mails.to_csv(folder / "mails.csv", index=False)
    people = pd.read_csv(
        data / "tabular" / "adult.data.gz", names=ADULT, skipinitialspace=True
    ).dropna()
    people.sample(3000, random_state=0).to_csv(folder / "adult.csv", index=False)
    phrases = pd.read_csv(data / "text" / "sst2_train.tsv.gz", sep="\t")
    phrases.sample(2000, random_state=0).to_csv(folder / "sst.csv", index=False)
    load_diabetes(as_frame=True, scaled=False).frame.to_csv(folder / "diabetes.csv", index=False)


def run(folder: Path, *words: str) -> tuple[dict[str, Any], pd.DataFrame, str]:
    """A command's explanation.json and explanation.csv, and what it printed."""
    code = "import sys; from exempla.cli.main import main; sys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "--out", "out"],
        cwd=folder, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads((folder / "out" / "explanation.json").read_text(encoding="utf-8"))
    print(done.stdout, flush=True)
    return found, pd.read_csv(folder / "out" / "explanation.csv"), done.stdout


def explained(found: dict[str, Any]) -> Iterator[Figure]:
    effect = found["removal"]
    yield "errors", len(found["questioned"])
    yield "accuracy", found["cross_validated_accuracy"]
    yield "log_likelihood", effect["log_likelihood"]
    yield "by_chance", effect["random_baseline"]
    yield "turned", effect["n_fixed"] or 0


def mails(folder: Path) -> Iterator[Figure]:
    found, rows, said = run(folder, "explain", "mails.csv", "--label", "label", "--verify")
    yield from explained(found)
    table = pd.read_csv(folder / "mails.csv")
    yield "ham_called_spam", int((table.label[found["questioned"]] == "ham").sum())
    yield "spam_rows", int((rows.label == "spam").sum())
    again = said.partition("Trained again without them: log-likelihood ")[2]
    yield "retrained", float(again.split(",")[0])


def clean_mails(folder: Path) -> Iterator[Figure]:
    found, rows, _ = run(folder, "fix-labels", "mails.csv", "--label", "label")
    yield "listed", len(rows)
    yield "expected", found["expected_errors"]
    yield "most_suspicious", rows.probability.max()
    yield "ham_of_first_ten", int((rows.given[:10] == "ham").sum())


def incomes(folder: Path) -> Iterator[Figure]:
    found, rows, _ = run(folder, "explain", "adult.csv", "--label", "income")
    yield from explained(found)
    table = pd.read_csv(folder / "adult.csv")
    asked = table.iloc[found["questioned"]]
    yield "married_errors", int((asked.marital == "Married-civ-spouse").sum())
    yield "low_rows", int((rows.label == "<=50K").sum())
    low = rows[rows.label == "<=50K"]
    yield "low_married_rows", int((low.marital == "Married-civ-spouse").sum())
    yield "craft_rows", int((rows.occupation == "Craft-repair").sum())


def diabetes(folder: Path) -> Iterator[Figure]:
    found, _, _ = run(folder, "explain", "diabetes.csv", "--label", "target")
    yield from explained(found)


def phrases(folder: Path) -> Iterator[Figure]:
    found, rows, said = run(folder, "fix-labels", "sst.csv", "--label", "label")
    yield "accuracy", float(said.partition("% ±")[0].split()[-1]) / 100
    commonest = said.partition("majority-class baseline ")[2].split("%")[0]
    yield "commonest", float(commonest) / 100
    yield "expected", found["expected_errors"]
    yield "fourteenth", rows.probability[13]
    yield "most_suspicious", rows.probability.max()


FINDINGS = {1: mails, 2: clean_mails, 3: incomes, 4: diabetes, 5: phrases}


def main() -> None:
    out = ROOT / "docs" / "experiments" / "gallery.csv"
    lines = []
    with tempfile.TemporaryDirectory() as name:
        draw(Path(name))
        for number, measured in FINDINGS.items():
            lines += [(number, what, f"{value:.6g}") for what, value in measured(Path(name))]
    with out.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("finding", "what", "value"))
        table.writerows(lines)


if __name__ == "__main__":
    main()
