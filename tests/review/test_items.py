"""Items that are numbers, and items that are parts of rows: written, decided about, exported."""

from __future__ import annotations

import csv
import json

import pytest

from exempla.errors import ExemplaError
from exempla.report.words import chance
from exempla.review import Content, ReviewedFile, Suspect, read_review, write_review
from exempla.review.export import export_review
from exempla.review.folder import item_of, row_of
from tests.review.case import served, signed_in
from tests.review.test_app import decide

TEXT = "Anna met Berlin in Paris"


def numbers(tmp_path):
    source = tmp_path / "houses.csv"
    source.write_text("id,rooms,price\nh0,3,1200\nh1,2,90\nh2,4,150\n", encoding="utf-8")
    more = {"kind": "number", "original": (("id", "h"), ("rooms", "3"))}
    suspects = [
        Suspect(0, "1200", "120", 0.9, 0.0, expected=119.6, spread=8.0, **more),
        Suspect(1, "90", "95", 0.3, 0.0, expected=95.0, **more),
        Suspect(2, "150", "149", 0.1, 0.0, expected=149.0, spread=9.0, **more),
    ]
    folder = tmp_path / "review"
    write_review(folder, suspects, source=ReviewedFile(source, "csv", "price"), classes=[])
    return folder


def parts(tmp_path):
    source = tmp_path / "notes.jsonl"
    source.write_text(json.dumps({"text": TEXT, "labels": "x"}) + "\n", encoding="utf-8")
    content = Content(pieces=((TEXT, 0.0),))
    kind = {"kind": "part", "content": content}
    suspects = [
        Suspect(0, "PER", "LOC", 0.9, 0.8, part="Berlin", span=(9, 15), **kind),
        Suspect(0, "LOC", "PER", 0.2, 0.1, part="Paris", span=(19, 24), **kind),
        Suspect(0, "PER", "LOC", 0.4, 0.3, part="travel", **kind),
    ]
    folder = tmp_path / "review"
    write_review(
        folder, suspects, source=ReviewedFile(source, "jsonl", "labels"), classes=["LOC", "PER"]
    )
    return folder


def test_numbers_are_kept_accepted_and_typed(tmp_path):
    folder = numbers(tmp_path)
    with served(folder) as address, signed_in(address) as client:
        card = client.get("/api/suspect/0").json()
        assert (card["kind"], card["expected"], card["spread"]) == ("number", 119.6, 8.0)
        assert decide(client, 0, "relabel", label="120").status_code == 200
        assert decide(client, 1, "relabel", label="ninety").status_code == 422
        assert decide(client, 1, "relabel", label="nan").status_code == 422
        assert decide(client, 1, "relabel", label="91.5").status_code == 200
        assert decide(client, 2, "keep").status_code == 200
    made = export_review(read_review(folder))
    assert made.corrected.read_text() == "id,rooms,price\nh0,3,120\nh1,2,91.5\nh2,4,150\n"
    assert made.decisions[0].evidence.startswith("90 % likely mislabelled; expected 119.6 ± 8")
    lines = list(csv.DictReader((folder / "patch.csv").open(encoding="utf-8")))
    assert [(line["old"], line["new"], line["row.rooms"]) for line in lines] == [
        ("1200", "120", "3"), ("90", "91.5", "3")
    ]  # fmt: skip


def test_parts_of_one_row_are_decided_apart_and_exported_as_a_patch(tmp_path):
    folder = parts(tmp_path)
    items = [s.item for s in read_review(folder).suspects]
    assert len(set(items)) == 3
    assert {row_of(item) for item in items} == {0}
    with served(folder) as address, signed_in(address) as client:
        card = client.get(f"/api/suspect/{items[0]}").json()
        assert (card["part"], card["span"], card["row"]) == ("Berlin", [9, 15], 0)
        assert decide(client, items[0], "relabel", label="LOC").status_code == 200
        assert decide(client, items[1], "keep").status_code == 200
        result = client.post("/api/export", json={}).json()
        assert (result["changed"], result["corrected"], result["problem"]) == (1, None, None)
    assert not (folder / "corrected.jsonl").exists()
    (line,) = csv.DictReader((folder / "patch.csv").open(encoding="utf-8"))
    assert (line["row"], line["part"], line["start"], line["end"]) == ("0", "Berlin", "9", "15")
    assert (line["column"], line["old"], line["new"]) == ("labels[Berlin]", "PER", "LOC")
    assert line["row.text"] == TEXT


def test_numbers_of_items_are_stable_and_exact_in_a_browser():
    assert item_of(5, "flu") == item_of(5, "flu") != item_of(5, "cold")
    assert item_of(2**32 - 1, "x", (10**6, 10**6 + 1)) < 2**53


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"kind": "pair"}, "must be one of class, number, part"),
        ({"kind": "number"}, "not a number"),
        ({"kind": "number", "expected": float("nan"), "given": "1"}, "not a number"),
        ({"kind": "part"}, "a part needs a name"),
        ({"part": "x"}, "a part needs a name"),
        ({"kind": "part", "part": "x", "span": (4, 4)}, "span"),
    ],
)
def test_mistakes_are_refused(wrong, words):
    with pytest.raises(ExemplaError, match=words):
        Suspect(**({"row": 0, "given": "a", "suggested": "b"} | wrong), probability=0.5,
                model_probability=0.5)  # fmt: skip


def test_the_exports_carry_the_row_as_the_file_has_it(tmp_path):
    source = tmp_path / "a.csv"
    source.write_text("who,say,y\nann,hello,no\n", encoding="utf-8")
    suspect = Suspect(0, "no", "yes", 0.997, 0.004, content=Content(pieces=(("hello", 0.0),)),
                      original=(("who", "ann"), ("say", None)))  # fmt: skip
    folder = tmp_path / "review"
    write_review(folder, [suspect], source=ReviewedFile(source, "csv", "y"), classes=["no", "yes"])
    with served(folder) as address, signed_in(address) as client:
        decide(client, 0, "relabel", label="yes")
    made = export_review(read_review(folder))
    assert made.decisions[0].content == {"who": "ann", "say": "hello"}
    assert made.decisions[0].evidence == "> 99 % likely mislabelled; model gives yes < 1 %"
    (line,) = csv.DictReader((folder / "patch.csv").open(encoding="utf-8"))
    assert (line["row.who"], line["row.say"]) == ("ann", "hello")


def test_a_probability_is_written_in_one_way():
    said = [chance(p) for p in (0.0, 0.0099, 0.01, 0.125, 0.5, 0.99, 0.991, 1.0)]
    assert said == ["< 1 %", "< 1 %", "1 %", "13 %", "50 %", "99 %", "> 99 %", "> 99 %"]
