"""Broken files: small good ones of every format, and ways to break their bytes or their meaning."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image


def table(n: int = 60) -> pd.DataFrame:
    """Two classes that a column tells apart, mostly."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, n))
    y = np.where(a + 0.5 * rng.normal(size=n) > 0, "yes", "no")
    return pd.DataFrame({"a": a.round(3), "b": b.round(3), "y": y})


def good_files() -> dict[str, bytes]:
    """One small file of every format, by name."""
    frame = table()
    parquet, packed = io.BytesIO(), io.BytesIO()
    frame.to_parquet(parquet)
    np.savez(packed, X=frame[["a", "b"]].to_numpy(), y=frame["y"].to_numpy(dtype="U3"))
    csv = frame.to_csv(index=False).encode()
    lines = "".join(json.dumps(row) + "\n" for row in frame.to_dict("records"))
    return {
        "data.csv": csv,
        "data.tsv": frame.to_csv(index=False, sep="\t").encode(),
        "data.csv.gz": gzip.compress(csv),
        "data.jsonl": lines.encode(),
        "data.parquet": parquet.getvalue(),
        "data.npz": packed.getvalue(),
    }


Break = Callable[[bytes, np.random.Generator], bytes]


def _flip(data: bytes, rng: np.random.Generator) -> bytes:
    out = bytearray(data)
    for place in rng.integers(0, len(out), rng.integers(1, 8)):
        out[place] ^= 1 << int(rng.integers(8))
    return bytes(out)


def _cut(data: bytes, rng: np.random.Generator) -> bytes:
    return data[: int(rng.integers(0, len(data)))]


def _double(data: bytes, rng: np.random.Generator) -> bytes:
    start, end = np.sort(rng.integers(0, len(data), 2))
    return data[:end] + data[start:end] + data[end:]


def _drop(data: bytes, rng: np.random.Generator) -> bytes:
    start, end = np.sort(rng.integers(0, len(data), 2))
    return data[:start] + data[end:]


def _strange(data: bytes, rng: np.random.Generator) -> bytes:
    words = (
        b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b'"', b"\r", b"\n\n\n", b",,,,", b"nan", b"1e308",
        b"-inf", b"\x1b[31m", "\u202e".encode(), b"=1+1", b"9" * 400, b"{", b"]", b"\\ud800",
        "é".encode("latin-1"), b"NULL", b"0x10", b"'", b";", b"\t",
    )  # fmt: skip
    out = data
    for _ in range(int(rng.integers(1, 5))):
        place = int(rng.integers(0, len(out) + 1))
        out = out[:place] + words[int(rng.integers(len(words)))] + out[place:]
    return out


def _cells(data: bytes, rng: np.random.Generator) -> bytes:
    """Other values in place of cells, where lines can be told."""
    lines = data.split(b"\n")
    values = (b"", b"?", b"1e308", b"-1e308", b"nan", b"yes", b"maybe", b"2024-01-01", b" ", b"0")
    for _ in range(int(rng.integers(1, 12))):
        place = int(rng.integers(len(lines)))
        cells = lines[place].split(b",")
        cells[int(rng.integers(len(cells)))] = values[int(rng.integers(len(values)))]
        lines[place] = b",".join(cells)
    return b"\n".join(lines)


def _few(data: bytes, rng: np.random.Generator) -> bytes:
    """The first few lines only."""
    return b"\n".join(data.split(b"\n")[: int(rng.integers(0, 12))])


BREAKS: dict[str, Break] = {
    "flip": _flip,
    "cut": _cut,
    "double": _double,
    "drop": _drop,
    "strange": _strange,
    "cells": _cells,
    "few": _few,
}


def broken_file(folder: Path, number: int) -> Path:
    """Broken file number so and so: always the same for the same number."""
    rng = np.random.default_rng(number)
    files = good_files()
    name = list(files)[number % len(files)]
    way = list(BREAKS)[int(rng.integers(len(BREAKS)))]
    data = BREAKS[way](files[name], rng)
    path = folder / name
    path.write_bytes(data)
    return path


def broken_folder(folder: Path, number: int) -> Path:
    """A small image folder in which some files are broken."""
    rng = np.random.default_rng(number)
    root = folder / "images"
    for label in ("cat", "dog"):
        (root / label).mkdir(parents=True)
        for i in range(8):
            made = io.BytesIO()
            pixels = rng.integers(0, 120, (8, 8)).astype(np.uint8) + (100 if label == "dog" else 0)
            Image.fromarray(pixels).save(made, "PNG")
            data = made.getvalue()
            if rng.random() < 0.3:
                data = _flip(data, rng) if rng.random() < 0.5 else _cut(data, rng)
            (root / label / f"{i}.png").write_bytes(data)
    return root
