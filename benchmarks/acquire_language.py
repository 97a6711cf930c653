"""Choose training texts for one domain: `acquire` beside the usual ways, for a small GPT.

A GPT-2 of two layers is trained from scratch on `START` texts of four domains (mails, film reviews,
news, programmers' posts). 5 % of a pool of the same four domains are added for a target set of
`TARGET` texts from one of them, the model is trained again from scratch on everything, and the loss
per token on other texts of the target domain is reported.

How `acquire` should treat texts was asked twice. First, on seed 10: half of the picks ignore the
texts, as where labels are classes (`breadth` 0.5), or none do (0): none. With that, the picks of
one reported domain (mails, seed 0) were level with random texts and behind gradient cosine. So the
rule was chosen again, among the four in `RULES`, by a criterion fixed before the run: the lowest
mean loss on mails and reviews with seeds 10 to 12 (`choose`). The four domains with seeds 0 to 2
are reported with the rule that became the default (`report`).

    python -m benchmarks.acquire_language choose report    # JOBS=16: some minutes
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import subprocess
import sys
import warnings
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed
from transformers import GPT2Config, GPT2LMHeadModel

import exempla
from exempla.tasks.candidates import CandidatePool

DATA = Path(os.environ.get("EXEMPLA_DATA", "shared/data"))
OUT = Path(os.environ.get("OUT", "docs/experiments"))
DOMAINS = ("mails", "reviews", "news", "posts")
RULES: dict[str, tuple[bool, Any]] = {
    "acquire, rows of their own length": (False, None),
    "acquire, unit rows": (True, None),
    "acquire, first-order gain": (False, exempla.TopInfluence()),
    "acquire, cosine": (True, exempla.TopInfluence()),
}
"""Options `normalize` and `selector` of `acquire`; None is SBQ with the noise for classes."""
METHODS = (
    *RULES,
    "random",
    "similar hidden states (RDS+)",
    "gradient cosine (LESS)",
)
START, POOL, TARGET, TEST = 60, 250, 60, 300
"""Texts per domain to begin with and in the pool; texts of the target domain to choose and test."""
SHARE, LENGTH, WORDS, EPOCHS = 0.05, 40, 1500, 12
CHOOSE = (("mails", "reviews"), range(10, 13))
REPORT = (DOMAINS, range(3))


def texts(domain: str) -> list[str]:
    """Return all texts of a domain."""
    if domain == "mails":
        with gzip.open(DATA / "enron1/enron1.jsonl.gz", "rt") as file:
            return [json.loads(line)["body"] for line in file]
    if domain == "reviews":
        with gzip.open(DATA / "text/sst2_train.tsv.gz", "rt") as file:
            return [max(line.split("\t"), key=len) for line in file]
    name = {"news": "agnews_human", "posts": "so_emotions"}[domain]
    with gzip.open(DATA / f"human/{name}.jsonl.gz", "rt") as file:
        return [json.loads(line)["text"] for line in file]


def tokens(domain: str, words: dict[str, int]) -> list[list[int]]:
    """Return the first tokens of every text of at least eight words."""
    split = (re.findall(r"\w+|[^\w\s]", text.lower())[:LENGTH] for text in texts(domain))
    return [[words.get(word, 1) for word in one] for one in split if len(one) >= 8]


def vocabulary() -> dict[str, int]:
    """Number the most frequent words; 0 pads, 1 is any other word."""
    counts: Counter[str] = Counter()
    for domain in DOMAINS:
        some = Counter(re.findall(r"\w+|[^\w\s]", " ".join(texts(domain)[:3000]).lower()))
        total = sum(some.values())
        counts.update({word: count * 10**6 // total for word, count in some.items()})
    return {word: place for place, (word, _) in enumerate(counts.most_common(WORDS), 2)}


def examples(rows: list[list[int]]) -> list[dict[str, Any]]:
    """Return rows as the model and exempla take them."""
    return [{"input_ids": row, "labels": row, "attention_mask": [1] * len(row)} for row in rows]


def padded(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    """Return rows as one batch."""
    ids = torch.zeros((len(rows), LENGTH), dtype=torch.long)
    mask = torch.zeros((len(rows), LENGTH), dtype=torch.long)
    for place, row in enumerate(rows):
        ids[place, : len(row)], mask[place, : len(row)] = torch.tensor(row), 1
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def trained(rows: list[list[int]], seed: int) -> GPT2LMHeadModel:
    """Train a small GPT from scratch."""
    torch.manual_seed(seed)
    drop: Any = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config: Any = GPT2Config(
        vocab_size=WORDS + 2, n_embd=48, n_layer=2, n_head=4, n_positions=LENGTH,
        bos_token_id=0, eos_token_id=0, **drop,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).train()
    batch, step = padded(rows), torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.01)
    for _ in range(EPOCHS):
        for part in torch.randperm(len(rows)).split(32):
            step.zero_grad()
            model(**{name: values[part] for name, values in batch.items()}).loss.backward()
            step.step()
    return model.eval()


@torch.no_grad()
def loss(model: GPT2LMHeadModel, rows: list[list[int]]) -> float:
    """Return the mean loss per token."""
    return float(model(**padded(rows)).loss)


@torch.no_grad()
def hidden_states(model: GPT2LMHeadModel, rows: list[list[int]]) -> np.ndarray:
    """Return position-weighted means of the last hidden states, as unit rows (RDS+)."""
    batch = padded(rows)
    states = model.transformer(batch["input_ids"], attention_mask=batch["attention_mask"])[0]
    weights = batch["attention_mask"] * torch.arange(1, LENGTH + 1)
    means = (states * weights[:, :, None]).sum(1) / weights.sum(1, keepdim=True)
    return torch.nn.functional.normalize(means, dim=1).numpy()


def gradients(model: GPT2LMHeadModel, rows: list[list[int]], width: int = 1024) -> np.ndarray:
    """Return randomly projected gradients of single texts, as unit rows (LESS)."""
    made = []
    for row in rows:
        model.zero_grad()
        model(**padded([row])).loss.backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        generator = torch.Generator().manual_seed(0)
        signs = torch.randint(0, 2, flat.shape, generator=generator) * 2.0 - 1.0
        places = torch.randint(0, width, flat.shape, generator=generator)  # a count sketch
        made.append(torch.zeros(width).index_add_(0, places, signs * flat))
    return torch.nn.functional.normalize(torch.stack(made), dim=1).numpy()


def acquired(model: Any, train: list, pool: list, target: list, k: int) -> dict[str, np.ndarray]:
    """Return what `acquire` picks under each rule; model and pool are scored once for all."""
    explainer = exempla.Explainer(model, progress=False).fit(examples(train))
    given = examples(pool), examples(target)
    found = {}
    for normalize in (False, True):
        explainer.normalize = normalize
        towards = CandidatePool(explainer, *given).towards(given[1])
        for rule, (wanted, selector) in RULES.items():
            if wanted == normalize:
                usual = exempla.SBQ(noise=10.0 if normalize else 0.1 * len(train))
                candidates = CandidatePool(explainer, *given, selector or usual)
                found[rule] = candidates.pick(towards, k, 0.0, np.random.default_rng(0))[0]
    return found


def chosen(method: str, model: Any, pool: list, target: list, k: int, seed: int) -> np.ndarray:
    """Return the rows of the pool that another method chooses."""
    if method == "random":
        return np.random.default_rng(seed).choice(len(pool), k, replace=False)
    rows = hidden_states if method.startswith("similar") else gradients
    return np.argsort(-(rows(model, pool) @ rows(model, target).mean(0)), kind="stable")[:k]


def compare(seed: int, domain: str, methods: list[str]) -> dict[str, Any]:
    """Train with the texts that each method chooses; return the losses on the domain."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    words = vocabulary()
    rng, drawn = np.random.default_rng(seed), {}
    for name in DOMAINS:
        rows = tokens(name, words)
        drawn[name] = [rows[i] for i in rng.permutation(len(rows))[: START + POOL + TARGET + TEST]]
    train = [row for rows in drawn.values() for row in rows[:START]]
    pool = [row for rows in drawn.values() for row in rows[START : START + POOL]]
    model, k = trained(train, seed), round(SHARE * len(pool))
    target, test = np.split(np.array(drawn[domain][START + POOL :], object), [TARGET])
    line = {"seed": seed, "domain": domain, "before": loss(model, list(test))}
    by_rule = acquired(model, train, pool, list(target), k)
    for method in methods:
        if method in by_rule:
            picks = by_rule[method]
        else:
            picks = chosen(method, model, pool, list(target), k, seed)
        again = trained(train + [pool[i] for i in picks], seed)
        line[method] = loss(again, list(test))
        of_domain = np.mean(picks // POOL == DOMAINS.index(domain))
        line[f"{method}: share from the domain"] = float(of_domain)
    print(line, file=sys.stderr, flush=True)
    return line


def run(part: str) -> None:
    """Compare the methods and write docs/experiments/acquire_language[_choose].csv."""
    (names, seeds), methods = (CHOOSE, [*RULES]) if part == "choose" else (REPORT, [*METHODS])
    jobs = [(seed, domain, methods) for seed in seeds for domain in names]
    work = Parallel(n_jobs=int(os.environ.get("JOBS", "1")))
    lines = list(work(delayed(compare)(*job) for job in jobs))
    commit = (
        os.environ.get("COMMIT")
        or subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()
    )
    stamp = {"commit": commit, "date": f"{datetime.now(UTC):%Y-%m-%d}"}
    name = "acquire_language" + ("_choose" if part == "choose" else "")
    with open(OUT / f"{name}.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, [*lines[0], *stamp])
        writer.writeheader()
        writer.writerows(line | stamp for line in lines)


if __name__ == "__main__":
    for asked in sys.argv[1:]:
        run(asked)
