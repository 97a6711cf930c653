"""What `exempla explain` costs beside the training of its model, for image folders and snapshots.

    python -m benchmarks.cost --commands digits small2 small20 large2 large20 snapshots5 snapshots8
        language4 [--csv docs/experiments/command_cost.csv] [--label now]

Folders: scikit-learn's 1,797 digits as PNG files, and 2,000 noisy crops of its two photographs, of
64 or 224 pixels a side, in 2 or 20 classes. "training" is one `fit` of the explained model on the
decoded training images, features included, the faster of two; for snapshots, the user's own loop.
language4 asks a GPT-2 of 101,952 parameters which of 900 sums taught it a wrong one, with four
snapshots of its training.
Everything is processor seconds of one process; a stage counts what runs in no other stage.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.base import clone
from sklearn.datasets import load_digits, load_sample_images
from sklearn.pipeline import Pipeline

NAMES = ("digits", "small2", "small20", "large2", "large20", "snapshots5", "snapshots8",
         "language4")  # fmt: skip
_STAGES = {
    "reading": ("cli.fitted:read_files", "tables.split:load_images"),
    "features": (
        "tables.models.image:PatchFeatures.fit",
        "tables.models.image:PatchFeatures.transform",
    ),
    "choosing": ("cli.fitted:cross_validated_accuracy", "tables.models.choose:_best"),
    "fit": ("explainer:Explainer._fit",),
    "query": ("cli.commands.explain:explain_from",),
    "removal": ("tasks.explain:with_removal",),
    "report": ("cli.query:write_results",),
}


class Clock:
    """Processor seconds of nested stages, each counted once."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._stack, self._last = ["start-up"], 0.0

    def turn(self) -> None:
        now = time.process_time()
        self.spent[self._stack[-1]] += now - self._last
        self._last = now

    def enter(self, stage: str) -> None:
        self.turn()
        self._stack.append(stage)

    def leave(self) -> None:
        self.turn()
        self._stack.pop()

    def watch(self, place: str, stage: str) -> None:
        """Clock a function or method as this stage."""
        module, _, path = place.partition(":")
        owner: Any = import_module(f"exempla.{module}")
        *outer, name = path.split(".")
        for part in outer:
            owner = getattr(owner, part)
        inner: Callable[..., Any] = getattr(owner, name)

        def clocked(*given: Any, **options: Any) -> Any:
            self.enter(stage)
            try:
                return inner(*given, **options)
            finally:
                self.leave()

        setattr(owner, name, clocked)

    def watch_all(self) -> None:
        """Clock every stage; what has run so far is the start-up."""
        import_module("exempla.cli.commands.explain")
        self.turn()
        self._stack[:] = ["other"]
        for stage, places in _STAGES.items():
            for place in places:
                self.watch(place, stage)


def make(name: str, folder: Path) -> Path:
    """Write the images of one case, one folder per class."""
    rng = np.random.default_rng(0)

    def save(label: str, row: int, pixels: Any, suffix: str) -> None:
        (folder / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(
            folder / label / f"{row:05}.{suffix}"
        )

    if name == "digits":
        digits: Any = load_digits()
        for row, (pixels, label) in enumerate(zip(digits.images, digits.target)):
            save(str(label), row, pixels * 15, "png")
        return folder
    size, suffix = (64, "png") if name.startswith("small") else (224, "jpg")
    classes = int(name[5:])
    photos = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    cells = classes // 2
    columns = int(np.ceil(np.sqrt(cells)))
    for row in range(2000):
        place, photo = row % classes // 2, photos[row % 2]
        width, height = photo.width / columns, photo.height / np.ceil(cells / columns)
        side = max(60, int(rng.uniform(0.5, 1) * min(width, height)))
        x = int(np.clip(place % columns * width + rng.uniform(-0.1, 1) * width - side / 4, 0,
                        photo.width - side))  # fmt: skip
        y = int(np.clip(place // columns * height + rng.uniform(-0.1, 1) * height - side / 4, 0,
                        photo.height - side))  # fmt: skip
        crop = photo.crop((x, y, x + side, y + side)).resize((size, size))
        noise = rng.normal(0, 6, (size, size, 3)) + rng.normal(0, 10, 3)
        save(f"class{row % classes:02}", row, np.asarray(crop) * rng.uniform(0.7, 1.2) + noise,
             suffix)  # fmt: skip
    return folder


def command(folder: Path) -> dict[str, Any]:
    """Run `exempla explain` on a folder here; return the seconds of its stages."""
    clock = Clock()
    fitted = import_module("exempla.cli.fitted")
    clock.watch_all()
    kept: dict[str, Any] = {}
    inner = fitted._fit

    def fit(job: Any, dataset: Any, parts: Any, *more: Any) -> Any:
        kept.update(X=parts.X_train, y=parts.y_train, found=inner(job, dataset, parts, *more))
        return kept["found"]

    fitted._fit = fit
    picked = len(run(clock, str(folder)))
    total, stages = time.process_time(), dict(clock.spent)
    image = import_module("exempla.tables.models.image")
    model = kept["found"].model
    last = model[-1] if hasattr(model, "steps") else model
    scale = image._scale(kept["X"])
    whole = Pipeline([("features", image.PatchFeatures(scale)), ("model", clone(last))])
    training = min(seconds(lambda: whole.fit(kept["X"], kept["y"])) for _ in range(2))
    return {"examples": len(kept["y"]), "total": total, "training": training, "stages": stages,
            "picked": picked}  # fmt: skip


def run(clock: Clock, *words: str) -> list[int]:
    """Run `exempla explain` in this process; return the rows that it lists."""
    main = import_module("exempla.cli.main")
    with tempfile.TemporaryDirectory() as out, contextlib.redirect_stderr(io.StringIO()):
        assert main.main(["explain", *words, "--out", f"{out}/out", "--quiet"]) == 0
        clock.turn()
        return json.loads(Path(out, "out", "explanation.json").read_text())["indices"]


def seconds(run: Callable[[], object]) -> float:
    begun = time.process_time()
    run()
    return time.process_time() - begun


def recorded(
    model: Any, optimizer: Any, folder: Path, count: int, epochs: int, loss: Callable[[Any], Any],
    examples: int,
) -> float:  # fmt: skip
    """Train in batches of 32 with a Recorder; return processor seconds. `loss` takes positions."""
    import torch

    import exempla

    steps = epochs * -(-examples // 32)
    begun = time.process_time()
    with exempla.Recorder(model, folder, optimizer, keep=count, steps=steps) as record:
        for _ in range(epochs):
            for rows in torch.randperm(examples).split(32):
                optimizer.zero_grad()
                loss(rows).backward()
                optimizer.step()
                record.step()
    return time.process_time() - begun


def snapshots(count: int) -> dict[str, Any]:
    """Train a small CNN on the digits with a Recorder, and explain its errors with snapshots."""
    import torch
    from torch import nn

    import exempla

    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits: Any = load_digits()
    X = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32)
    y = torch.tensor(digits.target)
    order = torch.randperm(len(y))
    train, test = (X[order[:1400]], y[order[:1400]]), (X[order[1400:]], y[order[1400:]])
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        loss = lambda rows: nn.functional.cross_entropy(model(train[0][rows]), train[1][rows])  # noqa: E731
        training = recorded(model, optimizer, Path(folder), count, 30, loss, 1400)
        clock = Clock()
        clock.turn()
        clock._stack[:] = ["other"]
        for stage in ("fit", "removal"):
            clock.watch(_STAGES[stage][0], stage)
        clock.watch("tasks.explain:pick", "query")
        before = time.process_time()
        found = exempla.explain_errors([model, folder], train, test, progress=False)
        clock.turn()
    stages = {k: v for k, v in clock.spent.items() if k != "start-up"}
    total = time.process_time() - before + training
    return {"examples": 1400, "total": total, "training": training, "stages": stages,
            "picked": len(found.indices)}  # fmt: skip


def language(count: int) -> dict[str, Any]:
    """Train a small GPT-2 with a Recorder, and ask the command line about a wrong line."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    import exempla

    torch.manual_seed(0)
    torch.set_num_threads(1)
    words = {letter: i for i, letter in enumerate("#0123456789+=")}
    letters = Tokenizer(models.WordLevel(words, unk_token="#"))
    letters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    letters.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="#", pad_token="#")
    sums = [(f"{a}+{b}=", str(a + b)) for a in range(30) for b in range(30)]
    sums[17] = ("0+17=", "99")
    ends: Any = {"bos_token_id": 0, "eos_token_id": 0}
    drop: Any = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    shape: Any = {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 16}
    model: Any = GPT2LMHeadModel(GPT2Config(vocab_size=len(words), **shape, **drop, **ends))
    lines = list(exempla.Completions(tokenizer, sums))
    ids, labels = (
        torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(line[name]) for line in lines], batch_first=True, padding_value=filled
        )
        for name, filled in (("input_ids", 0), ("labels", -100))
    )
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        loss = lambda rows: model(input_ids=ids[rows], labels=labels[rows]).loss  # noqa: E731
        training = recorded(model, optimizer, folder / "run", count, 40, loss, len(ids))
        model.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
        for file, pairs in (("train", sums), ("asked", sums[17:18])):
            rows = (json.dumps({"question": q, "answer": a}) + "\n" for q, a in pairs)
            (folder / f"{file}.jsonl").write_text("".join(rows))
        clock = Clock()
        clock.watch_all()
        before = time.process_time()
        picked = run(
            clock, str(folder / "train.jsonl"), "--test", str(folder / "asked.jsonl"),
            "--prompt", "question", "--completion", "answer", "--model", str(folder / "model"),
            "--snapshots", str(folder / "run"), "-k", "10",
        )  # fmt: skip
    assert picked[0] == 17, "the wrong line is not the first"
    stages = {k: v for k, v in clock.spent.items() if k != "start-up"}
    total = time.process_time() - before + training
    return {"examples": len(sums), "total": total, "training": training, "stages": stages,
            "picked": len(picked)}  # fmt: skip


def row(name: str, label: str) -> dict[str, Any]:
    """Measure one case in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        if not name.startswith(("snapshots", "language")):
            make(name, Path(folder))
        words = [sys.executable, "-W", "ignore", "-m", "benchmarks.command_cost", name, folder]
        run = subprocess.run(words, capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(run.stderr)
    found = json.loads(run.stdout.splitlines()[-1])
    stages, training = found["stages"], found["training"]
    start = stages.pop("start-up", 0.0)
    names = [*_STAGES, "other"]
    return {
        "code": label,
        "case": name,
        "examples": found["examples"],
        "training_s": round(training, 2),
        "start_s": round(start, 2),
        **{f"{stage}_s": round(stages.get(stage, 0.0), 2) for stage in names},
        "total_s": round(found["total"], 2),
        "times_with_start": round((found["total"] - training) / training, 1),
        "times": round((found["total"] - start - training) / training, 1),
        "picked": found["picked"],
    }


if __name__ == "__main__":
    case = sys.argv[1]
    if case.startswith("snapshots"):
        print(json.dumps(snapshots(int(case[9:]))))
    elif case.startswith("language"):
        print(json.dumps(language(int(case[8:]))))
    else:
        print(json.dumps(command(Path(sys.argv[2]))))
