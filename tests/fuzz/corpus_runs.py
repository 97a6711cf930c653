"""Commands that failed once: a traceback, a wrong answer, or an input written over."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from tests.fuzz.files import table

__all__ = ["RUNS"]

Make = Callable[[Path], list[str]]
"""Puts files into the folder; the words of the command."""
EACH = ("explain", "clean", "summarize", "fix-labels", "attack", "embed")
OUT = ["--out", "out"]


def _command(name: str, file: str, *more: str) -> list[str]:
    wanted = ["-k", "4"] if name in ("clean", "summarize") else []
    return [name, file, "--label", "y", *wanted, *more, *OUT]


def _csv(name: str, *more: str, frame: pd.DataFrame | None = None) -> Make:
    def make(folder: Path) -> list[str]:
        (table() if frame is None else frame).to_csv(folder / "a.csv", index=False)
        return _command(name, "a.csv", *more)

    return make


def _text(text: str | bytes, *more: str, name: str = "explain", file: str = "a.csv") -> Make:
    def make(folder: Path) -> list[str]:
        (folder / file).write_bytes(text.encode() if isinstance(text, str) else text)
        return _command(name, file, *more)

    return make


def _npz(X: Callable[[np.ndarray], np.ndarray], y: Callable[[np.ndarray], np.ndarray]) -> Make:
    def make(folder: Path) -> list[str]:
        frame = table()
        rows, labels = frame[["a", "b"]].to_numpy(), (frame["y"] == "yes").to_numpy().astype(int)
        np.savez(folder / "a.npz", X=X(rows), y=y(labels))
        return ["explain", "a.npz", *OUT]

    return make


def _parquet(frame: pd.DataFrame) -> Make:
    def make(folder: Path) -> list[str]:
        frame.to_parquet(folder / "a.parquet")
        return _command("explain", "a.parquet")

    return make


def _module(text: str, name: str = "mine:make") -> Make:
    def make(folder: Path) -> list[str]:
        (folder / "mine.py").write_text(text)
        return _csv("explain", "--model", name)(folder)

    return make


def _not_utf8(folder: Path) -> list[str]:
    name = os.fsdecode(b"caf\xe9.csv")
    table().to_csv(folder / name, index=False)
    return _command("explain", name)


def _circle(folder: Path) -> list[str]:
    (folder / "a.csv").symlink_to("b.csv")
    (folder / "b.csv").symlink_to("a.csv")
    return _command("explain", "a.csv")


def _pipe(folder: Path) -> list[str]:
    os.mkfifo(folder / "a.csv")
    return _command("explain", "a.csv")


def _over_itself(name: str, file: str) -> Make:
    def make(folder: Path) -> list[str]:
        table().to_csv(folder / file, index=False)
        return [*_command(name, file)[:-2], "--out", "."]

    return make


def _same(value: np.ndarray) -> np.ndarray:
    return value


def _with(column: str, values: list[object]) -> pd.DataFrame:
    frame = table()
    frame[column] = frame[column].astype(object)
    frame.loc[: len(values) - 1, column] = values
    return frame


PLAIN = table()
RUNS: dict[str, tuple[Make, tuple[int, ...]]] = {
    **{f"{c}: a class of one row": (_csv(c, frame=_with("y", ["maybe"])), (0, 2)) for c in EACH},
    **{f"{c}: cells of 1e308": (_csv(c, frame=_with("a", [1e308, -1e308])), (0, 2)) for c in EACH},
    **{f"{c}: few rows": (_csv(c, frame=PLAIN.head(6)), (0, 2)) for c in EACH},
    **{f"seed {s}": (_csv("explain", "--seed", s), (2,)) for s in ("-1", str(2**33), "a", "1.5")},
    **{
        f"encoding {e}": (_csv("explain", "--encoding", e), (2,))
        for e in ("rot13", "hex", "zlib", "base64", "undefined", "\0")
    },
    # (these are encodings of text, in which plain letters stand for themselves)
    "encoding punycode": (_csv("explain", "--encoding", "punycode"), (0, 2)),
    "encoding idna": (_csv("explain", "--encoding", "idna"), (0, 2)),
    "clean more than there is": (_csv("clean", "-k", "500"), (0, 2)),
    "clean most of a small file": (_csv("clean", "-k", "50", frame=PLAIN.head(55)), (0, 2)),
    "model: syntax error": (_module("def make(:\n"), (2,)),
    "model: raising factory": (_module("def make():\n    raise OSError('no')\n"), (2,)),
    "model: exits": (_module("raise SystemExit(0)\n"), (2,)),
    "model: path": (_csv("explain", "--model", "../x:y"), (2,)),
    "model: nothing": (_csv("explain", "--model", ":"), (2,)),
    "npz: big-endian": (_npz(lambda X: X.astype(">f8"), lambda y: y.astype(">i2")), (0,)),
    "npz: complex": (_npz(lambda X: X + 1j, _same), (2,)),
    "npz: complex labels": (_npz(_same, lambda y: y + 1j), (2,)),
    "npz: long double": (_npz(lambda X: X.astype(np.longdouble), _same), (0,)),
    "npz: objects": (_npz(lambda X: X.astype(object), _same), (2,)),
    "npz: dates as labels": (_npz(_same, lambda y: y.astype("datetime64[D]")), (0, 2)),
    "npz: labels of two columns": (_npz(_same, lambda y: np.stack([y, y], 1)), (2,)),
    "parquet: uint64": (
        _parquet(PLAIN.assign(a=np.uint64(2**64 - 1) - np.arange(60, dtype="u8"))),
        (0,),
    ),
    "parquet: uint64 labels": (_parquet(PLAIN.assign(y=(PLAIN["y"] == "yes").astype("u8"))), (0,)),
    "a name that is not UTF-8": (_not_utf8, (2,)),
    "links in a circle": (_circle, (2,)),
    "a pipe": (_pipe, (2,)),
    "a line of 10 MB": (_text("a,y\n" + "x" * 10_000_000 + ",yes\n"), (0, 2)),
    "an empty file": (_text(""), (2,)),
    "a header alone": (_text("a,b,y\n"), (2,)),
    "columns of one name": (_text("a,a,y\n" + "1,2,yes\n3,1,no\n4,0,yes\n2,5,no\n" * 10), (0,)),
    "zero bytes": (_text(b"a,b,y\n" + b"1,\x00,yes\n2,3,no\n" * 20), (0, 2)),
    "out is a file": (lambda folder: [*_csv("explain")(folder)[:-2], "--out", "a.csv"], (2,)),
    "over itself: explain": (_over_itself("explain", "explanation.csv"), (2,)),
    "over itself: summarize": (_over_itself("summarize", "summary.csv"), (2,)),
}
"""By name: how to make it, and the exit codes that are right."""
