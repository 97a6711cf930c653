"""`Dataset`: a user's file or folder as examples that can be split, modelled and shown.

`read_table` reads a file of any supported format. Tables, texts, images and token lists differ in
how they are read. After that, every command of the command line works on the same object: rows have
numbers, labels and a `RowView`.

If rows have several labels, or a label for every token, a layout, which review.json contains as
well, says how the file stores them:

    {"kind": "columns", "names": […], "spelt": {name: [absent, present]}}   a column for each label
    {"kind": "delimited", "column": …, "separator": ";", "names": […]}      a list in one column
    {"kind": "tokens", "tokens": …, "labels": …}                            JSON lines with lists
    {"kind": "conll", "token": 0, "label": -1}                              a token per line
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from sklearn.preprocessing import MultiLabelBinarizer

from exempla.errors import ExemplaError
from exempla.io import parse_json
from exempla.report.views import (
    LONGEST_TEXT,
    Content,
    ImageView,
    View,
    mark_words,
    rounded,
    scaled,
)
from exempla.tables.formats.columnar import OnDisk, fingerprint, read_npz, read_parquet
from exempla.tables.formats.delimited import read_delimited
from exempla.tables.formats.encoding import TextFile, named_format
from exempla.tables.formats.folder import read_folder, safe_path
from exempla.tables.formats.jsonl import read_jsonl
from exempla.tables.formats.xlsx import is_workbook, read_xlsx
from exempla.tables.infer import Column, infer_columns, label_of
from exempla.tables.table import Table, show, to_strings

_FOREIGN = {
    b"\xd0\xcf\x11\xe0": "an old Excel workbook; save the sheet as CSV",
    b"%PDF": "a PDF; give a table",
    b"\x89PNG": "an image; give the folder that holds it",
    b"\xff\xd8\xff": "an image; give the folder that holds it",
    b"ARROW1": "an Arrow IPC file; save it as Parquet",
    b"SQLite format 3": "an SQLite database; export the table as CSV",
}


def read_table(
    path: str | Path,
    *,
    encoding: str | None = None,
    delimiter: str | None = None,
    header: bool | None = None,
    names: Sequence[str] | None = None,
    expected: Collection[str] = (),
    labelled: bool = True,
) -> Table:
    """Read a CSV, TSV, JSONL, Parquet, Excel or NPZ file or a folder of images.

    Text formats may be compressed (.gz, .bz2, .xz, or a .zip with one file). The format is detected
    from the content first and the name second.

    Parameters
    ----------
    encoding, delimiter
        Detected if None; ``table.notes`` reports both.
    header
        Whether the first row is the header; inferred from the rows if None.
    names
        Names for the columns, instead of those in the file.
    expected
        Columns you expect to find. A first row that contains one of them is a header, even if the
        same word is also a value below it.
    labelled
        Whether images need labels. If not, an NPZ may lack `y`, and images may lie in the folder
        itself; the table then has no label column.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.tsv"
    >>> _ = path.write_text("text\\tlabel\\nfine film\\tpos\\ndull film\\tneg\\n")
    >>> table = read_table(path)
    >>> table.notes[0], table.row(1)
    ('Read a.tsv as utf-8, tab-separated.', {'text': 'dull film', 'label': 'neg'})
    """
    path = _checked(path)
    if path.is_dir():
        return read_folder(path, labelled)
    with path.open("rb") as file:
        magic = file.read(16)
    if not magic:
        raise ExemplaError(f"{path.name} is empty: it needs a header and at least one row.")
    named = named_format(path)
    if magic.startswith(b"PAR1"):
        return read_parquet(path)
    if named == ".npz":
        return read_npz(path, labelled)
    for start, what in _FOREIGN.items():
        if magic.startswith(start):
            raise ExemplaError(f"{path.name} is {what}.")
    if named == ".parquet":
        raise ExemplaError(f"{path.name} is not a Parquet file, although its name says so.")
    if magic.startswith(b"PK\x03\x04") and is_workbook(path):
        return read_xlsx(path)
    file, text = TextFile.read(path, encoding)
    named = named_format(file.name)
    if named in (".jsonl", ".ndjson", ".json"):
        table = read_jsonl(path, file, text)
    else:
        how = {"delimiter": delimiter, "header": header, "names": names, "expected": expected}
        table = read_delimited(path, file, text, **how)
    given = {"encoding": encoding, "delimiter": delimiter}
    return replace(table, given={name: value for name, value in given.items() if value is not None})


_ADDRESS = re.compile(r"(?:https?|ftp|s3|gs|gcs|abfss?|hdfs|file):/{1,2}", re.IGNORECASE)


def _checked(path: str | Path) -> Path:
    """Return the path of a file or folder that can be read."""
    if found := _ADDRESS.match(str(path)):
        how = f"`curl -LO {path}`" if found.group().lower().startswith("http") else "its own tool"
        raise ExemplaError(
            f"{path} is a URL, and exempla downloads nothing; download it with {how}, then give "
            "the file."
        )
    path = Path(path)
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ExemplaError(f"The name {str(path)!a} is not valid UTF-8; rename the file.") from None
    if not path.exists():
        near = path.parent if path.parent != path else Path()
        raise ExemplaError(f"There is no file {str(path)!r}; check the name, in {str(near)!r}.")
    if not path.is_file() and not path.is_dir():
        raise ExemplaError(
            f"{str(path)!r} is a pipe or a device, not a file; save its content to a file first."
        )
    return path


def borrow_names(table: Table, other: Table) -> Table:
    """Return the table with the column names of another file, if it has no header itself.

    The table is unchanged if it has a header, or if the other file has none or another width.
    """
    if table.header or not other.header or len(table.names) != len(other.names):
        return table
    return replace(
        table,
        data=table.data.rename_columns(list(other.names)),
        notes=(*table.notes, f"Column names were taken from {other.path.name}."),
    )


_OWN_LABELS = {"npz": "y", "images": "label"}
"""Formats whose label column has a fixed name."""
_MAX_NUMBER_LENGTH = 7
"""Characters up to which a number is shown as it is written in the file."""


@dataclass(frozen=True)
class RowView(View):
    """Show rows of a dataset, by row number of the file or by position among `rows`."""

    table: Table
    columns: tuple[Column, ...]
    rows: Any = None
    """Row numbers in the file if rows are shown by position; None if by row number."""
    words: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    strengths: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    longest: int = LONGEST_TEXT
    """Maximum number of characters shown of one text."""

    def _row(self, index: int) -> int:
        return int(index if self.rows is None else self.rows[index])

    def columns_of(self, index: int) -> dict[str, str | None]:
        """Return all cells of the row as in the file."""
        return self.table.row(self._row(index))

    def show(self, index: int) -> Content:
        """Return the row's text with decisive words marked, its cells, and its image."""
        row, values = self._row(index), self.columns_of(index)
        texts = [c.name for c in self.columns if c.kind == "text"]
        pieces: list[tuple[str, float]] = []
        marked = scaled(self.words.get(index, {}))
        for name in texts:
            if len(texts) > 1:
                pieces.append((f"{chr(10) if pieces else ''}{name}: ", 0.0))
            pieces += mark_words(values[name] or "", marked, self.longest)
        strengths = scaled(self.strengths.get(index, {}))
        cells = [
            (c.name, _shown(c, values[c.name] or ""), strengths.get(c.name, 0.0))
            for c in self.columns
            if c.kind in ("number", "category", "date") and self.table.images is None
        ]
        ids = [values[c.name] for c in self.columns if c.kind == "id"]
        image: Any = None
        if self.table.format == "images":
            ids, image = [values["file"]], safe_path(self.table.path, values["file"] or "")
        elif self.table.images is not None:
            image = self._pixels.show(row).image
        return self._with(
            index,
            name=f"#{row}" + (f" · {ids[0]}" if ids and ids[0] else ""),
            pieces=tuple(pieces),
            cells=tuple(sorted(cells, key=lambda cell: -abs(cell[2]))),
            image=image,
        )

    @cached_property
    def _pixels(self) -> ImageView:
        return ImageView(self.table.images)  # finds the range of all values, once


def _shown(column: Column, value: str) -> str:
    """Return a cell for people: long numbers rounded, everything else as it is."""
    if column.kind != "number" or len(value) <= _MAX_NUMBER_LENGTH:
        return value
    try:
        return rounded(float(value.replace(",", ".") if column.detail == "," else value))
    except ValueError:
        return value


@dataclass(frozen=True)
class Dataset:
    """A user's file or folder with the meaning of its columns.

    One column is the label, unless rows have several labels or token labels: then `layout` says how
    the file holds them.

    >>> import tempfile, pathlib
    >>> from exempla.tables import read_table
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("size,y\\n" + "1,a\\n2,b\\n1,b\\n2,a\\n" * 5)
    >>> data = Dataset.of(read_table(path), "y")
    >>> len(data), data.label.name, data.view().show(1).cells
    (20, 'y', (('size', '2', 0.0),))
    """

    table: Table
    columns: list[Column]
    layout: dict[str, Any] | None = None
    tokens: list[list[str]] = field(default_factory=list)
    """The tokens of each row, if they have labels of their own."""
    token_labels: list[list[str]] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        table: Table,
        label: str | None = None,
        text: Collection[str] = (),
        kinds: Mapping[str, str] | None = None,
        task: str = "auto",
    ) -> Dataset:
        """Infer the columns of a table that has one label per row."""
        name = label if label is not None else _OWN_LABELS.get(table.format)
        if name is None:
            raise ExemplaError(
                f"Say which column of {table.path.name} is the label with --label COLUMN; its "
                f"columns are {show(table.names, 12)}."
            )
        return cls(table, infer_columns(table, name, text, kinds, task))

    def __len__(self) -> int:
        return len(self.table)

    @property
    def name(self) -> str:
        """The file's name."""
        return self.table.path.name

    @property
    def is_images(self) -> bool:
        """Whether the examples are images."""
        return self.table.is_images

    @property
    def label(self) -> Column:
        """The column to predict."""
        return label_of(self.columns)

    @property
    def label_name(self) -> str:
        """The column of the labels; if there are several, their names separated by commas."""
        if self.layout is None:
            return self.label.name
        if self.layout["kind"] == "columns":
            return ", ".join(self.layout["names"])
        return str(self.layout.get("column") or self.layout.get("labels", "label"))

    @property
    def regression(self) -> bool:
        """Whether the label is a number."""
        return self.layout is None and self.label.detail == "regression"

    def view(self, table: Table | None = None, **options: Any) -> RowView:
        """Return the view of this dataset, or of another file with the same columns.

        `options` are the remaining fields of `RowView`. Image folders show no columns.
        """
        table = self.table if table is None else table
        shown = [] if table.format == "images" else self.columns
        return RowView(table=table, columns=tuple(shown), **options)


def label_layout(table: Table, label: str | None, separator: str | None) -> dict[str, Any] | None:
    """Return how the rows of a table hold several labels; None if they have one label each.

    `label` names several columns, separated by commas, or one column whose labels `separator`
    separates.
    """
    if separator is not None:
        if label is None:
            raise ExemplaError("Say which column lists the labels with --label COLUMN.")
        name = table.names[table.position(label)]
        return {"kind": "delimited", "column": name, "separator": separator}
    if label is None or "," not in label or label in table.names:
        return None
    asked = [name.strip() for name in label.split(",") if name.strip()]
    names = [table.names[table.position(name)] for name in asked]
    if len(set(names)) < 2:
        raise ExemplaError(f"--label {label} names one column; several labels need two or more.")
    return {"kind": "columns", "names": names}


_YES, _NO = ("1", "1.0", "true", "yes", "y", "x"), ("0", "0.0", "false", "no", "n", "")
_CONLL = (".conll", ".conllu", ".conll03", ".iob", ".iob2", ".bio")


def indicator(table: Table, layout: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the (rows, labels) indicator matrix and which rows have labels; complete `layout`."""
    if layout["kind"] == "delimited":
        return _delimited(table, layout), np.ones(len(table), dtype=bool)
    out = np.zeros((len(table), len(layout["names"])), dtype=np.int64)
    known = np.ones(len(table), dtype=bool)
    layout["spelt"] = {}
    for place, name in enumerate(layout["names"]):
        values = table.strings(name)
        plain = [(v or "").strip().casefold() for v in values]
        odd = sorted({v for v in plain if v not in _YES and v not in _NO})
        if odd:
            raise ExemplaError(
                f"The label column {name!r} has {show(odd, 3)}; with one column per label, values "
                "must be 0 or 1, yes or no. For several labels in one column, use "
                "--label-separator."
            )
        out[:, place] = [v in _YES for v in plain]
        known &= ~table.missing(name)
        layout["spelt"][name] = [
            next((v or "" for v, p in zip(values, plain, strict=True) if p and p in words), word)
            for words, word in ((_NO, "0"), (_YES, "1"))
        ]
    return out, known


def _delimited(table: Table, layout: dict[str, Any]) -> np.ndarray:
    """Return the indicator matrix of a column that lists labels."""
    column, mark = layout["column"], layout["separator"]
    values = table.strings(column)
    if not any(mark in (value or "") for value in values):
        raise ExemplaError(
            f"No value in column {column!r} contains the separator {mark!r}, so every row has a "
            "single label. Check --label-separator, or leave it out."
        )
    cells = [[p.strip() for p in (cell or "").split(mark) if p.strip()] for cell in values]
    names = sorted({name for cell in cells for name in cell})
    if len(names) < 2:
        raise ExemplaError(
            f"The column {column!r} has {'only one label' if names else 'no label'} when split at "
            f"{mark!r}; is that the separator?"
        )
    layout["names"] = names
    return np.asarray(MultiLabelBinarizer(classes=names).fit_transform(cells), dtype=np.int64)


def is_conll(path: str | Path) -> bool:
    """Return True if the file name has a CoNLL extension."""
    return Path(path).suffix.lower() in _CONLL


def read_tokens(
    path: str | Path, label: str | None = None, table: Table | None = None
) -> Dataset | None:
    """Return the token lists of a CoNLL file, or of JSON lines with lists; None if it has none.

    `table` is the file if it has been read already.
    """
    path = Path(path)
    if is_conll(path):
        return _read_conll(path, label)
    if not path.is_file() or ".json" not in "".join(path.suffixes).lower():
        return None
    table = read_table(path) if table is None else table
    name = label or next((n for n in ("labels", "ner_tags", "tags") if n in table.names), None)
    if "tokens" not in table.names or name is None or name not in table.names:
        return None
    rows = [[_listed(cell) for cell in table.strings(n)] for n in ("tokens", name)]
    if rows[0][0] is None or rows[1][0] is None:
        return None
    for row, (tokens, labels) in enumerate(zip(*rows, strict=True)):
        if tokens is None or labels is None or len(tokens) != len(labels):
            raise ExemplaError(
                f"Row {row} of {path.name} needs one of {name} per token; correct that line."
            )
    tokens, labels = ([[str(v) for v in one or []] for one in part] for part in rows)
    layout = {"kind": "tokens", "tokens": "tokens", "labels": name}
    return _sentences(table, layout, tokens, labels)


def _sentences(
    table: Table, layout: dict[str, Any], tokens: list[list[str]], labels: list[list[str]]
) -> Dataset:
    """Return the dataset whose rows are shown as their tokens, joined by spaces."""
    shown = replace(table, data=pa.table({"text": [" ".join(one) for one in tokens]}))
    return Dataset(shown, [Column("text", "text", "tokens")], layout, tokens, labels)


def _listed(cell: str | None) -> list[Any] | None:
    if not cell or not cell.startswith("["):
        return None
    try:
        return parse_json(cell)
    except ValueError:
        return None


def _read_conll(path: Path, label: str | None) -> Dataset:
    universal = path.suffix.lower() == ".conllu"
    layout = {"kind": "conll", "token": int(universal), "label": 3 if universal else -1}
    if label is not None:
        if not re.fullmatch(r"-?[1-9]\d*", label):
            raise ExemplaError(
                f"--label {label} is not a column of {path.name}; give its number, counted from 1."
            )
        layout["label"] = int(label) - (int(label) > 0)
    tokens: list[list[str]] = []
    labels: list[list[str]] = []
    for line, row, _, fields in conll_tokens(conll_text(path)[1]):
        if not fields:
            continue
        if len(fields) < 2 or not -len(fields) <= layout["label"] < len(fields):
            raise ExemplaError(
                f"A line of {path.name} has too few columns ({line.strip()[:40]!r}); each token "
                "needs a line with its label."
            )
        if row == len(tokens):
            tokens.append([])
            labels.append([])
        tokens[row].append(fields[layout["token"]][0])
        labels[row].append(fields[layout["label"]][0])
    if not tokens:
        raise ExemplaError(f"{path.name} has no tokens.")
    source: Any = OnDisk(path, fingerprint(path))
    return _sentences(Table(path, "conll", pa.table({}), source), layout, tokens, labels)


def conll_tokens(text: str) -> Iterator[tuple[str, int, int, list[tuple[str, int, int]]]]:
    """Yield each line with its sentence, its place there, and (text, start, end) of its columns.

    Blank lines, which end a sentence and count to it, have no columns; nor have comments, document
    marks, and multi-token words of CoNLL-U.
    """
    row = place = 0
    for line in text.splitlines(keepends=True):
        pattern = r"[^\t\r\n]+" if "\t" in line else r"\S+"
        fields = [
            (m.group(), m.start(), m.end()) for m in re.finditer(pattern, line) if m.group().strip()
        ]
        if not fields:
            yield line, row if place else -1, place, []
            row, place = row + (place > 0), 0
        elif line.startswith(("# ", "-DOCSTART-")) or re.fullmatch(r"\d+[-.]\d+", fields[0][0]):
            yield line, -1, place, []
        else:
            yield line, row, place, fields
            place += 1


def conll_text(path: Path) -> tuple[TextFile, str]:
    """Return a CoNLL file and its text."""
    if not path.is_file():
        raise ExemplaError(f"There is no file {str(path)!r}; check the name.")
    return TextFile.read(path)


def span_of(tokens: Sequence[str], place: int) -> tuple[int, int]:
    """Return the position of a token in the tokens joined by spaces."""
    start = sum(len(token) + 1 for token in tokens[:place])
    return start, start + max(len(tokens[place]), 1)


_MIN_TYPO_LENGTH = 4
"""Shorter labels that differ by one letter are more likely different labels."""
_MAX_TYPO_SHARE = 0.05
"""A misspelt label has at most this share of the rows of the label it resembles."""
_MAX_SPELLINGS = 1_000
"""Distinct labels up to which spellings are compared."""


def spellings(table: Table, label: Column) -> dict[str, str]:
    """Return labels that look like another spelling of a label, with the label they resemble.

    Labels that differ only in case or surrounding spaces are one label. A rare label that differs
    from a frequent one by a single edit or by two swapped letters is a typing error.
    """
    if label.detail != "classes":
        return {}
    counts = Counter(v for v in to_strings(table.column(label.name)) if v and v.strip())
    if len(counts) > _MAX_SPELLINGS:
        return {}
    found: dict[str, str] = {}
    by_form: dict[str, str] = {}
    for value, _ in counts.most_common():
        form = " ".join(value.split()).casefold()
        if form in by_form:
            found[value] = by_form[form]
        else:
            by_form[form] = value
    totals = Counter(counts)
    for value, target in found.items():
        totals[target] += counts[value]
    for form, value in by_form.items():
        near = [
            other
            for other_form, other in by_form.items()
            if totals[value] <= _MAX_TYPO_SHARE * totals[other] and _is_typo(form, other_form)
        ]
        if len(near) == 1:
            found = {old: near[0] if new == value else new for old, new in found.items()}
            found[value] = near[0]
    return found


def _is_typo(word: str, other: str) -> bool:
    """Return True if two words differ by one edit or by two swapped neighbouring letters."""
    if len(word) < _MIN_TYPO_LENGTH or not word.isalpha() or word == other:
        return False
    length = min(len(word), len(other))
    start = next((i for i in range(length) if word[i] != other[i]), length)
    a, b = word[start:], other[start:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or (a[:2] == b[:2][::-1] and a[2:] == b[2:])


def merge_labels(table: Table, name: str, mapping: Mapping[str, str]) -> Table:
    """Return the table with labels respelt; the file itself is unchanged."""
    if name not in table.names:
        return table
    values = pa.array([v and mapping.get(v, v) for v in table.strings(name)], type=pa.string())
    place = table.names.index(name)
    return replace(table, data=table.data.set_column(place, name, values))
