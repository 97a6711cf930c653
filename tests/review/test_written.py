"""What `exempla fix-labels` writes for the page: the rest, its strata, whole texts, file names."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from exempla.cli.main import main
from exempla.review import read_review
from tests.cli.test_image_folders import write_digits


@pytest.fixture(scope="module")
def mails(tmp_path_factory) -> Path:
    """120 mails with an id, a date and a text longer than a report shows, some mislabelled."""
    rng = np.random.default_rng(1)
    path = tmp_path_factory.mktemp("mails") / "mails.csv"
    words = {"ham": ["meeting", "report", "budget"], "spam": ["pills", "casino", "prize"]}
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["id", "sent", "text", "label"])
        for row in range(120):
            label = ("ham", "spam")[row % 2]
            text = " ".join(rng.choice(words[label], 150)) + f" the end of {row}"
            given = {"ham": "spam", "spam": "ham"}[label] if row % 17 == 3 else label
            out.writerow([f"mail-{row:04d}", f"2024-01-{row % 28 + 1:02d}", text, given])
    return path


def analysed(source: Path, out: Path, *more: str) -> Path:
    words = ["fix-labels", str(source), "--label", "label", "--quiet", "--out", str(out), *more]
    assert main(words) == 0
    return out


def test_every_row_is_listed_or_can_be_drawn(mails, tmp_path):
    review = read_review(analysed(mails, tmp_path / "out"))
    assert review.strata is not None
    assert review.strata.rows == 120
    assert len(review.suspects) == sum(review.strata.sizes[:2]) == 20
    rows = [s.row for s in (*review.suspects, *review.rest)]
    assert sorted(rows) == list(range(120)), "a small file is carried whole"
    p = [s.probability for s in review.rest]
    strata = [s.stratum for s in review.rest]
    for high, low in ((2, 3), (3, 4), (4, 5)):
        least = min(q for q, h in zip(p, strata, strict=True) if h == high)
        most = max(q for q, h in zip(p, strata, strict=True) if h == low)
        assert least >= most, "strata are of like probability"
    assert all(s.suggested != s.given for s in review.rest)


def test_texts_are_whole_and_columns_as_in_the_file(mails, tmp_path):
    review = read_review(analysed(mails, tmp_path / "out", "-k", "7"))
    assert len(review.suspects) == 7
    assert review.strata.rows == 120, "-k cuts the list, not the frame"
    with mails.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for suspect in (*review.suspects, review.rest[0]):
        card, row = review.card(suspect.item), rows[suspect.row]
        assert card["content"]["text"] == row["text"]
        assert card["original"] == [["id", row["id"]], ["sent", row["sent"]], ["text", None]]


def test_images_come_with_their_file_names(tmp_path):
    root, out = tmp_path / "pictures", tmp_path / "out"
    write_digits(root, ["dog", "cat"], wrong=3)
    assert main(["fix-labels", str(root), "--quiet", "--out", str(out)]) == 0
    cards = [json.loads(line) for line in (out / "suspects.jsonl").read_text().splitlines()]
    assert len(cards) == 48
    assert all((root / card["content"]["name"]).is_file() for card in cards)
