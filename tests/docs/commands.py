"""The shell lines of README and docs, and small files that they run on."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_diabetes

from tests.cli.case import pictures

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELL = re.compile(r"^```(?:sh|bash)\n(.*?)^```", re.DOTALL | re.MULTILINE)

SPAM = ("cheap pills now", "win money today", "free offer click", "cheap loans approved")
HAM = ("meeting at noon", "notes of the call", "lunch tomorrow maybe", "draft of the report")


def shell_lines() -> list[tuple[str, ...]]:
    """Return the words of every different `exempla …` line of the shell blocks."""
    blocks = [block for page in PAGES for block in SHELL.findall(page.read_text(encoding="utf-8"))]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    found = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("exempla ")]
    return list(dict.fromkeys(tuple(words) for words in found))


def by_file() -> dict[str, list[tuple[str, ...]]]:
    """Return the lines grouped by the file or folder they read, in the order of the pages."""
    groups: dict[str, list[tuple[str, ...]]] = {}
    for words in shell_lines():
        name = words[1] if len(words) > 1 else words[0]
        groups.setdefault(_MADE_FROM.get(name, name), []).append(words)
    return groups


_MADE_FROM = {
    "suspects": "mails.csv", "review": "mails.csv", "suspects/corrected.csv": "mails.csv",
    "bash": "completion", "mails.jsonl": "small", "flats.csv": "small", "cover.parquet": "small",
    "adult.data": "small", "diabetes.csv": "small", "sst.csv": "small",
}  # fmt: skip
"""Folders that a line on another file makes, and files that share a group."""


def mails(n: int, seed: int = 0) -> pd.DataFrame:
    """Return short mails: a phrase of their class and a few words; some labels are wrong."""
    rng = np.random.default_rng(seed)
    extra = ["invoice", "hello", "please", "friday", "team", "account", "price", "thanks"]
    spam = rng.random(n) < 0.5
    texts = [
        f"{rng.choice(SPAM if s else HAM)} {' '.join(rng.choice(extra, 3))} {i}"
        for i, s in enumerate(spam)
    ]
    given = np.where(rng.random(n) < 0.12, ~spam, spam)
    labels = np.where(given, "spam", "ham")
    return pd.DataFrame(
        {"text": texts, "label": labels, "checked": (np.arange(n) < 40).astype(int)}
    )


def write_files(folder: Path) -> None:
    """Write every file that a shell line of README and docs names."""
    table = mails(100)
    table.to_csv(folder / "mails.csv", index=False)
    mails(60, 3)[["text", "label"]].to_csv(folder / "sst.csv", index=False)
    mails(30, 1).to_csv(folder / "new.csv", index=False)
    mails(40, 2).to_csv(folder / "pool.csv", index=False)
    rest = table.drop(columns="checked")
    rest[40:].to_json(folder / "mails.jsonl", orient="records", lines=True)
    rest[:40].to_json(folder / "checked.jsonl", orient="records", lines=True)
    rng = np.random.default_rng(0)
    people = pd.DataFrame(rng.integers(20, 70, (90, 14)), columns=[f"c{i}" for i in range(14)])
    people["c1"] = rng.choice(["private", "state"], 90)
    rich = people["c0"] + rng.normal(0, 8, 90) > 45
    people["income"] = np.where(rich, ">50K", "<=50K")
    people.to_csv(folder / "adult.csv", index=False)
    people[:60].to_csv(folder / "adult.data", index=False, header=False)
    people[60:].to_csv(folder / "adult.test", index=False, header=False)
    flats = pd.DataFrame({"rooms": rng.integers(1, 6, 120), "size": rng.normal(70, 20, 120)})
    flats["price"] = (900.5 * flats["rooms"] + 7.3 * flats["size"] + rng.normal(0, 60, 120)).round(
        2
    )
    flats.to_csv(folder / "flats.csv", index=False)
    numbers = load_diabetes(as_frame=True, scaled=False).frame.sample(120, random_state=0)
    numbers.to_csv(folder / "diabetes.csv", index=False)
    cover = pd.DataFrame(rng.normal(size=(150, 4)), columns=["a", "b", "c", "d"])
    cover["Cover_Type"] = np.where(cover["a"] + cover["b"] > 0, "pine", "oak")
    cover.to_parquet(folder / "cover.parquet")
    large = cover.rename(columns={"Cover_Type": "y"})
    large.to_csv(folder / "large.csv", index=False)
    weather = pd.DataFrame(rng.normal(size=(120, 3)), columns=["t", "p", "h"])
    for name, column in (("sun", "t"), ("rain", "p"), ("wind", "h")):
        weather[name] = (weather[column] + rng.normal(0, 0.3, 120) > 0).astype(int)
    tags = weather[["sun", "rain", "wind"]].apply(
        lambda row: ";".join(name for name in row.index if row[name]) or "calm", axis=1
    )
    weather["tags"] = tags
    weather.to_csv(folder / "weather.csv", index=False)
    pictures(folder / "pictures", 12)


def write_cells(folder: Path) -> None:
    """Write the cells of the command-line page, smaller."""
    frame = load_breast_cancer(as_frame=True).frame.iloc[:, [0, 1, 6, 30]]
    frame = frame.sample(200, random_state=0)
    frame["target"] = np.where(frame["target"] == 1, "benign", "malignant")
    frame["checked"] = (np.arange(200) < 50).astype(int)
    frame[:160].to_csv(folder / "cells.csv", index=False)
    frame[160:].to_csv(folder / "more.csv", index=False)


def write_language_model(folder: Path) -> None:
    """Write a tiny GPT-2 with its tokenizer, and lines to ask about."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    letters = {c: i for i, c in enumerate("#0123456789+=")}
    tokens = Tokenizer(models.WordLevel(letters, unk_token="#"))
    tokens.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokens.decoder = decoders.Fuse()
    end = {"eos_token": "#", "pad_token": "#"}
    PreTrainedTokenizerFast(tokenizer_object=tokens, **end).save_pretrained(folder / "my-model")
    small = {"n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 1}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    GPT2LMHeadModel(GPT2Config(vocab_size=13, **small, **ends)).save_pretrained(folder / "my-model")
    sums = [{"question": f"{a}+{b}=", "answer": str(a + b)} for a in range(6) for b in range(5)]
    pd.DataFrame(sums).to_json(folder / "train.jsonl", orient="records", lines=True)
    pd.DataFrame(sums[:2]).to_json(folder / "asked.jsonl", orient="records", lines=True)
