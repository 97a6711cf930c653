"""Bytes and text of a file: size limits, encodings, compression and file extensions.

**Limits.** A small hostile file must not fill the memory. The environment variable EXEMPLA_LIMITS
raises a limit, as in `EXEMPLA_LIMITS="columns=500000 unpacked=2e11"`; an error names the limit.

**Encodings.** A text that is neither UTF-8 nor has a byte-order mark is guessed. Accented Western
letters appear singly between ASCII letters, where guesses from few bytes are often wrong: such a
text is read as cp1252. Cyrillic, Greek, Hebrew, Arabic, Japanese, Chinese and Korean appear in runs
of non-ASCII bytes, and charset-normalizer tells them apart. A guess is used only if encoding the
text again gives the same bytes.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path, PurePath
from typing import Any

from exempla.errors import ExemplaError

_LIMITS = {
    "unpacked": (2 * 10**9, "bytes unpacked"),  # of a .gz, .bz2, .xz, .npz or .parquet file
    "columns": (100_000, "columns"),  # of a table, or keys of all JSON objects together
    "gaps": (10**8, "cells without a value"),  # of JSON lines: each new key is one per row
    "depth": (100, "JSON values inside each other"),
    "line": (5_000_000, "characters in one line"),
}
"""The default of each limit, and what it counts."""


def limit(name: str) -> int:
    """Return a limit: from EXEMPLA_LIMITS, or the default."""
    most = _LIMITS[name][0]
    for piece in os.environ.get("EXEMPLA_LIMITS", "").replace(",", " ").split():
        key, _, number = piece.partition("=")
        try:
            value = int(float(number))
        except (ValueError, OverflowError):
            value = 0
        if key not in _LIMITS or value < 1:
            raise ExemplaError(
                f"{piece!r} in EXEMPLA_LIMITS is not understood; write NAME=NUMBER, where NAME is "
                f"one of {', '.join(_LIMITS)}."
            )
        most = value if key == name else most
    return most


def check_limit(name: str, found: int | None, file: str) -> None:
    """Raise if `found` exceeds the limit; None means that it does, by an unknown amount."""
    most = limit(name)
    if found is not None and found <= most:
        return
    said = f"more than {most:,}" if found is None else f"{found:,}"
    needed = "NUMBER" if found is None else str(found)
    raise ExemplaError(
        f"{file} has {said} {_LIMITS[name][1]}; the limit is {most:,}. If the file is meant to be "
        f"that large, set the environment variable EXEMPLA_LIMITS={name}={needed}."
    )


_CODECS = (
    "cp932", "euc_jp", "gb18030", "big5", "cp949",  # Japanese (two), Chinese (two), Korean
    "cp1251", "koi8_r", "cp866", "iso8859_5", "cp1253", "cp1255", "cp1256",  # Cyrillic (four), …
)  # fmt: skip
"""Codecs that may be guessed; the last three are Greek, Hebrew and Arabic."""
_SAMPLE = 60_000
"""Bytes that are examined, all from cells with non-ASCII characters."""
_IN_RUNS = 0.7
"""Share of non-ASCII bytes next to another one: 0.8 and more in these scripts, below 0.5 in
Western languages."""
_FEWEST = 8
"""With fewer non-ASCII bytes than this, no guess is made."""
_CELL = re.compile(rb'[^\r\n\t,;"\x80-\xff]*[\x80-\xff][^\r\n\t,;"]*')
"""A cell with a non-ASCII byte; in none of these codecs is a delimiter part of a character."""


def _guess_codecs(data: bytes) -> list[str]:
    """Return the codecs that this text may be in, most likely first; none for Western text."""
    cells: dict[bytes, None] = {}
    size = 0
    for found in _CELL.finditer(data):
        cells[found.group()] = None
        size += len(found.group())
        if size > _SAMPLE:
            break
    sample = b"\n".join(cells)
    single = len(re.findall(rb"[\x80-\xff]", sample))
    together = sum(map(len, re.findall(rb"[\x80-\xff]{2,}", sample)))
    if single < _FEWEST or together < _IN_RUNS * single:
        return []
    from charset_normalizer import from_bytes

    matches = [m for m in from_bytes(sample, cp_isolation=list(_CODECS)) if m.encoding in _CODECS]
    # Japanese is often taken for Korean, but nearly every sentence of it has kana.
    for match in [m for m in matches if m.encoding in ("cp932", "euc_jp")]:
        if 20 * len(re.findall("[\u3041-\u30ff]", str(match))) > single:
            matches.insert(0, match)
    return [match.encoding for match in matches]


_BOMS = (
    # UTF-32 first: its little-endian mark begins with UTF-16's.
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


@dataclass(frozen=True)
class Encoding:
    """A codec and the byte-order mark before the text (often empty)."""

    codec: str
    bom: bytes = b""
    guessed: bool = field(default=False, repr=False)
    """Whether the codec was guessed from the text."""

    def __str__(self) -> str:
        return f"{self.codec} with byte-order mark" if self.bom else self.codec

    @property
    def notes(self) -> list[str]:
        """What to tell the user about it."""
        if not self.guessed:
            return []
        return [
            f"The encoding {self.codec} is a guess; if letters look wrong, give the right one with "
            "--encoding (in Python: encoding=…)."
        ]

    def decode(self, data: bytes) -> str:
        """Return the text after the byte-order mark."""
        return data[len(self.bom) :].decode(self.codec)

    def encode(self, text: str) -> bytes:
        """Return the bytes of the text, after the byte-order mark."""
        try:
            return self.bom + text.encode(self.codec)
        except UnicodeEncodeError as error:
            wrong = text[error.start : error.end]
            raise ExemplaError(
                f"The character {wrong!r} cannot be written in this file's encoding {self.codec}; "
                "choose a label without it, or convert the file to UTF-8 first."
            ) from None


def _sniff_encoding(data: bytes, wanted: str | None, name: str) -> tuple[Encoding, str]:
    """Return the encoding of a text file and its text; only `wanted` is tried if it is given."""
    if wanted is not None:
        return _decoded(data, _given_encoding(data, wanted), name)
    for bom, codec in _BOMS:
        if data.startswith(bom):
            return _decoded(data, Encoding(codec, bom), name)
    head = data[:4096]
    if head.count(0) > len(head) // 4:  # every second byte of Western UTF-16 is zero
        even, odd = head[::2].count(0), head[1::2].count(0)
        return _decoded(data, Encoding("utf-16-le" if odd > even else "utf-16-be"), name)
    if b"\x00" in head:
        raise ExemplaError(
            f"{name} does not look like a text table (it has zero bytes); give a CSV, TSV, JSONL, "
            "Parquet or NPZ file, or a folder of images."
        )
    with suppress(UnicodeDecodeError):
        return Encoding("utf-8"), data.decode("utf-8")
    # cp1252 leaves five bytes undefined; latin-1 defines all, so the last guess always fits.
    for codec in (*_guess_codecs(data), "cp1252"):
        with suppress(ExemplaError):
            return _decoded(data, Encoding(codec, guessed=True), name)
    return _decoded(data, Encoding("latin-1", guessed=True), name)


def _given_encoding(data: bytes, wanted: str) -> Encoding:
    """Return the encoding that the user names, with the byte-order mark that the file has."""
    try:
        codec = codecs.lookup(wanted).name
    except (LookupError, ValueError):
        raise ExemplaError(
            f"There is no encoding called {wanted!r}; try utf-8, utf-16, cp1252 or latin-1."
        ) from None
    try:
        "".encode(codec)
    except (LookupError, ValueError):  # rot13, hex, zlib …: bytes to bytes, or text to text
        raise ExemplaError(
            f"{wanted!r} is not a text encoding; try utf-8, utf-16, cp1252 or latin-1."
        ) from None
    family = codec.removesuffix("-sig")
    for bom, marked in _BOMS:
        if data.startswith(bom) and marked.startswith(family):
            return Encoding(marked, bom)
    # The codec that writes no byte-order mark itself.
    return Encoding({"utf-16": "utf-16-le", "utf-32": "utf-32-le"}.get(family, family))


def _decoded(data: bytes, encoding: Encoding, name: str) -> tuple[Encoding, str]:
    """Return the text if encoding it again gives the same bytes, as an export requires."""
    problem = "writing it back would change bytes"
    try:
        text = encoding.decode(data)
        if encoding.bom + text.encode(encoding.codec) == data:
            return encoding, text
    except UnicodeDecodeError as error:
        problem = f"byte {error.start} does not decode"
    except UnicodeEncodeError:
        pass
    except (ValueError, LookupError, ArithmeticError):
        problem = "it does not decode"
    raise ExemplaError(
        f"{name} is not {encoding.codec}: {problem}; leave out the encoding to have it detected, "
        "or give another one."
    )


_PACKERS = {
    b"\x1f\x8b": "gz", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz", b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",
}  # fmt: skip
_COMPRESSORS: dict[str, Any] = {"gz": gzip, "bz2": bz2, "xz": lzma}
_ZIPPED = "zip:"
"""Prefix of a packing that names the only file of a zip archive."""


def unpack(raw: bytes, name: str) -> tuple[bytes, str]:
    """Return the content of a file and how it was compressed ("" if it was not)."""
    packing = next((how for magic, how in _PACKERS.items() if raw.startswith(magic)), "")
    if not packing:
        return raw, ""
    try:
        if packing == "zip":
            return _unzipped(raw, name)
        most, size, pieces = limit("unpacked"), 0, []
        with _COMPRESSORS[packing].open(io.BytesIO(raw)) as file:
            while size <= most and (piece := file.read(1 << 24)):
                pieces.append(piece)
                size += len(piece)
    except ExemplaError:
        raise
    except RuntimeError:  # zipfile raises it if a password is needed
        raise ExemplaError(f"{name} needs a password; unpack it first.") from None
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, zipfile.BadZipFile):
        what = "zip archive or Excel workbook" if packing == "zip" else f"{packing} file"
        raise ExemplaError(
            f"{name} is a damaged {what} and cannot be unpacked; download or copy it again."
        ) from None
    check_limit("unpacked", None if size > most else size, name)
    return b"".join(pieces), packing


def _unzipped(raw: bytes, name: str) -> tuple[bytes, str]:
    """Return the only table of a zip archive, ignoring files that systems add, and its packing."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        held = [
            item.filename
            for item in archive.infolist()
            if not item.is_dir() and not re.search(r"^__MACOSX/|(^|/)\.[^/]*$", item.filename)
        ]
        if not held:
            raise ExemplaError(f"{name} is an empty zip archive; give one that contains a table.")
        if len(held) > 1:
            several = ", ".join(held[:4]) + (", …" if len(held) > 4 else "")
            raise ExemplaError(
                f"{name} is a zip archive of {len(held):,} files ({several}); unpack it and give "
                "the table you want, or the folder of images."
            )
        if (kind := named_format(held[0])) in (".parquet", ".npz", ".xlsx"):
            raise ExemplaError(f"{name} contains a {kind} file; unpack it first.")
        check_limit("unpacked", archive.getinfo(held[0]).file_size, name)
        return archive.read(held[0]), _ZIPPED + held[0]


def pack(data: bytes, packing: str) -> bytes:
    """Compress like the input; without a time stamp, so that equal content gives equal bytes."""
    if packing.startswith(_ZIPPED):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            entry = zipfile.ZipInfo(packing.removeprefix(_ZIPPED))  # dated 1980, always
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
        return out.getvalue()
    how: Any = {"mtime": 0} if packing == "gz" else {}
    return _COMPRESSORS[packing].compress(data, **how) if packing else data


def lines(text: str, mark: list[int]) -> Iterator[str]:
    """Yield lines with their line ends; `mark[0]` is the end of the line yielded last.

    `str.splitlines` would also split at form feeds and U+2028, which belong to the cells.
    """
    most, start = limit("line"), 0
    single = text.count("\r") == text.count("\r\n")  # then searching for "\n" is faster
    ends = re.finditer("\n" if single else "\r\n|\r|\n", text)
    for end in chain((match.end() for match in ends), [len(text)]):
        if end - start > most:
            check_limit("line", None, "The file")
        if end > start:
            mark[0] = end
            yield text[start:end]
        start = end


@dataclass(frozen=True)
class TextFile:
    """A text file as it was read: its bytes, their encoding and their compression."""

    raw: bytes
    encoding: Encoding
    packing: str
    name: str
    """The name of the file; in a zip archive, of the file in it."""

    @classmethod
    def read(cls, path: Path, encoding: str | None = None) -> tuple[TextFile, str]:
        """Return the file and its text."""
        raw = path.read_bytes()
        content, packing = unpack(raw, path.name)
        found, text = _sniff_encoding(content, encoding, path.name)
        if not text.strip():
            raise ExemplaError(f"{path.name} is empty: it needs at least one row.")
        return cls(raw, found, packing, packing.partition(_ZIPPED)[2] or path.name), text

    def text(self) -> str:
        """Return the text again; `read` has checked that encoding it gives the same bytes."""
        return self.encoding.decode(unpack(self.raw, "the file")[0])

    def written(self, text: str) -> bytes:
        """Return another text in the same encoding and compression."""
        return pack(self.encoding.encode(text), self.packing)


@dataclass(frozen=True)
class TextSource:
    """A text file and the position of every row in its text."""

    file: TextFile
    starts: Any
    ends: Any

    def original(self) -> bytes:
        """Return the file as it was read."""
        return self.file.raw

    def edited(self, rows: Iterable[int], edit: Callable[[int, str], str]) -> bytes:
        """Return the file with these rows replaced by `edit(row, text)`; "" removes a row."""
        text, pieces, done = self.file.text(), [], 0
        for row in sorted(rows):
            start, end = int(self.starts[row]), int(self.ends[row])
            pieces += [text[done:start], edit(row, text[start:end])]
            done = end
        return self.file.written("".join([*pieces, text[done:]]))


_FORMATS = frozenset(
    {".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".npz", ".parquet", ".xlsx", ".xlsm"}
)
PACKINGS = frozenset({".gz", ".bz2", ".xz", ".zip"})


def format_suffix(path: str | PurePath) -> str:
    """Return the file extensions from the one that names a format; numbers do not count.

    >>> [format_suffix(n) for n in ("data.2024.csv", "mails.v2.csv.gz", "adult.data", "a.2024")]
    ['.csv', '.csv.gz', '.data', '']
    """
    suffixes = PurePath(path).suffixes
    known = [place for place, suffix in enumerate(suffixes) if suffix.lower() in _FORMATS]
    if known:
        return "".join(suffixes[known[-1] :])
    packed = bool(suffixes) and suffixes[-1].lower() in PACKINGS
    last = suffixes[-2 if packed else -1 :]
    return "".join(suffix for suffix in last if not suffix[1:].isdecimal())


def named_format(path: str | PurePath) -> str:
    """Return the extension that names the format of a file; "" if there is none."""
    first = PurePath(f"_{format_suffix(path)}").suffixes[:1]
    return next((suffix.lower() for suffix in first if suffix.lower() in _FORMATS), "")
