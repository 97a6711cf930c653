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
from pathlib import PurePath
from typing import Any

from exempla.errors import ExemplaError

_VARIABLE = "EXEMPLA_LIMITS"
_LIMITS = {
    "unpacked": (2 * 10**9, "bytes unpacked"),  # of a .gz, .bz2, .xz, .npz or .parquet file
    "columns": (100_000, "columns"),  # of a table, or keys of all JSON objects together
    "gaps": (10**8, "cells without a value"),  # of JSON lines: each new key is one per row
    "depth": (100, "JSON values inside each other"),
    "line": (5_000_000, "characters in one line"),
}
"""The default of each limit, and what it counts."""


def limit(name: str) -> int:
    """Return a limit: from EXEMPLA_LIMITS, or the default.

    >>> limit("columns")
    100000
    """
    return _given_limits().get(name, _LIMITS[name][0])


def check_limit(name: str, found: int | None, file: str) -> None:
    """Raise if `found` exceeds the limit; None means that it does, by an unknown amount."""
    most = limit(name)
    if found is not None and found <= most:
        return
    said = f"more than {most:,}" if found is None else f"{found:,}"
    needed = "NUMBER" if found is None else str(found)
    raise ExemplaError(
        f"{file} has {said} {_LIMITS[name][1]}; the limit is {most:,}. If the file is meant to be "
        f"that large, set the environment variable {_VARIABLE}={name}={needed}."
    )


def _given_limits() -> dict[str, int]:
    found = {}
    for piece in os.environ.get(_VARIABLE, "").replace(",", " ").split():
        name, _, number = piece.partition("=")
        try:
            found[name] = int(float(number))
        except (ValueError, OverflowError):
            found[name] = 0
        if name not in _LIMITS or found[name] < 1:
            raise ExemplaError(
                f"{piece!r} in {_VARIABLE} is not understood; write NAME=NUMBER, where NAME is one "
                f"of {', '.join(_LIMITS)}."
            )
    return found


_EASTERN = ("cp932", "euc_jp", "gb18030", "big5", "cp949")
"""Two bytes per character: Japanese (Shift-JIS, EUC), Chinese (GBK, Big5), Korean."""
_OTHERS = ("cp1251", "koi8_r", "cp866", "iso8859_5", "cp1253", "cp1255", "cp1256")
"""Cyrillic (four), Greek, Hebrew, Arabic."""
_ENOUGH = 60_000
"""Bytes that are examined, all from cells with non-ASCII characters."""
_IN_RUNS = 0.7
"""Share of non-ASCII bytes next to another one: 0.8 and more in these scripts, below 0.5 in
Western languages."""
_FEWEST = 8
"""With fewer non-ASCII bytes than this, no guess is made."""
_PLAIN = re.compile(rb'[\t\r\n,;"]')
"""Ends a cell; in none of these codecs is it part of another character."""
_OTHER = re.compile(rb"[\x80-\xff]")


def _guess_codecs(data: bytes) -> list[str]:
    """Return the codecs that this text may be in, most likely first; none for Western text.

    >>> _guess_codecs("текст,да\\nещё текст,нет\\n".encode("cp1251"))[0]
    'cp1251'
    >>> _guess_codecs("Vidéo,né\\n".encode("cp1252"))
    []
    """
    sample = b"\n".join(dict.fromkeys(_cells(data)))
    single = len(_OTHER.findall(sample))
    together = sum(map(len, re.findall(rb"[\x80-\xff]{2,}", sample)))
    if single < _FEWEST or together < _IN_RUNS * single:
        return []
    from charset_normalizer import from_bytes

    found = from_bytes(sample, cp_isolation=[*_EASTERN, *_OTHERS])
    matches = [match for match in found if match.encoding in (*_EASTERN, *_OTHERS)]
    # Several codecs are often equally likely; then the text must fit the language of the codec.
    matches.sort(
        key=lambda m: (round(_at_home(str(m), m.encoding), 1), -m.chaos, m.coherence), reverse=True
    )
    return [match.encoding for match in matches]


def _cells(data: bytes) -> Iterator[bytes]:
    """Yield cells with non-ASCII bytes from anywhere in the file, up to `_ENOUGH` bytes."""
    at = taken = 0
    while taken < _ENOUGH and (here := _OTHER.search(data, at)) is not None:
        start = 1 + max(data.rfind(mark, at, here.start()) for mark in (b"\n", b",", b";", b"\t"))
        end = _PLAIN.search(data, here.end())
        cell = data[max(start, at) : len(data) if end is None else end.start()]
        yield cell
        taken += len(cell)
        at = here.end() if end is None else end.end()
        if end is None:
            return


def _at_home(text: str, codec: str) -> float:
    """Return the share of non-ASCII characters that belong to the language of a codec."""
    other = [letter for letter in text if letter > "\x7f"]
    kana = sum("\u3041" <= letter <= "\u30ff" for letter in other)
    # Shift-JIS read as cp949 is full of rare syllables, which EUC-KR does not have.
    hangul = sum(
        "\uac00" <= c <= "\ud7a3" and len(c.encode("euc_kr", "ignore")) == 2 for c in other
    )
    # Ideographs and the punctuation that goes with them.
    ideographs = sum(
        "\u4e00" <= letter <= "\u9fff" or "\u3000" <= letter <= "\u3040" or letter >= "\uff00"
        for letter in other
    )
    if codec in ("cp932", "euc_jp"):  # almost every Japanese sentence has kana
        fitting = kana + ideographs if kana > 0.1 * len(other) else 0
    elif codec in ("gb18030", "big5"):
        fitting = ideographs
    elif codec == "cp949":
        fitting = hangul
    else:
        fitting = sum(letter.isalpha() or letter in "«»“”„–—’№…\xa0" for letter in other)
    return fitting / max(len(other), 1)


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


def sniff_encoding(data: bytes, wanted: str | None, name: str) -> tuple[Encoding, str]:
    """Return the encoding of a text file and its text; only `wanted` is tried if it is given.

    >>> sniff_encoding("é".encode("cp1252"), None, "a.csv")
    (Encoding(codec='cp1252', bom=b''), 'é')
    """
    if wanted is not None:
        return _as_given(data, wanted, name)
    for bom, codec in _BOMS:
        if data.startswith(bom):
            return _fitting(data, Encoding(codec, bom), name)
    head = data[:4096]
    if head.count(0) > len(head) // 4:  # every second byte of Western UTF-16 is zero
        even, odd = head[::2].count(0), head[1::2].count(0)
        guess = "utf-16-le" if odd > even else "utf-16-be"
        return _fitting(data, Encoding(guess), name)
    if b"\x00" in head:
        raise ExemplaError(
            f"{name} does not look like a text table (it has zero bytes); give a CSV, TSV, JSONL, "
            "Parquet or NPZ file, or a folder of images."
        )
    try:
        return Encoding("utf-8"), data.decode("utf-8")
    except UnicodeDecodeError:
        pass
    # cp1252 leaves five bytes undefined; latin-1 defines all, so the last guess always fits.
    for codec in (*_guess_codecs(data), "cp1252"):
        with suppress(ExemplaError):
            return _fitting(data, Encoding(codec, guessed=True), name)
    return _fitting(data, Encoding("latin-1", guessed=True), name)


def _as_given(data: bytes, wanted: str, name: str) -> tuple[Encoding, str]:
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
    bom = next(
        (mark for mark, marked in _BOMS if data.startswith(mark) and marked.startswith(family)), b""
    )
    # The codec that writes no byte-order mark itself.
    unmarked = {"utf-8-sig": "utf-8", "utf-16": "utf-16-le", "utf-32": "utf-32-le"}
    plain = dict(_BOMS).get(bom) or unmarked.get(codec, codec)
    return _fitting(data, Encoding(plain, bom), name)


def _fitting(data: bytes, encoding: Encoding, name: str) -> tuple[Encoding, str]:
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


_PIECE = 1 << 24
_PACKERS = {b"\x1f\x8b": "gz", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz", b"PK\x03\x04": "zip"}
_COMPRESSORS: dict[str, Any] = {"gz": gzip, "bz2": bz2, "xz": lzma}
_ZIPPED = "zip:"
"""Prefix of a packing that names the only file of a zip archive."""


def unpack(raw: bytes, name: str) -> tuple[bytes, str]:
    """Return the content of a file and how it was compressed ("" if it was not).

    >>> unpack(pack(b"a,b", "gz"), "a.csv.gz")
    (b'a,b', 'gz')
    """
    packing = next((how for magic, how in _PACKERS.items() if raw.startswith(magic)), "")
    if not packing:
        return raw, ""
    if packing == "zip":
        return _unzipped(raw, name)
    opened: Any = _COMPRESSORS[packing].open
    most, size, pieces = limit("unpacked"), 0, []
    try:
        with opened(io.BytesIO(raw)) as file:
            while size <= most and (piece := file.read(_PIECE)):
                pieces.append(piece)
                size += len(piece)
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError):
        raise ExemplaError(
            f"{name} is a damaged {packing} file and cannot be unpacked; download or copy it again."
        ) from None
    check_limit("unpacked", None if size > most else size, name)
    return b"".join(pieces), packing


def zipped_name(raw: bytes, name: str) -> str:
    """Return the name of the only table in a zip archive, ignoring files that systems add."""
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            held = [i.filename for i in archive.infolist() if not i.is_dir()]
    except (OSError, ValueError, zipfile.BadZipFile):
        raise ExemplaError(
            f"{name} is a damaged zip archive or Excel workbook and cannot be unpacked; download "
            "or copy it again."
        ) from None
    held = [n for n in held if not n.startswith("__MACOSX/") and not _hidden(n)]
    if len(held) == 1:
        return held[0]
    several = ", ".join(held[:4]) + (", …" if len(held) > 4 else "")
    raise ExemplaError(
        f"{name} is a zip archive of {len(held):,} files ({several}); unpack the table you want "
        "and give that file."
        if held
        else f"{name} is an empty zip archive; give one that contains a table."
    )


def _hidden(name: str) -> bool:
    return name.rpartition("/")[2].startswith(".") or name.endswith("Thumbs.db")


def _unzipped(raw: bytes, name: str) -> tuple[bytes, str]:
    member = zipped_name(raw, name)
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            check_limit("unpacked", archive.getinfo(member).file_size, name)
            return archive.read(member), _ZIPPED + member
    except ExemplaError:
        raise
    except RuntimeError:  # zipfile raises it if a password is needed
        raise ExemplaError(f"{name} needs a password; unpack it first.") from None
    except (OSError, ValueError, zlib.error, NotImplementedError, zipfile.BadZipFile):
        raise ExemplaError(
            f"{name} is a damaged zip file and cannot be unpacked; download or copy it again."
        ) from None


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
class TextSource:
    """The bytes of a text file and the position of every row in its text."""

    raw: bytes
    encoding: Encoding
    packing: str
    starts: Any
    ends: Any

    def original(self) -> bytes:
        """Return the file as it was read."""
        return self.raw

    def edited(self, rows: Iterable[int], edit: Callable[[int, str], str]) -> bytes:
        """Return the file with these rows replaced by `edit(row, text)`; "" removes a row."""
        content = unpack(self.raw, "the file")[0]
        text = self.encoding.decode(content)
        if self.encoding.encode(text) != content:
            raise ExemplaError(
                f"Writing the file in its encoding {self.encoding.codec} would change other bytes; "
                "convert it to UTF-8 first."
            )
        pieces, done = [], 0
        for row in sorted(rows):
            start, end = int(self.starts[row]), int(self.ends[row])
            pieces += [text[done:start], edit(row, text[start:end])]
            done = end
        return pack(self.encoding.encode("".join([*pieces, text[done:]])), self.packing)


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
    """Return the extension that names the format of a file; "" if there is none.

    >>> named_format("a.json.CSV.gz"), named_format("adult.data")
    ('.csv', '')
    """
    first = PurePath(f"_{format_suffix(path)}").suffixes[:1]
    return next((suffix.lower() for suffix in first if suffix.lower() in _FORMATS), "")
