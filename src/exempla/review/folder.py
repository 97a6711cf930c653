"""A review folder on disk: written once by `fix-labels`, read by the page and by the export.

`suspects.jsonl` has one line per suspect, which is parsed again when its card is shown. Images are
re-encoded when they are written and found by row number when they are served.

Decisions are stored under a key that identifies the file's bytes, how they were cut into rows, the
label column and the classes. One folder can therefore hold decisions about several columns, or
versions of a file, without mixing them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from exempla.errors import ExemplaError, ExemplaWarning
from exempla.images import ImageError, as_image, fitted, webp
from exempla.io import make_folder, parse_json, replacing, write_bytes
from exempla.review.log import DecisionLog
from exempla.review.sampling import LISTED_STRATA, Strata, strata_of
from exempla.review.suspects import ReviewedFile, Suspect

_SNIPPET = 90
"""Characters of a row that the list shows."""
_MAX_IMAGE_SIDE = 640
_LOSSLESS_SIDE = 64
"""Up to this many pixels on the longer side, an image is stored without loss."""
WRITTEN = ("suspects.jsonl", "review.json", "images")
"""What `write_review` writes into a folder."""
_FORMAT = "exempla-review-4"
_CARD_ONLY = ("item", "content", "contradicting", "supporters", "original", "model_label")
"""Fields of a line of suspects.jsonl that only its card shows."""


def _listed(card: dict[str, Any]) -> Suspect:
    """Return a suspect as the list shows it, without content and evidence."""
    stated = {name: value for name, value in card.items() if name not in _CARD_ONLY}
    content, span = card["content"], stated.get("span")
    text = str(content.get("text", ""))
    if span:  # the text around the part in question
        stated["span"] = tuple(span)
        text = text[max(0, span[0] - _SNIPPET // 3) :]
    words = " ".join(text[: 4 * _SNIPPET].split()) or str(content.get("name", ""))
    words = words or ", ".join(f"{name} {value}" for name, value, _ in content.get("cells", [])[:6])
    snippet = words if len(words) <= _SNIPPET else words[: _SNIPPET - 1] + "…"
    return Suspect(**stated, snippet=snippet)


def _searched(card: dict[str, Any]) -> str:
    """Return everything that a search looks at."""
    content = card["content"]
    parts = [str(content.get("text", "")), str(content.get("name", "")), str(card.get("part", ""))]
    parts += [str(value) for _, value, _ in content.get("cells", [])]
    parts += [str(value) for _, value in card.get("original", []) if value]
    return "\n".join(parts)


def _stamp(directory: Path) -> tuple[int, ...]:
    """Return a value that changes when suspects.jsonl is replaced."""
    status = os.stat(directory / "suspects.jsonl")
    return status.st_ino, status.st_size, status.st_mtime_ns


def write_image(folder: Path, space: str, row: int, picture: Any) -> bool:
    """Write folder/SPACE-ROW.webp; return False, with a warning, if the image is unreadable."""
    try:
        image = fitted(as_image(picture, _MAX_IMAGE_SIDE), _MAX_IMAGE_SIDE)
        # Digits and icons need every pixel and cost little; photographs may be lossy.
        data = webp(image, lossless=max(image.size) <= _LOSSLESS_SIDE, effort=2)
    except ImageError as error:
        warnings.warn(
            f"The image of row {row} cannot be shown: {error}", ExemplaWarning, stacklevel=3
        )
        return False
    write_bytes(make_folder(folder) / f"{space}-{row}.webp", data)
    return True


def image_bytes(directory: Path, space: str, row: int) -> bytes | None:
    """Return the image of a row, or None if there is none inside `directory`."""
    path = (directory / "images" / f"{space}-{row}.webp").resolve()
    if not path.is_relative_to(directory.resolve()) or not path.is_file():
        return None
    data = path.read_bytes()
    return data if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


@dataclass(frozen=True)
class Review:
    """A review folder as read from disk.

    `key` identifies what decisions are about: a repeated analysis keeps its decisions; another
    column or a changed file starts with none. `lines` are the lines of suspects.jsonl by item,
    `stamp` and `digest` identify that file. `rest` is a random sample of the unlisted rows, and
    `strata` the number of rows in each stratum; None: no spot checks.
    """

    directory: Path
    source: ReviewedFile
    classes: tuple[str, ...]
    question: str
    key: str
    suspects: tuple[Suspect, ...]
    lines: dict[int, bytes]
    stamp: tuple[int, ...]
    digest: str
    rest: tuple[Suspect, ...] = ()
    strata: Strata | None = None

    def card(self, item: int) -> dict[str, Any]:
        """Return everything about one suspect; KeyError if there is no such item."""
        self.check_current()  # the images are those of the latest analysis
        return json.loads(self.lines[item])

    def find(self, wanted: str) -> list[int]:
        """Return the items whose text, cells or file name contain `wanted`, ignoring case."""
        wanted = wanted.casefold()
        return [
            item
            for item, line in self.lines.items()
            if wanted in _searched(json.loads(line)).casefold()
        ]

    def check_current(self) -> None:
        """Raise ExemplaError if another analysis was written into the folder meanwhile."""
        if _stamp(self.directory) != self.stamp:
            raise ExemplaError(
                f"{self.directory} was replaced by a new analysis; start `exempla review` again."
            )

    def open_log(self) -> DecisionLog:
        """Open the decisions about this data."""
        return DecisionLog(self.directory / "decisions.sqlite", self.key)

    def source_path(self) -> Path:
        """Return the path of the reviewed file."""
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
    strata: Strata | None = None,
) -> Path:
    """Write what the review page needs into `directory` and return the path of review.json.

    Parameters
    ----------
    suspects : iterable of Suspect
        In the order the person should see them; may be a generator.
    source : ReviewedFile
        The file that the rows come from.
    classes : sequence of str
        The labels to choose from; empty where labels are numbers.
    expected_wrong : float
        The expected number of wrong labels in the whole file.
    rest, strata : iterable of (stratum, Suspect), Strata
        A sample of the unlisted rows, from `exempla.review.sampling.sample_rest`. With it the page
        makes spot checks and updates the order; without it the order is fixed.

    Raises
    ------
    ExemplaError
        If a suspect is invalid, or if a file that exempla did not write is in the way.

    Examples
    --------
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
    # Imported here: the page is read and served without the packages that tables need.
    from exempla.tables.corrections import fingerprint, refuse_input

    directory, path = make_folder(directory), Path(source.path)
    for name in WRITTEN:
        refuse_input(directory / name, path)
    _refuse_foreign(directory)
    known = _checked_classes(classes)
    seen: set[int] = set()
    digest, listed, numbers = hashlib.sha256(), 0, 0
    with replacing(directory / "suspects.jsonl") as file:
        others = (replace(each, stratum=stratum) for stratum, each in rest)
        for suspect in chain(suspects, others):
            _check(suspect, known, seen)
            data = _json(_line(directory, suspect)) + b"\n"
            digest.update(data)
            file.write(data)
            listed += suspect.stratum < LISTED_STRATA
            numbers += suspect.kind == "number"
    if not known and not numbers:
        raise ExemplaError("The classes must be a non-empty list without repeats.")
    if strata is not None:
        strata.check_listed(listed)
    header = {
        "format": _FORMAT,
        "question": question,
        "source": {
            # Relative, so that data and folder can move together.
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
        "strata": None if strata is None else strata.to_dict(),
        # With two analyses in one folder, the list of one is never read with the other's header.
        "suspects_sha256": digest.hexdigest(),
    }
    return write_bytes(directory / "review.json", _json(header, indent=2) + b"\n")


_OURS = {
    "review.json": rb'\{\s*"format": "exempla-review-',
    "suspects.jsonl": rb'\{"row": \d+, "given": ',
}
"""How the files of a review folder begin."""


def _refuse_foreign(directory: Path) -> None:
    """Raise ExemplaError if a file that `write_review` would replace is not its own."""
    for name in WRITTEN:
        path = directory / name
        if path.is_symlink():
            raise ExemplaError(f"{path} is a symbolic link; remove it, or choose another folder.")
        if path.is_dir():
            image = re.compile(r"\.?(train|curated)-\d+\.webp.*")
            ours = name == "images" and all(image.fullmatch(each) for each in os.listdir(path))
        else:
            head = path.read_bytes()[:1000] if path.exists() else b""
            ours = not head or (name in _OURS and re.match(_OURS[name], head))
        if not ours:
            raise ExemplaError(
                f"{path} was not written by exempla and would be replaced; move it, or choose "
                "another folder."
            )


def read_review(directory: str | Path) -> Review:
    """Read a review folder; ExemplaError if it is not one, or if it is damaged.

    >>> from exempla.review import read_review
    >>> read_review("no-such-folder")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    exempla.errors.ExemplaError: no-such-folder has no review.json; create one with ...
    """
    directory = Path(directory)
    path = directory / "review.json"
    if not path.is_file():
        raise ExemplaError(
            f"{directory} has no review.json; create one with `exempla fix-labels FILE "
            f"--label COLUMN --out {directory}` and review that folder."
        )
    try:
        header = parse_json(path.read_text(encoding="utf-8"))
        if header["format"] != _FORMAT:
            raise ValueError(f"its format is {header['format']!r}, this version reads {_FORMAT!r}")
        stamp, data = _stamp(directory), (directory / "suspects.jsonl").read_bytes()
        lines = data.splitlines(keepends=True)
        items = [_listed(parse_json(line)) for line in lines]
        digest = hashlib.sha256(data).hexdigest()
        suspects = [s for s in items if s.stratum < LISTED_STRATA]
        rest = tuple(items[len(suspects) :])
        stated = (digest, len(suspects), len(rest))
        if stated != (header["suspects_sha256"], header["suspects"], header["rest"]):
            raise ValueError("review.json and suspects.jsonl are from different runs")
        ranks = strata_of(len(suspects), LISTED_STRATA).tolist()
        source = {name: value for name, value in header["source"].items() if name != "name"}
        strata = header["strata"]
        return Review(
            directory=directory,
            source=ReviewedFile(**source),
            classes=tuple(str(c) for c in header["classes"]),
            question=str(header["question"]),
            key=key_of(header),
            suspects=tuple(replace(s, stratum=h) for s, h in zip(suspects, ranks)),
            lines={suspect.item: line for suspect, line in zip(items, lines)},
            stamp=stamp,
            digest=digest,
            rest=rest,
            strata=Strata(tuple(strata["sizes"]), strata["seed"]) if strata else None,
        )
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ExemplaError(
            f"{directory} cannot be read as a review folder ({error}); run the command that wrote "
            "it again."
        ) from error


def key_of(header: Mapping[str, Any]) -> str:
    """Return the key of the review that a review.json describes; it names file and column."""
    source = header["source"]
    name, label = str(source["name"]), source["label"]
    # Names of columns move no row, and the label's own is in the key anyway.
    options = sorted((k, v) for k, v in dict(source["options"]).items() if k != "names")
    meaning = [name, str(source["fingerprint"]), list(header["classes"]), label, options]
    digest = hashlib.sha256(json.dumps(meaning).encode()).hexdigest()[:32]
    return f"{digest} {json.dumps([name, label])}"


def _subject(key: str) -> str:
    """Return what a key is about, in words."""
    try:
        name, label = json.loads(key.partition(" ")[2])
    except ValueError:
        return "an earlier analysis"
    return f"column {label!r} of {name!r}" if label else repr(name)


def other_decisions(others: Mapping[str, int]) -> str:
    """Return a sentence about decisions in the folder that are about other data; "" if none."""
    if not others:
        return ""
    parts = [f"{n:,} decision{'s' * (n != 1)} about {_subject(key)}" for key, n in others.items()]
    return (
        f"This folder also has {', '.join(parts)}. They are not used here; they apply again when "
        "that data is analysed into this folder."
    )


def _checked_classes(classes: Sequence[str]) -> tuple[str, ...]:
    known = tuple(str(c) for c in classes)
    if len(set(known)) != len(known):
        raise ExemplaError("The classes must be a list without repeats.")
    if strange := [name for name in known if name != name.encode("utf-8", "replace").decode()]:
        raise ExemplaError(
            f"The class {strange[0]!r} contains an unpaired surrogate, which cannot be written to "
            "a file; rename it."
        )
    return known


def _check(suspect: Suspect, classes: tuple[str, ...], seen: set[int]) -> None:
    if suspect.item in seen:
        raise ExemplaError(f"Row {suspect.row} is listed twice; each suspect appears once.")
    seen.add(suspect.item)
    for label in (suspect.given, suspect.suggested):
        unlabelled = not label and label == suspect.given
        if suspect.kind != "number" and not unlabelled and label not in classes:
            raise ExemplaError(f"Row {suspect.row}: {label!r} is not among the classes given.")


def _line(directory: Path, suspect: Suspect) -> dict[str, Any]:
    """Return the suspect's JSON and write its images."""
    line = suspect.to_dict()
    shown = [("train", suspect.row, suspect.content)]
    shown += [(e.source, e.row, e.content) for e in (*suspect.contradicting, *suspect.supporters)]
    written = (line, *line["contradicting"], *line["supporters"])
    for out, (space, row, content) in zip(written, shown, strict=True):
        if content.image is not None:
            made = write_image(directory / "images", space, row, content.image)
            out["content"]["image"] = made
    return line


def _json(value: dict[str, Any], indent: int | None = None) -> bytes:
    # An unpaired surrogate, as in broken files, is not valid UTF-8: it becomes a question mark.
    text = json.dumps(
        value, indent=indent, ensure_ascii=False, allow_nan=False, default=lambda x: x.item()
    )
    return text.encode("utf-8", "replace")
