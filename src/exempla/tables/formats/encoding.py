"""From the bytes of a file to its text and back, without losing one of them."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import zlib
from dataclasses import dataclass

from exempla.errors import ExemplaError

__all__ = ["Encoding", "pack", "sniff_encoding", "unpack"]

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

    def __str__(self) -> str:
        return f"{self.codec} with byte-order mark" if self.bom else self.codec

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
            return _first_that_fits(data, [Encoding(codec, bom)], name)
    head = data[:4096]
    if head.count(0) > len(head) // 4:  # every second byte of Western UTF-16 is zero
        even, odd = head[::2].count(0), head[1::2].count(0)
        guess = "utf-16-le" if odd > even else "utf-16-be"
        return _first_that_fits(data, [Encoding(guess)], name)
    if b"\x00" in head:
        raise ExemplaError(
            f"{name} does not look like a text table (it holds zero bytes); "
            "give a CSV, TSV, JSONL, Parquet or NPZ file, or a folder of images."
        )
    # cp1252 leaves five bytes undefined; latin-1 defines all, so the last guess always fits.
    return _first_that_fits(
        data, [Encoding("utf-8"), Encoding("cp1252"), Encoding("latin-1")], name
    )


def _as_told(data: bytes, wanted: str, name: str) -> tuple[Encoding, str]:
    try:
        codec = codecs.lookup(wanted).name
    except LookupError:
        raise ExemplaError(
            f"There is no encoding called {wanted!r}; try utf-8, utf-16, cp1252 or latin-1."
        ) from None
    family = codec.removesuffix("-sig")
    for bom, marked in BOMS:
        if data.startswith(bom) and marked.startswith(family):
            return _first_that_fits(data, [Encoding(marked, bom)], name)
    codec = {"utf-8-sig": "utf-8", "utf-16": "utf-16-le", "utf-32": "utf-32-le"}.get(codec, codec)
    return _first_that_fits(data, [Encoding(codec)], name)


def _first_that_fits(data: bytes, guesses: list[Encoding], name: str) -> tuple[Encoding, str]:
    where = 0
    for encoding in guesses:
        try:
            return encoding, encoding.decode(data)
        except UnicodeDecodeError as error:
            where = error.start
    raise ExemplaError(
        f"{name} is not {guesses[-1].codec}: byte {where} does not decode; "
        "leave the encoding out to have it detected, or name another."
    )


PACKERS = {b"\x1f\x8b": "gz", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz"}


def unpack(raw: bytes, name: str) -> tuple[bytes, str]:
    """The content of a possibly compressed file, and how it was packed ("" if it was not).

    >>> unpack(pack(b"a,b", "gz"), "a.csv.gz")
    (b'a,b', 'gz')
    """
    packing = next((how for magic, how in PACKERS.items() if raw.startswith(magic)), "")
    open_ = {"gz": gzip.decompress, "bz2": bz2.decompress, "xz": lzma.decompress}
    try:
        return (open_[packing](raw) if packing else raw), packing
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError):
        raise ExemplaError(
            f"{name} is a damaged {packing} file: it does not unpack; fetch or copy it again."
        ) from None


def pack(data: bytes, packing: str) -> bytes:
    """Compress as the input was; no time stamp, so equal content gives equal bytes."""
    if packing == "gz":
        return gzip.compress(data, mtime=0)
    if packing == "bz2":
        return bz2.compress(data)
    return lzma.compress(data) if packing == "xz" else data
