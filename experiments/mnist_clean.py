"""MNIST: remove the training digits behind wrong 4s and 9s, retrain, and look.

Run:  EXEMPLA_DATA=folder python -m experiments.mnist_clean --out results/mnist [--fast]

Four networks are trained. The test 4s and 9s are split into two random halves; the target is what
at least three of the four get wrong in the first half. Each method names k training digits, the
network is trained anew without them, several times, and the share of the target now judged right
is reported, beside the same share for the half never used as target and the accuracy on the whole
test set. Four splits. `--seed` asks other networks about other splits, for `clean` with and without
checkpoints alone, and adds to the page.

With a GPU everything takes a few minutes (--minutes stops it in time with what there is; running
the same command again continues). Without one use --fast, a small network on few digits.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from exempla import Explainer
from experiments.mnist_methods import FisherRankings, mmd_prototypes, random_rows, rbf_opponents
from experiments.mnist_report import CLEAN, SBQ_NAME, WITHOUT, write
from experiments.paper_cnn import Digits, PaperCNN, Recipe, State, as_images, load_mnist, predict
from experiments.retraining import Job, Retraining

LAYERS = {"three layers": ["conv2", "fc1", "out"], "last layer": ["out"], "all layers": None}


@dataclass(frozen=True)
class Plan:
    """Sizes of one run."""

    recipe: Recipe = field(default_factory=Recipe)
    train: int = 60_000
    test: int = 10_000
    bases: int = 4
    splits: int = 4
    retrainings: int = 5
    controls: int = 8
    sizes: tuple[int, ...] = (300, 200, 100, 50)
    sketch: int | str = "auto"
    cur: int = 50
    seed: int = 1

    def seeds(self, count: int, first: int = 0) -> list[int]:
        """Seeds of networks or splits, other ones for every seed of the plan."""
        return [1000 * self.seed + first + i for i in range(count)]


FAST = Plan(
    Recipe(epochs=4, batch=50, channels=(6, 8), hidden=32),
    train=1500,
    test=1000,
    bases=2,
    splits=2,
    retrainings=1,
    controls=2,
    sizes=(30, 10),
    sketch=128,
    cur=5,
)


@dataclass(frozen=True)
class Question:
    """The digits most networks get wrong, and which of them each split asks about."""

    rows: np.ndarray
    """Test rows: wrong 4s and 9s of either half."""
    targets: list[np.ndarray]
    """Per split, positions in `rows` that are questioned."""
    others: list[np.ndarray]
    """Per split, positions in `rows` in the half never questioned."""


def run(
    out: Path,
    fast: bool,
    data: Path,
    device: str | None = None,
    *,
    workers: int | None = None,
    minutes: float = 60.0,
    work: Path | None = None,
    plan: Plan | None = None,
) -> Path:
    """Run what is missing, then write the table, the figures and the page."""
    started = time.time()
    plan = plan or (FAST if fast else Plan())
    out = out if plan.seed == Plan.seed else out / f"seed{plan.seed}"
    out.mkdir(parents=True, exist_ok=True)
    work = out if work is None else work
    work.mkdir(parents=True, exist_ok=True)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if workers is None:
        workers = 4 if device.startswith("cuda") else 0
    # TF32 would blur the comparison of factored scores with autograd's
    torch.backends.cudnn.allow_tf32 = False
    digits = load_mnist(data / "mnist").head(plan.train, plan.test)
    say, until = Clock(started), started + 60.0 * minutes - 15.0
    pool = Retraining(digits, plan.recipe, device, workers, out / "runs.csv")
    bases = base_models(pool, plan, work, device)
    say(f"{plan.bases} networks trained")
    control_jobs(pool, plan, len(digits.train_y))
    question = ask(digits, [base.network for base in bases], plan, device)
    save_question(out, digits, question, plan)
    say(f"targets of {[len(t) for t in question.targets]} digits, of {len(question.rows)} wrong")
    rankings = target_jobs(pool, digits, bases, question, plan, device, until, say)
    np.savez_compressed(out / "rankings.npz", allow_pickle=False, **rankings)
    given_up = pool.finish(until)
    say(f"{len(pool.done)} trainings done, {given_up} not begun in the time given")
    if plan.seed != Plan.seed:
        return out / "runs.csv"
    page = write(out, digits, data)
    say("written")
    return page


class Clock:
    """Messages with the time since the start."""

    def __init__(self, started: float) -> None:
        self.started = started

    def __call__(self, message: str) -> None:
        print(f"[{time.time() - self.started:6.1f} s] {message}", flush=True)


@dataclass(frozen=True)
class Base:
    """A network that is explained, and the weights it had at earlier moments of its training."""

    network: PaperCNN
    earlier: list[State]


def base_models(pool: Retraining, plan: Plan, work: Path, device: str) -> list[Base]:
    """The networks that are explained."""
    none = np.array([], dtype=np.int64)
    seeds = plan.seeds(plan.bases)
    paths = [work / f"base{seed}.pt" for seed in seeds]
    queued = [pool.submit(Job("base", -1, s, none, str(p))) for s, p in zip(seeds, paths)]
    try:
        for future in queued:
            if future is not None:
                future.result()
    except Exception:
        traceback.print_exc()
        print("workers do not work here: training in this process", flush=True)
        pool.inline()
        for seed, path in zip(seeds, paths):
            pool.submit(Job("base", -1, seed, none, str(path)))
    recipe, bases = plan.recipe, []
    for path in paths:
        *earlier, last = torch.load(path, weights_only=True)
        model = PaperCNN(recipe.channels, recipe.hidden, recipe.classes)
        model.load_state_dict(last)
        bases.append(Base(model.to(device).eval(), earlier))
    return bases


def control_jobs(pool: Retraining, plan: Plan, n: int) -> None:
    """Nothing removed, and rows removed by chance: another draw for every training."""
    for seed in plan.seeds(plan.controls, 100):
        pool.submit(Job("nothing", -1, seed, np.array([], dtype=np.int64)))
        for k in plan.sizes:
            pool.submit(Job("random", -1, seed, random_rows(n, k, seed)))


def ask(digits: Digits, models: list[PaperCNN], plan: Plan, device: str) -> Question:
    """Wrong 4s and 9s, and the random halves."""
    x = as_images(digits.test_x, device)
    wrong = np.mean([predict(model, x) != digits.test_y for model in models], axis=0)
    members = np.flatnonzero(np.isin(digits.test_y, (4, 9)))
    rows = members[wrong[members] > 0.5]
    targets, others = [], []
    for seed in plan.seeds(plan.splits, 500):
        half = np.random.default_rng(seed).permutation(members)[: len(members) // 2]
        inside = np.isin(rows, half)
        targets.append(np.flatnonzero(inside))
        others.append(np.flatnonzero(~inside))
    if any(len(t) == 0 for t in targets):
        raise RuntimeError("a half has no wrong 4 or 9: train less or use more test digits")
    return Question(rows, targets, others)


def save_question(out: Path, digits: Digits, question: Question, plan: Plan) -> None:
    facts = {
        "rows": question.rows.tolist(),
        "targets": [question.rows[t].tolist() for t in question.targets],
        "others": [question.rows[t].tolist() for t in question.others],
        "sizes": list(plan.sizes),
        "train": len(digits.train_y),
        "test": len(digits.test_y),
        "recipe": plan.recipe.__dict__,
    }
    (out / "question.json").write_text(json.dumps(facts, indent=1))


def target_jobs(
    pool: Retraining,
    digits: Digits,
    bases: list[Base],
    question: Question,
    plan: Plan,
    device: str,
    until: float,
    say: Clock,
) -> dict[str, np.ndarray]:
    """Rank by every method and queue the trainings; a method that fails is reported, not fatal."""
    x = as_images(digits.train_x, device)
    y = torch.from_numpy(digits.train_y.astype(np.int64)).to(device)
    qx = as_images(digits.test_x[question.rows], device)
    qy = torch.from_numpy(digits.test_y[question.rows].astype(np.int64)).to(device)
    most, targets = plan.sizes[0], question.targets
    models = [base.network for base in bases]
    with_earlier = [model for base in bases for model in (base.network, *base.earlier)]
    rankings: dict[str, np.ndarray] = {}

    def offer(name: str, sizes: Sequence[int], make: Callable[[], Any]) -> None:
        if time.time() > until - 30.0:
            say(f"{name}: no time left")
            return
        try:
            ranked = make()
        except Exception:
            say(f"{name} FAILED\n{traceback.format_exc()}")
            return
        alone = isinstance(ranked, np.ndarray)
        for split, order in enumerate([ranked] if alone else ranked):
            rankings[f"{name}|{-1 if alone else split}"] = np.asarray(order)[:most]
        queue(pool, name, rankings, plan, sizes)
        say(f"{name}: ranked")

    fishers: dict[tuple[str, bool], FisherRankings] = {}

    def fisher(layers: str, checkpoints: bool = False) -> FisherRankings:
        if (layers, checkpoints) not in fishers:
            fishers.clear()  # the rows of one choice at a time
            explainer = Explainer(
                with_earlier if checkpoints else models,
                parameters=LAYERS[layers],
                sketch=plan.sketch,
                progress=False,
            ).fit((x.cpu(), y.cpu()))
            made = FisherRankings(explainer, (qx.cpu(), qy.cpu()))
            say(f"{layers}, {len(explainer.oracles)} models: {made.describe()}")
            fishers[layers, checkpoints] = made
        return fishers[layers, checkpoints]

    three, last, every = LAYERS
    offer(CLEAN, [most], lambda: fisher(three, True).influence(targets))
    if plan.seed == Plan.seed:
        offer(f"{SBQ_NAME}, checkpoints", [most], lambda: fisher(three, True).sbq(targets, most))
    offer(WITHOUT, [most], lambda: fisher(three).influence(targets))
    if plan.seed != Plan.seed:
        return rankings
    loss = mean_loss(models, x, y)
    offer("loss", [most], lambda: np.argsort(-loss, kind="stable"))
    offer(SBQ_NAME, [most], lambda: fisher(three).sbq(targets, most))
    offer("self-influence", [most], lambda: fisher(three).self_influence())
    offer("influence, last layer", [most], lambda: fisher(last).influence(targets))
    offer("SBQ cosine, last layer", [most], lambda: fisher(last).sbq(targets, most))
    offer("SBQ literal, last layer", [most], lambda: fisher(last).literal(targets, most))
    offer("RBF SBQ", [most], lambda: rbf_opponents(x, y, qx, qy, targets, most))
    offer("MMD prototypes", [most], lambda: mmd_prototypes(x, qx, targets, most))
    offer("influence, all layers", [most], lambda: fisher(every).influence(targets))
    offer(f"Cur{plan.cur}", [plan.cur], lambda: curated(rankings, loss, plan))
    fishers.clear()
    for name in (CLEAN, SBQ_NAME):
        queue(pool, name, rankings, plan, plan.sizes[1:])
    return rankings


def queue(
    pool: Retraining, name: str, rankings: dict[str, np.ndarray], plan: Plan, sizes: Sequence[int]
) -> None:
    """Trainings without the first k rows of each ranking, all splits before the next seed."""
    mine = {key: rows for key, rows in rankings.items() if key.rsplit("|", 1)[0] == name}
    for k in sizes:
        alone = f"{name}|-1" in mine
        for seed in plan.seeds(plan.controls if alone else plan.retrainings, 100):
            for key, rows in mine.items():
                split = int(key.rsplit("|", 1)[1])
                pool.submit(Job(name, split, seed, rows[:k]))


def mean_loss(models: list[PaperCNN], x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
    """Training loss of each digit, averaged over the networks."""
    with torch.no_grad():
        parts = [
            torch.stack(
                [torch.nn.functional.cross_entropy(m(a), b, reduction="none") for m in models]
            ).mean(0)
            for a, b in zip(x.split(4096), y.split(4096), strict=True)
        ]
    return torch.cat(parts).cpu().numpy()


def curated(rankings: dict[str, np.ndarray], loss: np.ndarray, plan: Plan) -> list[np.ndarray]:
    """A stand-in for the paper's hand-picked 50: of the chosen digits, those of highest loss.

    No person has judged the training digits, so the networks' own surprise has to serve.
    """
    out = []
    for split in range(plan.splits):
        rows = rankings[f"{CLEAN}|{split}"]
        out.append(rows[np.argsort(-loss[rows], kind="stable")][: plan.cur])
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, help="where the networks are kept (default: --out)")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--device")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=Plan.seed, help="which networks and splits")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--no-graphs", action="store_true")
    given = parser.parse_args()
    plan = FAST if given.fast else Plan()
    recipe = replace(plan.recipe, graphs=not given.no_graphs)
    recipe = replace(recipe, epochs=given.epochs) if given.epochs else recipe
    run(
        given.out,
        given.fast,
        Path(os.environ.get("EXEMPLA_DATA", "data")),
        given.device,
        workers=given.workers,
        minutes=given.minutes,
        work=given.work,
        plan=replace(plan, recipe=recipe, seed=given.seed),
    )


if __name__ == "__main__":
    main()
