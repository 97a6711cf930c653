"""Training-side attacks on MNIST 4 against 9: how few pixels in how few images flip a prediction?

Run:  EXEMPLA_DATA=folder python -m experiments.attack --out results/attack [--fast]

500 training images, logistic regression on pixels; and a network trained on the other eight
digits, frozen, with its top layer trained on the same 500 images (Koh and Liang's setting). Two
training images are moved within an ℓ∞ ball, the model is trained anew, and flipped predictions
of correctly judged test digits are counted: for one target, for sets of ten of one class, against
moves of the same size in random directions, and beside FGSM and PGD on the test digits themselves.
"""

from __future__ import annotations

import argparse
import os
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import torch
from joblib import Parallel, delayed
from sklearn.linear_model import LogisticRegression

import exempla
from experiments.attack_features import feature_problem
from experiments.mnist_report import markdown
from experiments.paper_cnn import Digits, load_mnist

matplotlib.use("Agg")
import matplotlib.pyplot as plt

POINTS = 2
ARMS = {
    "attack": {"steps": 2, "rounds": 6},
    "influence, one round": {"steps": 12, "rounds": 1},
    "distance, one round": {"steps": 12, "rounds": 1, "objective": "distance"},
}


@dataclass(frozen=True)
class Problem:
    """A model, its training images, and correctly judged test images in sets of one class."""

    name: str
    model: Any
    train: tuple[Any, Any]
    test: tuple[Any, Any]
    sets: list[np.ndarray]
    options: dict[str, Any]
    fit: Any = None

    def part(self, rows: np.ndarray) -> tuple[Any, Any]:
        return self.test[0][rows], self.test[1][rows]


def run(
    out: Path, fast: bool, data: Path, device: str | None = None, jobs: int | None = None
) -> Path:
    """Run both studies, then write attack.csv, attack.png, attack.svg and attack.md."""
    started = time.time()
    out.mkdir(parents=True, exist_ok=True)
    digits = load_mnist(data / "mnist")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    jobs = jobs or (1 if fast else os.cpu_count() or 1)
    budgets = (0.1, 0.4) if fast else (0.05, 0.1, 0.2, 0.3, 0.4)
    lines = known_lines(out)
    if not any(line["model"] == "pixels" for line in lines):
        lines += study(pixel_problem(digits, fast), budgets, jobs)
        print(f"[{time.time() - started:.0f} s] pixels done", flush=True)
        write(pd.DataFrame(lines), out)
    try:
        deep = Problem(*feature_problem(digits, fast, device))
        for budget in budgets[-1:] if fast else (0.2, 0.1, 0.05):
            if not any((x["model"], x["budget"]) == ("network", budget) for x in lines):
                lines += study(deep, (budget,), 1)
                print(f"[{time.time() - started:.0f} s] network at {budget} done", flush=True)
                write(pd.DataFrame(lines), out)
    except Exception:
        traceback.print_exc()
    return write(pd.DataFrame(lines), out)


def known_lines(out: Path) -> list[dict[str, Any]]:
    """What an earlier run that was stopped has left."""
    path = out / "attack_runs.csv"
    return pd.read_csv(path).to_dict("records") if path.exists() else []  # type: ignore[return-value]


def pixel_problem(digits: Digits, fast: bool) -> Problem:
    n, per_set, sets = (200, 4, 1) if fast else (500, 10, 4)
    X, y = fours_and_nines(digits.train_x, digits.train_y)
    T, t = fours_and_nines(digits.test_x, digits.test_y)
    rng = np.random.default_rng(0)
    chosen = rng.permutation(len(X))[:n]
    train = (X[chosen].reshape(n, -1), y[chosen])
    model = LogisticRegression(C=1.0, max_iter=3000).fit(*train)
    test = (T.reshape(len(T), -1), t)
    right = np.flatnonzero(model.predict(test[0]) == t)
    options = {"damping": 0.0}
    return Problem("pixels", model, train, test, draw_sets(rng, right, t, per_set, sets), options)


def fours_and_nines(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mine = np.isin(y, (4, 9))
    return x[mine] / 255.0, (y[mine] == 9).astype(np.int64)


def draw_sets(
    rng: np.random.Generator, right: np.ndarray, labels: np.ndarray, size: int, count: int
) -> list[np.ndarray]:
    """Sets of one class each, without overlap."""
    pools = [rng.permutation(right[labels[right] == c]) for c in (0, 1)]
    return [pools[i % 2][(i // 2) * size : (i // 2 + 1) * size] for i in range(count)]


def study(problem: Problem, budgets: tuple[float, ...], jobs: int) -> list[dict[str, Any]]:
    """Every attack on every target and set at every budget."""
    tasks = []
    for number, rows in enumerate(problem.sets):
        for budget in budgets:
            tasks.append(delayed(attack_set)(problem, number, budget))
            tasks += [delayed(attack_one)(problem, number, i, budget) for i in range(len(rows))]
    found: Any = Parallel(n_jobs=jobs)(tasks)
    return [line for part in found for line in part]


def attack_one(problem: Problem, number: int, i: int, budget: float) -> list[dict[str, Any]]:
    """Attack one target; look at it, and at the whole set it belongs to."""
    rows = problem.sets[number]
    target, lines = problem.part(rows[i : i + 1]), []
    for arm, options in ARMS.items():
        if arm.startswith("distance") and problem.fit is not None:
            continue  # a solve for every point and step: shown on pixels
        found = exempla.attack(
            problem.model,
            problem.train,
            target,
            k=POINTS,
            budget=budget,
            bounds=(0.0, 1.0),
            fit=problem.fit,
            **problem.options,
            **options,
        )
        flips = flipped(problem, found.apply(problem.train[0]), rows)
        lines.append(line(problem, number, budget, "one target", arm, float(flips[i])))
        if arm == "attack":
            chance = found.apply(problem.train[0])
            chance[found.indices] = as_kind(found.random_copy(i), chance)
            control = flipped(problem, chance, rows)
            lines.append(
                line(problem, number, budget, "one target", "random direction", float(control[i]))
            )
            lines.append(line(problem, number, budget, "set", "one by one", float(flips.mean())))
    for arm, steps in (("FGSM on the test digit", 1), ("PGD on the test digit", 20)):
        moved = exempla.attack(
            problem.model,
            problem.train,
            target,
            perturb="test",
            steps=steps,
            budget=budget,
            bounds=(0.0, 1.0),
            **problem.options,
        )
        assert moved.flipped is not None
        lines.append(line(problem, number, budget, "one target", arm, float(moved.flipped[0])))
    return lines


def attack_set(problem: Problem, number: int, budget: float) -> list[dict[str, Any]]:
    """Attack a whole set with the same two images."""
    rows = problem.sets[number]
    found = exempla.attack(
        problem.model,
        problem.train,
        problem.part(rows),
        k=POINTS,
        budget=budget,
        bounds=(0.0, 1.0),
        fit=problem.fit,
        **problem.options,
        **ARMS["attack"],
    )
    flips = flipped(problem, found.apply(problem.train[0]), rows)
    chance = found.apply(problem.train[0])
    chance[found.indices] = as_kind(found.random_copy(number), chance)
    control = flipped(problem, chance, rows)
    return [
        line(problem, number, budget, "set", "set attack", float(flips.mean())),
        line(problem, number, budget, "set", "random direction", float(control.mean())),
    ]


def as_kind(values: np.ndarray, like: Any) -> Any:
    return like.new_tensor(values) if hasattr(like, "new_tensor") else values


def flipped(problem: Problem, X: Any, rows: np.ndarray) -> np.ndarray:
    """Which of these test images the model trained on X gets wrong (all were right before)."""
    from exempla.tasks.retrain import refit

    model = refit(problem.model, X, problem.train[1], None, problem.fit, 0)
    images, labels = problem.part(rows)
    if hasattr(images, "detach"):
        with torch.no_grad():
            return (model(images).argmax(1) != labels).cpu().numpy()
    return model.predict(images) != labels


def line(
    problem: Problem, number: int, budget: float, target: str, arm: str, share: float
) -> dict[str, Any]:
    return {
        "model": problem.name,
        "set": number,
        "budget": budget,
        "target": target,
        "arm": arm,
        "flipped": share,
    }


def write(lines: pd.DataFrame, out: Path) -> Path:
    """Shares with 95% intervals (normal, over targets; over sets for set attacks)."""
    lines = lines.sort_values(["model", "budget"], ascending=[False, True], kind="stable")
    lines.to_csv(out / "attack_runs.csv", index=False)
    keys = ["model", "target", "arm", "budget"]
    # one-by-one attacks on a set are averaged within it first: the set is what is compared
    per_set = lines[lines.target == "set"].groupby([*keys, "set"], as_index=False).flipped.mean()
    cells = pd.concat([lines[lines.target != "set"], per_set])
    table = cells.groupby(keys, sort=False).flipped.agg(["mean", "sem", "count"]).reset_index()
    table["half_width"] = (1.96 * table.pop("sem")).fillna(0.0)
    table = table.rename(columns={"mean": "flipped"})
    table.to_csv(out / "attack.csv", index=False)
    plot(table, out)
    page = out / "attack.md"
    page.write_text(words(table))
    return page


def plot(table: pd.DataFrame, out: Path) -> None:
    """A panel per model and kind of target; an arm has one colour in all of them."""
    arms = list(dict.fromkeys(table.arm))
    colours = {arm: f"C{i}" for i, arm in enumerate(arms)}
    wanted = [(model, t) for model in dict.fromkeys(table.model) for t in ("one target", "set")]
    figure, axes = plt.subplots(1, len(wanted), figsize=(3.6 * len(wanted), 4.2), sharey=True)
    for axis, (model, target) in zip(axes, wanted, strict=True):
        part = table[(table.model == model) & (table.target == target)]
        for arm, points in part.groupby("arm", sort=False):
            axis.errorbar(
                points.budget,
                points.flipped,
                points.half_width,
                marker="o",
                capsize=3,
                color=colours[str(arm)],
            )
        axis.set_title(f"{model}: {target}")
        axis.set_xlabel("ℓ∞ budget (pixels from 0 to 1)")
        axis.set_ylim(-0.03, 1.03)
    axes[0].set_ylabel("share of targets flipped")
    keys = [plt.Line2D([], [], marker="o", color=colours[arm], label=arm) for arm in arms]
    figure.legend(handles=keys, loc="lower center", ncols=4, frameon=False)
    figure.tight_layout(rect=(0, 0.12, 1, 1))
    for ending in ("png", "svg"):
        figure.savefig(out / f"attack.{ending}", dpi=150)
    plt.close(figure)


def words(table: pd.DataFrame) -> str:
    def at(model: str, target: str, arm: str) -> str:
        part = table[(table.model == model) & (table.target == target) & (table.arm == arm)]
        return ", ".join(f"{r.flipped:.2f} at {r.budget:g}" for r in part.itertuples()) or "not run"

    return f"""# Attacks from the training side: MNIST 4 against 9

**The paper's claim.** Training-side attacks are ordinary adversarial attacks in the feature space
of the Fisher kernel, ℓ(z) = ‖z_test − z‖, and so work for sets of test predictions as well.

**What is true of it.** ‖z_test − z‖² holds k(z, z), which has nothing to do with the target;
without it the gradient steps are Koh and Liang's, with ∇ₓ on the training example's score (the
paper prints it on the test example's). Both are run: "influence" and "distance".

**What was found.** {POINTS} of the training images moved, model trained anew. "0.10 at 0.05" says
that the share 0.10 of the targets flips if no pixel (from 0 to 1) moves by more than 0.05.

- one target, pixels: {at("pixels", "one target", "attack")}; random directions of the same size:
  {at("pixels", "one target", "random direction")}.
- without training between rounds, −k(z, μ): {at("pixels", "one target", "influence, one round")};
  the paper's distance: {at("pixels", "one target", "distance, one round")}. The first order
  overshoots: a point moved far gains leverage and is then simply fitted.
- a set of one class at once: {at("pixels", "set", "set attack")}; attacking its members one by one
  with the same budget and looking at the whole set: {at("pixels", "set", "one by one")}.
- the test digit itself moved, in one step (FGSM):
  {at("pixels", "one target", "FGSM on the test digit")}; in several (PGD):
  {at("pixels", "one target", "PGD on the test digit")}.
- top layer of a frozen network: one target {at("network", "one target", "attack")} (random
  directions {at("network", "one target", "random direction")}); set
  {at("network", "set", "set attack")}; one by one {at("network", "set", "one by one")}.

{markdown(table)}

![flips against budget](attack.png)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--device")
    parser.add_argument("--jobs", type=int)
    given = parser.parse_args()
    data = Path(os.environ.get("EXEMPLA_DATA", "data"))
    run(given.out, given.fast, data, given.device, given.jobs)


if __name__ == "__main__":
    main()
