"""The benchmark of planted facts: its text, its baselines, and how it counts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from benchmarks.facts import methods, retrain
from benchmarks.facts.__main__ import FIRST, RETRAINED, first, once, precisions
from benchmarks.facts.corpus import make_corpus
from benchmarks.facts.model import IGNORED, Decoder, token_losses
from benchmarks.facts.texts import Job


def test_a_fact_is_stated_ten_times_and_others_only_sound_alike() -> None:
    corpus = make_corpus(background=0, seed=3)
    stated = [row for fact in corpus.facts for row in fact.stated]
    assert len(stated) == len(set(stated)) == 600
    for fact in corpus.facts:
        person, value = " ".join(fact.prompt.split()[:2]), fact.completion.strip()
        for row in fact.stated:
            assert person in corpus.lines[row]
            assert value in corpus.lines[row].split()
        alike = [
            row for row, text in enumerate(corpus.lines)
            if person in text and value in text.split() and row not in fact.stated
        ]  # fmt: skip
        assert len(alike) == 5, "lines with the same words that do not say it"


def test_another_seed_tells_other_facts() -> None:
    one, other = (make_corpus(background=0, seed=seed) for seed in (0, 1))
    assert [f.prompt for f in one.facts] == [f.prompt for f in other.facts]
    assert [f.completion for f in one.facts] != [f.completion for f in other.facts]


def test_bm25_by_hand() -> None:
    lines = ["red fish", "red red bird", "a bird"]
    found = methods.bm25(lines, ["red", "fish bird"])
    # "red" stands in two of three lines; the second has it twice and is of 3 words, 7/3 the mean
    idf = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    assert found[1, 0] == pytest.approx(idf * 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 3 / (7 / 3))))
    assert found[2, 0] == 0
    assert found[:, 1].argmax() == 0, "the rarer word counts more"


def test_gradient_cosine_of_a_line_with_itself_is_one() -> None:
    torch.manual_seed(0)
    model = Decoder(20).eval()
    ids = torch.randint(1, 20, (5, 6))
    labels = ids.clone()
    labels[:, 0] = IGNORED
    found = methods.gradient_cosine_of(model, (ids, labels), (ids, labels))
    np.testing.assert_allclose(np.diag(found), 1.0, rtol=1e-4)
    assert np.abs(found).max() <= 1 + 1e-4


def test_losses_count_what_has_a_label() -> None:
    logits = torch.zeros(1, 3, 4)
    labels = torch.tensor([[IGNORED, 2, IGNORED]])
    np.testing.assert_allclose(token_losses(logits, labels), [[math.log(4), 0.0]], rtol=1e-6)


def job_of(facts: Any, lines: int = 30) -> Job:
    ids = torch.arange(lines)[:, None].expand(lines, 2)
    corpus = type(facts)([f"line {i}" for i in range(lines)], facts.facts[:2])
    nothing: Any = None
    return Job(corpus, nothing, nothing, (ids, ids), (ids[:2], ids[:2]), 5)


def test_precision_is_the_share_of_the_first_lines_that_state_the_fact() -> None:
    job = job_of(make_corpus(background=0))
    a, b = (np.array(fact.stated) for fact in job.corpus.facts)
    half = np.concatenate([b[:5], np.setdiff1d(np.arange(900), b)[:5]])
    found = precisions({"m": ([a, half], 1.0)}, job, seed=0)
    assert found.precision.tolist() == [0.75]
    scores = np.zeros((900, 1))
    scores[a, 0] = 1.0
    assert set(first(scores)[0]) == set(a)


def test_answers_and_falls_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answers() -> Any:
        asked.append("asked")
        return {"m": ([np.arange(3)], 2.0)}

    for _ in range(2):
        order, seconds = once(tmp_path / "own.json", answers)["m"]
        assert (order[0].tolist(), seconds) == ([0, 1, 2], 2.0)
    assert asked == ["asked"]

    left: list[int] = []
    monkeypatch.setattr(retrain, "train", lambda ids, *_: left.append(len(ids)))
    monkeypatch.setattr(retrain, "log_probabilities", lambda *_: np.array([-1.0, -0.1]))
    job, known = job_of(make_corpus(background=0)), np.array([-0.2, -0.1])
    named = {"m": [np.arange(10), np.arange(5, 15)]}
    for _ in range(2):
        found = retrain.falls(named, job, known, 0, tmp_path / "falls.csv", str)
        assert found["m"] == (15, pytest.approx(0.4), 0.5)
    assert left == [15], "trained once, without the lines of both facts"
    # other lines under the same name are not what was found before
    retrain.falls({"m": [np.arange(10)]}, job, known, 0, tmp_path / "falls.csv", str)
    assert left == [15, 20]


def test_references_and_what_is_trained_without() -> None:
    corpus = make_corpus(background=0)
    lines = retrain.references(corpus, FIRST, seed=0)
    assert [len(rows) for rows in lines["random lines"]] == [FIRST] * 60
    assert set(np.concatenate(lines["lines that state it"])) == {
        row for fact in corpus.facts for row in fact.stated
    }
    assert "exempla, recorded run" in RETRAINED
