"""From decisions to files: the list, the patch, and the corrected data in the input's format."""

from __future__ import annotations

import csv
import errno
import json
import os
import shutil
import stat
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from exempla.errors import ExemplaError
from exempla.review import ReviewedFile, Suspect, export_decisions, read_review, write_review
from exempla.review.export import (
    corrected_path,
    export_review,
    final_decisions,
    write_corrected,
)
from exempla.review.log import DecisionLog, RowDecision
from tests.review.case import make_folder, served, signed_in


def decide(folder: Path, *states: RowDecision) -> None:
    log = DecisionLog(folder / "decisions.sqlite", read_review(folder).key)
    for state in states:
        once = f"{state.row}-{log.version}"
        log.decide(state, seen=log.state(state.row).version, once=once)
    log.close()


def corrected(folder: Path) -> Path:
    review, decisions = read_review(folder), export_decisions(folder)
    with closing(review.open_log()) as log:
        return write_corrected(review, log, decisions)


SOME = (
    RowDecision(0, "relabel", "news", "surely"),
    RowDecision(3, "keep"),
    RowDecision(6, "remove"),
    RowDecision(9, "skip"),
    RowDecision(12, "pending", None, "look again"),
)


def test_the_final_decisions_carry_everything(tmp_path):
    folder = make_folder(tmp_path, 6)
    decide(folder, RowDecision(0, "remove"), *SOME)
    final = {d.row: d for d in export_decisions(folder)}
    assert {row: d.action for row, d in final.items()} == {
        0: "relabel", 3: "keep", 6: "remove", 9: "skip", 12: "pending"
    }  # fmt: skip
    assert (final[0].id, final[0].old_label, final[0].new_label) == ("m0", "ham", "news")
    assert (final[0].note, final[12].note) == ("surely", "look again")
    assert final[0].time.endswith("Z")
    assert "model gives spam 97 %; contradicted by #1 spam 0.31, #2 spam 0.22" in final[0].evidence
    written = json.loads((folder / "decisions.json").read_text(encoding="utf-8"))
    assert [d["row"] for d in written] == sorted(final)
    assert written[0]["evidence"] == final[0].evidence


def test_the_patch_holds_the_changes_and_only_those(tmp_path):
    folder = make_folder(tmp_path, 6)
    decide(folder, *SOME)
    export_decisions(folder)
    with open(folder / "patch.csv", encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    wanted = ["row", "id", "old", "new", "action", "time", "evidence"]
    assert set(wanted) <= set(lines[0])
    assert [[line[name] for name in wanted[:5]] for line in lines] == [
        ["0", "m0", "ham", "news", "relabel"],
        ["6", "m6", "ham", "", "remove"],
    ]


def test_without_decisions_the_corrected_file_is_the_original(tmp_path):
    folder = make_folder(tmp_path, 6)
    assert corrected(folder).read_bytes() == (tmp_path / "mails.jsonl").read_bytes()


def test_the_corrected_file_differs_where_decided(tmp_path):
    folder = make_folder(tmp_path, 6)
    decide(folder, *SOME)
    path = corrected(folder)
    assert path.name == "corrected.jsonl"
    before = (tmp_path / "mails.jsonl").read_text(encoding="utf-8").splitlines()
    after = path.read_text(encoding="utf-8").splitlines()
    assert json.loads(after[0]) == json.loads(before[0]) | {"label": "news"}
    assert after[1:] == before[1:6] + before[7:]


def test_a_csv_keeps_its_every_byte(tmp_path):
    source = tmp_path / "rows.csv"
    source.write_bytes(
        b'\xef\xbb\xbfid;text;y\r\n007;"a;b";ham\r\n008;=1+1;"spam"\r\n009;c;ham\r\n'
    )
    suspects = [
        Suspect(row, g, s, 0.5, 0.5) for row, g, s in [(0, "ham", "spam"), (1, "spam", "ham")]
    ]
    folder = tmp_path / "out"
    write_review(folder, suspects, source=ReviewedFile(source, "csv", "y"), classes=["ham", "spam"])
    decide(folder, RowDecision(1, "relabel", "ham"))
    assert corrected(folder).read_bytes() == source.read_bytes().replace(b'"spam"', b'"ham"')


def test_an_image_folder_is_copied_into_its_new_classes(tmp_path):
    folder = images_case(tmp_path)
    for _ in range(2):  # a second export replaces the first
        path = corrected(folder)
        assert sorted(p.relative_to(path).as_posix() for p in path.rglob("*.png")) == [
            "one/a.png", "two/b.png"
        ]  # fmt: skip


def images_case(tmp_path: Path) -> Path:
    """A review of two images, with decisions about both."""
    root = tmp_path / "digits"
    for name in ("one/a.png", "one/b.png", "two/c.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((4, 4), np.uint8)).save(root / name)
    folder = tmp_path / "out"
    suspects = [Suspect(1, "one", "two", 0.9, 0.9), Suspect(2, "two", "one", 0.9, 0.9)]
    source = ReviewedFile(root, "images", "label")
    write_review(folder, suspects, source=source, classes=["one", "two"])
    decide(folder, RowDecision(1, "relabel", "two"), RowDecision(2, "remove"))
    return folder


def test_a_tree_that_export_did_not_make_is_never_replaced(tmp_path):
    folder = images_case(tmp_path)
    theirs = folder / "corrected" / "holiday" / "beach.png"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"the only copy")
    with pytest.raises(ExemplaError, match=r"no export wrote .*beach\.png.*move it, or export"):
        corrected(folder)
    assert theirs.read_bytes() == b"the only copy"
    assert not list(folder.glob(".*")), "nothing half-made is left"
    # One that it made, and a person put something into, or changed, is theirs as well.
    theirs.rename(tmp_path / "beach.png")
    theirs.parent.rmdir()
    made = corrected(folder)
    (made / "one" / "mine.png").write_bytes(b"by hand")
    with pytest.raises(ExemplaError, match=r"one/mine\.png"):
        corrected(folder)
    (made / "one" / "mine.png").unlink()
    (made / "one" / "a.png").write_bytes(b"retouched")
    with pytest.raises(ExemplaError, match=r"one/a\.png"):
        corrected(folder)
    assert (made / "one" / "a.png").read_bytes() == b"retouched"
    (made / "one" / "a.png").unlink()  # what is missing is no loss
    assert (corrected(folder) / "one" / "a.png").is_file()


def test_a_linked_tree_is_neither_followed_nor_replaced(tmp_path):
    folder = images_case(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / "corrected").symlink_to(elsewhere)
    with pytest.raises(ExemplaError, match="is a link or a file"):
        corrected(folder)
    assert list(elsewhere.iterdir()) == []
    # A link inside counts as foreign, whatever it points at.
    (folder / "corrected").unlink()
    made = corrected(folder)
    (made / "one" / "a.png").unlink()
    (made / "one" / "a.png").symlink_to(tmp_path / "digits" / "one" / "a.png")
    with pytest.raises(ExemplaError, match=r"one/a\.png"):
        corrected(folder)


def test_all_images_removed_leave_an_empty_tree(tmp_path):
    folder = images_case(tmp_path)
    decide(folder, *(RowDecision(row, "remove") for row in range(3)))
    assert list(corrected(folder).rglob("*.png")) == []


def test_all_that_a_review_leaves_is_private_unless_the_folder_is_shared(tmp_path):
    mask = os.umask(0o022)
    try:
        for name, folder_mode, file_mode in (("own", 0o700, 0o600), ("shared", 0o770, 0o660)):
            place = tmp_path / name
            place.mkdir()
            place.chmod(folder_mode)
            for folder in (make_folder(place, 6), images_case(place)):
                export_review(read_review(folder))
                for path in (folder, *folder.rglob("*")):
                    wanted = folder_mode if path.is_dir() else file_mode
                    assert stat.S_IMODE(path.stat().st_mode) == wanted, path
    finally:
        os.umask(mask)


def test_a_disk_that_fills_up_under_an_image_export_leaves_the_old_tree(tmp_path, monkeypatch):
    folder = images_case(tmp_path)
    before = {p.name: p.read_bytes() for p in corrected(folder).rglob("*") if p.is_file()}
    decide(folder, RowDecision(1, "keep"))

    def full(source, target):
        Path(target).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    made = export_review(read_review(folder))
    assert made.corrected is None
    assert "corrected could not be written (No space left on device)" in made.problem
    after = {p.name: p.read_bytes() for p in (folder / "corrected").rglob("*") if p.is_file()}
    assert after == before
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize("name", ["patch.csv", "corrected.csv", "decisions.json"])
def test_no_export_is_written_onto_its_input(tmp_path, name):
    source = tmp_path / name
    lines = b'{"y": "ham"}\n{"y": "spam"}\n' if name.endswith("json") else b"x,y\n1,ham\n2,spam\n"
    source.write_bytes(lines)
    kind = "jsonl" if name.endswith("json") else "csv"
    suspects = [Suspect(0, "ham", "spam", 0.5, 0.5)]
    write_review(
        tmp_path, suspects, source=ReviewedFile(source, kind, "y"), classes=["ham", "spam"]
    )
    decide(tmp_path, RowDecision(0, "relabel", "spam"))
    with pytest.raises(ExemplaError, match="is the original"):
        corrected(tmp_path)
    assert source.read_bytes() == lines


@pytest.mark.parametrize(
    ("name", "kind", "wanted"),
    [
        ("mails.csv", "csv", "corrected.csv"),
        ("data.2024.csv", "csv", "corrected.csv"),
        ("data.2024.csv.gz", "csv", "corrected.csv.gz"),
        ("DATA.CSV.GZ", "csv", "corrected.CSV.GZ"),
        ("data.2024", "csv", "corrected.csv"),
        ("data.2024.xz", "jsonl", "corrected.jsonl.xz"),
        ("adult.test", "csv", "corrected.test"),
        ("v1.2.parquet", "parquet", "corrected.parquet"),
    ],
)
def test_the_corrected_file_ends_as_its_input(tmp_path, name, kind, wanted):
    write_review(tmp_path, [], source=ReviewedFile(name, kind), classes=["a", "b"])
    assert corrected_path(read_review(tmp_path)).name == wanted


def test_a_source_that_changed_or_went_is_not_corrected_blindly(tmp_path):
    folder = make_folder(tmp_path, 6)
    source = tmp_path / "mails.jsonl"
    kept = source.read_bytes()
    source.write_bytes(kept.split(b"\n", 1)[1])
    with pytest.raises(ExemplaError, match="has changed since"):
        corrected(folder)
    source.unlink()
    with pytest.raises(ExemplaError, match="is missing"):
        corrected(folder)


def test_decisions_on_rows_no_longer_suspected_are_kept(tmp_path):
    folder = make_folder(tmp_path, 6)
    decide(folder, RowDecision(15, "relabel", "news"))
    review = read_review(folder)
    fewer = [Suspect(0, "ham", "spam", 0.5, 0.5)]
    write_review(
        folder,
        fewer,
        source=ReviewedFile(tmp_path / "mails.jsonl", "jsonl", "label"),
        classes=review.classes,
    )
    review = read_review(folder)
    log = DecisionLog(folder / "decisions.sqlite", review.key)
    (found,) = final_decisions(review, log)
    log.close()
    assert (found.row, found.new_label) == (15, "news")
    assert "no longer listed" in found.evidence


def test_exported_files_replace_links_instead_of_following_them(tmp_path):
    folder = make_folder(tmp_path, 6)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    decide(folder, *SOME)
    corrected(folder)
    for name in ("decisions.json", "patch.csv", "corrected.jsonl"):
        (folder / name).unlink()
        (folder / name).symlink_to(victim)
    corrected(folder)
    assert victim.read_text() == "mine"
    assert not (folder / "corrected.jsonl").is_symlink()


@pytest.mark.parametrize("name", ["decisions.json", "patch.csv", "corrected.jsonl"])
def test_a_file_that_no_export_wrote_is_never_replaced(tmp_path, name):
    folder = make_folder(tmp_path, 6)
    decide(folder, *SOME)
    (folder / name).write_text("mine")
    review = read_review(folder)
    if name == "corrected.jsonl":  # the other two are written, and the answer says why
        assert "was not written by exempla" in export_review(review).problem
    else:
        with pytest.raises(ExemplaError, match=f"{name} was not written by exempla"):
            export_review(review)
    assert (folder / name).read_text() == "mine"
    (folder / name).unlink()
    for _ in range(2):
        assert export_review(review).problem == ""


def test_export_and_download_over_http(tmp_path):
    folder = make_folder(tmp_path, 6)
    decide(folder, *SOME)
    with served(folder) as address, signed_in(address) as page:
        assert page.get("/api/export/corrected").status_code == 404
        answer = page.post("/api/export", json={}).json()
        assert answer == {
            "decisions": 5, "changed": 2, "problem": None,
            "corrected": "corrected.jsonl", "folder": False,
        }  # fmt: skip
        for what, name in (("corrected", "corrected.jsonl"), ("patch", "patch.csv")):
            found = page.get(f"/api/export/{what}")
            assert found.content == (folder / name).read_bytes()
            assert f'attachment; filename="{name}"' in found.headers["content-disposition"]
        (folder / "patch.csv").unlink()
        (folder / "patch.csv").symlink_to(tmp_path / "mails.jsonl")
        assert page.get("/api/export/patch").status_code == 404
        (tmp_path / "mails.jsonl").unlink()
        assert "is missing" in page.post("/api/export", json={}).json()["problem"]
