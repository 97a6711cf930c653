"""Train, ask every method, and count how many of the first ten lines taught the fact.

With --retrain every method's first ten lines of all facts are left out together and the model is
trained again: how far the facts' log-probability falls is what those lines did, whatever they say.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from benchmarks.facts import methods
from benchmarks.facts.corpus import Corpus, make_corpus
from benchmarks.facts.model import IGNORED, Decoder, token_losses, train
from benchmarks.peers.environments import make_environment
from exempla import Completions, Recorder

FIRST = 10
WORDS = 1000
HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a folder for everything made")
    parser.add_argument("--seed", type=int, default=0, help="of the text and of the training")
    parser.add_argument("--peers", type=Path, help="a folder for the peers' environments")
    parser.add_argument("--retrain", action="store_true", help="also train without the lines")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    corpus = make_corpus(seed=options.seed)
    tokenizer = make_tokenizer(corpus.lines)
    texts = Completions(tokenizer, corpus.lines)
    asked = Completions(tokenizer, [(f.prompt, f.completion) for f in corpus.facts], end=False)
    data, questions = as_arrays(texts), as_arrays(asked)
    began = time.process_time()
    model = trained(options, data, len(tokenizer))
    said(f"trained in {time.process_time() - began:.0f} processor seconds")
    known = log_probabilities(model, questions)
    said(f"{np.mean(known > np.log(0.5)):.0%} of {len(known)} facts are known (p > .5)")
    ranked = rankings(options, model, corpus, texts, asked, data, questions)
    lines = []
    for name, (order, seconds) in ranked.items():
        hits = [np.isin(o[:FIRST], f.stated).mean() for o, f in zip(order, corpus.facts)]
        line = {
            "seed": options.seed, "method": name, "precision": float(np.mean(hits)),
            "standard_error": float(np.std(hits) / np.sqrt(len(hits))), "seconds": seconds,
        }  # fmt: skip
        if options.retrain:
            line["fall"] = fall(order, data, questions, known, len(tokenizer), options.seed)
        lines.append(line)
        said(", ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{v}" for k, v in line.items()))
    pd.DataFrame(lines).to_csv(options.out / f"facts-{options.seed}.csv", index=False)


def make_tokenizer(lines: list[str]):
    """Byte-pair encoding, learned from the text itself."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=WORDS, special_tokens=["<|>"]))
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|>", bos_token="<|>")


def as_arrays(texts: Completions) -> tuple[Tensor, Tensor]:
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


def trained(options: argparse.Namespace, data: tuple[Tensor, Tensor], words: int) -> Decoder:
    path = options.out / f"weights-{options.seed}.pt"
    if path.exists():
        model = Decoder(words).eval()
        model.load_state_dict(torch.load(path, weights_only=True))
        return model
    run = options.out / f"run-{options.seed}"
    model = train(*data, words, options.seed, lambda model, by: Recorder(model, run, optimizer=by))
    torch.save(model.state_dict(), path)
    return model


def log_probabilities(model: Decoder, asked: tuple[Tensor, Tensor]) -> np.ndarray:
    """log p of each completion."""
    with torch.no_grad():
        return -token_losses(model(asked[0]), asked[1]).sum(1).numpy()


def rankings(
    options: argparse.Namespace, model: Decoder, corpus: Corpus, texts: Completions,
    asked: Completions, data: tuple[Tensor, Tensor], questions: tuple[Tensor, Tensor],
) -> dict[str, tuple[list[np.ndarray], float]]:  # fmt: skip
    """Of each method, the lines for every fact, best first, and its processor seconds."""
    wordings = [f.prompt + f.completion for f in corpus.facts]
    ways = {
        "exempla, influence": lambda: methods.influence(model, texts, asked),
        "exempla, recorded run": lambda: methods.influence(
            [model, options.out / f"run-{options.seed}"], texts, asked
        ),
        "BM25": lambda: methods.bm25(corpus.lines, wordings),
        "hidden states": lambda: methods.hidden_states(model, texts, asked),
        "gradient cosine": lambda: methods.gradient_cosine(model, data, questions, said),
    }
    out = {}
    for name, way in ways.items():
        began = time.process_time()
        scores = way()
        order = [np.argsort(-column, kind="stable") for column in scores.T]
        out[name] = order, time.process_time() - began
        said(f"{name} asked")
    began = time.process_time()
    out["exempla, SBQ"] = methods.picked(model, texts, asked, FIRST), time.process_time() - began
    if options.peers:
        out |= peers(options, data, questions, model)
    return out


def peers(
    options: argparse.Namespace, data: tuple[Tensor, Tensor], questions: tuple[Tensor, Tensor],
    model: Decoder,
) -> dict[str, tuple[list[np.ndarray], float]]:  # fmt: skip
    """The same of peers, each in its own environment."""
    torch.save(model.state_dict(), options.out / "weights.pt")
    np.savez(
        options.out / "job.npz", train_ids=data[0].numpy(), train_labels=data[1].numpy(),
        test_ids=questions[0].numpy(), test_labels=questions[1].numpy(),
        words=model.head.out_features,
    )  # fmt: skip
    files = {
        "kronfluence": {"kronfluence, its own damping": "kronfluence-own.npy",
                        "kronfluence, damping 1e-8": "kronfluence-default.npy"},
        "traker": {"TRAK": "traker.npy"},
    }  # fmt: skip
    out = {}
    for peer, made in files.items():
        python = make_environment(peer, options.peers)
        began = time.time()
        subprocess.run([str(python), str(HERE / f"run_{peer}.py"), str(options.out)], check=True)
        for name, file in made.items():
            scores = np.load(options.out / file)
            # larger = more helpful, in both
            order = [np.argsort(-column, kind="stable") for column in scores.T]
            out[name] = order, time.time() - began
        said(f"{peer} asked")
    return out


def fall(
    order: list[np.ndarray], data: tuple[Tensor, Tensor], questions: tuple[Tensor, Tensor],
    known: np.ndarray, words: int, seed: int,
) -> float:  # fmt: skip
    """Mean fall of the facts' log-probability when every fact's first lines are left out."""
    left_out = np.unique(np.concatenate([o[:FIRST] for o in order]))
    kept = torch.as_tensor(np.setdiff1d(np.arange(len(data[0])), left_out))
    again = train(data[0][kept], data[1][kept], words, seed)
    return float(np.mean(known - log_probabilities(again, questions)))


def said(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
