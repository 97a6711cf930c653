"""Lines and questions as a model takes them: a tokenizer of the text itself, padded arrays."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.facts.corpus import Corpus
from benchmarks.facts.model import IGNORED
from exempla import Completions

__all__ = ["Arrays", "Job", "make_job"]

WORDS = 1000

Arrays = tuple[Tensor, Tensor]
"""(ids, labels), padded on the right."""


@dataclass(frozen=True)
class Job:
    """The lines and the questions, as exempla reads them and as arrays."""

    corpus: Corpus
    lines: Completions
    asked: Completions
    train: Arrays
    questions: Arrays
    words: int
    """Size of the vocabulary."""


def make_job(corpus: Corpus) -> Job:
    tokenizer = make_tokenizer(corpus.lines)
    lines = Completions(tokenizer, corpus.lines)
    asked = Completions(tokenizer, [(f.prompt, f.completion) for f in corpus.facts], end=False)
    return Job(corpus, lines, asked, as_arrays(lines), as_arrays(asked), len(tokenizer))


def make_tokenizer(lines: list[str]):
    """Byte-pair encoding, learned from the text itself."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=WORDS, special_tokens=["<|>"]))
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|>", bos_token="<|>")


def as_arrays(texts: Completions) -> Arrays:
    """(ids, labels), padded on the right; a first token is never counted."""
    rows = texts[:]
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    labels = torch.full_like(ids, IGNORED)
    for i, row in enumerate(rows):
        length = len(row["input_ids"])
        ids[i, :length] = torch.tensor(row["input_ids"])
        labels[i, :length] = torch.tensor(row["labels"])
    labels[:, 0] = IGNORED
    return ids, labels
