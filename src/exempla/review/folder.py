"""A review folder on disk: written once by `fix-labels`, read by the page and by the export.

    explanation.json    the result that the suspects came from (written by the task, not read here)
    review.json         the source file (path relative to DIR, format, fingerprint), the classes,
                        the expected number of wrong labels, the number of suspects, and the strata
                        that spot checks are drawn from
    suspects.jsonl      one suspect per line, most suspicious first: row, id, given, suggested,
                        probability, model_probability, side, content, contradicting, supporters,
                        original (every column of the row); for numbers kind "number", expected,
                        spread; for parts of rows kind "part", part, span. Then a sample of the
                        other rows, each with its stratum
    images/             SPACE-ROW.webp, re-encoded; SPACE is "train" or "curated"
    decisions.sqlite    an append-only log of every decision, undo and redo, and of the spot checks
    decisions.json, patch.csv, corrected.*      written by the export

`content` is what the person sees of a row: a text with its decisive words, table cells with the
weight of each column, or an image. A line of suspects.jsonl is parsed again when its card is shown.
Rows are 0-based, as in `explanation.json`.

Decisions are stored under a key that identifies the file's bytes, how they were cut into rows, the
label column and the classes. One folder can therefore hold decisions about several columns, or
versions of a file, without mixing them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import warnings
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

from exempla.errors import ExemplaError, ExemplaWarning
from exempla.images import ImageError, as_image, fitted, webp
from exempla.io import make_folder, parse_json, replacing, write_bytes
from exempla.report.views import Content
from exempla.review.log import DecisionLog
from exempla.review.sampling import LISTED_STRATA, Strata, strata_of

LONGEST_TEXT = 20_000
"""Characters of a text on the page; longer texts are cut, and the page says so."""
_LONGEST_CELL = 200_000
"""Characters of a cell of the original row."""
KINDS = ("class", "number", "part")
_STATED = {
    "row", "id", "given", "suggested", "probability", "model_probability", "side", "content",
    "contradicting", "supporters", "expected", "spread",
}  # fmt: skip
"""Fields of every line of suspects.jsonl."""
PARTS, FIRST_PART = 1 << 20, 1 << 40
"""Numbers per row for parts, and the first such number; exact in a browser (2⁵³)."""
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


def item_of(row: int, part: str = "", span: tuple[int, int] | None = None) -> int:
    """Return the number that decisions about an item are stored under: the row, or a part's number.

    The number of a part is computed from the row and its position (tokens) or name (labels), so
    that a repeated analysis keeps its decisions.
    """
    if not part:
        return row
    place = span[0] if span else zlib.crc32(part.encode("utf-8", "replace"))
    return FIRST_PART + row * PARTS + place % PARTS


def row_of(item: int) -> int:
    """Return the row of an item."""
    return item if item < FIRST_PART else (item - FIRST_PART) // PARTS


def content_json(content: Content) -> dict[str, Any]:
    """Return what the page shows of a row, without the pixels; empty parts are left out.

    "words" are the decisive words of the text, strongest first (for their sign, see `Content`).
    """
    out: dict[str, Any] = {}
    text = "".join(piece for piece, _ in content.pieces)
    if text:
        out["text"] = text[:LONGEST_TEXT]
        if len(text) > LONGEST_TEXT:
            out["cut"] = len(text) - LONGEST_TEXT
    words = {piece: _finite(weight) for piece, weight in content.pieces if weight}
    if words:
        out["words"] = [[w, words[w]] for w in sorted(words, key=lambda word: -abs(words[word]))]
    if content.cells:
        out["cells"] = [[c, v, _finite(w)] for c, v, w in content.cells]
    if content.name:
        out["name"] = content.name
    return out


@dataclass(frozen=True)
class EvidenceRow:
    """A trusted row that contradicts a suspect's label (or, as a supporter, agrees with it).

    `source` is the file that `row` refers to: "train" or "curated".
    """

    row: int
    label: str
    weight: float
    content: Content = field(default_factory=Content)
    id: str = ""
    source: str = "train"

    def __post_init__(self) -> None:
        if self.source not in ("train", "curated"):
            raise ExemplaError(
                f"Row {self.row}: its source is {self.source!r}; it must be train or curated."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        content = content_json(self.content)
        return {**self.__dict__, "weight": _finite(self.weight), "content": content}


@dataclass(frozen=True)
class Suspect:
    """A row whose label may be wrong, with the evidence.

    Attributes
    ----------
    given : str
        The label in the file; empty if the row has none yet.
    probability : float
        Probability that the given label is wrong.
    model_probability : float
        The model's probability of `suggested`.
    model_label : str
        The model's prediction, where it is known; it may be the given label.
    side : str
        A short word to filter by, such as "opponent" or "proponent".
    contradicting, supporters : tuple of EvidenceRow
        The trusted rows that contradict the given label, and those that agree with it.
    kind : str
        "class"; "number", where the label is a number (`expected` is the one the model would
        expect, `spread` its standard deviation); or "part", where it is the label of a part.
    part, span : str, (int, int) or None
        The part's name: one of several labels, or a token, which lies at `span` of the text.
    original : tuple of (column, value)
        The row as the file has it, every column; None as a value: it is the text shown.
    stratum : int
        The stratum that spot checks draw it from; those of listed suspects come first.
    snippet : str
        The beginning of its content. The list of a review that was read from disk shows it; content
        and evidence are then read with the card.

    >>> Suspect(4312, "ham", "spam", 0.91, 0.97).to_dict()["suggested"]
    'spam'
    >>> Suspect(7, "1200", "120", 0.8, 0.0, kind="number", expected=119.6, spread=8.0).item
    7
    """

    row: int
    given: str
    suggested: str
    probability: float
    model_probability: float
    side: str = "opponent"
    id: str = ""
    content: Content = field(default_factory=Content)
    contradicting: tuple[EvidenceRow, ...] = ()
    supporters: tuple[EvidenceRow, ...] = ()
    kind: str = "class"
    part: str = ""
    span: tuple[int, int] | None = None
    expected: float | None = None
    spread: float | None = None
    original: tuple[tuple[str, str | None], ...] = ()
    model_label: str = ""
    stratum: int = 0
    snippet: str = ""

    @property
    def item(self) -> int:
        """The number that decisions about it are stored under."""
        return item_of(self.row, self.part, self.span)

    def __post_init__(self) -> None:
        problem = ""
        if self.row < 0:
            problem = "rows are counted from 0"
        elif self.kind not in KINDS:
            problem = f"its kind is {self.kind!r}; it must be one of {', '.join(KINDS)}"
        elif (self.kind == "part") != bool(self.part):
            problem = "a part needs a name, and only a part has one"
        elif self.kind == "number" and not (is_number(self.given) and is_number(self.expected)):
            problem = f"given is {self.given!r} and expected {self.expected!r}: not a number"
        elif self.span is not None and not 0 <= self.span[0] < self.span[1]:
            problem = f"the span {self.span} is invalid"
        for name in ("probability", "model_probability"):
            if not 0.0 <= getattr(self, name) <= 1.0:  # also refuses NaN
                problem = f"{name} is {getattr(self, name)}; it must lie in [0, 1]"
        if problem:
            raise ExemplaError(f"Row {self.row}: {problem}.")

    def to_dict(self) -> dict[str, Any]:
        """Return one line of suspects.jsonl; what most suspects do not have is left out."""
        _finite(self.spread or 0.0)
        out = {each.name: getattr(self, each.name) for each in fields(self)}
        out |= {
            "content": content_json(self.content),
            "contradicting": [row.to_dict() for row in self.contradicting],
            "supporters": [row.to_dict() for row in self.supporters],
            "original": [(c, v and v[:_LONGEST_CELL]) for c, v in self.original],
            "item": self.item if self.part else None,
            "kind": self.kind if self.kind != "class" else None,
        }
        return {name: value for name, value in out.items() if name in _STATED or value}


@dataclass(frozen=True)
class ReviewedFile:
    """The file that the rows come from, and how to read it again.

    `label` is the label column; `options` are the keyword arguments of `exempla.tables.read_table`.
    `fingerprint` is that of the analysed bytes (see `exempla.tables.corrections`), computed from
    the path if None.
    """

    path: str | Path
    format: str
    label: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str | None = None


def is_number(value: Any) -> bool:
    """Return True for a finite number, or a string that represents one."""
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ExemplaError(f"A weight or spread is {value}; it must be a finite number.")
    return float(value)


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
        """Return the items whose text, cells or names contain `wanted`, ignoring case."""
        found = []
        for item, line in self.lines.items():
            card = json.loads(line)
            content = card["content"]
            searched = [content.get("text"), content.get("name"), card.get("part")]
            searched += [value for _, value, _ in content.get("cells", [])]
            searched += [value for _, value in card.get("original", [])]
            if wanted.casefold() in "\n".join(str(v or "") for v in searched).casefold():
                found.append(item)
        return found

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
            key=_key(header),
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


def _key(header: Mapping[str, Any]) -> str:
    """Return the key that decisions are stored under: a digest, then the file and the column."""
    source = header["source"]
    name, label = str(source["name"]), source["label"]
    # Column names do not affect how the file is cut into rows; the label's name is in the key.
    options = sorted((k, v) for k, v in dict(source["options"]).items() if k != "names")
    meaning = [name, str(source["fingerprint"]), list(header["classes"]), label, options]
    digest = hashlib.sha256(json.dumps(meaning).encode()).hexdigest()[:32]
    return f"{digest} {json.dumps([name, label])}"


def other_decisions(others: Mapping[str, int]) -> str:
    """Return a sentence about decisions in the folder that are about other data; "" if none."""
    if not others:
        return ""
    parts = []
    for key, n in others.items():
        about = "an earlier analysis"
        with suppress(ValueError):
            name, label = json.loads(key.partition(" ")[2])
            about = f"column {label!r} of {name!r}" if label else repr(name)
        parts.append(f"{n:,} decision{'s' * (n != 1)} about {about}")
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
    rows = (suspect, *suspect.contradicting, *suspect.supporters)
    lines = (line, *line["contradicting"], *line["supporters"])
    for row, out in zip(rows, lines, strict=True):
        if row.content.image is not None:
            space = row.source if isinstance(row, EvidenceRow) else "train"
            made = write_image(directory / "images", space, row.row, row.content.image)
            out["content"]["image"] = made
    return line


def _json(value: dict[str, Any], indent: int | None = None) -> bytes:
    # An unpaired surrogate, as in broken files, is not valid UTF-8: it becomes a question mark.
    text = json.dumps(
        value, indent=indent, ensure_ascii=False, allow_nan=False, default=lambda x: x.item()
    )
    return text.encode("utf-8", "replace")
