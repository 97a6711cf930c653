"""Measure how fragile a model is: move a few training rows slightly, retrain, count the flips.

The target is a set of test rows that are predicted correctly: rows you name with --ask, or the ten
least certain rows of one class. The report lists the training rows that are easiest to attack and
that you should protect first. Columns must be numbers. Predictions of trees do not change under
small moves, so their training rows get wrong labels instead.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exempla.cli.options import (
    add_fail_above,
    add_file_arguments,
    add_output,
    command_line,
    stages,
    verdict,
)

if TYPE_CHECKING:
    from exempla.cli.fitted import Fitted

STAGES = stages(("attacking", 4, 2))

_TARGETS = 10
"""Test rows attacked together where the user names none."""
_SHOWN = 50
"""Rows on the page; the table has all of them."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the file, the attack, and the output."""
    add_file_arguments(parser)
    how = parser.add_argument_group("the attack")
    how.add_argument("--ask", metavar="ROWS", help="target rows, such as 3,17 (default: see above)")
    how.add_argument(
        "--points", metavar="N", type=int, default=2, help="training rows to move (default: 2)"
    )
    how.add_argument(
        "--budget",
        metavar="SIZE",
        type=float,
        default=0.5,
        help="how far each value may move: in standard deviations of a column, or in pixel values "
        "between 0 and 1 (default: 0.5)",
    )
    add_fail_above(how, "a larger share of the target predictions flips")
    add_output(parser)


def run(options: Namespace) -> int:
    """Attack, retrain, and write the results."""
    from exempla.cli.fitted import reading
    from exempla.cli.output import contract, published, say_files, write_json
    from exempla.data import take_rows
    from exempla.oracles.sklearn.unwrap import is_trees
    from exempla.report.words import percent
    from exempla.tables.models.image import NetworkClassifier
    from exempla.tasks.attack import attack, weak_points

    with reading(options, 0.2, linear=True, differentiable=True) as (given, console, folder):
        network = given.model if isinstance(given.model, NetworkClassifier) else None
        model, prepare = given.head(options.model is None)
        model, fit = (model, None) if network is None else (network.model_, network.recipe.fit)
        as_taken = (lambda X, y: (X, y)) if network is None else network.data
        labels = is_trees(model)  # trees are piecewise constant: their rows get wrong labels
        _check(given, model, labels or network is not None)
        positions, what = _target(given, options.ask)
        parts: Any = given.parts
        train = as_taken(prepare(parts.X_train), parts.y_train)
        target = as_taken(prepare(take_rows(parts.X_test, positions)), parts.y_test[positions])
        console.say(f"Target: {what}.")
        shared = {"budget": options.budget, "seed": options.seed}
        how = "labels" if labels else "train"
        found: Any = attack(model, train, target, k=options.points, perturb=how, fit=fit, **shared)
        weak = found.weak_points() if labels else weak_points(model, train, target, **shared)
        check = found.verify(fit=fit, seeds=3 if fit is None else 1)
    flipped, by_chance = check.mean("attacked"), check.mean("random direction")
    rows = parts.train[found.indices].tolist()
    if labels:
        answer = (
            f"Wrong labels for {len(rows)} of {len(parts.train):,} training rows flip "
            f"{percent(flipped)} of these predictions after retraining (random wrong labels: "
            f"{percent(by_chance)})."
        )
        change, budget = found.effect, None
    else:
        answer = (
            f"Moving {len(rows)} of {len(parts.train):,} training rows by at most "
            f"{options.budget:g} flips {percent(flipped)} of these predictions after retraining "
            f"(random moves of the same size: {percent(by_chance)})."
        )
        change, budget = found.after - found.before, found.budget
    weak["label"] = parts.y_train[weak["index"]]
    weak["index"] = parts.train[weak["index"]]
    # The weight of a row is the change of the target's log-likelihood, to first order.
    values = contract(
        options, rows, weights=change.tolist(), side="opponents",
        damping=float(found.damping), damping_rule=getattr(found, "damping_rule", "auto"),
        file=given.dataset.name, answer=answer, rows=rows, budget=budget,
        target=parts.test[positions].tolist(), expected=found.expected,
        flipped=flipped, flipped_by_chance=by_chance,
    )  # fmt: skip
    with published(folder, options) as stage:
        paths = {"result": write_json(stage, values), "table": stage / "explanation.csv"}
        weak.to_csv(paths["table"], index=False)
        paths["report"] = _write_page(stage, given, weak, rows, answer, what, options, labels)
    said = "Rows relabelled" if labels else "Rows moved"
    console.say(f"{answer} {said}: {', '.join(map(str, rows))}.")
    say_files(console, folder, paths)
    return verdict(console, options, flipped, "of these predictions flip")


def _check(given: Any, model: Any, any_columns: bool) -> None:
    """Refuse data that cannot be moved by a small amount."""
    from exempla.errors import ExemplaError
    from exempla.tables.infer import FEATURES

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


def _target(given: Any, ask: str | None) -> tuple[Any, str]:
    """Return positions among the test rows and a description of them."""
    import numpy as np

    from exempla.cli.query import choose_query
    from exempla.errors import ExemplaError

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
    stage: Path,
    given: Fitted,
    weak: Any,
    moved: list[int],
    answer: str,
    what: str,
    options: Namespace,
    labels: bool,
) -> Path:
    """Write report.html: the rows that are easiest to attack, and those that were changed."""
    from exempla.report import About, Listed, write_listing

    shown = weak.head(_SHOWN)
    done, how = "moved", "by moving this row alone within the budget"
    trust = [("Budget", f"{options.budget:g}", "how far each value may move")]
    if labels:
        done, how, trust = "relabelled", "by giving this row alone a wrong label", []
    rows = [
        Listed(
            int(row), f"{label} · reach {reach:.2g}" + (f" · {done} here" if row in moved else "")
        )
        for row, label, reach in shown[["index", "label", "reach"]].itertuples(index=False)
    ]
    return write_listing(
        stage / "report.html",
        rows,
        view=given.view(shown["index"].to_numpy()),
        about=About(
            question=f"Which rows could be {done} to flip predictions?",
            answer=answer,
            notes=(f"Target: {what}.",),
            command=command_line(options),
            **given.facts(),
        ),
        trust=trust,
        heading=f"The {len(rows)} rows that are easiest to attack",
        help="Protect or check these first. Reach: how far the mean log-likelihood of the target "
        f"can fall, to first order, {how}.",
        seed=options.seed,
    )
