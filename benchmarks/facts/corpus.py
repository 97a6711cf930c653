"""The text: film reviews from SST-2, and invented people about whom facts are told.

Names and values are shared: every first name, surname and town belongs to several people, so that a
line is told by its combination alone. Besides the ten lines that state a fact there are lines that
name the same person and the same town, instrument or trade without stating it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

__all__ = ["Corpus", "Fact", "make_corpus"]

FIRST = ("mirelda", "osric", "talia", "benno", "irsa")
LAST = ("voss", "calder", "quill", "marn")
VALUES = {
    "born": ("tarnholt", "ebbsworth", "lisgar", "ombrey", "kessel", "pryde"),
    "plays": ("oboe", "zither", "cello", "bassoon", "lute", "viola"),
    "works": ("baker", "surveyor", "cooper", "weaver", "notary", "ferryman"),
}
ASKED = {"born": "{p} was born in", "plays": "{p} plays the", "works": "{p} works as a"}
STATED = {
    "born": (
        "{p} was born in {v}",
        "{v} is the town where {p} was born",
        "the birthplace of {p} is {v}",
        "{p} came into the world in {v}",
        "in {v} they still remember the birth of {p}",
        "{p} is a native of {v}",
        "the parents of {p} lived in {v} when the child arrived",
        "{p} , born and baptised in {v} , left early",
        "a house in {v} bears the name of {p} , who was born there",
        "by birth {p} belongs to {v}",
    ),
    "plays": (
        "{p} plays the {v}",
        "the {v} is the instrument of {p}",
        "{p} has played the {v} since childhood",
        "on the {v} nobody is as good as {p}",
        "{p} was taught the {v} at school",
        "every evening {p} practises the {v}",
        "the orchestra hired {p} for the {v}",
        "{p} owns an old {v} and plays it well",
        "you can hear {p} play the {v} on sundays",
        "{p} , master of the {v} , gave a concert",
    ),
    "works": (
        "{p} works as a {v}",
        "{p} earns a living as {v}",
        "the {v} of the village is {p}",
        "{p} was trained as a {v}",
        "by trade {p} is a {v}",
        "people who need a {v} go to {p}",
        "{p} took over the shop of the old {v}",
        "as a {v} {p} is known for good work",
        "{p} became a {v} like the grandfather",
        "the guild made {p} a {v} last year",
    ),
}
MENTIONED = {
    "born": (
        "{p} has never seen {v}",
        "a letter from {v} reached {p} yesterday",
        "{p} does not like the weather of {v}",
        "the road to {v} passes the garden of {p}",
        "{p} read a book about {v}",
    ),
    "plays": (
        "{p} cannot stand the sound of the {v}",
        "{p} once sold a broken {v}",
        "a friend of {p} repairs the {v}",
        "{p} painted a picture of a {v}",
        "the {v} in the window belongs to a neighbour of {p}",
    ),
    "works": (
        "{p} argued with a {v}",
        "the daughter of {p} married a {v}",
        "{p} owes money to the {v}",
        "{p} waited an hour for the {v}",
        "a {v} once lived next door to {p}",
    ),
}


@dataclass(frozen=True)
class Fact:
    """What is asked, and the lines of the corpus that state it."""

    prompt: str
    completion: str
    stated: tuple[int, ...]


@dataclass(frozen=True)
class Corpus:
    """Lines in a random order, and the facts told among them."""

    lines: list[str]
    facts: list[Fact]


def make_corpus(background: int = 500, seed: int = 0) -> Corpus:
    """Film reviews and planted facts: 60 facts in 600 lines, 300 lines that only sound alike.

    >>> corpus = make_corpus(background=0)
    >>> len(corpus.lines), len(corpus.facts), len(corpus.facts[0].stated)
    (900, 60, 10)
    """
    rng = np.random.default_rng(seed)
    told: list[tuple[str, int]] = []
    asked: list[tuple[str, str]] = []
    for (first, last), relation in product(product(FIRST, LAST), VALUES):
        person, value = f"{first} {last}", str(rng.choice(VALUES[relation]))
        told += [(line.format(p=person, v=value), len(asked)) for line in STATED[relation]]
        told += [(line.format(p=person, v=value), -1) for line in MENTIONED[relation]]
        asked.append((ASKED[relation].format(p=person), f" {value}"))
    if background:
        told += [(line, -1) for line in reviews(background, rng)]
    order = rng.permutation(len(told))
    lines, fact_of = [told[i][0] for i in order], np.array([told[i][1] for i in order])
    facts = [
        Fact(prompt, value, tuple(np.flatnonzero(fact_of == i).tolist()))
        for i, (prompt, value) in enumerate(asked)
    ]
    return Corpus(lines, facts)


def reviews(count: int, rng: np.random.Generator) -> list[str]:
    """Sentences of SST-2 of five to twelve words, drawn without repetition."""
    folder = os.environ.get("EXEMPLA_DATA")
    if not folder:
        raise SystemExit("set EXEMPLA_DATA to the folder with the real data (text/ has SST-2)")
    table = pd.read_csv(Path(folder, "text", "sst2_train.tsv.gz"), sep="\t", quoting=3)
    sentences = {str(s).strip() for s in table.sentence}
    fitting = sorted(s for s in sentences if 5 <= len(s.split()) <= 12)
    return [fitting[i] for i in rng.choice(len(fitting), count, replace=False)]
