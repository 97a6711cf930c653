"""`exempla attack`: how many predictions flip if a few training rows are changed slightly?"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np

from exempla.cli.fitted import Fitted, reading
from exempla.cli.output import write_json
from exempla.cli.query import choose_query
from exempla.data import take_rows
from exempla.errors import ExemplaError
from exempla.oracles import is_trees
from exempla.report import About, Listed, write_listing
from exempla.report.words import percent
from exempla.tables.infer import FEATURES
from exempla.tasks.attack import attack, weak_points

STAGES = (("attacking", 4, 2),)
_TARGETS = 10
"""Test rows attacked together where the user names none."""
_SHOWN = 50
"""Rows on the page; the table has all of them."""


def run(options: Namespace) -> int:
    """Attack, retrain, and write the results."""
    with reading(options, 0.2, linear=True, differentiable=True) as (given, job):
        model, prepare = given.head()
        labels = is_trees(model)  # trees are piecewise constant: their rows get wrong labels
        _check(given, model, labels or given.dataset.is_images)
        positions, what = _target(given, options.ask)
        parts: Any = given.parts
        train = prepare(parts.X_train), parts.y_train
        target = prepare(take_rows(parts.X_test, positions)), parts.y_test[positions]
        job.say(f"Target: {what}.")
        shared = {"budget": options.budget, "seed": options.seed}
        how = "labels" if labels else "train"
        found: Any = attack(model, train, target, k=options.points, perturb=how, **shared)
        weak = found.weak_points() if labels else weak_points(model, train, target, **shared)
        check = found.verify(seeds=3)
    flipped, by_chance = check.mean("attacked"), check.mean("random direction")
    rows = parts.train[found.indices].tolist()
    count = f"{len(rows)} of {len(parts.train):,} training rows"
    if labels:
        done, change, budget = "relabelled", found.effect, None
        doing, random = f"Wrong labels for {count} flip", "random wrong labels"
    else:
        done, change, budget = "moved", found.after - found.before, found.budget
        doing = f"Moving {count} by at most {options.budget:g} flips"
        random = "random moves of the same size"
    answer = (
        f"{doing} {percent(flipped)} of these predictions after retraining ({random}: "
        f"{percent(by_chance)})."
    )
    weak["label"] = parts.y_train[weak["index"]]
    weak["index"] = parts.train[weak["index"]]
    # The weight of a row is the change of the target's log-likelihood, to first order.
    values = job.contract(
        rows, weights=change.tolist(), side="opponents",
        damping=float(found.damping), damping_rule=getattr(found, "damping_rule", "auto"),
        file=given.dataset.name, answer=answer, rows=rows, budget=budget,
        target=parts.test[positions].tolist(), expected=found.expected,
        flipped=flipped, flipped_by_chance=by_chance,
    )  # fmt: skip
    about = given.about(
        question=f"Which rows could be {done} to flip predictions?",
        answer=answer,
        notes=(f"Target: {what}.",),
    )
    with job.published() as stage:
        paths = {"result": write_json(stage, values), "table": stage / "explanation.csv"}
        weak.to_csv(paths["table"], index=False)
        paths["report"] = _write_page(stage / "report.html", given, weak, rows, about, done)
    job.say(f"{answer} Rows {done}: {', '.join(map(str, rows))}.")
    job.say_files(paths)
    return job.verdict(flipped, "of these predictions flip")


def _check(given: Fitted, model: Any, any_columns: bool) -> None:
    """Refuse data that cannot be moved by a small amount."""
    if given.regression:
        raise ExemplaError("attack flips predicted classes; this label is a number.")
    if any_columns:
        return
    fixed = [c.name for c in given.dataset.columns if c.kind in FEATURES and c.kind != "number"]
    if fixed:
        raise ExemplaError(
            f"attack needs numbers, and column {fixed[0]!r} has none; leave such columns out with "
            f"--kind {fixed[0]}=ignored."
        )
    numbers = sum(c.kind == "number" for c in given.dataset.columns)
    if getattr(model, "n_features_in_", numbers) != numbers:
        raise ExemplaError("attack needs columns without missing values; fill them in first.")


def _target(given: Fitted, ask: str | None) -> tuple[np.ndarray, str]:
    """Return positions among the test rows and a description of them."""
    parts = given.parts
    if ask is not None:
        positions = choose_query(given, ask, None).positions
        return positions, f"{len(positions)} test rows you named"
    if parts.X_test is None or parts.y_test is None:
        raise ExemplaError("There are no test rows to attack; give --test or --test-size.")
    chances = given.model.predict_proba(parts.X_test)
    predicted = np.asarray(given.model.classes_)[chances.argmax(1)]
    right = np.flatnonzero(predicted.astype(str) == parts.y_test.astype(str))
    if not len(right):
        raise ExemplaError("The model predicts no test row correctly: there is nothing to flip.")
    unsure = right[np.argsort(chances.max(1)[right], kind="stable")]
    label = predicted[unsure[0]]
    chosen = unsure[predicted[unsure] == label][:_TARGETS]
    return chosen, f"the {len(chosen)} least certain test rows correctly predicted as {label}"


def _write_page(
    path: Path, given: Fitted, weak: Any, changed: list[int], about: About, done: str
) -> Path:
    """Write report.html: the rows that are easiest to attack, and those that were changed."""
    shown, budget = weak.head(_SHOWN), given.options.budget
    how = "by moving this row alone within the budget"
    trust = [("Budget", f"{budget:g}", "how far each value may move")]
    if done == "relabelled":
        how, trust = "by giving this row alone a wrong label", []
    rows = [
        Listed(
            int(row), f"{label} · reach {reach:.2g}" + (f" · {done} here" if row in changed else "")
        )
        for row, label, reach in shown[["index", "label", "reach"]].itertuples(index=False)
    ]
    return write_listing(
        path,
        rows,
        view=given.view(shown["index"].to_numpy()),
        about=about,
        trust=trust,
        heading=f"The {len(rows)} rows that are easiest to attack",
        help="Protect or check these first. Reach: how far the mean log-likelihood of the target "
        f"can fall, to first order, {how}.",
        seed=given.options.seed,
    )
