"""Kinds of torch model, output and data: which work, which are refused, and what they cost.

    python -m benchmarks.kinds [--only WORD]
        [--out docs/experiments/kinds.csv --page docs/studies/kinds.md]

Each kind is a small model trained on 48 examples, three of which are copies of the questioned
examples with another label. "found" counts the questions whose own copy is their first opponent.
"epoch" is a mean epoch of the training before, "explain" is fit and answers, in processor seconds.
"""

from __future__ import annotations

import argparse
import csv
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from benchmarks.habits import data, images, language, refused, sequences, vectors
from benchmarks.habits.base import ASKED, Kind, Outcome, run
from benchmarks.habits.base import KINDS as LISTED

HEADER = ("group", "kind", "outcome", "found", "epoch_s", "explain_s", "way", "sentence")
START, END = "<!-- kinds -->", "<!-- end of kinds -->"
PARTS = [part.__name__ for part in (vectors, images, sequences, language, data, refused)]
KINDS = sorted(LISTED, key=lambda one: PARTS.index(one.build.__module__))
"""All of them, in the order of the parts, whichever was imported first."""


def row(one: Kind, got: Outcome) -> tuple[str, ...]:
    """A line of the table."""
    if got.found < 0:
        return (one.group, one.name, "refused", "", "", "", "", got.said)
    way = "by sample" if got.slower else "factored"
    found = f"{got.found} of {ASKED}"
    seconds = (f"{got.epoch_s:.4f}", f"{got.explain_s:.4f}")
    return (one.group, one.name, "works", found, *seconds, way, got.said)


def tables(rows: Iterable[Sequence[str]]) -> str:
    """The lines as two tables of a page: what works, and the sentences of what is refused."""
    works = ["| kind | | found | an epoch | explaining | scores |", "|---|---|---|--:|--:|---|"]
    refused = ["| kind | sentence |", "|---|---|"]
    for group, name, outcome, found, epoch_s, explain_s, way, said in rows:
        if outcome == "refused":
            refused.append(f"| {name} | {said} |")
        else:
            seconds = f"{float(epoch_s):.3f} s | {float(explain_s):.2f} s"
            works.append(f"| {group} | {name} | {found} | {seconds} | {way} |")
    return "\n".join([*works, "", *refused])


def put(page: Path, text: str) -> None:
    """Write the tables between the two marks of the page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(START)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{START}\n{text}\n{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="kinds whose name or group has this word")
    parser.add_argument("--out", type=Path, help="a CSV file for the table")
    parser.add_argument("--page", type=Path, help="a page to put the table into")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    torch.set_num_threads(1)
    rows = []
    for one in KINDS:
        if options.only in f"{one.group} {one.name}":
            rows.append(row(one, run(one)))
            print(" | ".join(rows[-1]), flush=True)
    if options.out:
        with options.out.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([HEADER, *rows])
        print(f"{len(rows)} kinds in {options.out}", file=sys.stderr)
    if options.page:
        put(options.page, tables(rows))


if __name__ == "__main__":
    main()
