"""From the bytes of a file to its text and back, without losing one of them."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import zipfile
import zlib
from dataclasses import dataclass, field
from typing import Any

from exempla.errors import ExemplaError
from exempla.tables.formats.guess import guess_codecs
from exempla.tables.formats.limits import check_limit, limit

__all__ = ["Encoding", "pack", "sniff_encoding", "unpack", "zipped_name"]

BOMS = (
    # UTF-32 first: its little-endian mark begins with UTF-16's.
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


@dataclass(frozen=True)
class Encoding:
    """A codec, and the byte-order mark that stood before the text (often empty)."""

    codec: str
    bom: bytes = b""
    guessed: bool = field(default=False, repr=False)
    """Whether nothing but the look of the text speaks for it."""

    def __str__(self) -> str:
        return f"{self.codec} with byte-order mark" if self.bom else self.codec

    @property
    def notes(self) -> list[str]:
        """What a user should know about it."""
        if not self.guessed:
            return []
        return [
            f"The encoding {self.codec} is a guess; if letters look wrong, name the right one with "
            "--encoding (in Python: encoding=…)."
        ]

    def decode(self, data: bytes) -> str:
        """The text after the byte-order mark."""
        return data[len(self.bom) :].decode(self.codec)

    def encode(self, text: str) -> bytes:
        """The bytes of the text, its byte-order mark before them."""
        try:
            return self.bom + text.encode(self.codec)
        except UnicodeEncodeError as error:
            wrong = text[error.start : error.end]
            raise ExemplaError(
                f"The character {wrong!r} cannot be written in this file's encoding {self.codec}; "
                "choose a label without it, or convert the file to UTF-8 first."
            ) from None


def sniff_encoding(data: bytes, wanted: str | None, name: str) -> tuple[Encoding, str]:
    """The encoding of a text file and its text; `wanted` is the user's word, tried alone.

    >>> sniff_encoding("é".encode("cp1252"), None, "a.csv")
    (Encoding(codec='cp1252', bom=b''), 'é')
    """
    if wanted is not None:
        return _as_told(data, wanted, name)
    for bom, codec in BOMS:
        if data.startswith(bom):
            return _fitting(data, Encoding(codec, bom), name)
    head = data[:4096]
    if head.count(0) > len(head) // 4:  # every second byte of Western UTF-16 is zero
        even, odd = head[::2].count(0), head[1::2].count(0)
        guess = "utf-16-le" if odd > even else "utf-16-be"
        return _fitting(data, Encoding(guess), name)
    if b"\x00" in head:
        raise ExemplaError(
            f"{name} does not look like a text table (it holds zero bytes); "
            "give a CSV, TSV, JSONL, Parquet or NPZ file, or a folder of images."
        )
    try:
        return Encoding("utf-8"), data.decode("utf-8")
    except UnicodeDecodeError:
        pass
    # cp1252 leaves five bytes undefined; latin-1 defines all, so the last guess always fits.
    for codec in (*guess_codecs(data), "cp1252", "latin-1"):
        encoding = Encoding(codec, guessed=True)
        text = _exactly(encoding, data)
        if text is not None:
            return encoding, text
    raise AssertionError("latin-1 decodes every byte")


def _exactly(encoding: Encoding, data: bytes) -> str | None:
    """The text, if encoding it again gives the very same bytes: cells nobody decides about must
    come back as they were."""
    try:
        text = encoding.decode(data)
        return text if encoding.bom + text.encode(encoding.codec) == data else None
    except (ValueError, LookupError, ArithmeticError):  # UnicodeError is a ValueError
        return None


def _as_told(data: bytes, wanted: str, name: str) -> tuple[Encoding, str]:
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
            f"{wanted!r} is no encoding of text; try utf-8, utf-16, cp1252 or latin-1."
        ) from None
    family = codec.removesuffix("-sig")
    bom = next(
        (mark for mark, marked in BOMS if data.startswith(mark) and marked.startswith(family)), b""
    )
    return _fitting(data, Encoding(_plain(codec, bom), bom), name)


def _plain(codec: str, bom: bytes) -> str:
    """The codec without a byte-order mark of its own."""
    marked = dict(BOMS).get(bom)
    return marked or {"utf-8-sig": "utf-8", "utf-16": "utf-16-le", "utf-32": "utf-32-le"}.get(
        codec, codec
    )


def _fitting(data: bytes, encoding: Encoding, name: str) -> tuple[Encoding, str]:
    text = _exactly(encoding, data)
    if text is not None:
        return encoding, text
    raise ExemplaError(
        f"{name} is not {encoding.codec}: {_where(encoding, data)}; leave the encoding out to have "
        "it detected, or name another."
    )


def _where(encoding: Encoding, data: bytes) -> str:
    try:
        encoding.decode(data)
    except UnicodeDecodeError as error:
        return f"byte {error.start} does not decode"
    except (ValueError, LookupError, ArithmeticError):
        return "it does not decode"
    return "writing it back would change bytes"


PIECE = 1 << 24
PACKERS = {b"\x1f\x8b": "gz", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz", b"PK\x03\x04": "zip"}
ZIPPED = "zip:"
"""How a packing begins that names the one file of an archive."""


def unpack(raw: bytes, name: str) -> tuple[bytes, str]:
    """The content of a possibly compressed file, and how it was packed ("" if it was not).

    >>> unpack(pack(b"a,b", "gz"), "a.csv.gz")
    (b'a,b', 'gz')
    """
    packing = next((how for magic, how in PACKERS.items() if raw.startswith(magic)), "")
    if not packing:
        return raw, ""
    if packing == "zip":
        return _unzipped(raw, name)
    opened: Any = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open}[packing]
    most, size, pieces = limit("unpacked"), 0, []
    try:
        with opened(io.BytesIO(raw)) as file:
            while size <= most and (piece := file.read(PIECE)):
                pieces.append(piece)
                size += len(piece)
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError):
        raise ExemplaError(
            f"{name} is a damaged {packing} file: it does not unpack; fetch or copy it again."
        ) from None
    check_limit("unpacked", None if size > most else size, name)
    return b"".join(pieces), packing


def zipped_name(raw: bytes, name: str) -> str:
    """The one table in a zip archive; files that systems add on their own do not count."""
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            held = [i.filename for i in archive.infolist() if not i.is_dir()]
    except (OSError, ValueError, zipfile.BadZipFile):
        raise ExemplaError(
            f"{name} is a damaged zip archive or Excel workbook: it does not unpack; fetch or copy "
            "it again."
        ) from None
    held = [n for n in held if not n.startswith("__MACOSX/") and not _hidden(n)]
    if len(held) == 1:
        return held[0]
    several = ", ".join(held[:4]) + (", …" if len(held) > 4 else "")
    raise ExemplaError(
        f"{name} is a zip archive of {len(held):,} files ({several}); it should hold one table, so "
        "unpack the one you mean."
        if held
        else f"{name} is an empty zip archive; give one that holds a table."
    )


def _hidden(name: str) -> bool:
    return name.rpartition("/")[2].startswith(".") or name.endswith("Thumbs.db")


def _unzipped(raw: bytes, name: str) -> tuple[bytes, str]:
    member = zipped_name(raw, name)
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            check_limit("unpacked", archive.getinfo(member).file_size, name)
            return archive.read(member), ZIPPED + member
    except ExemplaError:
        raise
    except RuntimeError:  # how zipfile says that a password is wanted
        raise ExemplaError(f"{name} wants a password; unpack it first.") from None
    except (OSError, ValueError, zlib.error, NotImplementedError, zipfile.BadZipFile):
        raise ExemplaError(
            f"{name} is a damaged zip file: it does not unpack; fetch or copy it again."
        ) from None


def pack(data: bytes, packing: str) -> bytes:
    """Compress as the input was; no time stamp, so equal content gives equal bytes."""
    if packing.startswith(ZIPPED):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            entry = zipfile.ZipInfo(packing.removeprefix(ZIPPED))  # dated 1980, always
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
        return out.getvalue()
    if packing == "gz":
        return gzip.compress(data, mtime=0)
    if packing == "bz2":
        return bz2.compress(data)
    return lzma.compress(data) if packing == "xz" else data
