"""A review folder on disk: written once by a task, read by the page and by export."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exempla.atomic import replacing
from exempla.errors import ExemplaError
from exempla.review.images import write_image
from exempla.review.suspects import ReviewedFile, Suspect, upgraded_card

__all__ = ["Review", "Summary", "fingerprint", "read_review", "write_review"]

FORMAT = "exempla-review-2"
EARLIER = "exempla-review-1"
"""Written until contradicting rows were called so; see `upgraded_card`."""


@dataclass(frozen=True)
class Summary:
    """What the list needs of a suspect; the rest is read when its card is shown."""

    row: int
    id: str
    given: str
    suggested: str
    probability: float
    model_probability: float
    side: str


@dataclass(frozen=True)
class Review:
    """A review folder, read: the header, the list, and where each card lies in the file.

    `key` names the data that decisions belong to: the same file and classes give the same key, so
    a repeated analysis keeps its decisions and a changed file starts afresh.
    """

    directory: Path
    source: ReviewedFile
    classes: tuple[str, ...]
    expected_wrong: float | None
    question: str
    key: str
    fingerprint: str
    suspects: tuple[Summary, ...]
    places: dict[int, tuple[int, int]]
    """Row → (offset, length) of its line in suspects.jsonl."""
    format: str = FORMAT

    def card(self, row: int) -> dict[str, Any]:
        """Everything about one suspect, as written; KeyError if the row is no suspect."""
        offset, length = self.places[row]
        with open(self.directory / "suspects.jsonl", "rb") as file:
            file.seek(offset)
            card = json.loads(file.read(length))
        return upgraded_card(card) if self.format == EARLIER else card


def write_review(
    directory: str | Path,
    suspects: Iterable[Suspect],
    *,
    source: ReviewedFile,
    classes: Sequence[str],
    expected_wrong: float | None = None,
    question: str = "Which labels are wrong?",
) -> Path:
    """Write what the review page needs into `directory` and return the path of review.json.

    `suspects` come in the order the person should see them and may be a generator.
    `expected_wrong` is the expected number of wrong labels in the whole file.

    >>> import tempfile
    >>> from exempla.review import Content, ReviewedFile, Suspect, read_review, write_review
    >>> folder = tempfile.TemporaryDirectory()
    >>> content = Content(pieces=(("cheap pills", 0.0),))
    >>> suspect = Suspect(3, "ham", "spam", 0.9, 0.97, content=content)
    >>> path = write_review(folder.name, [suspect], source=ReviewedFile("mails.jsonl", "jsonl"),
    ...                     classes=["ham", "spam"], expected_wrong=1.2)
    >>> path.name, read_review(folder.name).card(3)["content"]["text"]
    ('review.json', 'cheap pills')
    >>> folder.cleanup()
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    known = tuple(str(c) for c in classes)
    if len(set(known)) != len(known) or not known:
        raise ExemplaError("The classes must be a non-empty list without repeats.")
    seen: set[int] = set()
    with replacing(directory / "suspects.jsonl") as file:
        for suspect in suspects:
            _check(suspect, known, seen)
            file.write(_json(_line(directory, suspect)) + b"\n")

    path = Path(source.path)
    print_ = fingerprint(path)
    header = {
        "format": FORMAT,
        "question": question,
        "source": {
            # Relative, so that data and folder may move together.
            "path": os.path.relpath(path, directory),
            "name": path.name,
            "format": source.format,
            "label": source.label,
            "options": dict(source.options),
            "fingerprint": print_,
        },
        "classes": list(known),
        "expected_wrong": None if expected_wrong is None else float(expected_wrong),
        "suspects": len(seen),
    }
    target = directory / "review.json"
    with replacing(target) as file:
        file.write(_json(header, indent=2) + b"\n")
    return target


def read_review(directory: str | Path) -> Review:
    """Read a review folder; ExemplaError if it is none, or if it is damaged.

    >>> from exempla.review import read_review
    >>> read_review("no-such-folder")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    exempla.errors.ExemplaError: no-such-folder holds no review.json; make one with ...
    """
    directory = Path(directory)
    path = directory / "review.json"
    if not path.is_file():
        raise ExemplaError(
            f"{directory} holds no review.json; make one with `exempla fix-labels FILE "
            f"--label COLUMN --out {directory}` and review that folder."
        )
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
        if header["format"] not in (FORMAT, EARLIER):
            raise ValueError(f"its format is {header['format']!r}, this version reads {FORMAT!r}")
        suspects, places = _read_suspects(directory / "suspects.jsonl")
        if len(suspects) != header["suspects"] or len(places) != len(suspects):
            raise ValueError("review.json and suspects.jsonl do not belong together")
        stated = header["source"]
        source = ReviewedFile(
            stated["path"], str(stated["format"]), stated["label"], dict(stated["options"])
        )
        classes = tuple(str(c) for c in header["classes"])
        expected = header["expected_wrong"]
        return Review(
            directory=directory,
            source=source,
            classes=classes,
            expected_wrong=None if expected is None else float(expected),
            question=str(header["question"]),
            key=_key(str(stated["name"]), str(stated["fingerprint"]), classes),
            fingerprint=str(stated["fingerprint"]),
            suspects=suspects,
            places=places,
            format=str(header["format"]),
        )
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ExemplaError(
            f"{directory} cannot be read as a review folder ({error}); "
            "run the command that wrote it again."
        ) from error


def fingerprint(path: Path) -> str:
    """SHA-256 of a file; of the names of its images for a folder; "" if there is nothing there."""
    if path.is_dir():
        from exempla.tables.read import read_table

        names = read_table(path).strings("file")
        return hashlib.sha256("\n".join(name or "" for name in names).encode()).hexdigest()
    if not path.is_file():
        return ""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check(suspect: Suspect, classes: tuple[str, ...], seen: set[int]) -> None:
    if suspect.row in seen:
        raise ExemplaError(f"Row {suspect.row} is listed twice; each suspect appears once.")
    for label in (suspect.given, suspect.suggested):
        if label not in classes:
            raise ExemplaError(f"Row {suspect.row}: {label!r} is not among the classes given.")
    seen.add(suspect.row)


def _line(directory: Path, suspect: Suspect) -> dict[str, Any]:
    """The suspect's JSON, with its images written and marked where they could be."""
    line = suspect.to_dict()
    images = directory / "images"
    if suspect.content.image is not None:
        line["content"]["image"] = write_image(images, "train", suspect.row, suspect.content.image)
    for part in ("contradicting", "supporters"):
        for row, written in zip(getattr(suspect, part), line[part], strict=True):
            if row.content.image is not None:
                written["content"]["image"] = write_image(
                    images, row.source, row.row, row.content.image
                )
    return line


def _read_suspects(path: Path) -> tuple[tuple[Summary, ...], dict[int, tuple[int, int]]]:
    suspects: list[Summary] = []
    places: dict[int, tuple[int, int]] = {}
    offset = 0
    with open(path, "rb") as file:
        for line in file:
            card = json.loads(line)
            suspects.append(
                Summary(
                    row=int(card["row"]),
                    id=str(card["id"]),
                    given=str(card["given"]),
                    suggested=str(card["suggested"]),
                    probability=float(card["probability"]),
                    model_probability=float(card["model_probability"]),
                    side=str(card["side"]),
                )
            )
            places[suspects[-1].row] = (offset, len(line))
            offset += len(line)
    return tuple(suspects), places


def _json(value: dict[str, Any], indent: int | None = None) -> bytes:
    # Half a surrogate pair, as broken files have it, is no UTF-8: it becomes a question mark.
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace")


def _key(name: str, print_: str, classes: tuple[str, ...]) -> str:
    text = json.dumps([name, print_, classes])
    return hashlib.sha256(text.encode()).hexdigest()[:32]
