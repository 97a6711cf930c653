"""Writing a review folder and reading it back."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from exempla.errors import ExemplaError, ExemplaWarning
from exempla.review import Content, EvidenceRow, ReviewedFile, Suspect, read_review, write_review
from exempla.review.folder import content_json, image_bytes
from tests.review.case import make_folder, plain

SOURCE = ReviewedFile("rows.csv", "csv", label="label")


def test_a_folder_reads_back_as_written(tmp_path):
    folder = make_folder(tmp_path, 7)
    review = read_review(folder)
    assert [s.row for s in review.suspects] == [0, 3, 6, 9, 12, 15, 18]
    assert review.classes == ("ham", "spam", "news")
    assert (folder / review.source.path).resolve() == (tmp_path / "mails.jsonl").resolve()
    card = review.card(9)
    assert card["id"] == "m9"
    assert card["content"]["words"][0] == ["cheap pills", -0.4]
    assert card["contradicting"][0]["source"] == "curated"
    assert card["contradicting"][0]["content"]["image"] is True
    assert "image" not in card["content"], "row 9 has no image"
    with pytest.raises(KeyError):
        review.card(1)


def test_unicode_and_line_separators_survive(tmp_path):
    text = "zwei\nZeilen\u2028und\u2029mehr \x85 😀 \ud7ff \x00"
    suspect = Suspect(0, "a", "b", 0.5, 0.5, content=Content(pieces=plain(text)))
    other = Suspect(1, "a", "b", 0.5, 0.5, content=Content(pieces=plain("next")))
    write_review(tmp_path, [suspect, other], source=SOURCE, classes=["a", "b"])
    review = read_review(tmp_path)
    assert review.card(0)["content"]["text"] == text
    assert review.card(1)["content"]["text"] == "next"


def test_the_key_follows_the_data_and_not_the_analysis(tmp_path):
    first = read_review(make_folder(tmp_path, 5)).key
    again = read_review(make_folder(tmp_path, 5)).key
    assert first == again
    more_data = read_review(make_folder(tmp_path, 6)).key
    assert more_data != first


@pytest.mark.parametrize(
    "other",
    [
        {"label": "diabetic"},
        {"options": {"header": False}},
        {"options": {"delimiter": ";"}},
        {"options": {"encoding": "cp1252"}},
        {"fingerprint": "another"},
    ],
)
def test_the_key_holds_all_that_gives_a_decision_its_meaning(tmp_path, other):
    suspect = Suspect(0, "no", "yes", 0.5, 0.5)
    plain = {"label": "smoker", "options": {"header": True}, "fingerprint": "one"}

    def key(**parts):
        source = ReviewedFile("rows.csv", "csv", **parts)
        write_review(tmp_path, [suspect], source=source, classes=["no", "yes"])
        return read_review(tmp_path).key

    first = key(**plain)
    assert key(**(plain | other)) != first
    assert key(**plain) == first


def test_the_list_of_one_analysis_is_never_read_with_the_header_of_another(tmp_path):
    # Killed between the two files, with as many suspects as before.
    folder = make_folder(tmp_path, 4)
    first = (folder / "review.json").read_bytes()
    suspects = [Suspect(row, "ham", "news", 0.5, 0.5) for row in range(4)]
    source = ReviewedFile(tmp_path / "mails.jsonl", "jsonl", label="other")
    write_review(folder, suspects, source=source, classes=["ham", "spam", "news"])
    (folder / "review.json").write_bytes(first)
    with pytest.raises(ExemplaError, match="are from different runs"):
        read_review(folder)


def test_a_folder_written_anew_while_open_is_not_shown_with_other_rows_cards(tmp_path):
    folder = make_folder(tmp_path, 4)
    review = read_review(folder)
    assert review.card(3)["row"] == 3
    make_folder(tmp_path, 4, hostile="another analysis")
    with pytest.raises(ExemplaError, match="was replaced by a new analysis"):
        review.card(3)


def test_no_input_is_written_over(tmp_path):
    suspects = [Suspect(0, "a", "b", 0.5, 0.5, content=Content(image=np.zeros((4, 4))))]
    for name in ("suspects.jsonl", "review.json"):
        (tmp_path / name).write_text("mine")
        with pytest.raises(ExemplaError, match="is the original"):
            write_review(
                tmp_path,
                suspects,
                source=ReviewedFile(tmp_path / name, "jsonl"),
                classes=["a", "b"],
            )
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()
    (tmp_path / "images" / "a").mkdir(parents=True)
    for directory in (tmp_path, tmp_path / "images" / "a"):
        source = ReviewedFile(tmp_path / "images", "images")
        with pytest.raises(ExemplaError, match=r"original|inside the folder"):
            write_review(directory, suspects, source=source, classes=["a", "b"])
    assert [path.name for path in (tmp_path / "images").rglob("*")] == ["a"]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "images").symlink_to(tmp_path / "images")
    with pytest.raises(ExemplaError, match="is a symbolic link"):
        write_review(tmp_path / "out", suspects, source=SOURCE, classes=["a", "b"])


def test_a_class_that_no_file_can_keep_is_refused(tmp_path):
    with pytest.raises(ExemplaError, match="surrogate"):
        write_review(tmp_path, [], source=SOURCE, classes=["a", "b\udc80"])


def test_the_source_is_found_from_a_linked_folder(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "er")
    (tmp_path / "rows.csv").write_text("x,label\n1,a\n")
    source = ReviewedFile(tmp_path / "rows.csv", "csv", label="label")
    write_review(tmp_path / "link", [], source=source, classes=["a", "b"])
    assert read_review(tmp_path / "link").source_path().samefile(tmp_path / "rows.csv")


def test_long_texts_are_cut_and_say_so():
    content = content_json(Content(pieces=plain("x" * 20_100)))
    assert len(content["text"]) == 20_000
    assert content["cut"] == 100


@pytest.mark.parametrize(
    ("suspects", "classes", "words"),
    [
        ([Suspect(1, "a", "b", 0.5, 0.5)] * 2, ["a", "b"], "listed twice"),
        ([Suspect(1, "a", "c", 0.5, 0.5)], ["a", "b"], "'c' is not among the classes"),
        ([], [], "non-empty"),
        ([], ["a", "a"], "without repeats"),
    ],
)
def test_mistakes_are_refused_with_a_reason(tmp_path, suspects, classes, words):
    with pytest.raises(ExemplaError, match=words):
        write_review(tmp_path, suspects, source=SOURCE, classes=classes)


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_impossible_probabilities_are_refused(p):
    with pytest.raises(ExemplaError, match=r"\[0, 1\]"):
        Suspect(1, "a", "b", p, 0.5)
    with pytest.raises(ExemplaError, match="finite"):
        EvidenceRow(1, "a", float("inf")).to_dict()


def test_a_torn_folder_is_refused(tmp_path):
    folder = make_folder(tmp_path, 4)
    lines = (folder / "suspects.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "suspects.jsonl").write_text("".join(lines[:3]), encoding="utf-8")
    with pytest.raises(ExemplaError, match="are from different runs"):
        read_review(folder)
    (folder / "suspects.jsonl").write_text(lines[0] + '{"row": 3', encoding="utf-8")
    with pytest.raises(ExemplaError, match="run the command that wrote it again"):
        read_review(folder)


def test_images_are_reencoded_and_found_by_row(tmp_path):
    from PIL import Image, PngImagePlugin

    secret = PngImagePlugin.PngInfo()
    secret.add_text("comment", "<script>alert(1)</script>")
    picture = Image.fromarray(np.full((2000, 1000, 3), 200, np.uint8))
    picture.save(tmp_path / "photo.png", pnginfo=secret)
    noise = np.random.default_rng(0).normal(size=(8, 8, 3))
    rows = [
        Suspect(row, "a", "b", 0.5, 0.5, content=Content(image=image))
        for row, image in enumerate([tmp_path / "photo.png", noise])
    ]
    write_review(tmp_path / "out", rows, source=SOURCE, classes=["a", "b"])
    data = image_bytes(tmp_path / "out", "train", 0)
    assert data is not None
    assert b"script" not in data
    with Image.open(tmp_path / "out" / "images" / "train-0.webp") as written:
        assert written.size == (320, 640)
    assert image_bytes(tmp_path / "out", "train", 1) is not None
    assert image_bytes(tmp_path / "out", "train", 2) is None


def test_what_is_no_image_is_left_out_with_a_warning(tmp_path):
    (tmp_path / "x.svg").write_text('<svg onload="alert(1)"/>')
    row = Suspect(0, "a", "b", 0.5, 0.5, content=Content(image=tmp_path / "x.svg"))
    with pytest.warns(ExemplaWarning, match="row 0 cannot be shown"):
        write_review(tmp_path / "out", [row], source=SOURCE, classes=["a", "b"])
    assert read_review(tmp_path / "out").card(0)["content"]["image"] is False


def test_links_in_the_images_folder_are_not_followed(tmp_path):
    folder = make_folder(tmp_path, 3)
    secret = tmp_path / "secret.webp"
    secret.write_bytes((folder / "images" / "train-0.webp").read_bytes())
    (folder / "images" / "train-77.webp").symlink_to(secret)
    assert image_bytes(folder, "train", 77) is None
    os.rename(folder / "images", tmp_path / "elsewhere")
    (folder / "images").symlink_to(tmp_path / "elsewhere")
    assert image_bytes(folder, "train", 0) is None


def test_half_a_surrogate_does_not_break_the_folder(tmp_path):
    suspect = Suspect(0, "a", "b", 0.5, 0.5, content=Content(pieces=plain("bad \udc80 byte")))
    write_review(tmp_path, [suspect], source=SOURCE, classes=["a", "b"])
    assert read_review(tmp_path).card(0)["content"]["text"] == "bad ? byte"


def test_writing_again_replaces_and_a_failure_leaves_the_old_folder(tmp_path):
    folder = make_folder(tmp_path, 4)

    def broken():
        yield Suspect(0, "ham", "spam", 0.5, 0.5)
        raise RuntimeError("stopped half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        write_review(folder, broken(), source=SOURCE, classes=["ham", "spam"])
    assert len(read_review(folder).suspects) == 4
    assert not list(folder.glob(".*"))


def test_review_json_is_strict_json_with_a_relative_path(tmp_path):
    folder = make_folder(tmp_path, 3)
    header = json.loads((folder / "review.json").read_text(encoding="utf-8"))
    assert header["source"]["path"] == os.path.join("..", "mails.jsonl")
    assert header["suspects"] == 3


def test_a_folder_of_another_version_is_refused(tmp_path):
    folder = make_folder(tmp_path, 3)
    header = json.loads((folder / "review.json").read_text(encoding="utf-8"))
    for version in ("exempla-review-3", "exempla-review-9"):
        text = json.dumps(header | {"format": version})
        (folder / "review.json").write_text(text, encoding="utf-8")
        with pytest.raises(ExemplaError, match=version):
            read_review(folder)


@pytest.mark.parametrize(
    ("name", "text"),
    [("review.json", '{"stars": 5}'), ("suspects.jsonl", '{"name": "Smith"}\n'), ("images", None)],
)
def test_a_file_that_is_not_ours_is_never_replaced(tmp_path, name, text):
    if text is None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "holiday.webp").write_text("mine")
    else:
        (tmp_path / name).write_text(text)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    suspects = [Suspect(1, "a", "b", 0.9, 0.9)]
    with pytest.raises(ExemplaError, match=f"{name} was not written by exempla"):
        write_review(tmp_path, suspects, source=SOURCE, classes=["a", "b"])
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_a_review_can_be_written_again(tmp_path):
    folder = make_folder(tmp_path, 3)
    assert make_folder(tmp_path, 4) == folder
    assert len(read_review(folder).suspects) == 4


def test_decisive_words_come_once_and_strongest_first():
    pieces = (("buy ", 0.0), ("pills", -0.2), (" or ", 0.0), ("pills", -0.2), ("now", 0.9))
    assert content_json(Content(pieces=pieces)) == {
        "text": "buy pills or pillsnow", "words": [["now", 0.9], ["pills", -0.2]]
    }  # fmt: skip
    with pytest.raises(ExemplaError, match="finite"):
        content_json(Content(pieces=(("a", float("nan")),)))
