"""A language model of GPT-2's smallest shape, trained on real text: cost, share, planted facts.

    EXEMPLA_DATA=… python -m benchmarks.trained_lm prepare FOLDER TEXT …   tokens and planted lines
    python -m benchmarks.trained_lm train FOLDER [--minutes 6]             on a GPU
    python -m benchmarks.trained_lm ask FOLDER [--lora] [--csv FILE]       fit, ask, one line each
    python -m benchmarks.trained_lm basis FOLDER                           long texts

`prepare` learns a byte-pair encoding from text files and writes all their tokens, and beside them
the lines of `benchmarks.facts`: 60 invented facts in ten wordings each, 300 lines that only sound
alike, 1,100 film reviews. `train` trains the 124 M parameters on the text for so many minutes, then
on the lines, and in a copy only LoRA adapters (rank 8 on all attention products). `ask` embeds the
2,000 lines, asks about each fact (its first wording), and prints

precision   share of the ten most helpful lines of a fact that state it; `relative` influence is
            divided by the root of self-influence; random lines reach .005
epochs      seconds of the fit in epochs of forward and backward over the lines in batches of 32
memory      its peak beyond model and data, in the epoch's peak
share       of the Fisher's trace that the sketch keeps

`basis` asks how many long examples the K-FAC basis needs: four positions per coordinate of the
widest side would be 16 texts of 512 tokens, and 32 were taken whatever their length. The rule,
written before it was run: 16 become the minimum if, on 256 texts and two other sets of 256, the
sketch keeps at least .99 of the share that it keeps with 32.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

WORDS, LENGTH, BATCH, LINES = 50_257, 512, 64, 32
RANK, FACT_EPOCHS, FIRST = 8, 6, 10
IGNORED = -100


def prepare(folder: Path, texts: list[Path], most: int) -> None:
    """Write tokens.npy, lines.npz and job.json."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    from benchmarks.facts.corpus import make_corpus
    from benchmarks.facts.methods import bm25

    folder.mkdir(parents=True, exist_ok=True)
    corpus = make_corpus(background=1100)
    encoding = Tokenizer(models.BPE())
    encoding.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<|>"]
    encoding.train([str(t) for t in texts], trainers.BpeTrainer(
        vocab_size=WORDS, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    ))  # fmt: skip
    parts = []
    for text in texts:
        whole = text.read_text("utf-8", errors="replace")
        pieces = [whole[i : i + 100_000] for i in range(0, len(whole), 100_000)]
        parts += [np.array(e.ids, np.uint16) for e in encoding.encode_batch(pieces)]
    np.save(folder / "tokens.npy", np.concatenate(parts)[:most])

    def arrays(texts: list[tuple[str, str]]) -> tuple[np.ndarray, np.ndarray]:
        """Token ids, padded on the right, and labels: only the second part counts, if any."""
        rows = [(encoding.encode(a).ids, encoding.encode(b).ids) for a, b in texts]
        longest = max(len(a) + len(b) for a, b in rows) + 2
        ids, labels = np.zeros((len(rows), longest), np.int64), np.full((len(rows), longest), -100)
        for i, (a, b) in enumerate(rows):
            own = [0, *a, *b] + ([] if b else [0])
            ids[i, : len(own)] = own
            first = 1 + len(a) if b else 1
            labels[i, first : len(own)] = own[first:]
        return ids, labels

    lines = arrays([(line, "") for line in corpus.lines])
    asked = arrays([(f.prompt, f.completion) for f in corpus.facts])
    np.savez(folder / "lines.npz", ids=lines[0], labels=lines[1], q=asked[0], q_labels=asked[1])
    words = bm25(corpus.lines, [f.prompt + f.completion for f in corpus.facts])
    job = {"stated": [f.stated for f in corpus.facts], "tokens": sum(map(len, parts))}
    job["bm25"] = [np.argsort(-column, kind="stable")[:FIRST].tolist() for column in words.T]
    (folder / "job.json").write_text(json.dumps(job))


def blank() -> Any:
    """The network with random weights."""
    import transformers

    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    model.config.use_cache = False
    return model


class Adapted(nn.Module):
    """A product of GPT-2 with a low-rank addition, as LoRA has it."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base, (width, out) = base, base.weight.shape
        self.down = nn.Linear(width, RANK, bias=False)
        self.up = nn.Linear(RANK, out, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2.0 * self.up(self.down(x))


def adapted(model: Any) -> Any:
    """Freeze the model and add adapters to the attention of every layer."""
    model.requires_grad_(False)
    for block in model.transformer.h:
        block.attn.c_attn, block.attn.c_proj = (
            Adapted(block.attn.c_attn),
            Adapted(block.attn.c_proj),
        )
    return model


def loss_of(model: Any, ids: Tensor, labels: Tensor) -> Tensor:
    with torch.autocast("cuda", torch.bfloat16):
        logits = model(input_ids=ids).logits[:, :-1]
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels[:, 1:].flatten())


def train(folder: Path, minutes: float) -> None:
    """Train on the text, then on the lines: all weights, and in a copy the adapters alone."""
    torch.manual_seed(0)
    tokens = torch.from_numpy(np.load(folder / "tokens.npy").astype(np.int64))
    held, tokens = tokens[:65_536].view(-1, LENGTH).cuda(), tokens[65_536:].cuda()
    model = blank().cuda()
    quick = torch.compile(model)
    rate, start, steps, seen = 6e-4, perf_counter(), 0, 0
    optimizer = torch.optim.AdamW(
        model.parameters(), rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    while (spent := (perf_counter() - start) / 60 / minutes) < 1:
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (steps + 1) / 200) * max(0.05, 1 - spent)
        at = torch.randint(len(tokens) - LENGTH, (BATCH, 1), device="cuda")
        batch = tokens[at + torch.arange(LENGTH, device="cuda")]
        loss_of(quick, batch, batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps, seen = steps + 1, seen + batch.numel()
    with torch.no_grad():
        losses = [float(loss_of(model, part, part)) for part in held.split(16)]
    print(
        f"{steps} steps, {seen / 1e6:.0f} M tokens of {len(tokens) / 1e6:.1f} M in "
        f"{minutes:g} minutes; held-out loss {np.mean(losses):.3f} a token"
    )
    states = {"text": model.state_dict()}
    for kind in ("full", "lora"):
        copy = blank().cuda()
        copy.load_state_dict(states["text"])
        copy = adapted(copy).cuda() if kind == "lora" else copy
        learn_lines(folder, copy, 1e-3 if kind == "lora" else 1e-4, 5 if kind == "lora" else 1)
        torch.save(copy.state_dict(), folder / f"{kind}.pt")


def read_lines(folder: Path) -> list[Tensor]:
    with np.load(folder / "lines.npz") as stored:
        return [torch.from_numpy(stored[k]).cuda() for k in ("ids", "labels", "q", "q_labels")]


def learn_lines(folder: Path, model: Any, rate: float, times: int) -> None:
    ids, labels, asked, wanted = read_lines(folder)
    own = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(own, rate, weight_decay=0.01)
    total = times * FACT_EPOCHS * -(-len(ids) // LINES)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=total)
    for _ in range(times * FACT_EPOCHS):
        for part in torch.randperm(len(ids), device="cuda").split(LINES):
            loss_of(model, ids[part], labels[part]).backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        chances = [
            float(torch.exp(-loss_of(model, q[None], w[None]) * (w[1:] >= 0).sum()))
            for q, w in zip(asked, wanted)
        ]
    known = np.mean(np.array(chances) > 0.5)
    print(f"{known:.0%} of {len(asked)} facts are known (p > .5) to the model")


def ask(folder: Path, lora: bool, label: str) -> dict[str, Any]:
    """Fit, ask about every fact, and return one line of figures."""
    import exempla

    model = adapted(blank()) if lora else blank()
    model.load_state_dict(torch.load(folder / f"{'lora' if lora else 'full'}.pt"))
    model = model.cuda().eval()
    ids, labels, asked, wanted = read_lines(folder)
    job = json.loads((folder / "job.json").read_text())

    def epoch() -> None:
        for x, y in zip(ids.split(LINES), labels.split(LINES)):
            logits = model(input_ids=x).logits[:, :-1]
            nn.functional.cross_entropy(logits.flatten(0, 1), y[:, 1:].flatten()).backward()
        model.zero_grad(set_to_none=True)

    def timed(work: Any) -> tuple[float, float, Any]:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before, start = torch.cuda.memory_allocated(), perf_counter()
        result = work()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
        return perf_counter() - start, peak / 2**30, result

    epoch()
    once, room, _ = timed(epoch)
    make = lambda: exempla.Explainer(model, likelihood="causal_lm", progress=False)  # noqa: E731
    first, _, _ = timed(lambda: make().fit((ids, labels)))
    seconds, memory, explainer = timed(lambda: make().fit((ids, labels)))
    asking, _, answer = timed(lambda: explainer.explain((asked[:10], wanted[:10]), k=20))
    influencing, _, plain = timed(lambda: explainer.influence((asked, wanted)))
    relative = explainer.influence((asked, wanted), relative=True)
    each = explainer.explain_each((asked, wanted), FIRST, side="proponents")
    found = {
        "influence": [np.argsort(-c, kind="stable")[:FIRST] for c in plain.T],
        "relative": [np.argsort(-c, kind="stable")[:FIRST] for c in relative.T],
        "sbq": [one.indices for one in each],
        "bm25": job["bm25"],
    }
    hits = {
        name: np.mean([np.isin(o, s).sum() / FIRST for o, s in zip(order, job["stated"])])
        for name, order in found.items()
    }
    embedding = explainer.embeddings[0]
    return {
        "code": label,
        "model": "LoRA" if lora else "all weights",
        "parameters": embedding.oracle.n_parameters,
        "lines": len(ids),
        "length": ids.shape[1],
        "sketch": embedding.sketch.note,
        "share": round(embedding.evidence.share, 4),
        "epoch_s": round(once, 3),
        "fit_s": round(seconds, 3),
        "first_fit_s": round(first, 3),
        "epochs": round(seconds / once, 2),
        "memory": round(memory / room, 2),
        "explain_s": round(asking, 3),
        "influence_s": round(influencing, 3),
        "picked": len(answer),
        **{f"precision_{name}": round(float(value), 3) for name, value in hits.items()},
    }


def basis(folder: Path) -> None:
    """Print the share of the Fisher that is kept with bases from 64, 32, 16 and 8 long texts."""
    import exempla
    import exempla.kernel.sketch as sketches

    model = blank()
    model.load_state_dict(torch.load(folder / "full.pt"))
    model = model.cuda().eval()
    tokens = torch.from_numpy(np.load(folder / "tokens.npy")[65_536:].astype(np.int64)).cuda()
    for start in (0, 5_000_000, 10_000_000):
        texts = tokens[start : start + 256 * LENGTH].view(256, LENGTH)
        found = {}
        for count in (64, 32, 16, 8):
            sketches._BASIS_EXAMPLES = count, 512
            explainer = exempla.Explainer(model, likelihood="causal_lm", progress=False)
            found[count] = round(explainer.fit((texts, texts)).embeddings[0].evidence.share, 4)
        print(
            f"texts from token {start:,}: share kept by examples of the basis {found}", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stage", choices=["prepare", "train", "ask", "basis"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("texts", type=Path, nargs="*")
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--most", type=int, default=15_000_000, help="tokens that are kept")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--label", default="now", help="what the line is called in the table")
    parser.add_argument("--csv", type=Path, help="the line is added to this file")
    given = parser.parse_args()
    if given.stage == "prepare":
        prepare(given.folder, given.texts, given.most)
    elif given.stage == "train":
        train(given.folder, given.minutes)
    elif given.stage == "basis":
        basis(given.folder)
    else:
        found = ask(given.folder, given.lora, given.label)
        print(json.dumps(found), flush=True)
        if given.csv:
            fresh = not given.csv.exists()
            with given.csv.open("a", newline="") as file:
                writer = csv.DictWriter(file, list(found), lineterminator="\n")
                if fresh:
                    writer.writeheader()
                writer.writerow(found)


if __name__ == "__main__":
    main()
