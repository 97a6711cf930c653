"""A review folder on disk: written once by a task, read by the page and by export.

The list of suspects: what each line of suspects.jsonl says in short, and where it lies.

Images of rows: re-encoded when written, found by row number when served.

`exempla.images` decodes and re-encodes: pixels and nothing else, the same ones the model saw.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from exempla.errors import ExemplaError, ExemplaWarning
from exempla.images import ImageError, as_image, fitted, webp
from exempla.io import make_folder, replacing, write_bytes
from exempla.review.gate import earlier_key, key_of
from exempla.review.sampling import LISTED_STRATA, Frame, check_frame, strata_of
from exempla.review.suspects import ReviewedFile, Suspect, upgraded_card

_SNIPPET = 90
"""Characters of a row that the list shows."""


@dataclass(frozen=True)
class ListedSuspect:
    """What the list needs of a suspect; the rest is read when its card is shown."""

    row: int
    id: str
    given: str
    suggested: str
    probability: float
    model_probability: float
    side: str
    item: int = -1
    """What decisions are kept under; the row, unless it is a part of one."""
    kind: str = "class"
    part: str = ""
    expected: float | None = None
    spread: float | None = None
    snippet: str = ""
    stratum: int = 0
    """Of the frame; those of the listed suspects come first."""


def _read_suspects(
    path: Path, sha256: str | None
) -> tuple[tuple[ListedSuspect, ...], dict[int, tuple[int, int]], tuple[int, ...]]:
    """The list, the place of each item's line, and the stamp of the file as it was read."""
    suspects: list[ListedSuspect] = []
    places: dict[int, tuple[int, int]] = {}
    offset, digest = 0, hashlib.sha256()
    with open(path, "rb") as file:
        stamp = _stamp_of(os.fstat(file.fileno()))
        for line in file:
            digest.update(line)
            suspects.append(_listed(json.loads(line)))
            places[suspects[-1].item] = (offset, len(line))
            offset += len(line)
    if sha256 not in (None, digest.hexdigest()):  # earlier versions wrote none
        raise ValueError("review.json and suspects.jsonl do not belong together")
    return tuple(suspects), places, stamp


def _listed(card: dict[str, Any]) -> ListedSuspect:
    return ListedSuspect(
        row=int(card["row"]),
        id=str(card["id"]),
        given=str(card["given"]),
        suggested=str(card["suggested"]),
        probability=float(card["probability"]),
        model_probability=float(card["model_probability"]),
        side=str(card["side"]),
        item=int(card.get("item", card["row"])),
        kind=str(card.get("kind", "class")),
        part=str(card.get("part", "")),
        expected=card.get("expected"),
        spread=card.get("spread"),
        snippet=_snippet(card),
        stratum=int(card.get("stratum", 0)),
    )


def _snippet(card: dict[str, Any]) -> str:
    """The beginning of what the row says; around the part, where one is marked."""
    content = card["content"]
    text = str(content.get("text", ""))
    if card.get("span"):
        text = text[max(0, card["span"][0] - _SNIPPET // 3) :]
    words = " ".join(text[: 4 * _SNIPPET].split())
    if not words:
        words = str(content.get("name", "")) or ", ".join(
            f"{column} {value}" for column, value, _ in content.get("cells", [])[:6]
        )
    return words if len(words) <= _SNIPPET else words[: _SNIPPET - 1] + "…"


def searched(card: dict[str, Any]) -> str:
    """All that a person may look for in a row."""
    content = card["content"]
    parts = [str(content.get("text", "")), str(content.get("name", "")), str(card.get("part", ""))]
    parts += [str(value) for _, value, _ in content.get("cells", [])]
    parts += [str(value) for _, value in card.get("original", []) if value]
    return "\n".join(parts)


def stratified(suspects: tuple[ListedSuspect, ...]) -> tuple[ListedSuspect, ...]:
    """The listed ones with their strata, which follow from their order."""
    strata = strata_of(len(suspects), LISTED_STRATA).tolist()
    return tuple(replace(s, stratum=h) for s, h in zip(suspects, strata, strict=True))


def _stamp_of(status: os.stat_result) -> tuple[int, ...]:
    """What changes when the file is written anew."""
    return status.st_ino, status.st_size, status.st_mtime_ns


_LARGEST_SIDE = 640
_TINY = 64
"""Up to this size a picture is kept without loss."""


def write_image(folder: Path, space: str, row: int, image: Any) -> bool:
    """Write `image` as folder/SPACE-ROW.webp; False (and a warning) if it cannot be read."""
    target = folder / f"{space}-{row}.webp"
    try:
        data = _encode(image)
    except ImageError as error:
        warnings.warn(
            f"The image of row {row} cannot be shown: {error}", ExemplaWarning, stacklevel=3
        )
        return False
    folder.mkdir(exist_ok=True)
    with replacing(target) as file:
        file.write(data)
    return True


def image_bytes(directory: Path, space: str, row: int) -> bytes | None:
    """The image of a row, or None if there is none inside `directory`.

    A link is refused, be it the file or the images folder: what it points at is not ours to serve.
    """
    path = directory / "images" / f"{space}-{row}.webp"
    if path.is_symlink() or not path.resolve().is_relative_to(directory.resolve()):
        return None
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        data = file.read()
    return data if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def _encode(picture: Any) -> bytes:
    image = fitted(as_image(picture, _LARGEST_SIDE), _LARGEST_SIDE)
    # Digits and icons: every pixel counts and costs nothing. Photographs: lossy is enough.
    return webp(image, lossless=max(image.size) <= _TINY, effort=2)


WRITTEN = ("suspects.jsonl", "review.json", "images")
"""What `write_review` writes into a folder."""

_FORMAT = "exempla-review-3"
_UNFRAMED = "exempla-review-2"
"""Written until a folder said how many rows there are besides those listed."""
_EARLIER = "exempla-review-1"
"""Written until contradicting rows were called so; see `upgraded_card`."""


@dataclass(frozen=True)
class Review:
    """A review folder, read: the header, the list, and where each card lies in the file.

    `key` names what decisions belong to (see `exempla.review.gate`): a repeated analysis keeps its
    decisions; another column, or a changed file, has its own.
    """

    directory: Path
    source: ReviewedFile
    classes: tuple[str, ...]
    expected_wrong: float | None
    question: str
    key: str
    fingerprint: str
    suspects: tuple[ListedSuspect, ...]
    places: dict[int, tuple[int, int]]
    """Item → (offset, length) of its line in suspects.jsonl."""
    stamp: tuple[int, ...]
    """Of suspects.jsonl as it was read; another one has other places."""
    format: str = _FORMAT
    rest: tuple[ListedSuspect, ...] = ()
    """Rows that are no suspects, drawn at random from all such, to be spot-checked."""
    frame: Frame | None = None
    """How many rows there are in all; None: an earlier version did not say."""
    digest: str = ""
    """Of suspects.jsonl."""

    def card(self, item: int) -> dict[str, Any]:
        """Everything about one suspect, as written; KeyError if there is no such item."""
        offset, length = self.places[item]
        with open(self.directory / "suspects.jsonl", "rb") as file:
            self.check_current(os.fstat(file.fileno()))
            file.seek(offset)
            card = json.loads(file.read(length))
        return upgraded_card(card) if self.format == _EARLIER else card

    def find(self, wanted: str) -> list[int]:
        """The items whose text, cells or file name hold these letters, whatever their case."""
        wanted, found = wanted.casefold(), []
        with open(self.directory / "suspects.jsonl", "rb") as file:
            self.check_current(os.fstat(file.fileno()))
            for line in file:
                card = json.loads(line)
                if wanted in searched(card).casefold():
                    found.append(int(card.get("item", card["row"])))
        return found

    def check_current(self, status: os.stat_result | None = None) -> None:
        """ExemplaError if another analysis was written into the folder since it was read."""
        if _stamp_of(status or os.stat(self.directory / "suspects.jsonl")) != self.stamp:
            raise ExemplaError(
                f"{self.directory} was written anew while it was open; start `exempla review` "
                "again."
            )

    def source_path(self) -> Path:
        """Where the reviewed file lies now."""
        return Path(os.path.normpath(self.directory.resolve() / self.source.path))


def write_review(
    directory: str | Path,
    suspects: Iterable[Suspect],
    *,
    source: ReviewedFile,
    classes: Sequence[str],
    expected_wrong: float | None = None,
    question: str = "Which labels are wrong?",
    rest: Iterable[tuple[int, Suspect]] = (),
    frame: Frame | None = None,
) -> Path:
    """Write what the review page needs into `directory` and return the path of review.json.

    `suspects` come in the order the person should see them and may be a generator.
    `expected_wrong` is the expected number of wrong labels in the whole file. `rest` are rows that
    are no suspects, each with its stratum of `frame` (see `exempla.review.session`): with them the
    page makes spot checks and learns from decisions; without a frame its order stays as it is.

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
    # Here, not above: the page is read and served without all that tables need.
    from exempla.tables.corrections import fingerprint, refuse_input

    directory, path = make_folder(directory), Path(source.path)
    for name in WRITTEN:
        refuse_input(directory / name, path)
    if (directory / "images").is_symlink():
        raise ExemplaError(
            f"{directory / 'images'} is a link; remove it, or choose another folder."
        )
    known = _checked_classes(classes)
    seen: set[int] = set()
    digest, listed, numbers = hashlib.sha256(), 0, 0
    with replacing(directory / "suspects.jsonl") as file:
        for stratum, suspect in chain(((None, each) for each in suspects), rest):
            _check(suspect, known, seen)
            line = _line(directory, suspect)
            if stratum is None:
                listed += 1
            else:
                line["stratum"] = int(stratum)
            data = _json(line) + b"\n"
            digest.update(data)
            file.write(data)
            numbers += suspect.kind == "number"
    if not known and not numbers:
        raise ExemplaError("The classes must be a non-empty list without repeats.")
    if frame is not None:
        check_frame(frame, listed)
    header = {
        "format": _FORMAT,
        "question": question,
        "source": {
            # Relative, so that data and folder may move together.
            "path": os.path.relpath(path.parent.resolve() / path.name, directory.resolve()),
            "name": path.name,
            "format": source.format,
            "label": source.label,
            "options": dict(source.options),
            "fingerprint": source.fingerprint or fingerprint(path),
        },
        "classes": list(known),
        "expected_wrong": None if expected_wrong is None else float(expected_wrong),
        "suspects": listed,
        "rest": len(seen) - listed,
        "frame": None if frame is None else frame.to_dict(),
        # Of two analyses in one folder, the list of one is never read with the header of the other.
        "suspects_sha256": digest.hexdigest(),
        "earlier_keys": _earlier_keys(directory),
    }
    return write_bytes(directory / "review.json", _json(header, indent=2) + b"\n")


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
        if header["format"] not in (_FORMAT, _UNFRAMED, _EARLIER):
            raise ValueError(f"its format is {header['format']!r}, this version reads {_FORMAT!r}")
        suspects, places, stamp = _read_suspects(
            directory / "suspects.jsonl", header.get("suspects_sha256")
        )
        rest = tuple(s for s in suspects if s.stratum >= LISTED_STRATA)
        suspects = suspects[: len(suspects) - len(rest)]
        numbers = (len(suspects), len(rest), len(places))
        if numbers != (header["suspects"], header.get("rest", 0), len(suspects) + len(rest)):
            raise ValueError("review.json and suspects.jsonl do not belong together")
        frame = Frame.from_dict(header["frame"]) if header.get("frame") else None
        stated, expected = header["source"], header["expected_wrong"]
        return Review(
            directory=directory,
            source=ReviewedFile(
                stated["path"], str(stated["format"]), stated["label"], dict(stated["options"])
            ),
            classes=tuple(str(c) for c in header["classes"]),
            expected_wrong=None if expected is None else float(expected),
            question=str(header["question"]),
            key=_key(header),
            fingerprint=str(stated["fingerprint"]),
            suspects=stratified(suspects),
            places=places,
            stamp=stamp,
            format=str(header["format"]),
            rest=rest,
            frame=frame,
            digest=str(header.get("suspects_sha256") or ""),
        )
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ExemplaError(
            f"{directory} cannot be read as a review folder ({error}); "
            "run the command that wrote it again."
        ) from error


def _key(header: dict[str, Any]) -> str:
    if header["format"] == _EARLIER:
        return earlier_key(header)
    key = key_of(header)
    return str(header["earlier_keys"].get(key, key))


def _earlier_keys(directory: Path) -> dict[str, str]:
    """Keys of an earlier version that decisions in this folder are kept under, by today's key."""
    try:
        header = json.loads((directory / "review.json").read_bytes())
        if header["format"] == _EARLIER:
            return {key_of(header): earlier_key(header)}
        return {str(new): str(old) for new, old in header["earlier_keys"].items()}
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        return {}  # no folder yet, or a damaged one


def _checked_classes(classes: Sequence[str]) -> tuple[str, ...]:
    known = tuple(str(c) for c in classes)
    if len(set(known)) != len(known):
        raise ExemplaError("The classes must be a list without repeats.")
    broken = [name for name in known if name != name.encode("utf-8", "replace").decode()]
    if broken:
        raise ExemplaError(
            f"The class {broken[0]!r} holds half a surrogate pair, which no file can keep; "
            "rename it."
        )
    return known


def _check(suspect: Suspect, classes: tuple[str, ...], seen: set[int]) -> None:
    if suspect.item in seen:
        raise ExemplaError(f"Row {suspect.row} is listed twice; each suspect appears once.")
    seen.add(suspect.item)
    if suspect.kind == "number":
        return
    for label in (suspect.given, suspect.suggested):
        if label not in classes:
            raise ExemplaError(f"Row {suspect.row}: {label!r} is not among the classes given.")


def _line(directory: Path, suspect: Suspect) -> dict[str, Any]:
    """The suspect's JSON, with its images written and marked where they could be."""
    line = suspect.to_dict()
    rows = [("train", suspect.row, suspect.content, line["content"])]
    for part in ("contradicting", "supporters"):
        for row, written in zip(getattr(suspect, part), line[part], strict=True):
            rows.append((row.source, row.row, row.content, written["content"]))
    for space, number, content, written in rows:
        if content.image is not None:
            folder = make_folder(directory / "images")
            written["image"] = write_image(folder, space, number, content.image)
    return line


def _json(value: dict[str, Any], indent: int | None = None) -> bytes:
    # Half a surrogate pair, as broken files have it, is no UTF-8: it becomes a question mark.
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace")
